"""Attempts against one scripted server in the gateway's place, and agents whose prompts say which labels their calls have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

import openai
import pytest
from autogen_agentchat.agents import (
    AssistantAgent,
    MessageFilterAgent,
    SocietyOfMindAgent,
)
from autogen_agentchat.agents._message_filter_agent import MessageFilterConfig, PerSourceFilter
from autogen_agentchat.conditions import TextMentionTermination
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat, Swarm
from autogen_agentchat.tools import AgentTool, TeamTool
from autogen_ext.models.openai import OpenAIChatCompletionClient

from lightning_autogen import AutoGenAdapter
from lightning_core.instrument import ListSink, Scope, instrument
from lightning_core.testing import Reply, ScriptedServer, Text, ToolCall, ToolCalls
from lightning_core.testing.received import Received

INFO: Any = {
    "vision": False,
    "function_calling": True,
    "json_output": True,
    "structured_output": False,
    "family": "unknown",
    "multiple_system_messages": True,
}


class Agents:
    """Makes agents whose model is at `base_url`. Each agent's system message says the labels that its calls must have."""

    def __init__(self, base_url: str) -> None:
        options: Any = {"api_key": "k", "base_url": base_url, "max_retries": 0}
        self.base_url = base_url
        # One of each: making a client takes longer than many calls.
        self.model = OpenAIChatCompletionClient(model="scripted", model_info=INFO, **options)
        self.bare = openai.AsyncOpenAI(**options)
        self.sync = openai.OpenAI(**options)

    async def close(self) -> None:
        await self.model.close()
        await self.bare.close()
        self.sync.close()

    def agent(self, name: str, path: str, *, team: str = "", **options: Any) -> AssistantAgent:
        """An agent whose own span is at `path` with its name at the end."""
        said = f"agent={name} span={path}agent:{name}" + (f" team={team}" if team else "")
        said += options.pop("also", "")
        return AssistantAgent(name, self.model, system_message=said, **options)

    def tooled(
        self, name: str = "solo", path: str = "", *, team: str = "", **options: Any
    ) -> AssistantAgent:
        """Two tools at once, an async and a sync one, that call the model themselves; then it reflects. 4 calls."""
        here = f"agent={name} span={path}agent:{name}/tool:"
        teams = f" team={team}" if team else ""
        client, sync = self.bare, self.sync

        async def look_up(word: str) -> str:
            """Look a word up."""
            text = f"{here}look_up{teams} {word}"
            reply = await client.chat.completions.create(
                model="scripted", messages=[{"role": "system", "content": text}]
            )
            return f"found {reply.choices[0].message.content}"

        def add(a: int, word: str) -> str:
            """Add."""
            text = f"{here}add{teams} {word}"
            sync.chat.completions.create(
                model="scripted", messages=[{"role": "system", "content": text}]
            )
            return str(a + 1)

        return self.agent(
            name,
            path,
            team=team,
            also=" use tools",
            tools=[look_up, add],
            reflect_on_tool_use=True,
            **options,
        )

    def wide(self, **options: Any) -> RoundRobinGroupChat:
        """Every kind of participant once. 15 calls."""
        top = "agent:top/"
        inner = RoundRobinGroupChat(
            [
                self.agent("x", f"{top}agent:society/agent:inner/", team="inner", **options),
                self.agent("y", f"{top}agent:society/agent:inner/", team="inner", **options),
            ],
            name="inner",
            max_turns=2,
        )
        society = SocietyOfMindAgent(
            "society",
            inner,
            self.model,
            instruction="agent=society span=agent:top/agent:society team=top",
        )
        shown = MessageFilterConfig(
            per_source=[PerSourceFilter(source="user", position="first", count=1)]
        )
        filtered = MessageFilterAgent(
            "filtered",
            self.agent("behind", f"{top}agent:filtered/", team="top", **options),
            shown,
        )
        swarm = Swarm(
            [
                self.agent(
                    "p",
                    f"{top}agent:swarm/",
                    team="swarm",
                    also=" hand off",
                    handoffs=["q"],
                    **options,
                ),
                self.agent("q", f"{top}agent:swarm/", team="swarm", **options),
            ],
            name="swarm",
            max_turns=2,
        )
        chief = f"{top}agent:chief/tool:"
        helper = AgentTool(self.agent("helper", f"{chief}helper/", team="top", **options))
        panel = RoundRobinGroupChat(
            [self.agent("judge", f"{chief}ask_panel/agent:panel/", team="panel", **options)],
            name="panel",
            max_turns=1,
        )
        tools = [helper, TeamTool(panel, name="ask_panel", description="Ask a panel.")]
        chief_agent = self.agent(
            "chief",
            top,
            team="top",
            also=" ask others",
            tools=tools,
            max_tool_iterations=3,
            **options,
        )
        return RoundRobinGroupChat(
            [
                self.tooled("writer", top, team="top", **options),
                society,
                filtered,
                swarm,
                chief_agent,
            ],
            name="top",
            max_turns=5,
        )

    def selector(self, **options: Any) -> SelectorGroupChat:
        """The team's own model calls choose who speaks. 4 calls."""
        return SelectorGroupChat(
            [
                self.agent("one", "agent:chosen/", team="chosen", **options),
                self.agent("two", "agent:chosen/", team="chosen", **options),
            ],
            self.model,
            name="chosen",
            selector_prompt="agent=chosen span=agent:chosen team=chosen select {participants} {roles} {history}",
            allow_repeated_speaker=True,
            max_turns=2,
            termination_condition=TextMentionTermination("never said"),
        )


def reply(request: Received) -> Reply:
    """The model's part: it calls tools, hands off and selects where the prompt says so, and passes the task's mark on."""
    messages = request.messages
    first, last = _text(messages[0]), messages[-1]
    if "select [" in first:
        return Text("one")
    if last["role"] != "tool":
        word = mark(request)
        if "use tools" in first:
            return ToolCalls(
                (
                    ToolCall("look_up", {"word": word}, id="c1"),
                    ToolCall("add", {"a": 1, "word": word}, id="c2"),
                )
            )
        if "hand off" in first:
            return ToolCalls((ToolCall("transfer_to_q", {}, id="c3"),))
        if "ask others" in first:
            return ToolCalls((ToolCall("helper", {"task": f"help {word}"}, id="c4"),))
    elif "ask others" in first and len([m for m in messages if m["role"] == "tool"]) == 1:
        return ToolCalls((ToolCall("ask_panel", {"task": f"judge {mark(request)}"}, id="c5"),))
    return Text(f"said so {mark(request)}")


def mark(request: Received) -> str:
    """The mark of the attempt's task, which every request of it holds."""
    for message in request.messages:
        for word in _text(message).split():
            if word.startswith("mark-"):
                return word
    return "none"


def _text(message: dict[str, Any]) -> str:
    return str(message.get("content") or "") + str(message.get("tool_calls") or "")


@dataclass
class Stage:
    """Attempts against one server in the gateway's place."""

    server: ScriptedServer
    agents: Agents
    make = Agents
    """Makes others, which are to be closed."""

    def task(self, name: str = "a1") -> str:
        """The task of an attempt, with its mark."""
        return f"do it mark-{name}"

    @staticmethod
    def labels(request: Received) -> dict[str, str]:
        """The labels of a request."""
        return labels_of(request)

    def scope(self, name: str = "a1") -> Scope:
        return Scope(
            gateway=self.server.url, session=f"token-{name}", attempt=name, sink=ListSink()
        )

    @staticmethod
    def path(span: str | None, scope: Scope) -> str:
        """The path of a span of an attempt."""
        return path_of(span, {s["id"]: s for s in scope.sink.spans()})  # type: ignore[attr-defined]

    def calls(self, name: str = "a1") -> list[Received]:
        """The requests of an attempt."""
        token = f"token-{name}"
        return [r for r in self.server.requests if r.headers.get("x-lightning-session") == token]

    def wrong(self, scope: Scope, count: int) -> list[str]:
        """The calls of the attempt, `count` in all, whose rollout, agent, team or span is not what its prompt says."""
        spans = {s["id"]: s for s in scope.sink.spans()}  # type: ignore[attr-defined]
        calls = self.calls(scope.attempt)
        faults = [f"{len(calls)} calls"] if len(calls) != count else []
        for request in calls:
            first = _text(request.messages[0])
            words = dict(word.split("=", 1) for word in first.split() if "=" in word)
            labels = labels_of(request)
            expected = {k: words[k] for k in ("agent", "team") if k in words}
            got = {k: labels[k] for k in ("agent", "team", "node") if k in labels}
            if got != expected:
                faults.append(f"{first[:80]!r}: labels {got}")
            if (path := path_of(labels.get("span"), spans)) != words.get("span", ""):
                faults.append(f"{first[:80]!r}: span {path}")
            if mark(request) != f"mark-{scope.attempt}":
                faults.append(f"{first[:80]!r}: {mark(request)}")
        faults += [f"span {s['name']} is open" for s in spans.values() if s["ended_at"] is None]
        return faults


def labels_of(request: Received) -> dict[str, str]:
    pairs = parse_qs(request.headers["x-lightning-labels"])
    return {name: values[0] for name, values in pairs.items()}


def path_of(span: str | None, spans: dict[str, dict[str, Any]]) -> str:
    """`kind:name` of a span and of those around it, the outermost first."""
    names = []
    while span is not None:
        at = spans[span]
        names.append(f"{at['kind']}:{at['name']}")
        span = at["parent_id"]
    return "/".join(reversed(names))


@pytest.fixture
def server():
    with ScriptedServer.in_thread() as server:
        server.respond(reply)
        yield server


@pytest.fixture
async def agents_at():
    """Makes agents whose model is at an address, and closes their clients."""
    made = []

    def make(base_url: str) -> Agents:
        made.append(Agents(base_url))
        return made[-1]

    yield make
    for agents in made:
        await agents.close()


@pytest.fixture
async def stage(server, agents_at):
    with instrument([AutoGenAdapter()]):
        # The address is where nothing listens: a call that is not rerouted fails.
        yield Stage(server, agents_at("http://127.0.0.1:9/v1"))
