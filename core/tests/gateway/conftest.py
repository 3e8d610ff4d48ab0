"""A gateway on loopback, a store in memory, and an upstream of which a test controls every byte."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from lightning_core.engine import Endpoint
from lightning_core.errors import StoreError
from lightning_core.gateway import Gateway, GatewayLimits, Session
from lightning_core.gateway.front import Front
from lightning_core.rollout import Budget, Mode
from lightning_core.store.base import Store
from lightning_core.tokens import Claims, Scope, TokenSigner
from lightning_core.trace import Call
from lightning_core.wire import ServedPolicy


class MemoryStore(Store):
    """Keeps calls, and counts how often each was put."""

    def __init__(self) -> None:
        self.kept: dict[str, Call] = {}
        self.puts: list[Call] = []
        self.hold: asyncio.Event | None = None
        self.fail = False

    async def put(self, *records, run="default"):
        if self.hold is not None:
            await self.hold.wait()
        if self.fail:
            raise StoreError("disk full")
        for record in records:
            assert isinstance(record, Call)
            # What cannot be written as JSON cannot be stored.
            record = Call.from_json(record.to_json())
            self.kept[record.id] = record
            self.puts.append(record)

    async def call(self, call_id):
        return self.kept.get(call_id)

    async def calls(self, attempt_id):
        found = [call for call in self.kept.values() if call.attempt_id == attempt_id]
        return sorted(found, key=lambda call: call.index)

    async def put_rewards(self, rollout_id, rewards): ...
    async def put_state(self, key, value): ...
    async def flush(self): ...
    async def delete(self, rollout_ids): ...
    async def close(self): ...
    async def get_state(self, key): ...
    async def task(self, run, task_id): ...
    async def rollout(self, rollout_id): ...
    async def rollouts(self, **_):
        return []

    async def attempts(self, rollout_id):
        return []

    async def spans(self, attempt_id):
        return []

    async def rewards(self, rollout_id):
        return []


@dataclass
class Received:
    """A request as the upstream got it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Handler = Callable[[Received, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class RawUpstream:
    """An HTTP/1.1 server whose replies are written byte by byte by the test."""

    url: str = ""
    received: list[Received] = field(default_factory=list)
    handler: Handler | None = None
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a client closed its connection while the handler ran."""
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                first, *lines = head.strip().split("\r\n")
                method, path, _ = first.split(" ")
                headers = {
                    k.strip().lower(): v.strip()
                    for k, _, v in (line.partition(":") for line in lines)
                }
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                received = Received(method, path, headers, body)
                self.received.append(received)
                self.arrived.set()
                assert self.handler is not None, "the test gave no handler"
                handling = asyncio.ensure_future(self.handler(received, writer))
                gone = asyncio.ensure_future(reader.read(1))
                await asyncio.wait({handling, gone}, return_when=asyncio.FIRST_COMPLETED)
                if not handling.done():
                    self.closed.set()
                    handling.cancel()
                gone.cancel()
                await asyncio.gather(handling, gone, return_exceptions=True)
                if writer.is_closing() or self.closed.is_set():
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def head(status: int = 200, content_type: str = "application/json", **headers: Any) -> bytes:
    lines = [f"HTTP/1.1 {status} Status", f"Content-Type: {content_type}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def whole(body: Any, status: int = 200, content_type: str = "application/json", **headers) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head(status, content_type, Content_Length=len(data), **headers) + data


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(value: Any) -> bytes:
    data = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    return f"data: {data}\n\n".encode()


def reply_with(data: bytes) -> Handler:
    async def handler(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return handler


def replies(*all_data: bytes) -> Handler:
    """One reply after another; the last one again and again."""
    left = list(all_data)

    async def handler(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(left.pop(0) if len(left) > 1 else left[0])
        await writer.drain()

    return handler


def stream_of(*pieces: bytes, end: bool = True) -> Handler:
    """A chunked stream, each piece a chunk of its own that goes out by itself."""

    async def handler(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(head(200, "text/event-stream", Transfer_Encoding="chunked"))
        for piece in pieces:
            writer.write(chunked(piece))
            await writer.drain()
            await asyncio.sleep(0)
        if end:
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        else:
            writer.close()

    return handler


def completion(text: str = "hello", **extra: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m-1",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
        **extra,
    }


def chunk(delta: dict[str, Any] | None, index: int = 0, finish: str | None = None, **extra: Any):
    choices = [] if delta is None else [{"index": index, "delta": delta, "finish_reason": finish}]
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m-1",
        "choices": choices,
        **extra,
    }


USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
REQUEST = {"model": "gpt", "messages": [{"role": "user", "content": "hi"}]}


class Site:
    """A gateway that serves on loopback, with what a test needs to talk to it."""

    def __init__(self, store: Store, limits: GatewayLimits, allow: list[str] | None) -> None:
        self.store = store
        self.signer = TokenSigner(b"k" * 32)
        self.gateway = Gateway(store=store, signer=self.signer, allow_targets=allow, limits=limits)
        self.url = ""
        self.client = aiohttp.ClientSession()
        self.rest: web.Server | None = None
        self.front: Front | None = None
        self._runner: web.ServerRunner | None = None

    async def start(self, *, front: bool, **options: Any) -> None:
        await self.gateway.start()
        bound = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        self.rest = web.Server(self.gateway.handle, handler_cancellation=True, access_log=None)
        if front:
            self.front = Front(self.gateway, self.rest, **options)
            await self.front.listen(bound)
        else:
            self._runner = web.ServerRunner(self.rest)
            await self._runner.setup()
            await web.SockSite(self._runner, bound).start()

    async def stop(self) -> None:
        await self.client.close()
        await self.gateway.close()
        if self.front is not None:
            await self.front.close(60)
        if self._runner is not None:
            await self._runner.cleanup()

    def open(
        self,
        mode: Mode = Mode.OBSERVE,
        *,
        attempt: str = "r1.1",
        rollout: str = "r1",
        seconds: float = 600,
        budget: Budget | None = None,
        upstream: str | None = None,
        **fields: Any,
    ) -> Session:
        session = Session(
            attempt_id=attempt,
            rollout_id=rollout,
            mode=mode,
            deadline=time.time() + seconds,
            budget=budget or Budget(),
            upstream=upstream,
            **fields,
        )
        self.gateway.open(session)
        return session

    def token(
        self, attempt: str = "r1.1", seconds: float = 600, scope: Scope = Scope.SESSION
    ) -> str:
        return self.signer.sign(
            Claims(scope=scope, expires_at=time.time() + seconds, attempt_id=attempt)
        )

    def base(self, attempt: str = "r1.1") -> str:
        return f"{self.url}/s/{self.token(attempt)}/v1"

    def post(self, body: Any = None, path: str = "/chat/completions", attempt: str = "r1.1", **kw):
        body = REQUEST if body is None else body
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        data = io.BytesIO(data)  # aiohttp warns of large bytes
        headers = {"Content-Type": "application/json", **kw.pop("headers", {})}
        return self.client.post(self.base(attempt) + path, data=data, headers=headers, **kw)

    async def ask(self, body: Any = None, **kw) -> tuple[int, bytes, Any]:
        async with self.post(body, **kw) as response:
            return response.status, await response.read(), response.headers

    async def ask_cut(self, body: Any) -> bytes:
        """What came of a reply that is cut."""
        got = b""
        with contextlib.suppress(aiohttp.ClientPayloadError):
            async with self.post(body) as response:
                async for data in response.content.iter_any():
                    got += data
                pytest.fail("the reply had a clean end")
        return got

    async def calls(self, attempt: str = "r1.1") -> list[Call]:
        """The calls of an attempt, after ending it."""
        await self.gateway.end(attempt, grace=30)
        return await self.store.calls(attempt)

    async def call(self, attempt: str = "r1.1") -> Call:
        """The only call of an attempt."""
        (call,) = await self.calls(attempt)
        return call


def policy_at(*urls: str, version: int = 1, model: str = "policy", **fields: Any) -> ServedPolicy:
    endpoints = tuple(Endpoint(base_url=f"{url}/v1", model=model) for url in urls)
    return ServedPolicy(version=version, endpoints=endpoints, **fields)


@pytest.fixture
async def make_upstream() -> AsyncIterator[Callable[[], Awaitable[RawUpstream]]]:
    async with contextlib.AsyncExitStack() as stack:

        async def make() -> RawUpstream:
            upstream = RawUpstream()
            tasks: set[asyncio.Task[None]] = set()

            def connected(reader, writer):
                task = asyncio.ensure_future(upstream.serve(reader, writer))
                tasks.add(task)
                task.add_done_callback(tasks.discard)

            async def end():
                server.close()
                for task in list(tasks):
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

            server = await asyncio.start_server(connected, "127.0.0.1", 0)
            stack.push_async_callback(end)
            upstream.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            return upstream

        yield make


@pytest.fixture
async def upstream(make_upstream) -> RawUpstream:
    return await make_upstream()


@pytest.fixture
def limits() -> GatewayLimits:
    return GatewayLimits(connect_timeout=10, idle_timeout=30)


@pytest.fixture(params=["front", "aiohttp"])
async def make_site(request) -> AsyncIterator[Callable[..., Awaitable[Site]]]:
    """Makes sites whose requests come by the front, and then the same by aiohttp's server alone."""
    async with contextlib.AsyncExitStack() as stack:

        async def make(
            limits: GatewayLimits | None = None,
            allow: list[str] | None = None,
            store: Store | None = None,
        ) -> Site:
            site = Site(store or MemoryStore(), limits or GatewayLimits(idle_timeout=30), allow)
            await site.start(front=request.param == "front")
            stack.push_async_callback(site.stop)
            return site

        yield make


@pytest.fixture
async def site(make_site) -> Site:
    return await make_site()
