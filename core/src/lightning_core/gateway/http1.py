"""One HTTP/1.1 connection to an upstream: writes a request, reads the reply's head, hands out its body as it comes.

A general client costs more than all else that the gateway does with a call. This one does what a proxy needs: bodies
stay bytes, chunks that came together stay together, and nothing is decoded.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import cast

from multidict import CIMultiDict

_HEAD_LIMIT = 256 * 1024
_HIGH_WATER = 512 * 1024
_STATUS = re.compile(r"HTTP/1\.([01]) ([0-9]{3})(?: ([^\r\n]*))?")
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")


class Broken(Exception):
    """The connection ended, or carried what is not HTTP, before the reply's end."""


class Silent(Broken):
    """Nothing came for longer than the connection may be silent."""


class Connection(asyncio.Protocol):
    """A connection that serves one request at a time."""

    def __init__(self, idle_timeout: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._idle_timeout = idle_timeout
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._active_at = 0.0
        self._waiter: asyncio.Future[None] | None = None
        self._taker: Callable[[bytes], bool] | None = None
        self._refused: Exception | bool = False
        self._paused = False
        self._reset()
        self.done = True
        self.served = 0
        """Requests that it has been given."""

    def _reset(self) -> None:
        self._carry = b""
        self._ready: list[bytes] = []
        self._buffered = 0
        self._left = 0
        self._in_head = True
        self._chunked = False
        self._between = False
        self._trailers = False
        self._keep = True
        self._error: Broken | None = None
        self.framed = True
        """Whether the reply says where it ends; else the connection's end is its end."""
        self.done = False
        """Whether the reply's last byte has come."""
        self.status = 0
        self.reason = ""
        self.headers: CIMultiDict[str] = CIMultiDict()

    # The caller's side -------------------------------------------------------------------------------------------

    @property
    def reusable(self) -> bool:
        """Whether another request may be sent."""
        transport = self._transport
        return (
            self.done and self._keep and not self._carry and self._error is None
            and transport is not None and not transport.is_closing()
        )  # fmt: skip

    @property
    def at_end(self) -> bool:
        """Whether the whole body has come and has been read."""
        return self.done and not self._ready

    @property
    def transport(self) -> asyncio.Transport | None:
        """The transport; None once the connection is lost."""
        return self._transport

    def use(self, transport: asyncio.Transport) -> None:
        """Go on over another transport, after a start of TLS."""
        self._transport = transport

    def send(self, data: bytes) -> None:
        """Send a request: head and body."""
        self._reset()
        self.served += 1
        self._active_at = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._idle_timeout, self._check_silence)
        if self._transport is None:
            self._error = Broken("closed before the request was sent")
        else:
            self._transport.write(data)

    async def head(self) -> None:
        """Wait for the reply's head.

        Raises:
            Broken: it did not come.
        """
        while self._in_head:
            if self._error is not None:
                raise self._error
            await self._wait()

    async def read(self) -> bytes:
        """The body's bytes that have come since, waiting for some; empty at its end.

        Raises:
            Broken: the body ended before its end; what had come until then was handed out before.
        """
        while not self._ready:
            if self.done:
                return b""
            if self._error is not None:
                raise self._error
            await self._wait()
        return self.read_nowait()

    async def pass_on(self, take: Callable[[bytes], bool]) -> bool:
        """Hand the body's bytes to `take` as they come, but for the last ones: those `read_nowait` gives.

        `take` is called right when bytes come. To wake a task for each few of them costs as much as they do.

        Args:
            take: returns whether it can take more at once.

        Returns:
            Whether the last byte has come; False where `take` cannot take more.

        Raises:
            Broken: as `read`.
            Exception: what `take` raised.
        """
        while not self.done:
            if self._ready:
                if not take(self.read_nowait()):
                    return False
                continue
            if self._error is not None:
                raise self._error
            self._taker, self._refused = take, False
            try:
                await self._wait()
            finally:
                self._taker = None
            if isinstance(self._refused, Exception):
                raise self._refused
            if self._refused:
                return False
        return True

    def read_nowait(self) -> bytes:
        """The body's bytes that have come since; empty where none have."""
        ready = self._ready
        data = ready[0] if len(ready) == 1 else b"".join(ready)
        ready.clear()
        self._buffered = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._active_at = self._loop.time()
            self._transport.resume_reading()
        return data

    def close(self) -> None:
        """Close the connection at once."""
        self._keep = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()

    async def _wait(self) -> None:
        waiter = self._waiter = self._loop.create_future()
        try:
            await waiter
        finally:
            self._waiter = None

    # The network's side ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BaseProtocol`."""
        # No `isinstance`: the transports of other loops, such as uvloop's, are not asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._active_at = self._loop.time()
        try:
            if self.done:
                self._keep = False  # nobody asked for this
                return
            if self._in_head:
                data = self._read_head(self._carry + data)
            if data:
                self._read_body(data)
        except Broken as error:
            self._fail(error)
            return
        if self._taker is not None and self._ready and not self.done:
            if self._passed_on(self._taker):
                return
            self._taker = None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if self._buffered > _HIGH_WATER and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _passed_on(self, take: Callable[[bytes], bool]) -> bool:
        try:
            self._refused = not take(self.read_nowait())
        except Exception as error:  # `pass_on` raises it
            self._refused = error
        return self._refused is False

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        self._transport = None
        self._keep = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.done:
            return
        if not self._in_head and not self.framed and error is None:
            self.done = True
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)
            return
        where = "before the reply" if self._in_head else "within the reply"
        self._fail(Broken(f"closed {where}" + (f": {error}" if error else "")))

    def _fail(self, error: Broken) -> None:
        if self._error is None:
            self._error = error
        self.close()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _check_silence(self) -> None:
        self._timer = None
        if self.done:
            return
        silent = 0.0 if self._paused else self._loop.time() - self._active_at
        if silent >= self._idle_timeout:
            self._fail(Silent(f"silent for more than {self._idle_timeout:g} s"))
        else:
            self._timer = self._loop.call_later(self._idle_timeout - silent, self._check_silence)

    def _read_head(self, data: bytes) -> bytes:
        """Take the head off `data`; returns what follows it."""
        while True:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if len(data) > _HEAD_LIMIT:
                    raise Broken(f"a head of more than {_HEAD_LIMIT} bytes")
                self._carry = data
                return b""
            lines = data[:end].decode("utf-8", "replace").split("\r\n")
            data = data[end + 4 :]
            match = _STATUS.fullmatch(lines[0])
            if match is None:
                raise Broken(f"expected an HTTP/1.1 status line but got {lines[0][:80]!r}")
            status = int(match[2])
            if status >= 200:
                break
            # 100 Continue and the like announce the reply.
        self._carry = b""
        self.status, self.reason = status, match[3] or ""
        headers = self.headers
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if not colon or not name or name[-1] in " \t" or "\n" in line or "\r" in line:
                raise Broken(f"expected a header but got {line[:80]!r}")
            headers.add(name, value.strip())
        self._in_head = False
        connection = headers.get("Connection", "").lower()
        self._keep = (match[1] == "1" or "keep-alive" in connection) and "close" not in connection
        self._frame(status, headers)
        return data

    def _frame(self, status: int, headers: CIMultiDict[str]) -> None:
        coding = headers.get("Transfer-Encoding")
        lengths = {value.strip() for value in headers.getall("Content-Length", ())}
        if status in (204, 304):
            self.done = True
        elif coding is not None:
            if coding.lower() != "chunked":
                raise Broken(f"transfer-encoding {coding!r} is not supported")
            self._chunked = True
        elif lengths:
            length = lengths.pop()
            if lengths or not (length.isascii() and length.isdigit()):
                raise Broken("more than one content-length, or one that is no number")
            self._left = int(length)
            self.done = self._left == 0
        else:
            self.framed = self._keep = False

    def _read_body(self, data: bytes) -> None:
        if self._chunked:
            self._read_chunks(data)
            return
        if not self.framed:
            self._take(data)
            return
        if self.done or len(data) > self._left:
            data, self._carry = data[: self._left], data[self._left :]
        if data:
            self._take(data)
            self._left -= len(data)
        self.done = self._left == 0

    def _take(self, data: bytes) -> None:
        self._ready.append(data)
        self._buffered += len(data)

    def _read_chunks(self, data: bytes) -> None:
        if self._carry:
            data, self._carry = self._carry + data, b""
        position, size, left = 0, len(data), self._left
        take = self._ready.append
        while not self.done:
            if not (left or self._between or self._trailers):
                position = self._take_whole_chunks(data, position)
            if left:
                piece = data[position : position + left]
                if not piece:
                    break
                take(piece)
                position += len(piece)
                left -= len(piece)
                self._buffered += len(piece)
                self._between = True
                if left:
                    break
            if self._between:
                if size - position < 2:
                    break
                if data[position : position + 2] != b"\r\n":
                    raise Broken("a chunk is not followed by a line end")
                position += 2
                self._between = False
            end = data.find(b"\r\n", position)
            if end < 0:
                if size - position > _HEAD_LIMIT:
                    raise Broken("a chunk's size or a trailer is too long")
                break
            line = data[position:end]
            position = end + 2
            if self._trailers:
                self.done = not line
                continue
            left = _chunk_size(line)
            self._trailers = left == 0
        self._left = left
        self._carry = data[position:]

    def _take_whole_chunks(self, data: bytes, position: int) -> int:
        """Take the plain chunks that lie whole in `data`; returns where they end. Nothing here is decided: what is
        not plain is left to the caller."""
        start = position
        take, find = self._ready.append, data.find
        while True:
            end = find(b"\r\n", position)
            line = data[position:end]
            if end < 0 or not line.isalnum():
                break
            try:
                stop = end + 2 + int(line, 16)
            except ValueError:
                break
            if stop == end + 2 or data[stop : stop + 2] != b"\r\n":
                break
            take(data[end + 2 : stop])
            position = stop + 2
        self._buffered += position - start
        return position


def _chunk_size(line: bytes) -> int:
    if not line.isalnum():  # else there is no sign, no space, no extension
        match = _SIZE.fullmatch(line)
        line = match[1] if match is not None else b""
    try:
        return int(line, 16)
    except ValueError:
        raise Broken("expected a chunk's size in hexadecimal digits") from None
