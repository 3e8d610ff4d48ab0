"""The agent behaves with us as it does without: it asks the same of the model, and ends as it would."""

from __future__ import annotations

import re
from contextlib import ExitStack
from typing import Any

import pytest

from lightning_core.instrument import ListSink, Scope, attempt, instrument
from lightning_core.testing import Cut, Error, Raw, Text, ToolCall, ToolCalls
from lightning_openai_agents import OpenAIAgentsAdapter

from .conftest import MODELS, WAYS

BROKEN = {
    "malformed arguments": ToolCalls((ToolCall("add", '{"a": 1, "b"', id="c1"),)),
    "wrong arguments": ToolCalls((ToolCall("add", {"a": "one"}, id="c1"),)),
    "an unknown tool": ToolCalls((ToolCall("nothing", {}, id="c1"),)),
    "a reply that is cut": Cut(3, Text("one two three four")),
    "a reply that is nothing": Raw(b'{"id": "x"}'),
    "an error": Error(400),
    "an empty reply": Text(""),
    "a reply that was too long": Text("one two", finish_reason="length"),
}


async def outcome(server: Any, agents: Any, agent: Any, way: str, *, ours: bool) -> Any:
    """The bodies that a run asked, and how it ended; as a user runs it, with or without an attempt around it."""
    before = len(server.requests)
    scope = Scope(gateway=server.url, session="token", attempt="a1", sink=ListSink())
    end: Any
    try:
        with ExitStack() as stack:
            if ours:
                stack.enter_context(instrument([OpenAIAgentsAdapter()]))
                stack.enter_context(attempt(scope))
            result = await WAYS[way](agent, "do mark-a1", run_config=agents.config())
            end = (result.final_output, [item.type for item in result.new_items])
    except Exception as error:
        end = (type(error), str(error))
    requests = server.requests[before:]
    assert all(("x-lightning-session" in r.headers) is ours for r in requests)
    # What runs at once asks in any order, and the server numbers what it says in that order.
    return sorted(re.sub(rb"scripted-\d+", b"scripted", r.body) for r in requests), end


@pytest.fixture(params=["traced", "untraced"])
def tracing(request):
    return request.param


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("way", ["run", "run_streamed"])
async def test_what_is_asked_and_said_is_the_same(server, agents_at, way, kind, tracing):
    agents = agents_at(server.base_url, kind)
    agents.off = tracing == "untraced"
    without, with_us = [
        await outcome(server, agents, agents.wide(), way, ours=ours) for ours in (False, True)
    ]
    assert len(without[0]) == 10
    assert with_us == without


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("way", ["run", "run_streamed"])
@pytest.mark.parametrize("broken", BROKEN)
async def test_a_broken_reply_ends_as_it_would(server, agents_at, broken, way, kind):
    agents, ends = agents_at(server.base_url, kind), []
    for ours in (False, True):
        agent = agents.agent("solo", "", tools=agents.tools("", "solo")[1:])
        server.enqueue(BROKEN[broken])
        ends.append(await outcome(server, agents, agent, way, ours=ours))
    without, with_us = ends
    assert without[0]
    assert with_us == without
