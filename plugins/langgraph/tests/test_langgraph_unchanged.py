"""The agent behaves with us as it does without: it asks the same of the model, and ends as it would."""

from __future__ import annotations

import operator
import re
from contextlib import ExitStack
from typing import Annotated, Any, TypedDict

import openai
import pytest
from langchain.agents import create_agent
from langchain_core.messages import AnyMessage, BaseMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, StateGraph

from lightning_core.instrument import ListSink, Scope, attempt, instrument
from lightning_core.testing import Cut, Error, Raw, ScriptedServer, Text, ToolCall, ToolCalls
from lightning_langgraph import LangGraphAdapter

ASKED = {"messages": [("user", "Add 1 and 2, and look.")]}
CALLED = ToolCalls(
    (ToolCall("add", {"a": 1, "b": 2}, id="c1"), ToolCall("look", {"word": "x"}, id="c2"))
)
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


class State(TypedDict):
    messages: Annotated[list[AnyMessage], operator.add]


async def _events(agent: Any, value: Any) -> list[Any]:
    found = [event async for event in agent.astream_events(value, version="v2")]
    # Of tools that run at once they come in any order.
    return sorted((event["event"], event["name"]) for event in found)


async def _astream(agent: Any, value: Any) -> list[Any]:
    modes = ["messages", "updates", "values", "custom"]
    return [each async for each in agent.astream(value, stream_mode=modes, subgraphs=True)]


async def _invoke(agent: Any, value: Any) -> Any:
    return agent.invoke(value)


async def _stream(agent: Any, value: Any) -> list[Any]:
    return list(agent.stream(value, stream_mode=["messages", "updates"]))


async def _ainvoke(agent: Any, value: Any) -> Any:
    return await agent.ainvoke(value)


async def _abatch(agent: Any, value: Any) -> Any:
    return await agent.abatch([value, value])


WAYS = {
    "invoke": _invoke, "stream": _stream, "ainvoke": _ainvoke, "astream": _astream, "events": _events, "abatch": _abatch,
}  # fmt: skip


@pytest.fixture
def server():
    with ScriptedServer.in_thread() as server:
        server.respond(lambda got: CALLED if got.messages[-1]["role"] == "user" else Text("done"))
        yield server


@pytest.fixture
async def clients():
    made = {
        "http_client": openai.DefaultHttpxClient(),
        "http_async_client": openai.DefaultAsyncHttpxClient(),
    }
    yield made
    made["http_client"].close()
    await made["http_async_client"].aclose()


@pytest.fixture
def make(server, clients):
    """An agent with tools, and a graph in which it and another model call are nodes."""

    def model() -> ChatOpenAI:
        return ChatOpenAI(model="m", api_key="k", base_url=server.base_url, max_retries=0, **clients)  # fmt: skip

    @tool
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    @tool
    def look(word: str) -> str:
        """Look a word up, by asking a model."""
        return model().invoke([("assistant", "Hi."), ("system", f"What is {word}?")]).text

    def agent() -> Any:
        return create_agent(model(), tools=[add, look], name="researcher")

    def graph() -> Any:
        whole = StateGraph(State)
        whole.add_node("research", agent())
        whole.add_node("ask", lambda state: {"messages": [model().invoke(state["messages"])]})
        whole.add_edge(START, "research")
        whole.add_edge("research", "ask")
        return whole.compile()

    return {"agent": agent, "graph": graph}


def said(value: Any) -> Any:
    """A value without what is drawn anew each time: ids of messages and runs, durations."""
    if isinstance(value, BaseMessage):
        return (value.type, value.content, [(c["name"], c["args"]) for c in getattr(value, "tool_calls", [])])  # fmt: skip
    if isinstance(value, dict):
        return {key: said(each) for key, each in value.items() if not str(key).startswith(("langgraph_", "checkpoint", "ls_"))}  # fmt: skip
    if isinstance(value, (list, tuple)):
        return [said(each) for each in value]
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "ID", str(value))


async def outcome(server: Any, agent: Any, way: str, *, ours: bool) -> Any:
    """The bodies that a run asked, and how it ended; as a user runs it, with or without an attempt around it."""
    before = len(server.requests)
    scope = Scope(gateway=server.url, session="token", attempt="a1", sink=ListSink())
    try:
        with ExitStack() as stack:
            if ours:
                stack.enter_context(instrument([LangGraphAdapter()]))
                stack.enter_context(attempt(scope))
            end = said(await WAYS[way](agent, ASKED))
    except Exception as error:
        end = (type(error), str(error))
    requests = server.requests[before:]
    assert all(("x-lightning-session" in r.headers) is ours for r in requests)
    # What runs at once asks in any order.
    return sorted(r.body for r in requests), end


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["agent", "graph"])
async def test_what_is_asked_and_said_is_the_same(server, make, kind, way):
    """The agent's tools run one after the other."""

    def respond(got: Any) -> Any:
        asked = [message["role"] for message in got.messages]
        if asked[-1] not in ("user", "tool") or asked.count("tool") == len(CALLED.calls):
            return Text("done")
        return ToolCalls((CALLED.calls[asked.count("tool")],))

    server.respond(respond)
    without, with_us = [await outcome(server, make[kind](), way, ours=o) for o in (False, True)]
    assert len(without[0]) == (4 + (kind == "graph")) * (2 if way == "abatch" else 1)
    assert with_us == without


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["agent", "graph"])
async def test_what_is_asked_and_said_of_tools_at_once_is_the_same(server, make, kind, way):
    ends = []
    for ours in (False, True):
        bodies, end = await outcome(server, make[kind](), way, ours=ours)
        assert len(bodies) == (3 + (kind == "graph")) * (2 if way == "abatch" else 1)
        # Streamed pieces of tools that run at once come in any order.
        ends.append((bodies, sorted(end, key=repr) if "stream" in way else end))
    without, with_us = ends
    assert with_us == without


@pytest.mark.parametrize("way", ["invoke", "stream", "ainvoke", "astream"])
@pytest.mark.parametrize("broken", BROKEN)
async def test_a_broken_reply_ends_as_it_would(server, make, broken, way):
    ends = []
    for ours in (False, True):
        server.enqueue(BROKEN[broken])
        ends.append(await outcome(server, make["agent"](), way, ours=ours))
    without, with_us = ends
    assert without[0]
    assert with_us == without
