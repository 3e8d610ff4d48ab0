"""What the adapter accepts, describes and runs."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
import sys
import threading
from typing import Any

import openai
import pydantic
import pytest
from autogen_agentchat.agents import AssistantAgent, BaseChatAgent
from autogen_agentchat.base import Response
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.messages import (
    HandoffMessage,
    MultiModalMessage,
    StructuredMessage,
    TextMessage,
    ThoughtEvent,
)
from autogen_agentchat.teams import DiGraphBuilder, GraphFlow, RoundRobinGroupChat, Swarm
from autogen_agentchat.tools import AgentTool, TeamTool
from autogen_core import SingleThreadedAgentRuntime
from autogen_core.memory import ListMemory, MemoryContent
from autogen_core.model_context import BufferedChatCompletionContext

from lightning_autogen import AutoGenAdapter, hooks
from lightning_autogen.copies import fresh
from lightning_core.adapter import RolloutContext
from lightning_core.errors import AgentError
from lightning_core.plugins import load
from lightning_core.rollout import Mode
from lightning_core.task import Task
from lightning_core.testing import Error
from lightning_core.worker.outputs import to_json

CONTEXT = RolloutContext(
    rollout_id="r",
    attempt_id="a1",
    mode=Mode.OBSERVE,
    base_url="http://127.0.0.1:9/v1",
    deadline=4e9,
)


async def run(agent: object, value: Any, adapter: AutoGenAdapter | None = None) -> Any:
    return await (adapter or AutoGenAdapter()).run(agent, Task(id="t", input=value), CONTEXT)


@pytest.fixture
def agents(server, agents_at):
    server.respond(None)  # The echo.
    return agents_at(server.base_url)


class Says(BaseChatAgent):
    """Gives the message that it was made with."""

    def __init__(self, message: Any, **held: Any) -> None:
        super().__init__("says", "Says one thing.")
        self.message = message
        self.held = held

    @property
    def produced_message_types(self) -> tuple[type, ...]:
        return (type(self.message),)

    async def on_messages(self, messages: Any, cancellation_token: Any) -> Response:
        self.heard = messages
        return Response(
            chat_message=self.message,
            inner_messages=[ThoughtEvent(content="hm", source="says")],
        )

    async def on_reset(self, cancellation_token: Any) -> None:
        pass


class Answer(pydantic.BaseModel):
    number: int


# Input and output ----------------------------------------------------------------------------------------------------


async def test_a_string_is_the_task_and_the_last_message_the_output(agents):
    assert await run(agents.agent("a", ""), "you?") == "you?"


async def test_a_list_becomes_messages_of_their_roles(agents, server):
    value = [{"role": "user", "content": "one"}, {"role": "teacher", "content": "two"}]
    team = RoundRobinGroupChat([agents.agent("a", "")], max_turns=1)
    for agent in (agents.agent("a", ""), team):
        assert await run(agent, value) == "two"
        messages = server.requests[-1].messages
        assert [(m["content"], m.get("name")) for m in messages[1:]] == [
            ("one", "user"),
            ("two", "teacher"),
        ]


@pytest.mark.parametrize("value", [None, 1, {"question": "q"}, [], ["text"], [{"role": "user"}]])
async def test_any_other_input_is_refused_with_the_way_out(agents, value):
    with pytest.raises(AgentError) as caught:
        await run(agents.agent("a", ""), value)
    for part in ("`t`", repr(str(value)[:10])[:-1], "AutoGenAdapter(input=...)"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("message", "output"),
    [
        (TextMessage(content="text", source="says"), "text"),
        (HandoffMessage(content="over to you", target="b", source="says"), "over to you"),
        (StructuredMessage[Answer](content=Answer(number=4), source="says"), {"number": 4}),
        (MultiModalMessage(content=["look", "there"], source="says"), "look\nthere"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_the_output_is_what_the_last_message_holds(message, output):
    assert to_json(await run(Says(message), "x")) == output


async def test_input_and_output_can_be_said(agents):
    adapter = AutoGenAdapter(
        input=lambda task: TextMessage(content=f"{task.id}!", source="user"),
        output=lambda result: [m.content for m in result.messages],
    )
    assert await run(agents.agent("a", ""), {"any": "thing"}, adapter) == ["t!", "t!"]


async def test_what_the_agent_raises_comes_through(agents, server):
    server.respond(lambda request: Error(400))
    with pytest.raises(openai.BadRequestError):
        await run(agents.agent("a", ""), "x")


# Copies --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["tooled", "wide", "selector"])
async def test_an_object_that_is_run_again_has_heard_nothing(agents_at, server, shape):
    agent = getattr(agents_at(server.base_url), shape)()
    bodies = []
    for _ in range(2):
        before = len(server.requests)
        await run(agent, "do it mark-a1")
        bodies.append(sorted(r.body for r in server.requests[before:]))
    assert bodies[0] == bodies[1]


async def test_a_copy_shares_the_model_client_and_functions_and_nothing_that_is_said(agents):
    def look(word: str) -> str:
        """Look."""
        return word

    memory = ListMemory()
    await memory.add(MemoryContent(content="known", mime_type="text/plain"))
    held = {"bare": agents.bare, "function": look, "words": ["one"], "method": self_made.method}
    agent = agents.agent(
        "a",
        "",
        tools=[look],
        memory=[memory],
        model_context=BufferedChatCompletionContext(buffer_size=3),
    )
    runtime = SingleThreadedAgentRuntime()
    said = Says(TextMessage(content="x", source="says"), **held)
    team = RoundRobinGroupChat(
        [agent, said], max_turns=1, termination_condition=MaxMessageTermination(9), runtime=runtime
    )
    copied = await fresh(team)
    first, second = copied._participants
    assert first is not agent
    assert first._model_client is agents.model
    assert first._workbench[0]._tools[0] is not agent._workbench[0]._tools[0]
    assert first._workbench[0]._tools[0]._func is look
    assert first._model_context is not agent._model_context
    assert first._memory[0].content == memory.content
    assert first._memory[0] is not memory
    assert copied._termination_condition is not team._termination_condition
    assert copied._runtime is runtime
    assert copied._team_id != team._team_id
    assert team._team_id not in repr(vars(copied))
    assert {k: second.held[k] is v for k, v in held.items()} == {
        "bare": True,
        "function": True,
        "words": False,
        "method": True,
    }


class SelfMade:
    def method(self) -> None:
        """Nothing."""


self_made = SelfMade()


async def test_a_method_of_the_agent_is_that_of_its_copy(agents):
    class Counts(AssistantAgent):
        def __init__(self, client: Any) -> None:
            super().__init__("counts", client, tools=[self.count])
            self.counted = 0

        def count(self) -> int:
            """Count."""
            self.counted += 1
            return self.counted

    agent = Counts(agents.model)
    copied = await fresh(agent)
    copied._workbench[0]._tools[0]._func()
    assert (agent.counted, copied.counted) == (0, 1)


@pytest.mark.parametrize(
    "held",
    [threading.Lock, lambda: sqlite3.connect(":memory:"), lambda: (i for i in ())],
    ids=["lock", "connection", "generator"],
)
async def test_an_agent_that_cannot_be_copied_is_named_with_what_it_holds(held):
    thing = held()
    agent = Says(TextMessage(content="x", source="says"), thing=thing)
    for given, name in ((agent, "says"), (RoundRobinGroupChat([agent], name="team"), "team")):
        with pytest.raises(AgentError) as caught:
            await run(given, "x")
        for part in (f"`{name}`", f"`{type(thing).__name__}`", "async def agent(task)"):
            assert part in str(caught.value)
    if isinstance(thing, sqlite3.Connection):
        thing.close()


async def test_a_team_that_is_running_is_refused_and_not_disturbed(agents, server):
    def team(*participants: Any) -> RoundRobinGroupChat:
        return RoundRobinGroupChat(list(participants), name="busy", max_turns=2)

    busy = team(agents.agent("a", ""))
    outer = RoundRobinGroupChat([busy], name="outer", max_turns=1)
    before = server.wait_for(1)
    running = asyncio.ensure_future(busy.run(task="mine"))
    await before
    for given in (busy, outer):
        with pytest.raises(AgentError, match="team `busy` is running already"):
            await run(given, "x")
    result = await running
    assert [m.content for m in result.messages] == ["mine"] * 3


async def test_a_cancelled_run_ends_the_team_with_it(agents, server):
    server.respond(lambda request: asyncio.sleep(3600))
    team = RoundRobinGroupChat([agents.agent("a", ""), agents.agent("b", "")], max_turns=50)
    asked = server.wait_for(1)
    running = asyncio.ensure_future(run(team, "x"))
    await asked
    running.cancel()
    async with asyncio.timeout(30):
        with pytest.raises(asyncio.CancelledError):
            await running
        await server.requests[0].disconnected
    assert len(server.requests) == 1
    assert asyncio.all_tasks() == {asyncio.current_task()}


# What it is made of --------------------------------------------------------------------------------------------------


def edges(graph: Any) -> set[str]:
    return {f"{e.source} {'?' if e.conditional else '-'}> {e.target}" for e in graph.edges}


def kinds(graph: Any) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for node in graph.nodes:
        found.setdefault(node.kind.value, set()).add(node.name)
    return found


def test_describe_names_an_agent_and_its_tools(agents):
    graph = AutoGenAdapter().describe(agents.tooled(handoffs=["user"]))
    assert graph.name == "solo"
    assert kinds(graph) == {"agent": {"solo"}, "tool": {"look_up", "add"}}
    assert edges(graph) == {
        "__start__ -> solo", "solo ?> look_up", "solo ?> add", "solo ?> __end__", "solo -> __end__",
    }  # fmt: skip


def test_describe_gives_the_order_of_each_kind_of_team(agents):
    a, b, c = (
        agents.agent("a", ""),
        agents.agent("b", "", handoffs=["c", "x"]),
        agents.agent("c", ""),
    )
    describe = AutoGenAdapter().describe
    around = {"__start__ -> team", "team -> __end__"}
    hands = {"b ?> __end__"}
    assert edges(describe(RoundRobinGroupChat([a, b, c], name="team"))) == around | hands | {
        "b ?> c", "team -> a", "a -> b", "b -> c", "c -> a", "a ?> team", "b ?> team", "c ?> team",
    }  # fmt: skip
    assert edges(describe(Swarm([a, b, c], name="team"))) == around | hands | {
        "b ?> c", "team -> a", "a ?> team", "b ?> team", "c ?> team",
    }  # fmt: skip
    chosen = describe(agents.selector())
    assert edges(chosen) == {
        "__start__ -> chosen", "chosen -> __end__",
        "chosen ?> one", "chosen ?> two", "one -> chosen", "two -> chosen",
    }  # fmt: skip
    builder = DiGraphBuilder()
    for agent in (a, b, c):
        builder.add_node(agent)
    builder.add_edge(a, b, condition="go").add_edge(a, c, condition=lambda message: True)
    flow = GraphFlow([a, b, c], builder.build(), name="team")
    assert edges(describe(flow)) == around | hands | {
        "team -> a", "a ?> b", "a ?> c", "b -> team", "b ?> c", "c -> team",
    }  # fmt: skip


def test_describe_looks_into_teams_within_and_agents_as_tools(agents):
    graph = AutoGenAdapter().describe(agents.wide())
    assert kinds(graph) == {
        "agent": {
            "top", "writer", "society", "inner", "x", "y", "filtered", "behind", "swarm", "p", "q", "chief",
            "helper", "panel", "judge",
        },
        "tool": {"look_up", "add", "helper", "ask_panel"},
    }  # fmt: skip
    assert {
        "society -> inner", "inner -> x", "x -> y", "y -> x", "inner -> society",
        "filtered -> behind", "behind -> filtered", "swarm -> p", "p ?> q", "chief ?> helper",
        "chief ?> ask_panel", "ask_panel -> panel", "panel -> judge", "panel -> ask_panel",
    } <= edges(graph)  # fmt: skip
    assert "helper -> helper" not in edges(graph)
    assert graph == type(graph).from_json(graph.to_json())


def test_what_is_no_agent_is_refused():
    adapter = AutoGenAdapter()
    assert adapter.accepts(AssistantAgent) is False
    with pytest.raises(AgentError, match="expected an AgentChat agent or team but got `dict`"):
        adapter.describe({})


# What it rests on ----------------------------------------------------------------------------------------------------


def test_the_private_names_are_where_the_hooks_look(agents):
    """Fails on a release that moves one of them; nothing would be labelled there."""
    takes = {
        "run": "self task cancellation_token output_task_messages",
        "run_stream": "self task cancellation_token output_task_messages",
        "on_messages_stream": "self messages cancellation_token",
        "_execute_tool_call": "tool_call workbench handoff_tools agent_name cancellation_token stream",
        "trace_invoke_agent_span": "agent_name tracer parent agent_id agent_description",
        "populate_context": "ctx",
        "run_json": "self args cancellation_token call_id",
    }
    for module, owner, name, _ in hooks.PLACES:
        place = sys.modules[module]
        found = getattr(place if owner is None else getattr(place, owner), name)
        assert [*inspect.signature(found).parameters] == takes[name].split(), f"{module}.{name}"
    team = vars(RoundRobinGroupChat([agents.agent("a", "", handoffs=["b"])]))
    for name in (
        "_team_id", "_runtime", "_embedded_runtime", "_output_message_queue", "_initialized",
        "_is_running", "_participants",
    ):  # fmt: skip
        assert name in team
    assert {"_workbench", "_handoffs"} <= vars(team["_participants"][0]).keys()
    assert "_agent" in vars(AgentTool(agents.agent("a", "")))
    assert "_team" in vars(TeamTool(RoundRobinGroupChat([Says(None)]), name="t", description="d"))


def test_it_is_found_as_a_plugin():
    plugins = load()
    assert not plugins.broken
    assert isinstance(plugins.adapters()["autogen"], AutoGenAdapter)
    (info,) = [i for i in plugins.found if i.name == "autogen"]
    assert info.distribution == "lightning-autogen"
    assert set(info.requires) == {
        "autogen-agentchat<0.8,>=0.7",
        "autogen-core<0.8,>=0.7",
        "autogen-ext[openai]<0.8,>=0.7",
    }
