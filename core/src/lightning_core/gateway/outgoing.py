"""Outgoing: a reply on its way to the agent, head and body written as they are given."""

from __future__ import annotations

from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter

_FULL = 64 * 1024


class Outgoing(web.StreamResponse):
    """A reply whose headers are given as lines.

    `web.Response` and `web.StreamResponse` build and check each header, which costs as much as all else that the gateway does with
    a reply. The head goes out together with the first bytes of the body.
    """

    def __init__(self, status: int, reason: str, lines: str, length: int | None) -> None:
        """
        Args:
            status: the status.
            reason: its text.
            lines: the headers, each with its line end, without `Content-Length` and `Connection`.
            length: the body's bytes; None where nobody knows yet, and it goes out in chunks.
        """
        super().__init__(status=status)
        self._reason_text = reason
        self._lines = lines
        self._length = length
        self._agent: web.BaseRequest | None = None
        self._head = b""
        self._chunked_out = False
        self._closes = False
        self._ended = False

    @property
    def prepared(self) -> bool:
        """Whether it has been begun."""
        return self._agent is not None

    @property
    def keep_alive(self) -> bool | None:
        """Whether the connection stays open."""
        return not self._closes and self._agent is not None and self._agent.keep_alive

    def force_close(self) -> None:
        """Close the connection after this reply."""
        self._closes = True

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Begin; nothing is written before `flush`, `write` or `write_eof`."""
        if self._agent is not None:
            return None
        self._agent = request
        body = ""
        if self._length is not None:
            body = "" if self.status in (204, 304) else f"Content-Length: {self._length}\r\n"
        elif request.version >= HttpVersion11:
            self._chunked_out = True
            body = "Transfer-Encoding: chunked\r\n"
        else:
            self._closes = True
        connection = "" if self.keep_alive else "Connection: close\r\n"
        head = f"HTTP/1.1 {self.status} {self._reason_text}\r\n{self._lines}{body}{connection}\r\n"
        self._head = head.encode("utf-8", "replace")
        return None

    def flush(self) -> None:
        """Write the head now, while the body is yet to come.

        Raises:
            ConnectionResetError: the agent has gone.
        """
        self._put(b"")

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write a piece of the body; waits while the agent reads more slowly than the upstream sends.

        Raises:
            ConnectionResetError: the agent has gone.
        """
        if self._chunked_out:
            data = b"".join((b"%x\r\n" % len(data), data, b"\r\n"))
        if self._put(data) > _FULL:
            assert self._agent is not None  # `_put` has looked
            await self._agent.writer.drain()

    async def write_eof(self, data: bytes = b"") -> None:
        """Write the last piece and the end. Does nothing once the end is written."""
        if self._ended:
            return
        if self._chunked_out:
            data = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n"
        self._put(data)
        self._ended = True

    def _put(self, data: bytes | bytearray | memoryview) -> int:
        transport = self._agent.transport if self._agent is not None else None
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the agent has closed the connection")
        head, self._head = self._head, b""
        if head or data:
            transport.write(head + data if head else data)
        return transport.get_write_buffer_size()
