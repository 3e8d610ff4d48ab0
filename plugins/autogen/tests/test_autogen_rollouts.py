"""Whole rollouts through worker and gateway: what the store's records say."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import lightning_core as lc
from lightning_core.testing import Cut, ScriptedServer, Text, ToolCall, ToolCalls

AGENT = """
import os
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

info = dict(vision=False, function_calling=True, json_output=True, structured_output=False, family="unknown")
client = OpenAIChatCompletionClient(model="scripted", api_key="k", model_info=info)
team = RoundRobinGroupChat(
    [AssistantAgent("writer", client), AssistantAgent("critic", client, model_client_stream=True)],
    name="desk",
    max_turns=2,
)

async def own(task):
    result = await RoundRobinGroupChat(
        [AssistantAgent("writer", client), AssistantAgent("critic", client)], name="desk", max_turns=2
    ).run(task=task)
    return result.messages[-1].content
"""


def tasks(count: int) -> list[lc.Task]:
    return [lc.Task(id=f"t{n}", input=f"say {n}") for n in range(count)]


def check(result: Any, count: int) -> None:
    """Every rollout at its first attempt, each call labelled and below its own spans."""
    assert len(result.traces) == count
    for trace in result.traces:
        assert (trace.attempt.error, trace.attempt.number) == (None, 1)
        assert trace.output == trace.task.input
        spans = {span.id: span for span in trace.spans}
        for call in trace.calls:
            assert call.error is None
            assert trace.task.input in str(call.messages)
            span = spans[call.span_id]
            assert (span.kind, span.name) == ("agent", call.agent)
            assert spans[span.parent_id].name == call.labels["team"] == "desk"
        assert Counter(call.agent for call in trace.calls) == {"writer": 1, "critic": 1}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["team", "own"])
async def test_no_client_is_used_in_two_loops(tmp_path, name):
    """A client that a closed loop has used fails every other call; each worker has one loop for all its rollouts."""
    file = tmp_path / "agent_desk.py"
    file.write_text(AGENT)
    with ScriptedServer.in_thread() as server:
        options: Any = {"model": server.base_url, "runs": tmp_path / "runs", "concurrency": 8}
        # In a worker process, whose clients belong to a loop in a thread.
        check(await lc.run(f"{file}:{name}", tasks(40), **options), 40)
        # A live object, in the loop of its owner, run after run.
        module: dict[str, Any] = {}
        exec(AGENT, module)
        for _ in range(3):
            check(await lc.run(module[name], tasks(16), **options), 16)
        await module["client"].close()


def solo(client: Any, **options: Any) -> Any:
    from autogen_agentchat.agents import AssistantAgent

    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    return AssistantAgent("solo", client, tools=[add], **options)


async def run_one(server: ScriptedServer, agents_at: Any, tmp_path: Any, **options: Any) -> Any:
    server.respond(None)
    agent = solo(agents_at("http://127.0.0.1:9/v1").model, **options)
    result = await lc.run(agent, tasks(1), model=server.base_url, runs=tmp_path, max_attempts=1)
    return result.traces[0]


async def test_a_trace_says_that_a_tool_s_arguments_were_malformed(server, agents_at, tmp_path):
    server.enqueue(ToolCalls((ToolCall("add", '{"a": 1, "b"', id="c1"),)))
    trace = await run_one(server, agents_at, tmp_path)
    assert trace.attempt.error is None
    (call,) = trace.calls
    assert call.complete
    assert call.tool_calls[0]["function"]["arguments"] == '{"a": 1, "b"'
    (tool,) = (span for span in trace.spans if span.kind == "tool")
    assert tool.attributes["gen_ai.tool.call.arguments"] == '{"a": 1, "b"'
    assert "delimiter" in tool.error
    assert tool.parent_id == call.span_id


@pytest.mark.filterwarnings("ignore::UserWarning")  # AutoGen's own about such a stream.
async def test_a_trace_says_that_a_stream_ended_early(server, agents_at, tmp_path):
    server.enqueue(Cut(2, Text("one two three four")))
    trace = await run_one(server, agents_at, tmp_path, model_client_stream=True)
    assert trace.attempt.error is not None
    (call,) = trace.calls
    assert call.stream
    assert not call.complete
    assert call.error is not None
    assert call.agent == "solo"
    (span,) = trace.spans
    assert span.error is not None
    assert span.ended_at is not None
