"""Detached: a request whose agent does not wait for the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lightning_core.gateway.headers import Line
from lightning_core.gateway.incoming import Incoming


class Detached:
    """A request that was answered before it has run; see `Incoming`. What is written to it goes nowhere."""

    takes_chunks = False
    keep_alive = False
    status: Final = 200
    """What the agent was answered with."""

    def __init__(self, request: Incoming) -> None:
        """
        Args:
            request: the request, its body read.
        """
        self.method = request.method
        self.path = request.path
        self.query = request.query
        self.headers: Mapping[str, str] = request.headers
        self.lines: Sequence[Line] = request.lines
        self.transport: asyncio.WriteTransport | None = _Nowhere()

    async def body(self, limit: int) -> bytes:
        """Nothing: it has been read."""
        return b""

    async def drain(self) -> None:
        """Return at once: nobody reads."""


class _Nowhere(asyncio.WriteTransport):
    """Takes all that is written and keeps nothing."""

    def write(self, data: Any) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass
