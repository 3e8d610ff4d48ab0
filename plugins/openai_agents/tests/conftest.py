"""Attempts against one scripted server in the gateway's place, and agents whose prompts say which labels their calls have."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import openai
import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
    input_guardrail,
    output_guardrail,
)
from agents.tracing import get_trace_provider

from lightning_core.instrument import ListSink, Scope, instrument
from lightning_core.testing import Reply, ScriptedServer, Text, ToolCall, ToolCalls
from lightning_core.testing.received import Received
from lightning_openai_agents import OpenAIAgentsAdapter, transport

MODELS: dict[str, Any] = {"responses": OpenAIResponsesModel, "chat": OpenAIChatCompletionsModel}
WIDE_CALLS = 10
"""Model calls of a run of `Agents.wide`."""


class Agents:
    """Makes agents whose model is at `base_url`. Each agent's instructions say the labels that its calls must have."""

    def __init__(self, base_url: str, kind: str = "responses") -> None:
        options: Any = {"api_key": "k", "base_url": base_url, "max_retries": 0}
        self.client = openai.AsyncOpenAI(**options)
        self.bare = openai.AsyncOpenAI(**options)
        self.sync = openai.OpenAI(**options)
        self.model = MODELS[kind](model="scripted", openai_client=self.client)
        self.off = False
        """Whether runs have no tracing."""
        self.in_threads = False
        """Whether the clients are used by `run_sync` in threads, hence in the loop that those share."""

    async def close(self) -> None:
        for client in (self.client, self.bare):
            await close(client, in_threads=self.in_threads)
        self.sync.close()

    def agent(self, name: str, path: str, *, node: str = "", also: str = "", **options: Any) -> Any:
        """An agent whose own span is at `path` with its name at the end."""
        said = f"agent={name} span={path}agent:{name}" + (f" node={node}" if node else "")
        return Agent(name, instructions=f"{said} {also}", model=self.model, **options)

    def tools(self, path: str, agent: str) -> list[Any]:
        """An async and a sync tool of an agent at `path`, which call the model themselves."""

        @function_tool
        async def look_up(word: str) -> str:
            """Look a word up."""
            text = f"agent={agent} span={path}/tool:look_up {word}"
            reply = await self.bare.chat.completions.create(
                model="scripted", messages=[{"role": "system", "content": text}]
            )
            return f"found {reply.choices[0].message.content}"

        @function_tool
        def add(a: int, word: str) -> str:
            """Add."""
            text = f"agent={agent} span={path}/tool:add {word}"
            self.sync.chat.completions.create(
                model="scripted", messages=[{"role": "system", "content": text}]
            )
            return str(a + 1)

        return [look_up, add]

    def wide(self) -> Any:
        """Tools at once, an agent as a tool, a handoff, and guardrails on both ends that ask agents of their own."""
        guard = self.agent("guard", "agent:triage/node:look/", node="look")
        judge = self.agent("judge", "agent:closer/node:check/", node="check")
        inner = "agent:triage/tool:ask/"
        helper = self.agent(
            "helper",
            inner,
            also="use add",
            tools=self.tools(f"{inner}agent:helper", "helper")[1:],
        )

        @input_guardrail(name="look")
        async def look(context: Any, agent: Any, text: Any) -> Any:
            said = await Runner.run(guard, text, run_config=self.config())
            return GuardrailFunctionOutput(said.final_output, tripwire_triggered=False)

        @output_guardrail(name="check")
        async def check(context: Any, agent: Any, text: str) -> Any:
            said = await Runner.run(judge, text, run_config=self.config())
            return GuardrailFunctionOutput(said.final_output, tripwire_triggered=False)

        closer = self.agent("closer", "", output_guardrails=[check])
        return self.agent(
            "triage",
            "",
            also="use look_up add ask then hand off",
            tools=[*self.tools("agent:triage", "triage"), helper.as_tool("ask", "Asks.")],
            handoffs=[closer],
            input_guardrails=[look],
        )

    def config(self) -> RunConfig:
        """Options of a run."""
        return RunConfig(tracing_disabled=self.off)


async def close(client: openai.AsyncOpenAI, *, in_threads: bool) -> None:
    """Close a client in the loop that has used it."""
    if in_threads:
        closing = asyncio.run_coroutine_threadsafe(client.close(), transport._sync_loop())
        await asyncio.wrap_future(closing)
    else:
        await client.close()


def reply(request: Received) -> Reply:
    """The model's part: it calls tools and hands off where the instructions say so, and passes the task's mark on."""
    words = str(request.messages[0]["content"]).split()
    word = mark(request)
    asked = request.messages[-1]["role"] != "tool"
    if "use" in words and asked:
        known = {
            "look_up": {"word": word},
            "add": {"a": 1, "word": word},
            "ask": {"input": f"help {word}"},
        }
        used = [name for name in known if name in words]
        return ToolCalls([ToolCall(name, known[name], id=f"{name}-1") for name in used])
    if "hand" in words:
        return ToolCalls([ToolCall("transfer_to_closer", {}, id="hand-1")])
    return Text(f"said so {word}")


def mark(request: Received) -> str:
    """The mark of the attempt's task, which every request of it holds."""
    for message in request.messages:
        said = f"{message.get('content')} {message.get('tool_calls')}"
        for word in said.replace('"', " ").split():
            if word.startswith("mark-"):
                return word.rstrip("\\'}]")
    return "none"


@dataclass
class Stage:
    """Attempts against one server in the gateway's place."""

    server: ScriptedServer
    received: list[Received] = field(default_factory=list)
    """The requests in the terms of chat completions."""

    def scope(self, name: str = "a1") -> Scope:
        return Scope(
            gateway=self.server.url, session=f"token-{name}", attempt=name, sink=ListSink()
        )

    def calls(self, name: str = "a1") -> list[Received]:
        """The requests of an attempt."""
        token = f"token-{name}"
        return [r for r in self.received if r.headers.get("x-lightning-session") == token]

    @staticmethod
    def spans(scope: Scope) -> dict[str, dict[str, Any]]:
        """The spans of an attempt by id."""
        return {s["id"]: s for s in scope.sink.spans()}  # type: ignore[attr-defined]

    def path(self, span: str | None, scope: Scope) -> str:
        """`kind:name` of a span and of those around it, the outermost first."""
        spans, names = self.spans(scope), []
        while span is not None:
            at = spans[span]
            names.append(f"{at['kind']}:{at['name']}")
            span = at["parent_id"]
        return "/".join(reversed(names))

    def wrong(self, scope: Scope, count: int) -> list[str]:
        """The calls of the attempt, `count` in all, whose rollout, agent, node or span is not what its prompt says."""
        calls = self.calls(scope.attempt)
        faults = [f"{len(calls)} calls"] if len(calls) != count else []
        for request in calls:
            first = str(request.messages[0]["content"])
            words = dict(word.split("=", 1) for word in first.split() if "=" in word)
            labels = labels_of(request)
            expected = {k: words[k] for k in ("agent", "node") if k in words}
            got = {k: labels[k] for k in ("agent", "node") if k in labels}
            if got != expected:
                faults.append(f"{first[:80]!r}: labels {got}")
            if (path := self.path(labels.get("span"), scope)) != words.get("span", ""):
                faults.append(f"{first[:80]!r}: span {path}")
            if mark(request) != f"mark-{scope.attempt}":
                faults.append(f"{first[:80]!r}: {mark(request)}")
        open_ones = (s["name"] for s in self.spans(scope).values() if s["ended_at"] is None)
        return faults + [f"span {name} is open" for name in open_ones]


def labels_of(request: Received) -> dict[str, str]:
    """The labels of a request."""
    pairs = parse_qs(request.headers["x-lightning-labels"])
    return {name: values[0] for name, values in pairs.items()}


async def run(agent: Any, text: Any, **options: Any) -> Any:
    return await Runner.run(agent, text, **options)


async def run_sync(agent: Any, text: Any, **options: Any) -> Any:
    """As a worker runs a synchronous agent: in a thread."""
    return await asyncio.to_thread(Runner.run_sync, agent, text, **options)


async def run_streamed(agent: Any, text: Any, **options: Any) -> Any:
    result = Runner.run_streamed(agent, text, **options)
    async for _ in result.stream_events():
        pass
    return result


WAYS: dict[str, Callable[..., Awaitable[Any]]] = {
    "run": run,
    "run_sync": run_sync,
    "run_streamed": run_streamed,
}


@pytest.fixture(autouse=True)
def exporting_nothing():
    """The SDK traces, and nobody posts it: what runs outside attempts would go to OpenAI."""
    provider = get_trace_provider()
    before = provider._multi_processor._processors
    provider.set_processors([])
    yield
    provider.set_processors(list(before))


@pytest.fixture
def server():
    with ScriptedServer.in_thread(responses=True) as server:
        server.respond(reply)
        yield server


@pytest.fixture
async def agents_at():
    """Makes agents whose model is at an address, and closes their clients."""
    made = []

    def make(base_url: str, kind: str = "responses") -> Agents:
        made.append(Agents(base_url, kind))
        return made[-1]

    yield make
    for agents in made:
        await agents.close()


@pytest.fixture
async def stage(server):
    with instrument([OpenAIAgentsAdapter()]):
        stage = Stage(server)

        def answer(request: Received) -> Reply:
            stage.received.append(request)
            return reply(request)

        server.respond(answer)
        yield stage


@pytest.fixture
async def closing():
    """Closes the clients that the SDK made within attempts."""
    yield
    for loop, client in transport._clients.items():
        if loop is asyncio.get_running_loop():
            await client.aclose()
        elif loop.is_running():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(client.aclose(), loop))
    transport._clients.clear()
