"""Incoming: an agent's request, whichever server took it in."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from aiohttp import HttpVersion11, web

from lightning_core.gateway.headers import Line, line_of
from lightning_core.gateway.reading import too_large
from lightning_core.gateway.refusal import Refusal

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Incoming(Protocol):
    """What the gateway asks of a request, and of the connection that it came by."""

    @property
    def method(self) -> str:
        """The method."""

    @property
    def path(self) -> str:
        """The path as it was sent."""

    @property
    def query(self) -> str:
        """The query as it was sent, without `?`."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers; ask for names in lower case. Of several with one name, the first."""

    @property
    def lines(self) -> Sequence[Line]:
        """All headers, in order."""

    @property
    def takes_chunks(self) -> bool:
        """Whether the reply may be sent in chunks."""

    @property
    def keep_alive(self) -> bool:
        """Whether the connection is to stay open after the reply."""

    @property
    def transport(self) -> asyncio.WriteTransport | None:
        """The connection; None once the agent has gone."""

    async def body(self, limit: int) -> bytes:
        """The body, decompressed.

        Raises:
            Refusal: it is larger than `limit` bytes, or cannot be read.
            ConnectionError: the agent has gone.
        """

    async def drain(self) -> None:
        """Wait until the agent has read most of what was written.

        Raises:
            ConnectionError: the agent has gone.
        """


class AiohttpRequest:
    """A request that aiohttp's server took in."""

    def __init__(self, request: web.BaseRequest) -> None:
        url = request.rel_url
        self._request = request
        self.method = request.method
        self.path = url.raw_path
        self.query = url.raw_query_string
        self.headers: Mapping[str, str] = request.headers
        self.takes_chunks = request.version >= HttpVersion11

    @property
    def lines(self) -> Sequence[Line]:
        """See `Incoming.lines`."""
        return [line_of(name, value) for name, value in self.headers.items()]

    @property
    def keep_alive(self) -> bool:
        """See `Incoming.keep_alive`."""
        return self._request.keep_alive

    @property
    def transport(self) -> asyncio.WriteTransport | None:
        """See `Incoming.transport`."""
        return self._request.transport

    async def body(self, limit: int) -> bytes:
        """See `Incoming.body`."""
        request = self._request
        if "Expect" in request.headers and request.transport is not None:
            request.transport.write(_CONTINUE)
        if (request.content_length or 0) > limit:
            raise too_large(limit)
        content = request.content
        chunks: list[bytes] = []
        size = 0
        try:
            while True:
                chunk = await content.readany()
                size += len(chunk)
                if size > limit:
                    raise too_large(limit)
                if content.at_eof():
                    return b"".join([*chunks, chunk]) if chunks else chunk
                chunks.append(chunk)
        except web.RequestPayloadError as error:
            raise Refusal(400, "bad_request", f"the body cannot be read: {error}") from None

    async def drain(self) -> None:
        """See `Incoming.drain`."""
        await self._request.writer.drain()
