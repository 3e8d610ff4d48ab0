"""Each model call carries the agent, node and span that made it, whatever way the graph was run.

The scripted server stands in the gateway's place: it sees what the gateway would, the headers. The last user message of each request says which node and agent made it, so nothing else needs to be compared.
"""

from __future__ import annotations

import asyncio
import json
import operator
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, TypedDict

import openai
import pytest
from langchain.agents import create_agent
from langchain_core.callbacks import BaseCallbackHandler, CallbackManager
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from lightning_core.instrument import Scope, attempt, span
from lightning_core.testing import Error, Reply, Text, ToolCall, ToolCalls
from lightning_core.testing.received import Received
from lightning_langgraph.labels import RUNS, Runs

_clients: dict[str, Any] = {}


@pytest.fixture
def stage(stage):
    _clients.update(stage.clients)
    return stage


def model(**options: Any) -> ChatOpenAI:
    # The address is where nothing listens: a call that is not rerouted fails.
    return ChatOpenAI(
        model="scripted",
        api_key="k",
        base_url="http://127.0.0.1:9/v1",
        max_retries=0,
        **_clients,
        **options,
    )


def bare_client() -> openai.OpenAI:
    return openai.OpenAI(
        api_key="k", base_url="http://127.0.0.1:9/v1", http_client=_clients["http_client"]
    )


class State(TypedDict):
    said: Annotated[list[str], operator.add]


TOP = "agent:LangGraph"
WIDE, ASYNC, REACT = 15, 9, 4  # The calls of one run of each graph below.


def call(text: str) -> dict[str, list[str]]:
    return {"said": [model().invoke(text).text]}


def wide_graph() -> Any:
    """Parallel nodes, a subgraph as a node, one called inside a node, a bare client, threads."""
    inner = StateGraph(State)
    inner.add_node(
        "deep",
        lambda s: call(f"agent=inner node=deep span={TOP}/node:sub/agent:inner/node:deep"),
    )
    inner.add_edge(START, "deep")
    sub = inner.compile(name="inner")

    called = StateGraph(State)
    called.add_node(
        "leaf",
        lambda s: call(f"agent=called node=leaf span={TOP}/node:calls/agent:called/node:leaf"),
    )
    called.add_edge(START, "leaf")
    called_graph = called.compile(name="called")

    def calls(state: State) -> dict[str, list[str]]:
        called_graph.invoke({"said": []})
        return call(f"agent=LangGraph node=calls span={TOP}/node:calls")

    def bare(state: State) -> dict[str, list[str]]:
        client = bare_client()
        client.chat.completions.create(
            model="scripted",
            messages=[
                {"role": "user", "content": f"agent=LangGraph node=bare span={TOP}/node:bare"}
            ],
        )
        return {"said": ["bare"]}

    def threads(state: State) -> dict[str, list[str]]:
        text = f"agent=LangGraph node=threads span={TOP}/node:threads"
        thread = threading.Thread(target=call, args=(text,))
        thread.start()
        thread.join()
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(call, [text] * 3))
        return {"said": ["threads"]}

    def chain(state: State) -> dict[str, list[str]]:
        prompt = ChatPromptTemplate.from_messages([("user", "{text}")])
        run = prompt | model() | RunnableLambda(lambda m: m.text)
        return {"said": [run.invoke({"text": f"agent=LangGraph node=chain span={TOP}/node:chain"})]}

    def streams(state: State) -> dict[str, list[str]]:
        text = f"agent=LangGraph node=streams span={TOP}/node:streams"
        chunks = model().stream(text)
        next(chunks)
        call(text)
        assert list(chunks)
        return {"said": ["streams"]}

    def own_span(state: State) -> dict[str, list[str]]:
        with span("tool", "mine"):
            return call(f"agent=LangGraph node=own span={TOP}/node:own/tool:mine")

    graph = StateGraph(State)
    graph.add_node("first", lambda s: call(f"agent=LangGraph node=first span={TOP}/node:first"))
    graph.add_edge(START, "first")
    nodes = {"sub": sub, "calls": calls, "bare": bare, "threads": threads, "chain": chain}
    nodes |= {"streams": streams, "own": own_span}
    for name, node in nodes.items():
        graph.add_node(name, node)
        graph.add_edge("first", name)
        graph.add_edge(name, "last")
    graph.add_node("last", lambda s: call(f"agent=LangGraph node=last span={TOP}/node:last"))
    graph.add_conditional_edges("last", route_with_model, {"end": END})
    return graph.compile()


def route_with_model(state: State) -> str:
    call(f"agent=LangGraph node=last span={TOP}/node:last")
    return "end"


def async_graph() -> Any:
    """The same in coroutines."""

    async def acall(text: str) -> dict[str, list[str]]:
        return {"said": [(await model().ainvoke(text)).text]}

    async def first(state: State) -> dict[str, list[str]]:
        return await acall(f"agent=LangGraph node=first span={TOP}/node:first")

    async def fan(state: State) -> dict[str, list[str]]:
        text = f"agent=LangGraph node=fan span={TOP}/node:fan"
        await asyncio.gather(*(acall(text) for _ in range(3)))
        await asyncio.to_thread(call, text)
        await asyncio.get_running_loop().run_in_executor(None, call, text)
        async with openai.AsyncOpenAI(api_key="k", base_url="http://127.0.0.1:9/v1") as client:
            await client.chat.completions.create(
                model="scripted", messages=[{"role": "user", "content": text}]
            )
        async for _ in model().astream(text):
            pass
        return {"said": ["fan"]}

    def sync_node(state: State) -> dict[str, list[str]]:
        return call(f"agent=LangGraph node=sync_node span={TOP}/node:sync_node")

    graph = StateGraph(State)
    for name, node in {"first": first, "fan": fan, "sync_node": sync_node}.items():
        graph.add_node(name, node)
    graph.add_edge(START, "first")
    graph.add_edge("first", "fan")
    graph.add_edge("first", "sync_node")
    return graph.compile()


AGENT = "agent:researcher"


def react_agent() -> Any:
    """`create_agent` with a sync and an async-capable tool; one of them calls the model."""

    @tool
    def look_up(word: str) -> str:
        """Look a word up."""
        text = f"agent=researcher node=tools span={AGENT}/node:tools/tool:look_up"
        client = bare_client()
        client.chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": text}]
        )
        return model().invoke(text).text

    @tool
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    return create_agent(model(), tools=[look_up, add], name="researcher")


REACT_INPUT = {
    "messages": [("user", f"agent=researcher node=model span={AGENT}/node:model use tools")]
}


def use_tools(request: Received) -> Reply | None:
    """The model's part in `react_agent`: two tool calls at once, then the end."""
    messages = request.messages
    if "use tools" in str(messages) and messages[-1]["role"] == "user":
        return ToolCalls(
            (
                ToolCall("look_up", {"word": "x"}, id="c1"),
                ToolCall("add", {"a": 1, "b": 2}, id="c2"),
            )
        )
    return Text("done")


def sync_ways() -> dict[str, Any]:
    return {
        "invoke": lambda graph, value: graph.invoke(value),
        "stream": lambda graph, value: list(graph.stream(value)),
        "stream-messages": lambda graph, value: list(graph.stream(value, stream_mode="messages")),
        "batch": lambda graph, value: graph.batch([value, value]),
        "with-callbacks": lambda graph, value: graph.invoke(value, {"callbacks": []}),
        "with-config": lambda graph, value: graph.with_config(tags=["t"]).invoke(value),
    }


async def _events(graph: Any, value: Any) -> None:
    async for _ in graph.astream_events(value, version="v2"):
        pass


async def _astream(graph: Any, value: Any) -> None:
    async for _ in graph.astream(value, stream_mode="updates", subgraphs=True):
        pass


def async_ways() -> dict[str, Any]:
    return {
        "ainvoke": lambda graph, value: graph.ainvoke(value),
        "astream": _astream,
        "astream_events": _events,
        "abatch": lambda graph, value: graph.abatch([value, value]),
    }


def runs(way: str) -> int:
    return 2 if "batch" in way else 1


@pytest.mark.parametrize("way", sync_ways())
def test_every_call_of_a_graph_is_labelled(stage, way):
    scope = stage.scope()
    with attempt(scope):
        sync_ways()[way](wide_graph(), {"said": []})
    assert stage.wrong(scope, WIDE * runs(way)) == []


@pytest.mark.parametrize("way", async_ways())
@pytest.mark.parametrize(("build", "count"), [(wide_graph, WIDE), (async_graph, ASYNC)])
async def test_every_call_of_a_graph_run_in_a_loop_is_labelled(stage, way, build, count):
    scope = stage.scope()
    with attempt(scope):
        await async_ways()[way](build(), {"said": []})
    assert stage.wrong(scope, count * runs(way)) == []


@pytest.mark.parametrize("way", sync_ways())
def test_every_call_of_create_agent_is_labelled(stage, way):
    stage.server.respond(use_tools)
    scope = stage.scope()
    with attempt(scope):
        sync_ways()[way](react_agent(), REACT_INPUT)
    assert stage.wrong(scope, REACT * runs(way)) == []


@pytest.mark.parametrize("way", async_ways())
async def test_every_call_of_create_agent_run_in_a_loop_is_labelled(stage, way):
    stage.server.respond(use_tools)
    scope = stage.scope()
    with attempt(scope):
        await async_ways()[way](react_agent(), REACT_INPUT)
    assert stage.wrong(scope, REACT * runs(way)) == []


def test_concurrent_attempts_in_threads_stay_apart(stage):
    graph = wide_graph()
    barrier = threading.Barrier(8)

    def work(scope: Scope) -> None:
        with attempt(scope):
            barrier.wait(30)
            graph.invoke({"said": []})

    scopes = [stage.scope(f"a{n}") for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, scopes))
    assert [stage.wrong(scope, WIDE) for scope in scopes] == [[]] * 8


async def test_concurrent_attempts_in_tasks_stay_apart(stage):
    stage.server.respond(use_tools)
    graph, agent = async_graph(), react_agent()

    async def work(scope: Scope) -> None:
        with attempt(scope):
            await asyncio.gather(graph.ainvoke({"said": []}), agent.ainvoke(REACT_INPUT))

    scopes = [stage.scope(f"a{n}") for n in range(8)]
    await asyncio.gather(*(work(scope) for scope in scopes))
    assert [stage.wrong(scope, ASYNC + REACT) for scope in scopes] == [[]] * 8


@pytest.mark.parametrize("way", [*sync_ways(), *async_ways()])
async def test_of_concurrent_rollouts_each_call_has_its_own_labels(stage, way):
    """With the other ways, 1,824 calls."""
    stage.server.respond(use_tools)
    graph, agent = wide_graph(), react_agent()
    given = ((graph, {"said": []}), (agent, REACT_INPUT))

    async def one(scope: Scope) -> None:
        with attempt(scope):
            for each, value in given:
                if way in async_ways():
                    await async_ways()[way](each, value)
                else:
                    await asyncio.to_thread(sync_ways()[way], each, value)

    scopes = [stage.scope(f"a{n}") for n in range(8)]
    await asyncio.gather(*map(one, scopes))
    assert [stage.wrong(scope, (WIDE + REACT) * runs(way)) for scope in scopes] == [[]] * 8


def test_a_thread_of_old_is_labelled_where_the_config_is_handed_on(stage):
    """It has no context of ours, but LangChain announces the call with its parent."""
    jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
    done: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def serve() -> None:
        for job in iter(jobs.get, None):
            done.put(job())

    def outside_fails() -> bool:
        with pytest.raises(openai.APIConnectionError):  # Nothing listens where it goes.
            model().invoke("outside")
        return True

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    text = f"agent=LangGraph node=asks span={TOP}/node:asks"

    def asks(state: State, config: RunnableConfig) -> dict[str, list[str]]:
        jobs.put(lambda: model().invoke(text, config))
        return {"said": [done.get(timeout=30).text]}

    scope = stage.scope()
    with attempt(scope):
        StateGraph(State).add_node("asks", asks).add_edge(START, "asks").compile().invoke(
            {"said": []}
        )
    jobs.put(outside_fails)
    assert done.get(timeout=30) is True
    jobs.put(None)
    thread.join(30)
    assert stage.wrong(scope, 1) == []


async def test_a_task_of_old_is_labelled_where_the_config_is_handed_on(stage):
    jobs: asyncio.Queue[Any] = asyncio.Queue()
    done: asyncio.Queue[Any] = asyncio.Queue()

    async def serve() -> None:
        while (job := await jobs.get()) is not None:
            await done.put(await model().ainvoke(*job))

    old = asyncio.create_task(serve())
    text = f"agent=LangGraph node=asks span={TOP}/node:asks"

    async def asks(state: State, config: RunnableConfig) -> dict[str, list[str]]:
        await jobs.put((text, config))
        return {"said": [(await asyncio.wait_for(done.get(), 30)).text]}

    scope = stage.scope()
    with attempt(scope):
        graph = StateGraph(State).add_node("asks", asks).add_edge(START, "asks").compile()
        await graph.ainvoke({"said": []})
    await jobs.put(None)
    await old
    assert stage.wrong(scope, 1) == []


def test_a_chain_is_an_agent_and_a_bare_model_is_none(stage):
    prompt = ChatPromptTemplate.from_messages([("user", "{text}")])
    scope = stage.scope()
    with attempt(scope):
        text = "agent=RunnableSequence span=agent:RunnableSequence"
        (prompt | model()).invoke({"text": text})
        (prompt | model()).with_config(run_name="named").invoke(
            {"text": "agent=named span=agent:named"}
        )
        model().invoke("alone")
    assert stage.wrong(scope, 3) == []


def test_nothing_leaks_into_later_calls(stage):
    """After a run, between the chunks of one, and after one that was abandoned or failed."""
    scope = stage.scope()
    graph = StateGraph(State)
    graph.add_node("one", lambda s: call("agent=LangGraph node=one"))
    graph.add_node("two", lambda s: call("agent=LangGraph node=two"))
    graph.add_edge(START, "one")
    graph.add_edge("one", "two")
    compiled = graph.compile()

    def alone() -> None:
        bare_client().chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": "alone"}]
        )
        call("alone")

    with attempt(scope):
        for _ in compiled.stream({"said": []}):
            alone()
        alone()
        abandoned = compiled.stream({"said": []})
        next(abandoned)
        alone()
        abandoned.close()
        alone()
        chunks = model().stream("alone")
        next(chunks)
        chunks.close()
        alone()
    assert stage.wrong(scope, 2 * (2 + 1 + 1 + 1 + 1) + 2 + 1 + 1) == []


def test_a_failed_node_ends_its_spans_with_the_error(stage):
    def fails(state: State) -> State:
        call("agent=LangGraph node=fails")
        raise ValueError("broken")

    scope = stage.scope()
    graph = StateGraph(State).add_node("fails", fails).add_edge(START, "fails").compile()
    with attempt(scope):
        with pytest.raises(ValueError, match="broken"):
            graph.invoke({"said": []})
        call("alone")
    assert stage.wrong(scope, 2) == []
    assert {s["name"]: s["error"] for s in scope.sink.spans()} == {
        "LangGraph": "ValueError: broken",
        "fails": "ValueError: broken",
    }


def test_a_failed_model_call_leaves_no_label_behind(stage):
    def survives(state: State) -> dict[str, list[str]]:
        stage.server.enqueue(Error(500))
        with pytest.raises(openai.InternalServerError):
            call("agent=LangGraph node=survives")
        bare_client().chat.completions.create(
            model="scripted",
            messages=[{"role": "user", "content": "agent=LangGraph node=survives"}],
        )
        return {"said": []}

    scope = stage.scope()
    graph = StateGraph(State).add_node("survives", survives).add_edge(START, "survives").compile()
    with attempt(scope):
        graph.invoke({"said": []})
        call("alone")
    assert stage.wrong(scope, 3) == []


def test_an_agent_as_a_tool_of_another_is_labelled_with_its_own_name(stage):
    inner = create_agent(model(), tools=[], name="expert")

    @tool
    def look_up(word: str) -> str:
        """Ask the expert."""
        text = (
            f"agent=expert node=model span={AGENT}/node:tools/tool:look_up/agent:expert/node:model"
        )
        return inner.invoke({"messages": [("user", text)]})["messages"][-1].text

    stage.server.respond(
        lambda r: (
            ToolCalls((ToolCall("look_up", {"word": "x"}),))
            if "use tools" in str(r.messages) and r.messages[-1]["role"] == "user"
            else Text("done")
        )
    )
    scope = stage.scope()
    with attempt(scope):
        create_agent(model(), tools=[look_up], name="researcher").invoke(REACT_INPUT)
    assert stage.wrong(scope, 3) == []


def leaf_graph(text: str, *, bare: bool = False) -> Any:
    def leaf(state: State) -> dict[str, list[str]]:
        if not bare:
            return call(text)
        bare_client().chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": text}]
        )
        return {"said": []}

    return StateGraph(State).add_node("leaf", leaf).add_edge(START, "leaf").compile()


def test_a_graph_in_a_tool_of_an_agent_has_its_own_name(stage):
    path = f"{AGENT}/node:tools/tool:look_up/agent:LangGraph/node:leaf"

    @tool
    def look_up(word: str) -> str:
        """Run a graph."""
        leaf_graph(f"agent=LangGraph node=leaf span={path}").invoke({"said": []})
        return "found"

    stage.server.respond(
        lambda r: (
            ToolCalls((ToolCall("look_up", {"word": "x"}),))
            if "use tools" in str(r.messages) and r.messages[-1]["role"] == "user"
            else Text("done")
        )
    )
    scope = stage.scope()
    with attempt(scope):
        create_agent(model(), tools=[look_up], name="researcher").invoke(REACT_INPUT)
    assert stage.wrong(scope, 3) == []


def within(node: Any) -> Any:
    """A graph of one node, `outer`."""
    return StateGraph(State).add_node("outer", node).add_edge(START, "outer").compile()


def test_a_graph_run_while_a_stream_is_open_has_its_own_labels(stage):
    path = f"{TOP}/node:outer/agent:LangGraph/node:leaf"

    def outer(state: State) -> dict[str, list[str]]:
        chunks = model().stream(f"agent=LangGraph node=outer span={TOP}/node:outer")
        next(chunks)
        leaf_graph(f"agent=LangGraph node=leaf span={path}", bare=True).invoke({"said": []})
        list(chunks)
        return {"said": []}

    scope = stage.scope()
    with attempt(scope):
        within(outer).invoke({"said": []})
    assert stage.wrong(scope, 2) == []


def test_callbacks_of_ones_own_do_not_lose_the_node(stage):
    path = f"{TOP}/node:outer/agent:LangGraph/node:leaf"
    own = {"callbacks": [BaseCallbackHandler()]}

    def outer(state: State) -> dict[str, list[str]]:
        text = f"agent=LangGraph node=outer span={TOP}/node:outer"
        prompt = ChatPromptTemplate.from_messages([("user", "{text}")])
        (prompt | model()).invoke({"text": text}, own)
        model().invoke(text, own)
        leaf_graph(f"agent=LangGraph node=leaf span={path}").invoke({"said": []}, own)
        return {"said": []}

    scope = stage.scope()
    with attempt(scope):
        within(outer).invoke({"said": []})
    assert stage.wrong(scope, 3) == []


def test_a_tools_span_says_what_went_in_and_out(stage):
    stage.server.respond(use_tools)
    scope = stage.scope()
    with attempt(scope):
        react_agent().invoke(REACT_INPUT)
    spans = {s["name"]: s for s in scope.sink.spans() if s["kind"] == "tool"}
    assert spans["add"]["attributes"] == {
        "gen_ai.tool.name": "add",
        "gen_ai.tool.call.arguments": {"a": 1, "b": 2},
        "gen_ai.tool.call.id": "c2",
        "gen_ai.tool.call.result": "3",
    }
    assert json.loads(json.dumps(scope.sink.spans())) == scope.sink.spans()


def test_a_jump_and_an_interrupt_are_no_errors(stage):
    def jump(state: State) -> Command[Any]:
        call("agent=inner node=jump")
        return Command(goto="after", graph=Command.PARENT)

    def asks(state: State) -> dict[str, list[str]]:
        call("agent=LangGraph node=after")
        return {"said": [interrupt("well?")]}

    inner = StateGraph(State).add_node("jump", jump).add_edge(START, "jump").compile(name="inner")
    graph = StateGraph(State).add_node("sub", inner).add_node("after", asks)
    compiled = graph.add_edge(START, "sub").compile(checkpointer=InMemorySaver())
    scope = stage.scope()
    with attempt(scope):
        result = compiled.invoke({"said": []}, {"configurable": {"thread_id": "t"}})
    assert result["__interrupt__"]
    assert stage.wrong(scope, 2) == []
    assert [s["error"] for s in scope.sink.spans()] == [None] * 5


def test_the_functional_api_is_labelled(stage):
    @task
    def draft(text: str) -> str:
        return model().invoke(text).text

    @entrypoint()
    def flow(text: str) -> str:
        call(f"agent=LangGraph node=flow span={TOP}/node:flow")
        return draft(text).result()

    scope = stage.scope()
    with attempt(scope):
        flow.invoke(f"agent=LangGraph node=draft span={TOP}/node:flow/node:draft")
    assert stage.wrong(scope, 2) == []


def test_the_users_own_configs_hold_nothing_of_ours(stage):
    with attempt(stage.scope()):
        assert CallbackManager.configure().handlers == []


def test_what_cannot_be_recorded_is_said_and_the_agent_goes_on(stage, monkeypatch, caplog):
    def fails(self, *args, **kwargs):
        raise RuntimeError("no room")

    monkeypatch.setattr(Runs, "_begin", fails)
    with attempt(stage.scope()):
        assert RunnableLambda(lambda text: text + "!").invoke("well") == "well!"
    assert caplog.text.count("RuntimeError: no room") == 1
    assert "cannot be recorded" in caplog.text


def test_runs_of_an_ended_attempt_are_dropped(stage):
    scope = stage.scope()
    with attempt(scope):
        abandoned = wide_graph().stream({"said": []})
        next(abandoned)
        assert RUNS._runs
    assert not RUNS._runs
    assert not RUNS._model_runs
    abandoned.close()


def test_a_tools_span_holds_whatever_the_tool_was_given(stage):
    @tool
    def read(path: Any) -> str:
        """Read a file."""
        return "bad \ud800 byte"

    scope = stage.scope()
    with attempt(scope):
        read.invoke({"path": {1: "\udcff", "large": "x" * 100_000, "handle": object()}})
    (found,) = (s for s in scope.sink.spans() if s["kind"] == "tool")
    assert found["attributes"]["gen_ai.tool.call.result"] == "bad ? byte"
    assert found["attributes"]["gen_ai.tool.call.arguments"]["path"]["1"] == "?"
    assert len(json.dumps(scope.sink.spans()).encode()) < 20_000
