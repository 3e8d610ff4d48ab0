"""Whole rollouts through worker and gateway: what the store's records say."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest
from agents import Runner

import lightning_core as lc
from lightning_core.testing import Cut, ScriptedServer, Text, ToolCall, ToolCalls

AGENT = """
from agents import Agent, Runner, function_tool

@function_tool
def look(word: str) -> str:
    "Looks."
    return word

critic = Agent("critic", instructions="Judge.")
writer = Agent("writer", instructions="Write.", tools=[look, critic.as_tool("ask", "Asks.")])

async def own(task):
    result = Runner.run_streamed(writer, task)
    async for _ in result.stream_events():
        pass
    return result.final_output

def sync(task):
    return Runner.run_sync(writer, task, auto_previous_response_id=True).final_output
"""
CALLS = {"writer": 2, "critic": 1}


def reply(request: Any) -> Any:
    """The writer looks and asks the critic; then both say what the task said."""
    messages = request.messages
    said = next((str(m["content"]) for m in messages if m["role"] == "user"), "")
    if messages and messages[0]["content"] == "Write." and messages[-1]["role"] != "tool":
        return ToolCalls([ToolCall("look", {"word": "x"}), ToolCall("ask", {"input": said})])
    return Text(said)


def tasks(count: int) -> list[lc.Task]:
    return [lc.Task(id=f"t{n}", input=f"say {n}") for n in range(count)]


def check(result: Any, count: int) -> None:
    """Every rollout at its first attempt, each call labelled, below its own spans and with its whole prompt."""
    assert len(result.traces) == count
    for trace in result.traces:
        assert (trace.attempt.error, trace.attempt.number) == (None, 1)
        assert trace.output == trace.task.input
        spans = {span.id: span for span in trace.spans}
        for call in trace.calls:
            assert call.error is None
            assert call.dialect == "responses"
            assert trace.task.input in str(call.messages)
            span = spans[call.span_id]
            assert (span.kind, span.name) == ("agent", call.agent)
            if call.agent == "critic":
                assert spans[span.parent_id].name == "ask"
        assert Counter(call.agent for call in trace.calls) == CALLS


@pytest.fixture
def model(monkeypatch):
    """The SDK's own clients: where the key of nobody would go, the run's model answers."""
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with ScriptedServer.in_thread() as server:
        server.respond(reply)
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("name", ["writer", "own", "sync"])
async def test_no_client_is_used_in_two_loops(model, tmp_path, name):
    """One that a closed loop has used fails every other call; each worker has one loop for all its rollouts."""
    file = tmp_path / "agent_desk.py"
    file.write_text(AGENT)
    options: Any = {"model": model.base_url, "runs": tmp_path / "runs", "concurrency": 8}
    check(await lc.run(f"{file}:{name}", tasks(40), **options), 40)


async def test_live_objects_run_after_run(model, tmp_path, closing):
    module: dict[str, Any] = {}
    exec(AGENT, module)
    options: Any = {"model": model.base_url, "runs": tmp_path / "runs", "concurrency": 8}
    for name in ("writer", "sync", "writer", "sync"):
        check(await lc.run(module[name], tasks(8), **options), 8)


async def run_one(model: ScriptedServer, tmp_path: Any, name: str) -> Any:
    module: dict[str, Any] = {}
    exec(AGENT, module)
    result = await lc.run(
        module[name], tasks(1), model=model.base_url, runs=tmp_path / "runs", max_attempts=1
    )
    return result.traces[0]


async def test_a_trace_says_that_a_tool_s_arguments_were_malformed(model, tmp_path, closing):
    model.enqueue(ToolCalls((ToolCall("look", '{"word": ', id="c1"),)))
    trace = await run_one(model, tmp_path, "writer")
    assert trace.attempt.error is None
    first = trace.calls[0]
    assert first.complete
    assert first.tool_calls[0]["function"]["arguments"] == '{"word": '
    (tool,) = (span for span in trace.spans if span.kind == "tool")
    assert tool.attributes["gen_ai.tool.call.arguments"] == '{"word": '
    assert "Error running tool" in tool.error
    assert tool.parent_id == first.span_id


async def test_a_trace_says_that_a_stream_ended_early(model, tmp_path, closing):
    model.enqueue(*[Cut(2, Text("one two three four"))] * 3)  # the SDK tries again
    trace = await run_one(model, tmp_path, "own")
    assert trace.attempt.error is not None
    assert trace.calls
    for call in trace.calls:
        assert call.stream
        assert not call.complete
        assert call.error is not None
        assert call.agent == "writer"
    (span,) = trace.spans
    assert span.error is not None
    assert span.ended_at is not None


async def test_going_on_with_an_unknown_response_is_one_error(model, tmp_path, closing):
    module: dict[str, Any] = {}
    exec(AGENT, module)
    agent = partial(Runner.run, module["critic"], previous_response_id="resp_gone")
    result = await lc.run(
        agent, tasks(1), model=model.base_url, runs=tmp_path / "runs", max_attempts=1
    )
    (trace,) = result.traces
    assert "no response 'resp_gone' is known to this session" in trace.attempt.error
    assert [r for r in model.requests if "chat" in r.path] == []
