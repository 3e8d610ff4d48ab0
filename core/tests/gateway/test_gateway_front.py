"""The front: what it takes in itself, what it leaves to aiohttp's server, and that an agent cannot tell which."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
import socket
import tracemalloc

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_core.gateway import Gateway, GatewayLimits, Session
from lightning_core.gateway.front import Connection, Front
from lightning_core.rollout import Mode
from lightning_core.tokens import Claims, Scope, TokenSigner
from lightning_core.trace import CallErrorKind

from .conftest import REQUEST, MemoryStore, RawUpstream, Site, completion, reply_with, whole

SIGNER = TokenSigner(b"k" * 32)
TOKEN = SIGNER.sign(Claims(scope=Scope.SESSION, expires_at=9e9, attempt_id="r1.1"))
PATH = f"/s/{TOKEN}/v1/chat/completions"
BODY = json.dumps(REQUEST).encode()


def post(*lines: str | bytes, path: str = PATH, body: bytes = BODY, length: bool = True) -> bytes:
    """A request as it goes over the wire."""
    head = [f"POST {path} HTTP/1.1", "Host: gateway", "Content-Type: application/json", *lines]
    if length:
        head.append(f"Content-Length: {len(body)}")
    return b"\r\n".join(x.encode() if isinstance(x, str) else x for x in head) + b"\r\n\r\n" + body


class Wire(asyncio.Transport):
    """A transport that keeps what is written, and the protocol that it feeds."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.protocol = protocol
        self.written = b""
        self.closed = False
        self.changed = asyncio.Event()

    def set_protocol(self, protocol):
        self.protocol = protocol

    def write(self, data):
        self.written += data
        self.changed.set()

    def close(self):
        self.closed = True
        self.changed.set()

    def is_closing(self):
        return self.closed

    def get_write_buffer_size(self):
        return 0

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass

    async def replies(self, count: int) -> bytes:
        """What was written, once so many replies were, or the connection is closed."""
        while self.written.count(b"HTTP/1.1 ") < count and not self.closed:
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), 30)
        return re.sub(rb"(?:Date|Server): [^\r]*\r\n", b"", self.written)


async def exchange(pieces: list[bytes], count: int, *, front: bool) -> tuple[bytes, bool, list]:
    """Feed a gateway; its replies, whether it closed the connection, and what its upstream got."""
    upstream = RawUpstream()
    upstream.handler = reply_with(whole(completion(), X_Request_Id="7"))
    tasks = set()

    def connected(reader, writer):
        task = asyncio.ensure_future(upstream.serve(reader, writer))
        tasks.add(task)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    gateway = Gateway(
        store=MemoryStore(), signer=SIGNER, limits=GatewayLimits(max_body=2000, idle_timeout=30)
    )
    await gateway.start()
    gateway.open(
        Session(
            attempt_id="r1.1",
            rollout_id="r1",
            mode=Mode.OBSERVE,
            deadline=9e9,
            upstream=f"http://127.0.0.1:{port}/v1",
        )
    )
    loop = asyncio.get_running_loop()
    rest = web.Server(gateway.handle, handler_cancellation=True, access_log=None)
    wire = Wire(Connection(Front(gateway, rest), loop) if front else rest())
    wire.protocol.connection_made(wire)
    for piece in pieces:
        wire.protocol.data_received(piece)
        await asyncio.sleep(0)
    replies = await wire.replies(count)
    await asyncio.sleep(0)
    closed = wire.closed
    wire.protocol.connection_lost(None)
    await gateway.close()
    await rest.shutdown(0)
    server.close()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    got = [
        (one.method, one.path.partition("?")[2], {**one.headers, "host": ""}, one.body)
        for one in upstream.received
    ]
    return replies, closed, got


CHUNKED = post("Transfer-Encoding: chunked", body=b"", length=False)
CHUNKED += b"".join(b"%x\r\n%b\r\n" % (len(x), x) for x in (BODY[:20], BODY[20:])) + b"0\r\n\r\n"
PLAIN = [
    post(),
    post(path=f"{PATH}?api-version=1&x=%C3%A9"),
    post(path=f"/s/{TOKEN}/openai/deployments/gpt%204/chat/completions?api-version=2"),
    post("Authorization: Bearer sk-1", "X-Custom:kept", "x-LIGHTNING-labels: agent=a&node=b"),
    post(f"Authorization: Bearer {TOKEN}", path="/v1/chat/completions"),
    post(f"x-lightning-session: {TOKEN}", path="/anything/chat/completions"),
    post("X-Bytes: caf\u00e9".encode(), b"X-Latin: caf\xe9", "X-Tab: a\tb", "X-Wide:  \t a b"),
    post("Connection: keep-alive", "X-Empty-ish: ."),
    post("Connection: Close"),
    post(body=b"{bad"),
    post(body=b""),
    post(body=b"x" * 3000),
    post(path="/v1/chat/completions"),
    post(path=f"/s/{TOKEN}x/v1/chat/completions"),
    post(path=f"/s/{TOKEN}/v1/unknown"),
]
"""Requests that the front takes in."""
ODD = [
    CHUNKED,
    post("Connection: keep-alive, X-Drop", "X-Drop: 1"),
    post("Connection: Upgrade", "Upgrade: websocket"),
    post("Expect: 100-continue"),
    post("Content-Encoding: identity"),
    post("X-Twice: a", "x-twice: b"),
    post(f"Content-Length: {len(BODY)}"),
    post("Content-Length: 1"),
    post("Transfer-Encoding: chunked"),
    post("Content-Length: +5", length=False),
    post("Content-Length: 0x5", length=False),
    post("Content-Length: 5, 5", length=False),
    post(length=False, body=b""),
    post("Name : x"),
    post("X-A: b", " folded"),
    post("X-A: b\nX-B: c"),
    post("X-A: b\rX-B: c"),
    post("X-Nul: a\0b"),
    post("X-Del: a\x7fb"),
    post("X-Empty:"),
    post("X-Trailing: a \t"),
    post(": x"),
    post("nonsense"),
    post(b"X-\xe9: a"),
    post("X-Long: " + "a" * 7000, "X-Longer: " + "b" * 7000),
    post("X-Huge: " + "a" * 20_000),
    post(*[f"X-{number}: a" for number in range(150)]),
    post(path=f"{PATH}#fragment"),
    post(path=f"{PATH}?"),
    post(path=f"{PATH}/\u00e9"),
    post(path=f"http://gateway{PATH}"),
    post(path=f"{PATH} x"),
    post(path="/other"),
    post().replace(b"HTTP/1.1", b"HTTP/1.0"),
    post().replace(b"HTTP/1.1", b"HTTP/1.0").replace(b"Host", b"Connection: keep-alive\r\nHost"),
    post().replace(b"HTTP/1.1", b"HTTP/3.0"),
    post().replace(b"HTTP/1.1", b"http/1.1"),
    post().replace(b"POST", b"post"),
    post().replace(b"POST", b"PUT"),
    post().replace(b"POST ", b"POST  "),
    post().replace(b"Host: gateway\r\n", b""),
    post().replace(b"\r\n", b"\n"),
    b"\r\n" + post(),
    f"GET /s/{TOKEN}/v1/models HTTP/1.1\r\nHost: x\r\n\r\n".encode(),
    f"HEAD /s/{TOKEN}/v1/models HTTP/1.1\r\nHost: x\r\n\r\n".encode(),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    b"nonsense\r\n\r\n",
]
"""Requests that it leaves to aiohttp's server."""


@pytest.mark.parametrize("request_", PLAIN + ODD, ids=range(len(PLAIN + ODD)))
async def test_an_agent_cannot_tell_the_front_from_aiohttp(request_):
    by_front = await exchange([request_], 1, front=True)
    by_aiohttp = await exchange([request_], 1, front=False)
    assert by_front == by_aiohttp
    assert by_front[0] or by_front[1]


def without_page(replies: bytes) -> bytes:
    """Without aiohttp's words on what is no HTTP: they quote as much as had come."""
    return re.sub(rb"(HTTP/1.0 400 Bad Request\r\n).*", rb"\1", replies, flags=re.DOTALL)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.sampled_from(PLAIN), max_size=3),
    st.lists(st.sampled_from(ODD), max_size=1),
    st.lists(st.integers(0, 100_000), max_size=20),
)
def test_requests_may_be_cut_anywhere(plain, odd, points):
    requests = plain + odd
    data = b"".join(requests)
    edges = sorted({0, len(data), *(point % (len(data) + 1) for point in points)})
    pieces = [data[a:b] for a, b in itertools.pairwise(edges)]

    async def main():
        cut = await exchange(pieces, len(requests), front=True)
        # One by one: aiohttp drops a request that comes in one piece with a broken one behind it.
        whole = await exchange(requests, len(requests), front=False)
        assert without_page(cut[0]) == without_page(whole[0])
        assert cut[1:] == whole[1:]

    asyncio.run(main())


class Agent:
    """A raw connection to a site."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def reply(self) -> tuple[int, bytes]:
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 30)
        length = re.search(rb"Content-Length: (\d+)", head)
        body = await asyncio.wait_for(self.reader.readexactly(int(length[1])), 30)
        return int(head.split()[1]), body

    async def closed(self) -> bool:
        """Whether the gateway closes the connection, with nothing more to say."""
        return await asyncio.wait_for(self.reader.read(), 30) == b""


@pytest.fixture
async def make_front(upstream):
    """A site behind a front, and raw connections to it."""
    async with contextlib.AsyncExitStack() as stack:

        async def make(**options) -> tuple[Site, Front]:
            site = Site(MemoryStore(), GatewayLimits(idle_timeout=30), None)
            site.signer = SIGNER
            await site.start(front=True, **options)
            stack.push_async_callback(site.stop)
            site.open(upstream=f"{upstream.url}/v1")
            return site, site.front

        async def agent(site: Site) -> Agent:
            host, port = site.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port), limit=2**20)
            stack.callback(writer.close)
            return Agent(reader, writer)

        make.agent = agent
        yield make


@pytest.mark.parametrize(
    ("request_", "own"),
    [*((each, True) for each in PLAIN if b": Close" not in each), (CHUNKED, False)],
)
async def test_plain_requests_do_not_go_by_aiohttp(make_front, upstream, request_, own):
    upstream.handler = reply_with(whole(completion()))
    site, front = await make_front()
    agent = await make_front.agent(site)
    for _ in range(2):
        agent.writer.write(request_)
        await agent.reply()
    assert (len(front.connections), len(site.rest.connections)) == (own, not own)


async def test_a_connection_can_move_to_aiohttp_later(make_front, upstream):
    upstream.handler = reply_with(whole(completion()))
    site, front = await make_front()
    agent = await make_front.agent(site)
    agent.writer.write(post() + CHUNKED + post())
    assert [(await agent.reply())[0] for _ in range(3)] == [200, 200, 200]
    assert (len(front.connections), len(site.rest.connections)) == (0, 1)
    assert [call.complete for call in await site.calls()] == [True, True, True]


async def test_many_requests_ahead_are_answered_in_order(make_front, upstream):
    numbers = [f"{number:06}" + "x" * 3000 for number in range(60)]

    async def echo(received, writer):
        writer.write(whole(completion(received.json["model"])))

    upstream.handler = echo
    site, front = await make_front()
    agent = await make_front.agent(site)
    bodies = [json.dumps({**REQUEST, "model": number}).encode() for number in numbers]
    agent.writer.write(b"".join(post(body=body) for body in bodies))
    texts = []
    for _ in numbers:
        _, body = await agent.reply()
        texts.append(json.loads(body)["choices"][0]["message"]["content"])
    assert texts == numbers
    assert len(front.connections) == 1


async def test_an_answer_does_not_wait_for_a_body_that_nobody_wants(make_front, upstream):
    upstream.handler = reply_with(whole(completion()))
    site, front = await make_front()
    agent = await make_front.agent(site)
    refused = post(path=f"/s/{TOKEN}x/v1/chat/completions")
    agent.writer.write(refused[:-20])
    assert (await agent.reply())[0] == 401
    agent.writer.write(refused[-20:-10])
    agent.writer.write(refused[-10:] + post())
    assert (await agent.reply())[0] == 200
    assert len(front.connections) == 1


@pytest.mark.parametrize("path", [PATH, f"{PATH}x"], ids=["too large", "no session"])
async def test_a_body_that_nobody_wants_is_not_kept(make_front, path):
    _, front = await make_front()
    wire = Wire(Connection(front, asyncio.get_running_loop()))
    wire.protocol.connection_made(wire)
    head = post(f"Content-Length: {2**30}", path=path, body=b"", length=False)
    wire.protocol.data_received(head)
    await wire.replies(1)
    tracemalloc.start()
    try:
        for _ in range(32):
            wire.protocol.data_received(bytes(2**20))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    wire.protocol.connection_lost(None)
    assert kept < 2**21


async def test_a_body_that_nobody_wants_has_to_come_soon(make_front):
    site, front = await make_front(linger_timeout=0.05)
    agent = await make_front.agent(site)
    agent.writer.write(post(path=f"/s/{TOKEN}x/v1/chat/completions")[:-20])
    assert (await agent.reply())[0] == 401
    assert await agent.closed()
    assert not front.connections


async def test_an_agent_that_leaves_within_its_body_leaves_nothing_behind(make_front):
    site, front = await make_front()
    session = site.open(attempt="r2.1")
    token = site.token("r2.1")
    agent = await make_front.agent(site)
    agent.writer.write(post(path=f"/s/{token}/v1/chat/completions")[:-20])
    while not session.in_flight:
        await asyncio.sleep(0.001)
    agent.writer.close()
    while session.in_flight:
        await asyncio.sleep(0.001)
    assert await site.calls("r2.1") == []
    assert not front.connections


@pytest.mark.parametrize("sent", [b"", post()[:10], post()[:40]])
async def test_an_idle_connection_is_closed(make_front, sent):
    site, front = await make_front(idle_timeout=0.05)
    agent = await make_front.agent(site)
    agent.writer.write(sent)
    assert await agent.closed()
    assert not front.connections


async def test_a_call_under_way_is_not_idle(make_front, upstream):
    go_on = asyncio.Event()

    async def late(_, writer):
        await go_on.wait()
        writer.write(whole(completion()))

    upstream.handler = late
    site, _ = await make_front(idle_timeout=0.05)
    agent = await make_front.agent(site)
    agent.writer.write(post())
    await upstream.arrived.wait()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(agent.reader.read(1), 0.3)
    go_on.set()
    assert (await agent.reply())[0] == 200
    assert await agent.closed()


@pytest.mark.parametrize("in_time", [True, False])
async def test_closing_gives_requests_time(make_front, upstream, in_time):
    go_on = asyncio.Event()

    async def late(_, writer):
        await go_on.wait()
        writer.write(whole(completion()))

    upstream.handler = late
    site, front = await make_front()
    idle, busy = await make_front.agent(site), await make_front.agent(site)
    busy.writer.write(post())
    await upstream.arrived.wait()
    while len(front.connections) < 2:
        await asyncio.sleep(0.001)
    closing = asyncio.ensure_future(front.close(30 if in_time else 0.05))
    assert await idle.closed()
    if in_time:
        go_on.set()
        assert (await busy.reply())[0] == 200
    assert await busy.closed()
    await closing
    call = await site.call()
    assert call.complete is in_time
    assert in_time or call.error.kind is CallErrorKind.CLIENT_GONE


async def test_a_slow_reader_slows_the_upstream(make_front, upstream):
    piece = b"x" * 2**16
    sent = 0

    async def flood(_, writer):
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (1000 * len(piece)))
        for _ in range(1000):
            writer.write(piece)
            await writer.drain()
            sent += len(piece)

    upstream.handler = flood
    site, _ = await make_front()
    agent = await make_front.agent(site)
    agent.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
    agent.writer.transport.pause_reading()
    agent.writer.write(post())
    seen = -1
    while sent != seen:  # until nothing moves any more
        seen = sent
        await asyncio.sleep(0.3)
    assert 0 < sent < 500 * len(piece)
    agent.writer.transport.resume_reading()
    status, body = await agent.reply()
    assert (status, len(body), sent) == (200, 1000 * len(piece), 1000 * len(piece))
