"""Front: takes in the gateway's plain requests itself, and leaves all others to aiohttp's server.

A general server costs as much as all else that the gateway does with a call. Every connection begins here. The first
request that is not plainly one of the gateway's moves its connection, with the bytes that have come, to aiohttp for good.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import cast

from aiohttp import web

from lightning_core.gateway.app import Gateway
from lightning_core.gateway.front_request import Request
from lightning_core.gateway.head import may_become_head, read_head

_log = logging.getLogger(__name__)
_AHEAD = 64 * 1024
"""Bytes of further requests that are kept while one is under way."""


class Front:
    """A listening gateway."""

    def __init__(
        self,
        gateway: Gateway,
        rest: web.Server,
        *,
        idle_timeout: float = 3630.0,
        linger_timeout: float = 10.0,
    ) -> None:
        """
        Args:
            gateway: answers what is plainly for it.
            rest: answers everything else, the gateway's other requests included.
            idle_timeout: seconds that a connection may take to bring the head of its next request; as aiohttp's.
            linger_timeout: seconds in which the rest of a body must come that nobody wants any more; to close at once
                could destroy the answer on its way.
        """
        self.gateway = gateway
        self.rest = rest
        self.idle_timeout = idle_timeout
        self.linger_timeout = linger_timeout
        self.connections: set[Connection] = set()
        """Those that have not moved to `rest`."""
        self.closed = False
        """Whether it takes no more connections."""
        self._server: asyncio.Server | None = None

    async def listen(self, bound: socket.socket, *, backlog: int = 128) -> None:
        """Take connections on a bound socket."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self, loop), sock=bound, backlog=backlog
        )

    async def close(self, timeout: float) -> None:
        """Take no more connections, close those that are idle, and give requests under way `timeout` seconds."""
        if self._server is None:
            return
        self.closed = True
        self._server.close()
        self._server = None
        await asyncio.sleep(0)  # what has come is begun
        self.rest.pre_shutdown()
        await asyncio.gather(self._close_own(timeout), self.rest.shutdown(timeout))

    async def _close_own(self, timeout: float) -> None:
        connections = list(self.connections)
        for connection in connections:
            connection.close_when_idle()
        tasks = [each.task for each in connections if each.task is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=timeout)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=timeout)
        for connection in connections:
            connection.close()


class Connection(asyncio.Protocol):
    """One connection of an agent's, which has sent nothing yet but what is plainly for the gateway."""

    def __init__(self, front: Front, loop: asyncio.AbstractEventLoop) -> None:
        self._front = front
        self._loop = loop
        self.transport: asyncio.Transport | None = None
        """The transport; None once the connection is lost, or belongs to `rest`."""
        self.task: asyncio.Task[None] | None = None
        """What answers the request under way."""
        self._request: Request | None = None
        """The request under way; also one that is answered, as long as its body has not come."""
        self._buffer = b""
        self._idle_since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._closing = False
        self._held = False
        self._full = False
        self._waiter: asyncio.Future[None] | None = None

    # The network's side ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BaseProtocol`."""
        # No `isinstance`: the transports of other loops, such as uvloop's, are not asyncio's classes.
        self.transport = cast(asyncio.Transport, transport)
        if self._front.closed:
            transport.close()
            return
        raw = transport.get_extra_info("socket")
        if raw is not None:
            with contextlib.suppress(OSError):  # a peer that has gone already
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._front.connections.add(self)
        self._idle_since = self._loop.time()
        self._timer = self._loop.call_later(self._front.idle_timeout, self._check_idle)

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.BaseProtocol`. An agent that has gone cancels its call."""
        self._forget()
        if self.task is not None:
            self.task.cancel()

    def pause_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self._full = True

    def resume_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self._full = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        request = self._request
        if request is None:
            if not self._closing:
                self._buffer = self._buffer + data if self._buffer else data
                self._begin()
            return
        if request.missing:
            data = request.feed(data)
            if self.task is None and not request.missing:
                self._buffer = data
                self._go_on(request.keep_alive)
                return
        if data:
            self._buffer += data
            if len(self._buffer) > _AHEAD and self.transport is not None and not self._held:
                self._held = True
                self.transport.pause_reading()

    # Requests ----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Begin the request whose head is in the buffer."""
        data = self._buffer
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if not may_become_head(data):
                self._hand_over()
            return
        head = read_head(data[:end])
        if head is None or not self._front.gateway.takes(head.path, head.headers):
            self._hand_over()
            return
        body = end + 4
        rest = body + head.length
        self._request = Request(self, head, data[body:rest])
        self._buffer = data[rest:]
        self.task = self._loop.create_task(self._answer(self._request))

    async def _answer(self, request: Request) -> None:
        keep_alive = False
        try:
            reply = await self._front.gateway.answer(request)
            keep_alive = reply.keep_alive
        except ConnectionError:
            pass  # the agent has gone; what came of its call is recorded
        except Exception:
            _log.exception("a request could not be handled")
        finally:
            self.task = None
            self._answered(request, keep_alive)

    def _answered(self, request: Request, keep_alive: bool) -> None:
        if request.missing and self.transport is not None and not self.transport.is_closing():
            request.drop_body()
            request.keep_alive = keep_alive
            self._linger = self._loop.call_later(self._front.linger_timeout, self.close)
            return
        self._go_on(keep_alive)

    def _go_on(self, keep_alive: bool) -> None:
        """Go on to the next request, or close."""
        self._request = None
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if not keep_alive or self._closing or self.transport is None:
            self.close()
            return
        self._idle_since = self._loop.time()
        if self._held:
            self._held = False
            self.transport.resume_reading()
        if self._buffer:
            self._begin()

    async def drain(self) -> None:
        """Wait until the agent has read most of what was written; the task is cancelled where it goes before that."""
        if self._full:
            self._waiter = self._loop.create_future()
            await self._waiter

    # Ends --------------------------------------------------------------------------------------------------------

    def close_when_idle(self) -> None:
        """Close the connection, once the request under way is answered."""
        self._closing = True
        if self._request is None:
            self.close()

    def close(self) -> None:
        """Close the connection; what has been written is still sent."""
        self._closing = True
        if self.transport is not None:
            self.transport.close()

    def _hand_over(self) -> None:
        """Move the connection to aiohttp's server."""
        transport, data = self.transport, self._buffer
        self._forget()
        if transport is None or transport.is_closing():
            return
        handler = self._front.rest()
        transport.set_protocol(handler)
        handler.connection_made(transport)
        if self._full:
            handler.pause_writing()
        handler.data_received(data)

    def _forget(self) -> None:
        self.transport = None
        self._buffer = b""
        self._front.connections.discard(self)
        for timer in (self._timer, self._linger):
            if timer is not None:
                timer.cancel()
        self._timer = self._linger = None

    def _check_idle(self) -> None:
        left = self._front.idle_timeout
        if self._request is None:
            left += self._idle_since - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._check_idle)
        else:
            self.close()
