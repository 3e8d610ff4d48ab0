"""Relay: passes an upstream's reply on to the agent as it comes, and keeps what came for the record."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable

from lightning_core.gateway.dialects.base import Dialect, Prepared
from lightning_core.gateway.dialects.translation import Sieve
from lightning_core.gateway.headers import passed_back_lines
from lightning_core.gateway.http1 import Broken, Connection
from lightning_core.gateway.incoming import Incoming
from lightning_core.gateway.outgoing import Outgoing
from lightning_core.gateway.refusal import Refusal
from lightning_core.gateway.replies import inflater
from lightning_core.gateway.targets import Target
from lightning_core.gateway.upstream import Upstream
from lightning_core.trace import CallError, CallErrorKind

_STREAM = "text/event-stream; charset=utf-8"
_JSON = "application/json"


class Relay:
    """One reply on its way to the agent."""

    def __init__(
        self,
        request: Incoming,
        reply: Connection,
        *,
        dialect: Dialect,
        prepared: Prepared,
        target: Target,
        upstream: Upstream,
        max_reply: int,
    ) -> None:
        self._request = request
        self._reply = reply
        self._dialect = dialect
        self._prepared = prepared
        self._target = target
        self._upstream = upstream
        self._captured: list[bytes] = []
        self._sent: list[bytes] | None = None
        self._room = max_reply
        self.status = reply.status
        self.encoding = reply.headers.get("Content-Encoding")
        self.content_type = reply.headers.get("Content-Type", "")
        self.stream = self._is_stream()
        """Whether the upstream's reply is a stream of events."""
        self.response: Outgoing | None = None
        """What the agent is being answered; None before its first byte."""
        self.whole = False
        """Whether the upstream's last byte has come."""
        self.error: CallError | None = None
        """Why the reply broke off."""
        self.first_byte_at: float | None = None
        self.ended_at: float | None = None

    @property
    def captured(self) -> bytes | None:
        """The bytes that the upstream sent; None where they were too many to keep."""
        return None if self._room < 0 else b"".join(self._captured)

    @property
    def sent(self) -> bytes | None:
        """The bytes that the agent was sent; None where they were too many to keep."""
        return self.captured if self._sent is None else b"".join(self._sent)

    async def deliver(self) -> Outgoing:
        """Pass the reply on to its end.

        Raises:
            Refusal: it broke before its first byte.
            ConnectionError: the agent's connection is closed.
        """
        try:
            response = await (self._deliver_stream() if self.stream else self._deliver_whole())
        except BaseException:
            self._reply.close()  # the upstream learns that nobody listens any more
            raise
        self._upstream.release(self._target, self._reply)
        return response

    def cut(self) -> None:
        """Close the agent's connection without a clean end, as the upstream's was."""
        if self.response is not None:
            self.response.cut()

    def _is_stream(self) -> bool:
        if self.content_type.startswith("text/event-stream"):
            return self.status < 400
        json = "json" in self.content_type
        return (
            self.status < 300 and self._prepared.stream and not self._prepared.remake and not json
        )

    async def _deliver_whole(self) -> Outgoing:
        content = self._reply
        prepared, translated = self._prepared, self._dialect.translated
        # A server that does not stream answers a translated call whole; its agent can only read what it asked for.
        remake = self.status < 400 and (prepared.remake or (translated and prepared.stream))
        edited = translated or (self.status < 400 and (remake or prepared.hides))
        try:
            data = await content.read()
            self.first_byte_at = time.time()
            if edited:
                while not content.at_end:
                    data += await content.read()
        except Broken as error:
            raise self._upstream.failure(error, self._target) from error
        if not content.at_end:
            self._capture(data)
            return await self._pump(data, None, None, edited=False)
        self.whole = True
        self._capture(data)
        shown = self._edit(data, remake=remake) if edited else data
        if shown is not data:
            self._sent = [shown]
            if remake or translated:
                self.content_type = _STREAM if remake else _JSON
                self._reply.headers["Content-Type"] = self.content_type
        lines = passed_back_lines(self._reply.headers, edited=shown is not data)
        return self._send_whole(lines, shown)

    def _send_whole(self, lines: str, body: bytes) -> Outgoing:
        """Answer with a body of which every byte is at hand."""
        response = Outgoing(self._request, self.status, self._reply.reason, lines, len(body))
        self.response = response
        response.end(body)
        return response

    async def _deliver_stream(self) -> Outgoing:
        sieve = self._dialect.stream_filter(self._prepared)
        inflate = inflater(self.encoding) if sieve is not None else None
        if self.encoding not in (None, "identity") and inflate is None:
            if self._dialect.translated:
                raise self._unreadable(f"encoding {self.encoding!r} is not known")
            sieve = None  # what cannot be read cannot be edited
        if sieve is not None:
            self._sent = []
        first = self._reply.read_nowait()
        if first:
            self.first_byte_at = time.time()
            self._capture(first)
        if self._reply.at_end and self._reply.framed:
            return self._deliver_ended_stream(first, sieve, inflate)
        return await self._pump(first, sieve, inflate, edited=sieve is not None)

    def _deliver_ended_stream(
        self,
        data: bytes,
        sieve: Sieve | None,
        inflate: Callable[[bytes], bytes] | None,
    ) -> Outgoing:
        """A stream that had come to its end before anything was sent."""
        self.whole = True
        shown = data
        if sieve is not None:
            shown = sieve.feed(data if inflate is None else inflate(data)) + sieve.close()
            self._sent = [shown]
        lines = passed_back_lines(self._reply.headers, edited=sieve is not None)
        return self._send_whole(lines, shown)

    async def _pump(
        self,
        chunk: bytes,
        sieve: Sieve | None,
        inflate: Callable[[bytes], bytes] | None,
        *,
        edited: bool,
    ) -> Outgoing:
        """Send `chunk` and whatever comes after it."""
        content = self._reply
        length = self._reply.headers.get("Content-Length")
        response = Outgoing(
            self._request,
            self.status,
            self._reply.reason,
            passed_back_lines(self._reply.headers, edited=edited),
            None if edited or length is None or not self._reply.framed else int(length),
        )
        self.response = response
        if not chunk:
            response.flush()
        sent = self._sent

        def shown(data: bytes) -> bytes:
            if data and sieve is not None:
                data = sieve.feed(data if inflate is None else inflate(data))
            if sent is not None:
                sent.append(data)
            return data

        def came(data: bytes) -> bytes:
            if self.first_byte_at is None:
                self.first_byte_at = time.time()
            self._capture(data)
            return shown(data)

        def take(data: bytes) -> bool:
            data = came(data)
            return not data or response.write(data)

        last = b""
        try:
            if content.at_end:
                last = shown(chunk)
            elif (data := shown(chunk)) and not response.write(data):
                await self._request.drain()
            while not await content.pass_on(take):
                await self._request.drain()
            if data := content.read_nowait():
                last = came(data)
            self.whole = True
        except Broken as error:
            failure = self._upstream.failure(error, self._target)
            self.error = CallError(kind=failure.kind, status=self.status, message=failure.message)
        if sieve is not None:
            held = sieve.close()
            if sent is not None:
                sent.append(held)
            last += held
        if self.whole and not self._closed_early():
            response.end(last)
        else:
            if last:
                response.write(last)
            self.cut()
        return response

    def _capture(self, chunk: bytes) -> None:
        self._room -= len(chunk)
        if self._room >= 0:
            self._captured.append(chunk)
        else:
            self._captured.clear()
            if self._sent is not None:
                self._sent.clear()

    def _edit(self, data: bytes, *, remake: bool) -> bytes:
        dialect, prepared = self._dialect, self._prepared
        inflate = inflater(self.encoding)
        try:
            plain = data if inflate is None else inflate(data)
            if self.status >= 400:
                return dialect.failure(self.status, plain)
            if remake:
                return dialect.remake(plain, prepared)
            return dialect.conceal(plain, prepared)
        except (ValueError, zlib.error) as error:
            if not dialect.translated:
                return data  # recorded as unreadable; the agent gets what there is
            raise self._unreadable(str(error)) from None

    def _unreadable(self, why: str) -> Refusal:
        message = f"upstream `{self._target.host}`: the reply is no chat completion: {why}"
        return Refusal(502, "unreadable", message, CallErrorKind.UNREADABLE)

    def _closed_early(self) -> bool:
        """Whether a stream whose only end is the end of the connection lacks its terminator."""
        if not self.stream or self._reply.framed:
            return False
        return self._dialect.terminator not in b"".join(self._captured[-2:])
