"""The agent behaves with us as it does without: it asks the same of the model, and ends as it would."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
from autogen_core import CancellationToken

from lightning_autogen import AutoGenAdapter
from lightning_autogen.copies import fresh
from lightning_core.instrument import ListSink, Scope, attempt, instrument
from lightning_core.testing import (
    Cut,
    Error,
    Raw,
    ScriptedServer,
    Text,
    ToolCall,
    ToolCalls,
)

SHAPES = ("tooled", "wide", "selector")
BROKEN = {
    "malformed arguments": ToolCalls((ToolCall("look_up", '{"word": ', id="c1"),)),
    "wrong arguments": ToolCalls((ToolCall("add", {"a": "one"}, id="c1"),)),
    "an unknown tool": ToolCalls((ToolCall("nothing", {}, id="c1"),)),
    "a reply that is cut": Cut(1, Text("one two three four")),
    "no choice": Raw(b'{"id": "x", "object": "chat.completion", "created": 1, "model": "scripted", "choices": []}'),
    "an error": Error(400),
    "an empty reply": Text(""),
    "a reply that was too long": Text("one two", finish_reason="length"),
}  # fmt: skip


class Outcome:
    """What a run asked of the model, and how it ended."""

    def __init__(self, bodies: list[bytes], end: Any) -> None:
        # Parallel tools and agents ask in any order.
        self.bodies = sorted(bodies)
        self.end = end


async def run(server: ScriptedServer, agent: Any, *, ours: bool, stream: bool) -> Outcome:
    """Run it as a user does, with or without an attempt of ours around it."""
    before = len(server.requests)
    scope = Scope(gateway=server.url, session="token", attempt="a1", sink=ListSink())
    token = CancellationToken()
    end: Any
    try:
        with ExitStack() as stack:
            if ours:
                stack.enter_context(instrument([AutoGenAdapter()]))
                stack.enter_context(attempt(scope))
            if stream:
                items = [
                    i
                    async for i in agent.run_stream(task="do it mark-a1", cancellation_token=token)
                ]
                end = [_plain(item) for item in items]
            else:
                end = _plain(await agent.run(task="do it mark-a1", cancellation_token=token))
    except Exception as error:
        end = (type(error), str(error).partition("Traceback")[0])
    requests = server.requests[before:]
    assert all(("x-lightning-session" in r.headers) is ours for r in requests)
    return Outcome([r.body for r in requests], end)


def _plain(item: Any) -> Any:
    """A message or result without what no two runs share: ids and times."""
    if isinstance(item, dict):
        drop = ("id", "created_at", "full_message_id")
        return {k: _plain(v) for k, v in item.items() if k not in drop}
    if isinstance(item, list | tuple):
        return [_plain(i) for i in item]
    return _plain(item.model_dump()) if hasattr(item, "model_dump") else item


@pytest.fixture
def agents(server, agents_at):
    """Agents that go to the server by themselves."""
    return agents_at(server.base_url)


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "model-stream"])
@pytest.mark.parametrize("stream", [False, True], ids=["run", "run_stream"])
@pytest.mark.parametrize("shape", SHAPES)
async def test_what_is_asked_and_said_is_the_same(server, agents, shape, stream, streamed):
    without, ours = [
        await run(
            server, getattr(agents, shape)(model_client_stream=streamed), ours=ours, stream=stream
        )
        for ours in (False, True)
    ]
    assert without.bodies
    assert ours.bodies == without.bodies
    assert ours.end == without.end


@pytest.mark.filterwarnings("ignore::UserWarning")  # AutoGen's own about such replies.
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "model-stream"])
@pytest.mark.parametrize("broken", BROKEN)
async def test_a_broken_reply_ends_as_it_would(server, agents, broken, streamed):
    ends = []
    for ours in (False, True):
        agent = agents.tooled(model_client_stream=streamed)
        server.enqueue(BROKEN[broken])
        ends.append(await run(server, agent, ours=ours, stream=streamed))
    without, ours = ends
    assert without.bodies
    assert ours.bodies == without.bodies
    assert ours.end == without.end


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_copy_asks_what_the_agent_itself_would(server, agents, shape):
    """Also where it has been run before: a copy is as the agent is then."""
    agent = getattr(agents, shape)()
    for _ in range(2):
        copied = await run(server, await fresh(agent), ours=True, stream=False)
        itself = await run(server, agent, ours=True, stream=False)
        assert copied.bodies == itself.bodies
        assert copied.end == itself.end
