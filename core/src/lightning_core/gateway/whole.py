"""WholeResponse: a reply of which every byte is known, written to the agent at once."""

from __future__ import annotations

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter


class WholeResponse(web.StreamResponse):
    """Writes head and body as they are given.

    `web.Response` builds and checks each header, which costs as much as all else that the gateway does with a reply.
    """

    def __init__(self, status: int, reason: str, lines: str, body: bytes) -> None:
        """
        Args:
            status: the status.
            reason: its text.
            lines: the headers, each with its line end, without `Content-Length` and `Connection`.
            body: the body.
        """
        super().__init__(status=status)
        self._reason_text = reason
        self._lines = lines
        self._content = body
        self._request: web.BaseRequest | None = None
        self._closes = False

    @property
    def prepared(self) -> bool:
        """Whether it has been written."""
        return self._request is not None

    @property
    def keep_alive(self) -> bool | None:
        """Whether the connection stays open."""
        return not self._closes and self._request is not None and self._request.keep_alive

    def force_close(self) -> None:
        """Close the connection after this reply."""
        self._closes = True

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Write it.

        Raises:
            ConnectionResetError: the agent has gone.
        """
        if self._request is not None:
            return None
        transport = request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the agent has closed the connection")
        self._request = request
        length = "" if self.status in (204, 304) else f"Content-Length: {len(self._content)}\r\n"
        connection = "" if self.keep_alive else "Connection: close\r\n"
        head = (
            f"HTTP/1.1 {self.status} {self._reason_text}\r\n{self._lines}{length}{connection}\r\n"
        )
        transport.write(head.encode("utf-8", "replace") + self._content)
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing is left to write."""
