"""What an adapter adds to its framework: CPU of a rollout's calls, with it and without.

Ours is what happens in a worker: instrumented, within an attempt, run by the adapter, spans collected in memory and
taken. The reference is the framework within an attempt that no adapter knows of; the row's `with_routing` is against the
framework alone, so that it holds what sending a call to the gateway costs besides. Each side begins with an agent that
has heard nothing: where an agent keeps what was said, the adapter copies it and the reference makes one. All talk to a
scripted model in a process of its own, and each agent calls a tool.

Whatever else the machine does makes a run take up to half as long again. So the sides take turns run by run, in every
order, and are compared within a turn; of many turns, since the median of all is nearer to what it becomes with ever more
than that of the quietest. Each counts its fifth run: before that the interpreter gets used to wrappers that came or went,
which in a worker they do not.

Run as `python -m bench.adapters` it is the model's process.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from bench import child
from bench.parent import Child
from bench.results import Row, in_turns
from lightning_core.adapter import RolloutContext
from lightning_core.instrument import ListSink, Scope, attempt, instrument
from lightning_core.rollout import Mode
from lightning_core.task import Task
from lightning_core.testing import Reply, ScriptedServer, Text, ToolCall, ToolCalls
from lightning_core.testing.received import Received

GOAL = 1.03
TURNS = 800
BEFORE = 4
"""Runs before the one that counts."""
ASKED = "Write about lightning."
ARGUMENTS = {"text": "lightning"}


@dataclass(frozen=True)
class Framework:
    """An agent of a framework, and the ways to run it."""

    adapter: Any
    """The adapter."""
    agent: Any
    """The agent."""
    run: Callable[[], Awaitable[Any]]
    """Runs one that has heard nothing, as its user does."""
    calls: int
    """Model calls of a run."""
    close: Callable[[], Awaitable[Any]]
    """Closes its clients."""


def autogen(base_url: str) -> Framework:
    """A round-robin team of two assistants with a tool."""
    from autogen_agentchat.agents import AssistantAgent
    from autogen_agentchat.teams import RoundRobinGroupChat
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    from lightning_autogen import AutoGenAdapter

    info: Any = {"function_calling": True, "family": "unknown"}
    info |= dict.fromkeys(("vision", "json_output", "structured_output"), False)
    client = OpenAIChatCompletionClient(
        model="scripted",
        api_key="unused",
        base_url=base_url,
        model_info=info,
    )

    async def look_up(text: str) -> str:
        """Look a text up."""
        return f"nothing about {text}"

    def make() -> Any:
        agents: list[Any] = [
            AssistantAgent(name, client, tools=[look_up], reflect_on_tool_use=True)
            for name in ("writer", "critic")
        ]
        return RoundRobinGroupChat(agents, max_turns=2)

    return Framework(AutoGenAdapter(), make(), lambda: make().run(task=ASKED), 4, client.close)


def langgraph(base_url: str) -> Framework:
    """An agent of `create_agent` with a tool."""
    from langchain.agents import create_agent
    from langchain_openai import ChatOpenAI
    from openai import AsyncOpenAI
    from pydantic import SecretStr

    from lightning_langgraph import LangGraphAdapter

    # ChatOpenAI closes no client of its own.
    client = AsyncOpenAI(api_key="unused", base_url=base_url)
    model = ChatOpenAI(
        model="scripted",
        api_key=SecretStr("unused"),
        base_url=base_url,
        root_async_client=client,
        async_client=client.chat.completions,
    )

    async def look_up(text: str) -> str:
        """Look a text up."""
        return f"nothing about {text}"

    agent = create_agent(model, [look_up], name="writer")
    asked: Any = {"messages": [{"role": "user", "content": ASKED}]}
    # As one of many threads, which is how the adapter runs it.
    config: Any = {"configurable": {"thread_id": "a"}}
    return Framework(
        LangGraphAdapter(), agent, lambda: agent.ainvoke(asked, config), 2, client.close
    )


def openai_agents(base_url: str) -> Framework:
    """An agent with a tool."""
    from agents import (
        Agent,
        OpenAIChatCompletionsModel,
        Runner,
        function_tool,
        set_trace_processors,
    )
    from openai import AsyncOpenAI

    from lightning_openai_agents import OpenAIAgentsAdapter

    set_trace_processors([])  # Within attempts nothing is posted, so neither on the other sides.
    client = AsyncOpenAI(api_key="unused", base_url=base_url)

    @function_tool
    async def look_up(text: str) -> str:
        """Look a text up."""
        return f"nothing about {text}"

    agent = Agent(
        "writer",
        instructions="Write well.",
        tools=[look_up],
        model=OpenAIChatCompletionsModel("scripted", client),
    )
    return Framework(
        OpenAIAgentsAdapter(), agent, lambda: Runner.run(agent, ASKED), 2, client.close
    )


Side: TypeAlias = Callable[[Framework, int], Awaitable[float]]

FRAMEWORKS: dict[str, Callable[[str], Framework]] = {
    "autogen": autogen,
    "langgraph": langgraph,
    "openai-agents": openai_agents,
}
"""What each row measures, by the adapter's name: given the model's address."""

NAMES = tuple(f"adapter-{name}" for name in FRAMEWORKS)


def rows(names: Sequence[str] = NAMES) -> Iterator[Row]:
    """Run the benches in `names`."""
    for name in names:
        with Child("adapters") as model:
            framework = FRAMEWORKS[name.removeprefix("adapter-")](
                f"http://127.0.0.1:{model.port}/v1"
            )
            taken = asyncio.run(_measured(framework, model.port))
        ours, routed, alone = (taken[side] for side in (_ours, _routed, _alone))
        made = in_turns(name, ours, routed, goal=GOAL)
        yield {**made, "with_routing": in_turns(name, ours, alone)["ratio"]}


async def _measured(framework: Framework, port: int) -> dict[Side, list[float]]:
    """Milliseconds of CPU of a call by side, in each turn."""
    orders = list(itertools.permutations((_ours, _routed, _alone)))
    turns: list[dict[Side, float]] = []
    gc.disable()  # It would count one side's garbage to another.
    try:
        for number in range(TURNS + 1):
            if number % 10 == 0:
                gc.collect()
            taken: dict[Side, float] = {}
            for side in orders[number % len(orders)]:
                taken[side] = await side(framework, port) * 1000 / framework.calls
            turns.append(taken)
    finally:
        gc.enable()
        await framework.close()
    return {side: [turn[side] for turn in turns[1:]] for side in orders[0]}  # The first warms up.


async def _ours(framework: Framework, port: int) -> float:
    """Seconds of CPU of a run by the adapter within an attempt; the model stands in the gateway's place."""
    task = Task(id="t", input=ASKED)
    context = RolloutContext(
        rollout_id="r", attempt_id="a", mode=Mode.OBSERVE, base_url="", deadline=time.time() + 3600
    )

    async def run() -> None:
        sink = ListSink()
        with attempt(_scope(port, sink)):
            await framework.adapter.run(framework.agent, task, context)
        sink.take()

    with instrument([framework.adapter]):
        return await _settled(run)


async def _routed(framework: Framework, port: int) -> float:
    """Seconds of CPU of a run within an attempt, of which the adapter knows nothing."""

    async def run() -> None:
        with attempt(_scope(port, ListSink())):
            await framework.run()

    with instrument():
        return await _settled(run)


async def _alone(framework: Framework, port: int) -> float:
    """Seconds of CPU of a run without us."""
    return await _settled(framework.run)


async def _settled(run: Callable[[], Awaitable[Any]]) -> float:
    """Seconds of CPU of the last of some runs."""
    for _ in range(BEFORE):
        await run()
    began = time.process_time()
    await run()
    return time.process_time() - began


def _scope(port: int, sink: ListSink) -> Scope:
    return Scope(gateway=f"http://127.0.0.1:{port}", session="token", attempt="a", sink=sink)


def _reply(request: Received) -> Reply:
    """A tool call first, then text."""
    if request.messages[-1]["role"] == "tool":
        return Text("It says nothing about that.")
    return ToolCalls((ToolCall("look_up", ARGUMENTS),))


async def _serve() -> None:
    async with ScriptedServer() as server:
        server.respond(_reply)
        await child.serve({"port": int(server.url.rsplit(":", 1)[1])})


if __name__ == "__main__":
    child.run(_serve)
