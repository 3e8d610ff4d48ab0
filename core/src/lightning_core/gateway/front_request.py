"""A request that the front took in."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lightning_core.gateway.head import Head
from lightning_core.gateway.headers import Line
from lightning_core.gateway.reading import too_large

if TYPE_CHECKING:
    from lightning_core.gateway.front import Connection


class Request:
    """A request that the front took in; see `Incoming`."""

    __slots__ = (
        "_connection", "_length", "_parts", "_waiter", "headers", "keep_alive", "lines", "missing", "path", "query",
    )  # fmt: skip

    method = "POST"
    takes_chunks = True

    def __init__(self, connection: Connection, head: Head, data: bytes) -> None:
        """
        Args:
            connection: what it came by.
            head: its head.
            data: as much of its body as has come.
        """
        self.path: str
        self.query: str
        self.lines: Sequence[Line]
        self.headers: Mapping[str, str]
        self.keep_alive: bool
        self.path, self.query, self.lines, self.headers, self._length, self.keep_alive = head
        self._connection = connection
        self._parts: list[bytes] | None = [data]
        self._waiter: asyncio.Future[None] | None = None
        self.missing = self._length - len(data)
        """Bytes of the body that have not come."""

    @property
    def transport(self) -> asyncio.WriteTransport | None:
        """See `Incoming.transport`."""
        return self._connection.transport

    def feed(self, data: bytes) -> bytes:
        """Take what of `data` is body; returns what follows it."""
        part = data[: self.missing]
        if self._parts is not None:
            self._parts.append(part)
        self.missing -= len(part)
        if not self.missing and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        return data[len(part) :]

    async def body(self, limit: int) -> bytes:
        """See `Incoming.body`. Where the agent goes before it has come, the task is cancelled."""
        if self._length > limit:
            self.drop_body()
            raise too_large(limit)
        if self.missing:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        parts = self._parts or [b""]
        self.drop_body()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def drop_body(self) -> None:
        """Keep nothing of the body, nor of what is yet to come of it."""
        self._parts = None

    async def drain(self) -> None:
        """See `Incoming.drain`."""
        await self._connection.drain()
