"""Each model call carries the rollout, agent, team and span that made it, whatever way the agent was run.

The scripted server stands in the gateway's place: it sees what the gateway would, the headers. Each request's first
message says who makes it, and each holds its attempt's mark, so nothing else needs to be compared.
"""

from __future__ import annotations

import asyncio
import gc
import json
from contextlib import suppress
from typing import Any

import pytest
from autogen_agentchat.agents import BaseChatAgent
from autogen_agentchat.base import Response, TaskResult
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import (
    DiGraphBuilder,
    GraphFlow,
    MagenticOneGroupChat,
    RoundRobinGroupChat,
    SelectorGroupChat,
    Swarm,
)
from autogen_core import CancellationToken, SingleThreadedAgentRuntime
from autogen_core.tools import FunctionTool

from lightning_autogen import AutoGenAdapter, labels
from lightning_core.adapter import RolloutContext
from lightning_core.instrument import attempt, span
from lightning_core.rollout import Mode
from lightning_core.task import Task
from lightning_core.testing import Error, Text, ToolCall, ToolCalls

SHAPES = {"tooled": 4, "wide": 15, "selector": 4}
"""How many calls one run of each makes."""


async def _run(agent: Any, task: str) -> None:
    await agent.run(task=task)


async def _stream(agent: Any, task: str) -> None:
    items = [item async for item in agent.run_stream(task=task)]
    assert isinstance(items[-1], TaskResult)


WAYS = {"run": _run, "run_stream": _stream}


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "model-stream"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", SHAPES)
async def test_every_call_is_labelled(stage, shape, way, streamed):
    scope = stage.scope()
    agent = getattr(stage.agents, shape)(model_client_stream=streamed)
    with attempt(scope):
        await WAYS[way](agent, stage.task())
    assert stage.wrong(scope, SHAPES[shape]) == []


@pytest.mark.slow
async def test_of_a_thousand_calls_in_concurrent_attempts_none_is_wrong(stage):
    """Eight attempts at once, each with agents of its own in a loop, in a thread with its own loop, and as copies of one."""
    wrong: dict[str, list[str]] = {}
    calls = 0
    shared = {name: getattr(stage.agents, name)() for name in SHAPES}

    async def own(number: int, shape: str, way: str, streamed: bool) -> None:
        agent = getattr(stage.agents, shape)(model_client_stream=streamed)
        await WAYS[way](agent, stage.task(f"a{number}"))

    async def in_thread(number: int, shape: str, way: str, streamed: bool) -> None:
        async def work() -> None:
            agents = stage.make(stage.agents.base_url)
            agent = getattr(agents, shape)(model_client_stream=streamed)
            await WAYS[way](agent, stage.task(f"a{number}"))
            await agents.close()

        await asyncio.to_thread(asyncio.run, work())

    async def copied(number: int, shape: str, way: str, streamed: bool) -> None:
        task = Task(id="t", input=stage.task(f"a{number}"))
        await AutoGenAdapter().run(shared[shape], task, _context(f"a{number}"))

    number = 0
    for work in (own, in_thread, copied):
        for shape, count in SHAPES.items():
            for way in WAYS if work is own else ("run",):
                for streamed in (False, True) if work is own else (False,):
                    scopes = []

                    async def one(scope: Any, number: int, args: Any, work: Any = work) -> None:
                        with attempt(scope):
                            await work(number, *args)

                    tasks = []
                    for _ in range(8):
                        number += 1
                        scopes.append(stage.scope(f"a{number}"))
                        tasks.append(one(scopes[-1], number, (shape, way, streamed)))
                    await asyncio.gather(*tasks)
                    for scope in scopes:
                        if faults := stage.wrong(scope, count):
                            wrong[f"{work.__name__} {shape} {way} {streamed}"] = faults
                        calls += len(stage.calls(scope.attempt))
    assert wrong == {}
    assert calls >= 1_000


async def test_a_runtime_that_was_started_earlier_is_labelled(stage):
    """Its tasks descend from `start`, whose context is that of no attempt, or of another one."""
    runtimes = [SingleThreadedAgentRuntime()]
    runtimes[0].start()
    with attempt(stage.scope("other")), span("agent", "another"):
        runtimes.append(SingleThreadedAgentRuntime())
        runtimes[1].start()

    def team(runtime: Any) -> RoundRobinGroupChat:
        inner = RoundRobinGroupChat(
            [stage.agents.agent("deep", "agent:shared/agent:within/", team="within")],
            name="within",
            max_turns=1,
            runtime=runtime,
        )
        custom = Custom("custom", stage.agents.bare, "agent:shared/", "shared")
        writer = stage.agents.tooled("writer", "agent:shared/", team="shared")
        team = [writer, inner, custom]
        return RoundRobinGroupChat(team, name="shared", max_turns=3, runtime=runtime)

    async def work(scope: Any, runtime: Any) -> None:
        with attempt(scope):
            await team(runtime).run(task=stage.task(scope.attempt))
            await team(runtime).run(task=stage.task(scope.attempt))

    scopes = [stage.scope(f"a{n}") for n in range(6)]
    await asyncio.gather(*(work(s, r) for s, r in zip(scopes, runtimes * 3, strict=True)))
    for runtime in runtimes:
        await runtime.stop_when_idle()
    assert [stage.wrong(scope, 12) for scope in scopes] == [[]] * 6
    assert labels._runs == {}


async def test_a_selector_that_calls_the_model_on_an_old_runtime_keeps_its_own_span(stage):
    runtime = SingleThreadedAgentRuntime()
    runtime.start()

    async def select(messages: Any) -> str:
        with span("tool", "mine"):
            await ask(stage, "agent=chosen span=agent:chosen/tool:mine team=chosen")
        return "one"

    agents = [stage.agents.agent(name, "agent:chosen/", team="chosen") for name in ("one", "two")]
    team = SelectorGroupChat(
        agents,
        stage.agents.model,
        name="chosen",
        selector_func=select,
        max_turns=1,
        runtime=runtime,
    )
    scope = stage.scope()
    with attempt(scope):
        await team.run(task=stage.task())
    await runtime.stop_when_idle()
    assert stage.wrong(scope, 2) == []


class Custom(BaseChatAgent):
    """An agent of a user's own, with a client of its own."""

    def __init__(self, name: str, client: Any, path: str = "", team: str = "") -> None:
        super().__init__(name, "Says what it has to.")
        self.client = client
        self.said = f"agent={name} span={path}agent:{name}" + (f" team={team}" if team else "")

    @property
    def produced_message_types(self) -> tuple[type[TextMessage]]:
        return (TextMessage,)

    async def on_messages(self, messages: Any, cancellation_token: Any) -> Response:
        content = f"{self.said} {' '.join(m.content for m in messages)}"
        reply = await self.client.chat.completions.create(
            model="scripted", messages=[{"role": "system", "content": content}]
        )
        said = reply.choices[0].message.content
        return Response(chat_message=TextMessage(source=self.name, content=said))

    async def on_reset(self, cancellation_token: Any) -> None:
        pass


async def ask(stage: Any, text: str, name: str = "a1") -> None:
    """A model call of nobody in particular."""
    content = f"{text} mark-{name}"
    await stage.agents.bare.chat.completions.create(
        model="scripted", messages=[{"role": "system", "content": content}]
    )


@pytest.mark.parametrize("way", WAYS)
async def test_an_agent_of_ones_own_is_labelled_alone_and_in_a_team(stage, way):
    alone = Custom("alone", stage.agents.bare)
    member = Custom("member", stage.agents.bare, "agent:team/", "team")
    scope = stage.scope()
    with attempt(scope):
        await WAYS[way](alone, stage.task())
        await WAYS[way](RoundRobinGroupChat([member], name="team", max_turns=1), stage.task())
    assert stage.wrong(scope, 2) == []


async def test_messages_that_are_given_to_an_agent_directly_are_labelled(stage):
    agent = stage.agents.tooled()
    message = TextMessage(source="user", content=stage.task())
    scope = stage.scope()
    with attempt(scope):
        await agent.on_messages([message], CancellationToken())
    assert stage.wrong(scope, 4) == []


async def test_parallel_agents_of_a_graph_and_an_orchestrator_are_labelled(stage):
    names = ("first", "left", "right", "last")
    first, left, right, last = (
        stage.agents.agent(name, "agent:flow/", team="flow") for name in names
    )
    builder = DiGraphBuilder()
    for node in (first, left, right, last):
        builder.add_node(node)
    builder.add_edge(first, left).add_edge(first, right)
    builder.add_edge(left, last).add_edge(right, last)
    flow = GraphFlow([first, left, right, last], builder.build(), name="flow")
    boss = MagenticOneGroupChat(
        [stage.agents.agent("worker", "agent:boss/", team="boss")],
        stage.agents.model,
        name="boss",
        final_answer_prompt="{task}",
        max_turns=1,
    )
    ledger = {
        name: {"reason": "r", "answer": answer}
        for name, answer in {
            "is_request_satisfied": False,
            "is_in_loop": False,
            "is_progress_being_made": True,
            "next_speaker": "worker",
            "instruction_or_question": "go on mark-a1",
        }.items()
    }
    stage.server.respond(lambda r: Text(json.dumps(ledger)))
    scope = stage.scope()
    with attempt(scope):
        await flow.run(task=stage.task())
        assert stage.wrong(scope, 4) == []
        await boss.run(task=stage.task())
    found = [stage.labels(r) for r in stage.calls()[4:]]
    assert {labels["agent"] for labels in found} == {"boss", "worker"}
    assert {labels["team"] for labels in found} == {"boss"}


@pytest.mark.parametrize("shape", SHAPES)
async def test_what_reads_a_stream_is_not_labelled_with_it(stage, shape):
    scope = stage.scope()
    agent = getattr(stage.agents, shape)(model_client_stream=True)
    read = 0
    with attempt(scope):
        async for _ in agent.run_stream(task=stage.task()):
            await ask(stage, "reading")
            read += 1
        await ask(stage, "afterwards")
        assert labels._place.get() == (None, None)
    assert stage.wrong(scope, SHAPES[shape] + read + 1) == []


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_stream_that_is_given_up_leaves_no_label_behind(stage, shape):
    """Closed at once, dropped, and cancelled in the middle of a step."""
    scope = stage.scope()
    with attempt(scope):
        closed = getattr(stage.agents, shape)().run_stream(task=stage.task())
        await anext(closed)
        await closed.aclose()
        assert [s["name"] for s in scope.sink.spans() if s["ended_at"] is None] == []

        dropped = getattr(stage.agents, shape)().run_stream(task=stage.task())
        await anext(dropped)
        del dropped
        gc.collect()

        cancelled = getattr(stage.agents, shape)().run_stream(task=stage.task())
        await anext(cancelled)
        step = asyncio.ensure_future(anext(cancelled))
        await asyncio.sleep(0)
        step.cancel()
        with suppress(asyncio.CancelledError, StopAsyncIteration):
            await step
        await cancelled.aclose()
        await ask(stage, "afterwards")
        async with asyncio.timeout(60):  # What was dropped is closed by the loop, soon.
            while [s for s in scope.sink.spans() if s["ended_at"] is None]:
                await asyncio.sleep(0.01)
    assert stage.wrong(scope, len(stage.calls())) == []
    assert labels._runs == {}


async def test_a_failure_ends_the_spans_and_says_what_it_was(stage):
    stage.server.respond(lambda r: Error(400))
    scope = stage.scope()
    team = RoundRobinGroupChat([stage.agents.agent("one", "")], name="team", max_turns=1)
    with attempt(scope), pytest.raises(RuntimeError, match="400"):
        await team.run(task="x")
    errors = {s["name"]: s["error"] for s in scope.sink.spans()}
    assert "BadRequestError" in errors["one"]
    assert "400" in errors["team"]


@pytest.mark.parametrize("shared", [False, True], ids=["own-runtime", "old-runtime"])
async def test_a_team_that_is_running_refuses_and_goes_on_labelled(stage, shared):
    runtime = SingleThreadedAgentRuntime()
    runtime.start()
    agents = [stage.agents.agent(name, "agent:team/", team="team") for name in ("one", "two")]
    team = RoundRobinGroupChat(
        agents, name="team", max_turns=4, runtime=runtime if shared else None
    )
    scope, other = stage.scope(), stage.scope("a2")

    async def refused() -> None:
        with attempt(other):
            await stage.server.wait_for(1)
            with pytest.raises(ValueError, match="already running"):
                await team.run(task=stage.task("a2"))

    async def works() -> None:
        with attempt(scope):
            await team.run(task=stage.task())

    await asyncio.gather(works(), refused())
    await runtime.stop_when_idle()
    assert stage.wrong(scope, 4) == []
    assert stage.wrong(other, 0) == []


async def test_a_handoff_is_a_span_of_its_own_within_the_agent_that_hands_off(stage):
    agents = [
        stage.agents.agent("p", "", also=" hand off", handoffs=["q"]),
        stage.agents.agent("q", ""),
    ]
    scope = stage.scope()
    with attempt(scope):
        await Swarm(agents, name="swarm", max_turns=2).run(task=stage.task())
    spans = {s["id"]: s for s in scope.sink.spans()}
    (handed,) = (s for s in spans.values() if s["kind"] == "handoff")
    assert handed["name"] == "q"
    assert stage.path(handed["parent_id"], scope) == "agent:swarm/agent:p"
    assert handed["attributes"] == {"lightning.handoff.from": "p", "lightning.handoff.to": "q"}
    assert handed["ended_at"] is not None


async def test_a_tools_span_says_what_went_in_and_out(stage):
    def divide(a: int, b: int) -> float:
        """Divide."""
        return a / b

    calls = (
        ToolCall("divide", {"a": 4, "b": 2}, id="good"),
        ToolCall("divide", {"a": 1, "b": 0}, id="raises"),
        ToolCall("divide", '{"a": 1,', id="malformed"),
        ToolCall("divide", {"a": "x" * 50_000, "b": 1}, id="wrong"),
        ToolCall("multiply", {}, id="unknown"),
    )
    stage.server.enqueue(ToolCalls(calls))
    scope = stage.scope()
    with attempt(scope):
        await stage.agents.agent("solo", "", tools=[divide]).run(task="x")
    spans = {
        s["attributes"]["gen_ai.tool.call.id"]: s for s in scope.sink.spans() if s["kind"] == "tool"
    }
    assert {name: stage.path(s["parent_id"], scope) for name, s in spans.items()} == dict.fromkeys(
        ("good", "raises", "malformed", "wrong", "unknown"), "agent:solo"
    )
    assert spans["good"]["attributes"] == {
        "gen_ai.tool.name": "divide",
        "gen_ai.tool.call.arguments": {"a": 4, "b": 2},
        "gen_ai.tool.call.id": "good",
        "gen_ai.tool.call.result": "2.0",
    }
    assert spans["good"]["error"] is None
    assert "division by zero" in spans["raises"]["error"]
    assert spans["malformed"]["attributes"]["gen_ai.tool.call.arguments"] == '{"a": 1,'
    assert "Expecting" in spans["malformed"]["error"]
    assert "valid integer" in spans["wrong"]["error"]
    assert "not found" in spans["unknown"]["error"]
    assert len(json.dumps(scope.sink.spans()).encode()) < 100_000


async def test_a_tool_that_no_assistant_runs_has_a_span(stage):
    async def look(word: str) -> str:
        """Look."""
        await ask(stage, "span=tool:look")
        return word

    scope = stage.scope()
    with attempt(scope):
        tool = FunctionTool(look, description="Look.")
        await tool.run_json({"word": "x"}, CancellationToken(), call_id="c1")
    assert stage.wrong(scope, 1) == []
    (found,) = scope.sink.spans()
    assert found["attributes"] == {
        "gen_ai.tool.name": "look",
        "gen_ai.tool.call.arguments": {"word": "x"},
        "gen_ai.tool.call.id": "c1",
        "gen_ai.tool.call.result": "x",
    }


def _context(name: str) -> RolloutContext:
    return RolloutContext(
        rollout_id=f"r-{name}",
        attempt_id=name,
        mode=Mode.OBSERVE,
        base_url="http://127.0.0.1:9/v1",
        deadline=4e9,
    )
