"""What the adapter accepts, describes and runs."""

from __future__ import annotations

import dataclasses
import json
import operator
import time
from typing import Annotated, Any, NotRequired, TypedDict

import pydantic
import pytest
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph

from lightning_core.adapter import GraphEdge, GraphNode, RolloutContext
from lightning_core.errors import AgentError
from lightning_core.plugins import load
from lightning_core.rollout import Mode
from lightning_core.task import Task
from lightning_langgraph import LangGraphAdapter


def context(attempt: str = "a1") -> RolloutContext:
    return RolloutContext(
        rollout_id="r",
        attempt_id=attempt,
        mode=Mode.OBSERVE,
        base_url="http://127.0.0.1:9/v1",
        deadline=time.time() + 60,
    )


async def run(agent: object, value: Any, adapter: LangGraphAdapter | None = None) -> Any:
    adapter = adapter or LangGraphAdapter()
    return await adapter.run(agent, Task(id="t", input=value), context())


def sees_input(schema: type, **options: Any) -> Any:
    """A graph that puts what it was given into `seen`."""

    def look(state: Any) -> dict[str, Any]:
        return {"seen": repr(state)}

    graph = StateGraph(schema, **options).add_node("look", look)
    return graph.add_edge(START, "look").compile()


class OneString(TypedDict):
    question: Annotated[str, "what to answer"]
    seen: NotRequired[str]
    count: NotRequired[int]


class TwoStrings(TypedDict):
    question: str
    seen: str


class Given(TypedDict):
    question: str


@dataclasses.dataclass
class AsDataclass:
    question: str
    seen: str = ""


class AsModel(pydantic.BaseModel):
    question: str
    seen: str | None = None


def hello(state: Any) -> dict[str, Any]:
    return {"messages": [AIMessage("hi", id="1")]}


MESSAGES = StateGraph(MessagesState).add_node("hello", hello).add_edge(START, "hello").compile()


async def test_a_string_becomes_a_human_message():
    assert await run(MESSAGES, "you?") == {
        "messages": [
            {"role": "user", "content": "you?"},
            {"role": "assistant", "content": "hi"},
        ]
    }


async def test_a_list_becomes_the_messages():
    result = await run(MESSAGES, [{"role": "system", "content": "s"}, ["user", "u"]])
    assert [m["role"] for m in result["messages"]] == ["system", "user", "assistant"]


@pytest.mark.parametrize("schema", [OneString, AsDataclass, AsModel])
async def test_a_string_fills_the_only_string_field_that_is_required(schema):
    result = await run(sees_input(schema), "why?")
    assert "'question': 'why?'" in result["seen"] or "question='why?'" in result["seen"]


async def test_the_input_schema_counts_not_the_state():
    result = await run(sees_input(TwoStrings, input_schema=Given), "why?")
    assert result["question"] == "why?"


async def test_a_dict_is_given_as_it_is():
    result = await run(sees_input(TwoStrings), {"question": "q", "seen": "s"})
    assert result["question"] == "q"


async def test_a_string_with_no_place_is_refused_with_the_way_out():
    with pytest.raises(AgentError) as caught:
        await run(sees_input(TwoStrings), "why?")
    text = str(caught.value)
    for part in ("`t`", "'why?'", "`question`, `seen`", "LangGraphAdapter(input=...)"):
        assert part in text


async def test_any_other_runnable_gets_the_input_as_it_is():
    assert await run(RunnableLambda(lambda value: [value, 1]), "x") == ["x", 1]
    chain = ChatPromptTemplate.from_messages([("user", "{a}")]) | FakeListChatModel(
        responses=["said"]
    )
    assert await run(chain, {"a": "x"}) == {"role": "assistant", "content": "said"}


async def test_messages_become_dicts_wherever_they_are():
    call = {"name": "f", "args": {"x": 1}, "id": "c1", "type": "tool_call"}
    value = {
        "deep": [({"m": HumanMessage("h")},)],
        "call": AIMessage("", tool_calls=[call]),
        "tool": ToolMessage("r", tool_call_id="c1"),
        "other": 1.5,
    }
    result = await run(RunnableLambda(lambda _: value), "x")
    assert result["deep"] == [[{"m": {"role": "user", "content": "h"}}]]
    assert result["call"]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"x": 1}'}
    assert result["tool"] == {"role": "tool", "tool_call_id": "c1", "content": "r"}
    assert result["other"] == 1.5
    json.dumps(result)


async def test_a_message_that_openai_does_not_know_keeps_its_own_form_and_the_others_theirs():
    said = [HumanMessage("hi"), RemoveMessage(id="x"), AIMessage("ok")]
    first, odd, last = await run(RunnableLambda(lambda _: said), "x")
    assert (first["role"], odd["type"], last["role"]) == ("user", "remove", "assistant")


async def test_input_and_output_can_be_said():
    adapter = LangGraphAdapter(
        input=lambda task: {"question": task.id, "seen": task.input},
        output=lambda state: state["question"],
    )
    assert await run(sees_input(TwoStrings), "x", adapter) == "t"


async def test_attempts_share_no_checkpoint():
    class Said(TypedDict):
        said: Annotated[list[str], operator.add]

    graph = StateGraph(Said).add_node("add", lambda s: {"said": ["a"]}).add_edge(START, "add")
    compiled = graph.compile(checkpointer=InMemorySaver())
    adapter, job = LangGraphAdapter(), Task(id="t", input={"said": []})
    results = [await adapter.run(compiled, job, context(name)) for name in ("a1", "a2", "a1")]
    assert [len(r["said"]) for r in results] == [1, 1, 2]


async def test_what_the_agent_raises_comes_through():
    def fails(value: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await run(RunnableLambda(fails), "x")


def test_a_builder_that_was_not_compiled_is_refused_with_the_way_out():
    adapter = LangGraphAdapter()
    assert adapter.accepts(StateGraph(OneString)) is False
    with pytest.raises(AgentError, match=r"graph\.compile\(\)"):
        adapter.describe(StateGraph(OneString))


def test_describe_gives_nodes_edges_and_subgraphs():
    def node(state: Any) -> dict[str, Any]:
        return {}

    inner = StateGraph(OneString)
    inner.add_node("deep", node)
    inner.add_edge(START, "deep")
    graph = StateGraph(OneString)
    graph.add_node("write", node)
    graph.add_node("check", inner.compile(name="checker"))
    graph.add_edge(START, "write")
    graph.add_edge("write", "check")
    graph.add_conditional_edges("check", lambda s: "write", {"again": "write", "end": END})
    described = LangGraphAdapter().describe(graph.compile(name="team"))
    assert described.name == "team"
    assert set(described.nodes) == {
        GraphNode(name="team", kind="agent"),
        GraphNode(name="write"),
        GraphNode(name="check"),
        GraphNode(name="checker", kind="agent"),
        GraphNode(name="deep"),
    }
    assert set(described.edges) == {
        GraphEdge(source="__start__", target="write"),
        GraphEdge(source="write", target="check"),
        GraphEdge(source="check", target="write", conditional=True),
        GraphEdge(source="check", target="__end__", conditional=True),
        GraphEdge(source="check", target="deep"),
        GraphEdge(source="deep", target="check"),
    }


def test_describe_names_agents_and_their_tools():
    @tool
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    agent = create_agent(FakeListChatModel(responses=["x"]), tools=[add], name="helper")
    for given in (agent, agent.with_config(tags=["t"]), agent | RunnableLambda(str)):
        described = LangGraphAdapter().describe(given)
        assert GraphNode(name="helper", kind="agent") in described.nodes
        assert GraphNode(name="add", kind="tool") in described.nodes
        assert GraphEdge(source="tools", target="add", conditional=True) in described.edges


def test_it_is_found_as_a_plugin():
    plugins = load()
    assert not plugins.broken
    assert isinstance(plugins.adapters()["langgraph"], LangGraphAdapter)
    (info,) = [i for i in plugins.found if i.name == "langgraph"]
    assert info.distribution == "lightning-langgraph"
    assert set(info.requires) == {"langchain-core<2,>=1", "langgraph<2,>=1"}
