"""What `create_agent` has beside models and tools: middleware that speaks, structured output, ways to stream.

The releases at both ends of the supported range are held to it; what the older ones lack is skipped there.
"""

from __future__ import annotations

import inspect
import json
from typing import Any

import pydantic
import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    LLMToolEmulator,
    LLMToolSelectorMiddleware,
    ModelFallbackMiddleware,
    SummarizationMiddleware,
)
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from lightning_core.adapter import RolloutContext
from lightning_core.instrument import attempt
from lightning_core.rollout import Mode
from lightning_core.task import Task
from lightning_core.testing import Error, Text, ToolCall, ToolCalls
from lightning_core.worker.outputs import to_json
from lightning_langgraph import LangGraphAdapter


def at(node: str) -> tuple[str, str, str]:
    """The labels and the spans of a call in a node of the agent."""
    return "researcher", node, f"agent:researcher/node:{node}"


MODEL, TOOLS = at("model"), at("tools")
TURNS = [MODEL, MODEL]
MODES = ("values", "updates", "checkpoints", "tasks", "debug", "messages", "custom")
QUESTION = {"messages": [("user", "one"), ("assistant", "two"), ("user", "three")]}


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


class City(pydantic.BaseModel):
    """A city."""

    name: str
    people: int


@pytest.fixture
def model(stage):
    def make(**options: Any) -> ChatOpenAI:
        # The address is where nothing listens: a call that is not rerouted fails.
        return ChatOpenAI(
            model="scripted", api_key="k", base_url="http://127.0.0.1:9/v1", max_retries=0,
            **stage.clients, **options,
        )  # fmt: skip

    return make


@pytest.fixture
def seen(stage):
    """Run something in an attempt; the places of its calls."""

    def call(work: Any, name: str = "a1") -> list[Any]:
        scope = stage.scope(name)
        with attempt(scope):
            work()
        return stage.places(scope)

    return call


class Speaks(AgentMiddleware):
    """Asks a model of its own in every hook."""

    def __init__(self, model: ChatOpenAI) -> None:
        self.model = model

    def before_agent(self, state: Any, runtime: Any) -> None:
        self.model.invoke("before the agent")

    def before_model(self, state: Any, runtime: Any) -> None:
        self.model.invoke("before the model")

    def after_model(self, state: Any, runtime: Any) -> None:
        self.model.invoke("after the model")

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        self.model.invoke("around the model")
        return handler(request)

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        self.model.invoke("around the tool")
        return handler(request)


class SpeaksInALoop(AgentMiddleware):
    """The same in coroutines."""

    def __init__(self, model: ChatOpenAI) -> None:
        self.model = model

    async def abefore_agent(self, state: Any, runtime: Any) -> None:
        await self.model.ainvoke("before the agent")

    async def abefore_model(self, state: Any, runtime: Any) -> None:
        await self.model.ainvoke("before the model")

    async def aafter_model(self, state: Any, runtime: Any) -> None:
        await self.model.ainvoke("after the model")

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        await self.model.ainvoke("around the model")
        return await handler(request)

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        await self.model.ainvoke("around the tool")
        return await handler(request)


def add_once(request: Any) -> Any:
    """The model's part: one tool call, then the end; to middleware, a word."""
    if request.json.get("tools") and request.messages[-1]["role"] == "user":
        return ToolCalls((ToolCall("add", {"a": 1, "b": 2}, id="c1"),))
    return Text("done")


def around(name: str) -> list[Any]:
    """Where the calls of an agent with `Speaks` are made that uses a tool once."""
    turn = [at(f"{name}.before_model"), MODEL, MODEL, at(f"{name}.after_model")]
    return [at(f"{name}.before_agent"), *turn, TOOLS, *turn]


def test_what_middleware_says_has_the_node_of_its_hook(stage, model, seen):
    stage.server.respond(add_once)
    agent = create_agent(model(), tools=[add], name="researcher", middleware=[Speaks(model())])
    assert seen(lambda: agent.invoke(QUESTION)) == around("Speaks")
    assert seen(lambda: list(agent.stream(QUESTION)), "a2") == around("Speaks")


async def test_what_middleware_says_in_a_loop_has_the_node_of_its_hook(stage, model):
    stage.server.respond(add_once)
    speaks = SpeaksInALoop(model())
    agent = create_agent(model(), tools=[add], name="researcher", middleware=[speaks])
    scope = stage.scope()
    with attempt(scope):
        await agent.ainvoke(QUESTION)
    assert stage.places(scope) == around("SpeaksInALoop")


def test_the_middleware_of_langchain_is_labelled(stage, model, seen):
    def answer(request: Any) -> Any:
        if "response_format" in request.json:
            return Text(json.dumps({"tools": ["add"]}))
        if request.model == "broken":
            return Error(400, {"error": {"message": "no"}})
        return add_once(request)

    stage.server.respond(answer)
    agent = create_agent(
        model().model_copy(update={"model_name": "broken"}),
        tools=[add],
        name="researcher",
        middleware=[
            LLMToolSelectorMiddleware(model=model(), max_tools=1),
            ModelFallbackMiddleware(model()),
            LLMToolEmulator(tools=["add"], model=model()),
        ],
    )
    turn = [MODEL] * 3  # It chooses tools, fails, and is asked elsewhere.
    assert seen(lambda: agent.invoke(QUESTION)) == [*turn, TOOLS, *turn]


def test_a_summary_is_labelled_with_its_middleware(model, seen):
    if "trigger" not in inspect.signature(SummarizationMiddleware).parameters:
        pytest.skip("this release of langchain says by other means when to sum up")
    sums_up = SummarizationMiddleware(model(), trigger=("messages", 3), keep=("messages", 1))
    agent = create_agent(model(), tools=[add], name="researcher", middleware=[sums_up])
    found = seen(lambda: agent.invoke(QUESTION))
    assert found == [at("SummarizationMiddleware.before_model"), MODEL]


def structured(strategy: type) -> Any:
    """The model's part in structured output: wrong once where the agent asks again, then right."""

    def answer(request: Any) -> Any:
        said = {"name": "Bern", "people": 134_000}
        if strategy is ProviderStrategy:
            assert request.json["response_format"]["json_schema"]["name"] == "City"
            return Text(json.dumps(said))
        wrong = request.messages[-1]["role"] == "user"
        return ToolCalls((ToolCall("City", {"name": "Bern"} if wrong else said, id="c1"),))

    return answer


@pytest.mark.parametrize(("strategy", "count"), [(ToolStrategy, 2), (ProviderStrategy, 1)])
async def test_structured_output_is_labelled_and_comes_out_as_json(stage, model, strategy, count):
    stage.server.respond(structured(strategy))
    agent = create_agent(model(), tools=[], name="researcher", response_format=strategy(City))
    context = RolloutContext(
        rollout_id="r", attempt_id="a1", mode=Mode.OBSERVE, base_url="http://127.0.0.1:9/v1", deadline=0
    )  # fmt: skip
    scope = stage.scope()
    with attempt(scope):
        output = await LangGraphAdapter().run(agent, Task(id="t", input="Bern?"), context)
    assert stage.places(scope) == [MODEL] * count
    assert to_json(output)["structured_response"] == {"name": "Bern", "people": 134_000}


@pytest.mark.parametrize("mode", [*MODES, list(MODES)], ids=str)
def test_every_way_to_stream_is_labelled(stage, model, seen, mode):
    stage.server.respond(add_once)
    agent = create_agent(model(), tools=[add], name="researcher")
    assert seen(lambda: list(agent.stream(QUESTION, stream_mode=mode))) == TURNS
    if "version" not in inspect.signature(agent.stream).parameters:
        pytest.skip("this release of langgraph has one way to put what it streams")
    assert seen(lambda: list(agent.stream(QUESTION, stream_mode=mode, version="v2")), "a2") == TURNS


@pytest.mark.parametrize("mode", [*MODES, list(MODES)], ids=str)
async def test_every_way_to_stream_in_a_loop_is_labelled(stage, model, mode):
    stage.server.respond(add_once)
    agent = create_agent(model(), tools=[add], name="researcher")
    scope = stage.scope()
    with attempt(scope):
        async for _ in agent.astream(QUESTION, stream_mode=mode, subgraphs=True):
            pass
    assert stage.places(scope) == TURNS


@pytest.mark.filterwarnings("ignore:The v3 streaming protocol")
async def test_a_stream_of_events_is_labelled(stage, model, seen):
    stage.server.respond(add_once)
    agent = create_agent(model(), tools=[add], name="researcher")
    if not hasattr(agent, "stream_events"):
        pytest.skip("this release of langgraph has no `stream_events`")
    assert seen(lambda: list(agent.stream_events(QUESTION, version="v3"))) == TURNS
    scope = stage.scope("a2")
    with attempt(scope):
        async for _ in await agent.astream_events(QUESTION, version="v3"):
            pass
    assert stage.places(scope) == TURNS


def test_a_stream_that_is_read_in_part_leaves_no_label_behind(stage, model, seen):
    stage.server.respond(add_once)
    agent = create_agent(model(), tools=[add], name="researcher")

    def work() -> None:
        stream = agent.stream(QUESTION, stream_mode="messages")
        next(stream)
        stream.close()
        model().invoke("after it")

    assert seen(work)[-1] == (None, None, "")
