"""The load generator: keep-alive connections on a bare protocol, each with one request at a time.

Every request differs from the others, as an agent's do, so that a store has something to keep.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any, cast

from bench import child

_NUMBER = b"00000000"
_SYSTEM = "You are an agent that answers questions about a database. Think, then write one query. "
_USER = "Which singers have performed in more than three concerts since 2014, and in which year? "


@dataclass
class Job:
    """A number of requests over a number of connections."""

    port: int
    """Where to."""
    path: str
    """The path."""
    connections: int
    """How many at once."""
    requests: int
    """How many in all."""
    stream: bool = False
    """Whether to ask for streams."""
    model: str = "bench-model"
    """The model to ask for."""
    system: str = (_SYSTEM * 9)[:640]
    """The system message."""
    headers: dict[str, str] = field(default_factory=dict)
    """Further headers."""
    started: int = 0
    """Requests sent so far."""
    latencies: list[float] = field(default_factory=list)
    """Seconds that each took."""

    def __post_init__(self) -> None:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [
                {"role": "system", "content": self.system},
                {"role": "user", "content": f"{_NUMBER.decode()} {(_USER * 9)[:600]}"},
            ],
            "temperature": 0.7,
        }
        if self.stream:
            body["stream"] = True
        data = json.dumps(body, separators=(",", ":")).encode()
        headers = {
            "host": f"127.0.0.1:{self.port}",
            "content-type": "application/json",
            "accept": "application/json",
            "authorization": "Bearer sk-bench",
            # What the openai SDK sends: a gateway that looks for retries has something to look at.
            "user-agent": "AsyncOpenAI/Python 3.57.0",
            "x-stainless-arch": "x64",
            "x-stainless-async": "async:asyncio",
            "x-stainless-lang": "python",
            "x-stainless-os": "Linux",
            "x-stainless-package-version": "3.57.0",
            "x-stainless-read-timeout": "600",
            "x-stainless-retry-count": "0",
            "x-stainless-runtime": "CPython",
            "x-stainless-runtime-version": "3.11.7",
            "content-length": str(len(data)),
            **self.headers,
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._request = f"POST {self.path} HTTP/1.1\r\n{lines}\r\n".encode() + data
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left = self.requests

    def next(self) -> bytes | None:
        """The next request, or None where all are sent."""
        if self.started == self.requests:
            return None
        self.started += 1
        return self._request.replace(_NUMBER, b"%08d" % self.started, 1)

    def answered(self, seconds: float) -> None:
        """Count a complete reply."""
        self.latencies.append(seconds)
        self._left -= 1
        if self._left == 0 and not self.done.done():
            self.done.set_result(None)

    def fail(self, reason: str) -> None:
        """End the job: what is measured must be right."""
        if not self.done.done():
            self.done.set_exception(RuntimeError(reason))


class Connection(asyncio.Protocol):
    """One connection."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._buffer = bytearray()
        self._body_at = 0
        self._length: int | None = None
        self._idle = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        self._send()

    def data_received(self, data: bytes) -> None:
        """Send the next request once the reply is whole."""
        self._buffer += data
        if not self._body_at and not self._read_head():
            return
        if self._length is not None:
            whole = len(self._buffer) >= self._body_at + self._length
        else:
            whole = self._buffer.endswith(b"\r\n0\r\n\r\n")
        if not whole:
            return
        if self._job.stream and b"data: [DONE]" not in self._buffer:
            self._job.fail(f"a stream without its end: …{bytes(self._buffer[-200:])!r}")
            return
        self._job.answered(time.perf_counter() - self._sent)
        self._send()

    def connection_lost(self, error: Exception | None) -> None:
        """Nobody but us closes a connection."""
        if not self._idle:
            self._job.fail(f"connection lost: {error!r} after {bytes(self._buffer[:200])!r}")

    def _send(self) -> None:
        request = self._job.next()
        if request is None:
            self._idle = True
            self._transport.close()
            return
        self._buffer.clear()
        self._body_at, self._length = 0, None
        self._sent = time.perf_counter()
        self._transport.write(request)

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        self._body_at = end + 4
        head = bytes(self._buffer[:end]).lower()
        if b" 200 " not in head.split(b"\r\n", 1)[0]:
            self._job.fail(f"expected status 200 but got {bytes(self._buffer[:600])!r}")
            return False
        _, found, rest = head.partition(b"content-length:")
        if found:
            self._length = int(rest.split(b"\r\n", 1)[0])
        return True


async def load(order: dict[str, Any]) -> dict[str, Any]:
    """Do a job and say how long it took."""
    timeout = order.pop("timeout", 120.0)
    job = Job(**order)
    loop = asyncio.get_running_loop()
    start = time.perf_counter()
    connecting = [
        loop.create_connection(lambda: Connection(job), "127.0.0.1", job.port)
        for _ in range(job.connections)
    ]
    pairs = await asyncio.gather(*connecting)
    try:
        async with asyncio.timeout(timeout):
            await job.done
    finally:
        seconds = time.perf_counter() - start
        for transport, _ in pairs:
            transport.abort()
    latencies = sorted(job.latencies)
    return {
        "seconds": seconds,
        "requests": len(latencies),
        "p50": latencies[len(latencies) // 2],
        "p99": latencies[len(latencies) * 99 // 100],
    }


async def main() -> None:
    """Take orders until standard input ends."""
    await child.serve({}, {"load": load})


if __name__ == "__main__":
    child.run(main, strict=True)
