"""Attempts against one scripted server in the gateway's place: it sees what the gateway would, the headers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

import openai
import pytest

from lightning_core.instrument import ListSink, Scope, instrument
from lightning_core.testing import ScriptedServer
from lightning_core.testing.received import Received
from lightning_langgraph import LangGraphAdapter


@dataclass
class Stage:
    """Attempts against one server in the gateway's place."""

    server: ScriptedServer
    clients: dict[str, Any]
    """Clients of this test alone, for `ChatOpenAI`, which shares one among event loops and fails in the second."""

    def scope(self, name: str = "a1") -> Scope:
        return Scope(
            gateway=self.server.url,
            session=f"token-{name}",
            attempt=name,
            sink=ListSink(),
        )

    def calls(self, name: str = "a1") -> list[tuple[str, dict[str, str]]]:
        """What each request of the attempt asked, and its labels."""
        return [
            (_asked(request), _labels(request))
            for request in self.server.requests
            if request.headers.get("x-lightning-session") == f"token-{name}"
        ]

    def places(self, scope: Scope) -> list[tuple[str | None, str | None, str]]:
        """The agent and the node of each call of the attempt, and the spans around it."""
        spans = {s["id"]: s for s in scope.sink.spans()}  # type: ignore[attr-defined]
        assert [s["name"] for s in spans.values() if s["ended_at"] is None] == []
        found = []
        for _, labels in self.calls(scope.attempt):
            path = _path(spans[labels["span"]], spans) if "span" in labels else ""
            found.append((labels.get("agent"), labels.get("node"), path))
        return found

    def wrong(self, scope: Scope, count: int) -> list[str]:
        """The calls of the attempt, `count` in all, whose labels are not those that the prompt says."""
        spans = {s["id"]: s for s in scope.sink.spans()}  # type: ignore[attr-defined]
        faults = []
        calls = self.calls(scope.attempt)
        for asked, labels in calls:
            words = dict(word.split("=", 1) for word in asked.split() if "=" in word)
            expected = {k: words[k] for k in ("agent", "node") if k in words}
            got = {k: labels[k] for k in ("agent", "node") if k in labels}
            inner = spans.get(labels.get("span", ""))
            if got != expected:
                faults.append(f"{asked!r}: labels {got}")
            elif inner is None and expected:
                faults.append(f"{asked!r}: its span is unknown")
            elif inner is not None and "span" in words:
                path = _path(inner, spans)
                if path != words["span"]:
                    faults.append(f"{asked!r}: span {path}")
        faults += [f"span {s['name']} is open" for s in spans.values() if s["ended_at"] is None]
        return faults if len(calls) == count else [f"{len(calls)} calls", *faults]


def _asked(request: Received) -> str:
    content = [m for m in request.messages if m["role"] == "user"][-1]["content"]
    return content if isinstance(content, str) else content[0]["text"]


def _labels(request: Received) -> dict[str, str]:
    pairs = parse_qs(request.headers.get("x-lightning-labels", ""))
    return {name: values[0] for name, values in pairs.items()}


def _path(inner: dict[str, Any], spans: dict[str, dict[str, Any]]) -> str:
    names = []
    at: dict[str, Any] | None = inner
    while at is not None:
        names.append(f"{at['kind']}:{at['name']}")
        at = spans.get(at["parent_id"])
    return "/".join(reversed(names))


@pytest.fixture
async def stage():
    sync, concurrent = openai.DefaultHttpxClient(), openai.DefaultAsyncHttpxClient()
    with ScriptedServer.in_thread() as server, instrument([LangGraphAdapter()]):
        yield Stage(server, {"http_client": sync, "http_async_client": concurrent})
    sync.close()
    await concurrent.aclose()
