"""Outgoing: a reply on its way to the agent, head and body written as they are given."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from lightning_core.gateway.dialects.base import Dialect
from lightning_core.gateway.incoming import Incoming
from lightning_core.gateway.refusal import Refusal

_FULL = 64 * 1024


class Outgoing:
    """A reply whose headers are given as lines.

    `web.Response` and `web.StreamResponse` build and check each header, which costs as much as all else that the gateway does with
    a reply. The head goes out together with the first bytes of the body.
    """

    __slots__ = ("_agent", "_chunked", "_closes", "_ended", "_head", "_pending", "status")

    def __init__(
        self,
        agent: Incoming,
        status: int,
        reason: str,
        lines: str,
        length: int | None,
        *,
        pending: bytes = b"",
    ) -> None:
        """
        Args:
            agent: the request that is answered.
            status: the status.
            reason: its text.
            lines: the headers, each with its line end, without `Content-Length` and `Connection`.
            length: the body's bytes; None where nobody knows yet, and it goes out in chunks.
            pending: what `finish` sends; the whole body.
        """
        self._agent = agent
        self.status = status
        self._pending = pending
        self._closes = self._chunked = self._ended = False
        body = ""
        if length is not None:
            if status not in (204, 304):
                body = f"Content-Length: {length}\r\n"
        elif agent.takes_chunks:
            self._chunked = True
            body = "Transfer-Encoding: chunked\r\n"
        else:
            self._closes = True
        connection = "" if self.keep_alive else "Connection: close\r\n"
        head = f"HTTP/1.1 {status} {reason}\r\n{lines}{body}{connection}\r\n"
        self._head = head.encode("utf-8", "replace")

    @property
    def keep_alive(self) -> bool:
        """Whether the connection stays open."""
        return not self._closes and self._agent.keep_alive

    def flush(self) -> None:
        """Write the head now, while the body is yet to come.

        Raises:
            ConnectionResetError: the agent has gone.
        """
        self._put(b"")

    def write(self, data: bytes) -> bool:
        """Write a piece of the body, which is not empty.

        Returns:
            Whether more may follow at once; False where the agent should `drain` first, since it reads more slowly
            than the upstream sends.

        Raises:
            ConnectionResetError: the agent has gone.
        """
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        return self._put(data).get_write_buffer_size() <= _FULL

    def end(self, data: bytes = b"") -> None:
        """Write the last piece and the end.

        Raises:
            ConnectionResetError: the agent has gone.
        """
        if self._chunked:
            data = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n"
        elif self._agent.method == "HEAD":
            data = b""
        self._ended = True
        self._put(data)

    def cut(self) -> None:
        """Close the connection without a clean end."""
        self._closes = self._ended = True
        transport = self._agent.transport
        if transport is not None:
            transport.close()

    def finish(self) -> None:
        """Send what is pending. Does nothing once the end is written, or the reply was cut.

        Raises:
            ConnectionResetError: the agent has gone.
        """
        if not self._ended:
            self.end(self._pending)

    def _put(self, data: bytes) -> asyncio.WriteTransport:
        transport = self._agent.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the agent has closed the connection")
        head, self._head = self._head, b""
        if head or data:
            transport.write(head + data if head else data)
        return transport


def whole_reply(agent: Incoming, status: int, headers: Mapping[str, str], body: bytes) -> Outgoing:
    """A reply of the gateway's own; `Outgoing.finish` sends it."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    reason = HTTPStatus(status).phrase
    return Outgoing(agent, status, reason, lines, len(body), pending=body)


def refusal_reply(agent: Incoming, refusal: Refusal, dialect: Dialect | None) -> Outgoing:
    """The answer to a request that is refused, in the form of its format's errors."""
    headers = {"Content-Type": "application/json", **refusal.headers}
    body = refusal.body() if dialect is None else dialect.refusal(refusal)
    return whole_reply(agent, refusal.status, headers, body)


class Sent(web.StreamResponse):
    """What aiohttp is told of a reply that has been sent."""

    def __init__(self, reply: Outgoing) -> None:
        super().__init__(status=reply.status)
        self._reply = reply

    @property
    def keep_alive(self) -> bool | None:
        """Whether the connection stays open."""
        return self._reply.keep_alive

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Nothing is left to do."""
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing is left to do."""
