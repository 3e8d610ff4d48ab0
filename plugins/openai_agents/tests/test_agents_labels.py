"""Which agent, tool, guardrail and rollout a call belongs to."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import openai
import pytest
from agents import (
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    Runner,
    SQLiteSession,
    UserError,
    function_tool,
    input_guardrail,
)

from lightning_core.instrument import attempt, instrument, label, span
from lightning_core.testing import ToolCall, ToolCalls
from lightning_openai_agents import OpenAIAgentsAdapter

from .conftest import MODELS, WAYS, WIDE_CALLS, Agents, Stage, labels_of, reply

NOWHERE = "http://127.0.0.1:9/v1"
"""Where nothing listens: a call that is not rerouted fails."""


@pytest.mark.parametrize("tracing", ["traced", "untraced"])
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("way", WAYS)
async def test_of_concurrent_rollouts_each_call_has_its_own_labels(
    stage, agents_at, way, kind, tracing
):
    """With the other cases, 1,920 calls."""
    agents = agents_at(NOWHERE, kind)
    agents.off, agents.in_threads = tracing == "untraced", way == "run_sync"
    agent = agents.wide()

    async def one(name):
        scope = stage.scope(name)
        with attempt(scope):
            result = await WAYS[way](agent, f"do mark-{name}", run_config=agents.config())
        assert result.final_output == f"said so mark-{name}"
        return scope

    for turn in ("x", "y"):
        scopes = await asyncio.gather(*(one(f"{turn}{n}") for n in range(8)))
        assert [fault for scope in scopes for fault in stage.wrong(scope, WIDE_CALLS)] == []


def test_a_program_that_has_no_loop_of_its_own(server):
    """In the main thread `run_sync` has the program's own loop, as without us."""
    agents = Agents(NOWHERE)
    stage = Stage(server)
    server.respond(lambda request: (stage.received.append(request), reply(request))[1])
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    scope, used = stage.scope(), []

    @function_tool
    async def where() -> str:
        used.append(asyncio.get_running_loop())
        return "here"

    agent = agents.agent("solo", "", tools=[where])
    server.enqueue(ToolCalls((ToolCall("where", {}),)))
    with instrument([OpenAIAgentsAdapter()]), attempt(scope):
        Runner.run_sync(agent, "do mark-a1")
    loop.run_until_complete(agents.close())
    loop.close()
    asyncio.set_event_loop(None)
    assert used == [loop]
    assert [labels_of(r)["agent"] for r in stage.received] == ["solo"]


async def test_a_handoff_is_a_span_of_its_own_within_the_agent_that_hands_off(stage, agents_at):
    scope = stage.scope()
    with attempt(scope):
        await Runner.run(agents_at(NOWHERE).wide(), "do mark-a1")
    (handed,) = (s for s in stage.spans(scope).values() if s["kind"] == "handoff")
    assert handed["name"] == "closer"
    assert stage.path(handed["parent_id"], scope) == "agent:triage"
    assert handed["attributes"] == {
        "lightning.handoff.from": "triage",
        "lightning.handoff.to": "closer",
    }


async def test_a_guardrails_span_says_whether_it_was_triggered(stage, agents_at):
    @input_guardrail
    async def stop(context, agent, text):
        return GuardrailFunctionOutput(None, tripwire_triggered=True)

    agents, scope = agents_at(NOWHERE), stage.scope()
    agent = agents.agent("solo", "", input_guardrails=[stop])
    with attempt(scope), pytest.raises(InputGuardrailTripwireTriggered):
        await Runner.run(agent, "do mark-a1")
    spans = {s["name"]: s for s in stage.spans(scope).values()}
    assert spans["stop"]["attributes"] == {"lightning.guardrail.triggered": True}
    assert spans["stop"]["error"] is None
    assert spans["solo"]["error"].startswith("InputGuardrailTripwireTriggered")


@pytest.mark.parametrize("tracing", ["traced", "untraced"])
@pytest.mark.parametrize("way", ["run", "run_streamed"])
async def test_a_tools_span_says_what_went_in_and_out(stage, agents_at, way, tracing):
    @function_tool
    def good(a: int) -> int:
        return a + 1

    @function_tool
    def told(a: int) -> int:
        return a // 0

    @function_tool(failure_error_function=None)
    def raises(a: int) -> int:
        return a // 0

    agents, scope = agents_at(NOWHERE), stage.scope()
    agents.off = tracing == "untraced"
    agent = agents.agent("solo", "", tools=[good, told, raises])
    calls = [
        ToolCall("good", {"a": 4}),
        ToolCall("good", '{"a": 1,'),
        ToolCall("told", {"a": 1}),
    ]
    stage.server.enqueue(ToolCalls(calls), ToolCalls([ToolCall("raises", {"a": 1})]))
    with attempt(scope), pytest.raises(UserError, match="division"):
        await WAYS[way](agent, "do mark-a1", run_config=agents.config())
    right, malformed, told_of, raised = (
        s for s in stage.spans(scope).values() if s["kind"] == "tool"
    )
    assert right["attributes"] == {
        "gen_ai.tool.name": "good",
        "gen_ai.tool.call.arguments": {"a": 4},
        "gen_ai.tool.call.result": 5,
    }
    assert right["error"] is None
    assert malformed["attributes"]["gen_ai.tool.call.arguments"] == '{"a": 1,'
    assert "Error running tool" in malformed["error"]
    assert "Error running tool" in told_of["error"]
    assert "division" in raised["error"]
    (solo,) = (s for s in stage.spans(scope).values() if s["kind"] == "agent")
    assert "division" in solo["error"]


async def test_a_run_that_began_while_an_error_was_handled_has_none(stage, agents_at):
    agents, scope = agents_at(NOWHERE), stage.scope()
    with attempt(scope):
        try:
            raise ValueError("of before")
        except ValueError:
            await Runner.run(agents.agent("solo", ""), "do mark-a1")
    assert [s["error"] for s in stage.spans(scope).values()] == [None]


@pytest.mark.parametrize("way", WAYS)
async def test_what_surrounds_a_run_holds_within_and_after_it(stage, agents_at, way):
    agents, scope = agents_at(NOWHERE), stage.scope()
    agents.in_threads = way == "run_sync"

    @function_tool
    async def inside() -> str:
        with label(step="two"):
            await agents.bare.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "mark-a1"}]
            )
        return "x"

    agent = agents.agent("solo", "", tools=[inside])
    stage.server.enqueue(ToolCalls([ToolCall("inside", {})]))
    with attempt(scope), span("node", "outer"):
        await WAYS[way](agent, "do mark-a1")
        agents.sync.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "mark-a1"}]
        )
    labels = [labels_of(request) for request in stage.calls()]
    paths = [stage.path(found.pop("span"), scope) for found in labels]
    assert labels == [
        {"agent": "solo", "node": "outer", "step": "two"},
        {"agent": "solo", "node": "outer"},
        {"node": "outer"},
    ]
    assert paths == ["node:outer/agent:solo/tool:inside", "node:outer/agent:solo", "node:outer"]


async def test_a_stream_that_is_left_early_ends_its_spans(stage, agents_at):
    agents, scope = agents_at(NOWHERE), stage.scope()
    with attempt(scope):
        result = Runner.run_streamed(agents.wide(), "do mark-a1")
        async for _ in result.stream_events():
            break
        result.cancel()
        async for _ in result.stream_events():
            pass
        with suppress(asyncio.CancelledError):
            await result.run_loop_task
        await agents.bare.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "mark-a1"}]
        )
    assert set(labels_of(stage.calls()[-1])) == set()
    assert [s["name"] for s in stage.spans(scope).values() if s["ended_at"] is None] == []


async def test_sessions_and_responses_that_are_gone_on_with(stage, agents_at):
    agents, scope = agents_at(NOWHERE), stage.scope()
    session = SQLiteSession("s")
    with attempt(scope):
        for _ in range(2):
            await Runner.run(agents.agent("solo", ""), "do mark-a1", session=session)
        agent = agents.agent("solo", "", also="use add", tools=agents.tools("agent:solo", "solo"))
        await Runner.run(agent, "do mark-a1", auto_previous_response_id=True)
    session.close()
    assert stage.wrong(scope, 5) == []
    sent = [r.json for r in stage.server.requests if r.path.endswith("/responses")]
    assert len(sent[1]["input"]) == 3
    assert sent[3]["previous_response_id"]
    assert [item["type"] for item in sent[3]["input"]] == ["function_call_output"]


async def test_going_on_with_a_response_that_is_unknown_fails_as_it_would(stage, agents_at):
    agents, scope = agents_at(NOWHERE), stage.scope()
    with attempt(scope), pytest.raises(openai.BadRequestError, match="resp_unknown"):
        await Runner.run(agents.agent("solo", ""), "x", previous_response_id="resp_unknown")
    (found,) = stage.spans(scope).values()
    assert "resp_unknown" in found["error"]
