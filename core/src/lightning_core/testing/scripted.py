"""ScriptedServer: an OpenAI-compatible model server on loopback whose replies a test writes down.

`python -m lightning_core.testing.scripted` serves the echo, for trying things by hand.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import inspect
import signal
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from types import TracebackType
from typing import Self

from aiohttp import web

from lightning_core.testing.received import Received, Signal
from lightning_core.testing.rendering import Rendering, embeddings
from lightning_core.testing.replies import (
    Delay,
    Error,
    Plan,
    Raw,
    Reply,
    plan,
)
from lightning_core.testing.responses import Exchange, Responses
from lightning_core.testing.routes import (
    decode,
    error_response,
    kind_of,
    models_response,
    problem,
    refusal,
)

Responder = Callable[[Received], Reply | Awaitable[Reply | None] | None]
"""Answers a request; sync or async; None is the echo. Runs in the server's event loop."""

_MAX_BODY = 256 * 1024 * 1024


class ScriptedServer:
    """A model server that answers what it was told.

    A request takes the next reply of the queue; where the queue is empty, what the responder says; without one,
    the text of the last user message. Any path that ends in `chat/completions`, `completions`, `embeddings` or
    `models` will do, the Azure form included. `models` and `embeddings` take nothing from the queue; a responder can
    give them an `Error` or `Raw`, delay, cut or hang them, while text does not change what they say. With `responses=True`
    so does `responses`, where the responder gets the request in the terms of chat completions; `requests` has it as it came.

    Use it as `async with ScriptedServer() as server`, or `with ScriptedServer.in_thread() as server` where the
    code under test blocks or is another process. Every method may be called from any thread.
    """

    def __init__(
        self,
        *,
        models: Sequence[str] = ("scripted",),
        token_ids: bool = True,
        responses: bool = False,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        """Describe the server; it starts on entry.

        Args:
            models: what `GET models` lists; the first answers requests that name none. Any name is served.
            token_ids: whether `return_token_ids` is obeyed; else it is ignored, as by a server without it.
            responses: whether it speaks OpenAI Responses beside chat completions; else it knows no such path, as most servers.
            host: where to listen.
            port: the port; 0 takes a free one.
        """
        self.models = tuple(models)
        """What `GET models` lists."""
        self.requests: list[Received] = []
        """Every request whose body has come, in order, refused ones included."""
        self._token_ids = token_ids
        self._responses = Responses() if responses else None
        self._host = host
        self._port = port
        self._queue: deque[Plan] = deque()
        self._responder: Responder | None = None
        self._waiters: list[tuple[int, Signal]] = []
        self._lock = threading.Lock()
        self._closing = asyncio.Event()
        self._runner: web.AppRunner | None = None

    @classmethod
    @contextlib.contextmanager
    def in_thread(
        cls,
        *,
        models: Sequence[str] = ("scripted",),
        token_ids: bool = True,
        responses: bool = False,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> Iterator[Self]:
        """Serve from a thread with an event loop of its own; takes the arguments of the class."""
        server = cls(models=models, token_ids=token_ids, responses=responses, host=host, port=port)
        stop: asyncio.Event
        loop: asyncio.AbstractEventLoop
        started = Signal()
        failure: list[BaseException] = []

        async def serve() -> None:
            nonlocal stop, loop
            stop, loop = asyncio.Event(), asyncio.get_running_loop()
            async with server:
                started.happen()
                await stop.wait()

        def run() -> None:
            try:
                asyncio.run(serve())
            except BaseException as error:  # the caller's thread raises it
                failure.append(error)
                started.give_up("the server did not start")

        thread = threading.Thread(target=run, name="scripted-server", daemon=True)
        thread.start()
        try:
            started.wait()
        except RuntimeError:
            thread.join()
            raise failure[0] from None
        try:
            yield server
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()
        if failure:
            raise failure[0]

    async def __aenter__(self) -> Self:
        self._closing.clear()
        app = web.Application(client_max_size=_MAX_BODY)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port).start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.set()
        assert self._runner is not None
        await self._runner.cleanup()
        with self._lock:
            waiters, self._waiters = self._waiters, []
        for count, waiter in waiters:
            waiter.give_up(
                f"scripted server: closed after {len(self.requests)} requests; {count} were waited for"
            )
        for request in self.requests:
            request.disconnected.give_up(
                "scripted server: closed, and the client had not gone away"
            )

    @property
    def url(self) -> str:
        """The server's root, without a trailing slash."""
        return f"http://{self._host}:{self._port}"

    @property
    def base_url(self) -> str:
        """The address for an OpenAI client, ending in `/v1`."""
        return f"{self.url}/v1"

    @property
    def pending(self) -> int:
        """Replies in the queue that no request has taken yet."""
        return len(self._queue)

    def enqueue(self, *replies: Reply, delay: float = 0.0, chunk_delay: float = 0.0) -> None:
        """Put replies at the end of the queue, one for each request to come.

        Args:
            replies: the replies in order.
            delay: seconds before the status line of each.
            chunk_delay: seconds before each event of a stream but the first.
        """
        for reply in replies:
            self._queue.append(plan(Delay(delay, reply, chunk_delay)))

    def respond(self, responder: Responder | None) -> None:
        """Answer by a function of the request once the queue is empty; None goes back to the echo.

        An async responder may wait for an event of the test's own. A responder that raises answers 500.
        """
        self._responder = responder

    def wait_for(self, count: int) -> Signal:
        """A signal that happens once `count` requests have come in all: await it, or `.wait(timeout)` for it."""
        reached = Signal()
        with self._lock:
            if len(self.requests) >= count:
                reached.happen()
            else:
                self._waiters.append((count, reached))
        return reached

    def _record(self, received: Received) -> int:
        with self._lock:
            self.requests.append(received)
            number = len(self.requests)
            due = [waiter for count, waiter in self._waiters if count <= number]
            self._waiters = [pair for pair in self._waiters if pair[0] > number]
        for waiter in due:
            waiter.happen()
        return number

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        received = Received(
            method=request.method,
            path=request.path,
            query=dict(request.query),
            headers=request.headers,
            body=body,
            json=decode(body),
            received_at=time.time(),
        )
        number = self._record(received)
        try:
            return await self._answer(request, received, number)
        except (asyncio.CancelledError, ConnectionError):
            if not self._closing.is_set():
                received.disconnected.happen()
            raise
        finally:
            received.finished.happen()

    async def _answer(
        self, request: web.Request, received: Received, number: int
    ) -> web.StreamResponse:
        headers = {"x-request-id": f"scripted-{number}"}
        kind = kind_of(received)
        if kind is None or (kind == "responses" and self._responses is None):
            return problem(404, f"scripted server: no route {received.method} {received.path}")
        if kind != "models" and (why := refusal(received, kind)):
            return problem(400, why)
        exchange: Exchange | None = None
        if kind == "responses" and self._responses is not None:
            try:
                exchange = self._responses.begin(received, number)
            except ValueError as error:
                return problem(400, f"scripted server: {error}")
            received = exchange.request
        try:
            chosen = await self._choose(received, kind)
            if kind in ("embeddings", "models") or isinstance(chosen.content, Error | Raw):
                rendering = None
            else:
                rendering = Rendering(
                    received,
                    chosen.content,
                    number=number,
                    default_model=self.models[0],
                    token_ids=self._token_ids,
                )
        except Exception as error:  # the test reads what it did wrong in the reply
            return problem(500, f"scripted reply: {type(error).__name__}: {error}")
        await self._pause(chosen.delay)
        if rendering is not None and received.stream:
            return await self._stream(request, rendering, chosen, headers, exchange)
        if rendering is not None:
            whole = rendering.whole() if exchange is None else exchange.whole(rendering)
            response = web.json_response(whole, headers=headers)
        elif isinstance(chosen.content, Error):
            response = error_response(chosen.content, headers)
        elif isinstance(chosen.content, Raw):
            raw = chosen.content
            response = web.Response(
                status=raw.status,
                body=raw.body,
                headers={**headers, "content-type": raw.content_type, **raw.headers},
            )
        elif kind == "embeddings":
            response = web.json_response(
                embeddings(received, default_model=self.models[0]), headers=headers
            )
        else:
            response = models_response(self.models, received.path, headers)
        return await self._send(request, response, chosen)

    async def _choose(self, received: Received, kind: str) -> Plan:
        if kind not in ("models", "embeddings") and self._queue:
            return self._queue.popleft()
        if self._responder is None:
            return Plan(None)
        reply = self._responder(received)
        return plan(await reply if inspect.isawaitable(reply) else reply)

    async def _stream(
        self,
        request: web.Request,
        rendering: Rendering,
        chosen: Plan,
        headers: dict[str, str],
        exchange: Exchange | None,
    ) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={
                **headers,
                "content-type": "text/event-stream; charset=utf-8",
                "cache-control": "no-cache",
            }
        )
        sieve = None if exchange is None else exchange.sieve(rendering)
        for sent, event in enumerate(rendering.events()):
            if chosen.end != "whole" and sent >= chosen.after_chunks:
                break
            if sent == 0:
                await response.prepare(request)
            else:
                await self._pause(chosen.chunk_delay)
            data = f"data: {event}\n\n".encode()
            await response.write(data if sieve is None else sieve.feed(data))
        await self._end(request, chosen)
        return response

    async def _send(
        self, request: web.Request, response: web.Response, chosen: Plan
    ) -> web.StreamResponse:
        if chosen.end == "whole":
            return response
        if chosen.after_chunks == 0:
            await self._end(request, chosen)
            return response
        assert isinstance(response.body, bytes)
        head = {k: v for k, v in response.headers.items() if k.lower() != "content-length"}
        partial = web.StreamResponse(status=response.status, headers=head)
        partial.content_length = len(response.body)
        await partial.prepare(request)
        await partial.write(response.body[: len(response.body) // 2])
        await self._end(request, chosen)
        return partial

    async def _end(self, request: web.Request, chosen: Plan) -> None:
        """Close the connection or wait for the client to do so; after a whole reply, nothing."""
        if chosen.end == "hang":
            await self._closing.wait()
        if chosen.end != "whole" and request.transport is not None:
            request.transport.close()

    async def _pause(self, seconds: float) -> None:
        if seconds > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), seconds)


@contextlib.asynccontextmanager
async def _until_stopped() -> AsyncIterator[asyncio.Event]:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


async def _serve(host: str, port: int, reply: str | None) -> None:
    async with _until_stopped() as stop, ScriptedServer(host=host, port=port) as server:
        if reply is not None:
            server.respond(lambda request: reply)
        print(server.base_url, flush=True)
        await stop.wait()


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until Ctrl+C or SIGTERM; the first line of output is the address."""
    parser = argparse.ArgumentParser(
        prog="python -m lightning_core.testing.scripted",
        description="Serve a scripted OpenAI-compatible model; prints its address.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="where to listen")
    parser.add_argument("--port", type=int, default=0, help="the port; 0 takes a free one")
    parser.add_argument(
        "--reply", help="the text of every reply; by default, the last user message"
    )
    options = parser.parse_args(arguments)
    asyncio.run(_serve(options.host, options.port, options.reply))


if __name__ == "__main__":
    main()
