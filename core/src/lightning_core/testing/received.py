"""What a scripted server received, and events to wait for from any thread or event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from multidict import CIMultiDictProxy


class Signal:
    """Something that happens once. `await signal` in any event loop, or `signal.wait(timeout)` in any thread."""

    def __init__(self) -> None:
        self._future: Future[None] = Future()

    @property
    def happened(self) -> bool:
        """Whether it has happened."""
        return self._future.done() and self._future.exception() is None

    def __bool__(self) -> bool:
        return self.happened

    def __await__(self) -> Generator[Any, None, None]:
        # A waiter that gives up must not end the wait of the others.
        return asyncio.shield(asyncio.wrap_future(self._future)).__await__()

    def wait(self, timeout: float | None = None) -> None:
        """Block this thread until it has happened.

        Raises:
            TimeoutError: it did not happen within `timeout` seconds.
            RuntimeError: the server was closed first.
        """
        self._future.result(timeout)

    def happen(self) -> None:
        """Say that it has happened; saying so again changes nothing."""
        if not self._future.done():
            self._future.set_result(None)

    def give_up(self, reason: str) -> None:
        """Say that it will not happen any more: who waits gets a RuntimeError."""
        if not self._future.done():
            self._future.set_exception(RuntimeError(reason))


@dataclass(frozen=True, kw_only=True, eq=False)
class Received:
    """A request that a scripted server got."""

    method: str
    """`GET` or `POST`."""
    path: str
    """The path, without query."""
    query: dict[str, str]
    """The query."""
    headers: CIMultiDictProxy[str]
    """The headers; names in any case."""
    body: bytes
    """The body as it came."""
    json: Any
    """The body decoded; None where it is not JSON."""
    received_at: float
    """Unix time in seconds at which the body's last byte had come."""
    disconnected: Signal = field(default_factory=Signal)
    """Happens when the client goes away before its reply is complete."""
    finished: Signal = field(default_factory=Signal)
    """Happens when the server is done with it: the reply's last byte is written, cut, or nobody is left to read it."""

    @property
    def model(self) -> str | None:
        """The model asked for, in the body or in an Azure path."""
        model = self.json.get("model") if isinstance(self.json, dict) else None
        if model is None and "/deployments/" in self.path:
            return self.path.split("/deployments/", 1)[1].split("/", 1)[0]
        return model if isinstance(model, str) else None

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The chat messages; empty where there are none."""
        messages = self.json.get("messages") if isinstance(self.json, dict) else None
        return messages if isinstance(messages, list) else []

    @property
    def stream(self) -> bool:
        """Whether a stream was asked for."""
        return isinstance(self.json, dict) and self.json.get("stream") is True

    @property
    def api_key(self) -> str | None:
        """The key that was sent, as a bearer token or in Azure's header."""
        scheme, _, key = self.headers.get("authorization", "").partition(" ")
        return key if scheme.lower() == "bearer" else self.headers.get("api-key")
