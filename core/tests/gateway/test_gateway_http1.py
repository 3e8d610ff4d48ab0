"""The client's side of HTTP/1.1, however the network cuts it."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.gateway.http1 import Broken, Connection


class Transport(asyncio.Transport):
    """Takes what is written; tells what was asked of it."""

    def __init__(self):
        super().__init__()
        self.written = b""
        self.closed = False
        self.paused = False

    def write(self, data):
        self.written += data

    def abort(self):
        self.closed = True

    def is_closing(self):
        return self.closed

    def pause_reading(self):
        self.paused = True

    def resume_reading(self):
        self.paused = False


def talk(pieces: list[bytes], *, closes: bool = False) -> tuple[Connection, bytes]:
    """Feed a reply piece by piece; returns the connection and the body."""

    async def main():
        connection, transport = Connection(60), Transport()
        connection.connection_made(transport)
        connection.send(b"GET / HTTP/1.1\r\n\r\n")
        for piece in pieces:
            connection.data_received(piece)
        if closes:
            connection.connection_lost(None)
        await connection.head()
        body = b""
        while data := await connection.read():
            body += data
        reusable = connection.reusable
        connection.close()
        return connection, body, reusable

    connection, body, reusable = asyncio.run(main())
    connection.was_reusable = reusable
    return connection, body


def cut(data: bytes, points: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(point % (len(data) + 1) for point in points)})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


points = st.lists(st.integers(0, 10_000), max_size=20)
bodies = st.lists(st.binary(min_size=1, max_size=40), max_size=8)


@given(bodies, points)
def test_chunked_bodies(parts, at):
    data = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A: b\r\n\r\n"
    data += b"".join(b"%X;ext=1\r\n%s\r\n" % (len(part), part) for part in parts)
    data += b"0\r\nTrailer: x\r\n\r\n"
    connection, body = talk(cut(data, at))
    assert body == b"".join(parts)
    assert (connection.status, connection.headers["x-a"]) == (200, "b")
    assert connection.was_reusable


@given(st.binary(max_size=100), points)
def test_bodies_with_a_length(data, at):
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(data)
    connection, body = talk(cut(head + data, at))
    assert body == data
    assert connection.was_reusable


@given(st.binary(max_size=100), points)
def test_bodies_that_end_with_the_connection(data, at):
    connection, body = talk(cut(b"HTTP/1.1 200 OK\r\n\r\n" + data, at), closes=True)
    assert body == data
    assert not connection.was_reusable


def test_interim_replies_are_passed_over():
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    connection, body = talk([interim + b"HTTP/1.1 201 Made\r\nContent-Length: 2\r\n\r\nok"])
    assert (connection.status, connection.reason, body) == (201, "Made", b"ok")
    assert "link" not in connection.headers


def test_a_reply_without_body():
    connection, body = talk([b"HTTP/1.1 204 No Content\r\n\r\n"])
    assert (connection.status, body) == (204, b"")
    assert connection.was_reusable


@pytest.mark.parametrize(
    "head",
    [b"HTTP/1.1 200 OK\r\nConnection: close\r\n", b"HTTP/1.0 200 OK\r\n"],
)
def test_a_connection_that_will_close_is_not_used_again(head):
    connection, _ = talk([head + b"Content-Length: 2\r\n\r\nok"])
    assert not connection.was_reusable


def test_bytes_after_the_end_make_a_connection_unusable():
    connection, body = talk([b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200"])
    assert body == b"ok"
    assert not connection.was_reusable


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1_0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nName : x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1_0\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n",
        b"x" * 300_000,
    ],
)
def test_what_is_not_http_breaks_the_connection(reply):
    with pytest.raises(Broken):
        talk([reply])


def test_what_came_before_a_break_is_handed_out():
    async def main():
        connection, transport = Connection(60), Transport()
        connection.connection_made(transport)
        connection.send(b"x")
        connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")
        connection.connection_lost(None)
        await connection.head()
        assert await connection.read() == b"abc"
        with pytest.raises(Broken, match="within the reply"):
            await connection.read()

    asyncio.run(main())


def test_a_reader_that_lags_pauses_the_upstream():
    async def main():
        connection, transport = Connection(60), Transport()
        connection.connection_made(transport)
        connection.send(b"x")
        connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\n\r\n")
        await connection.head()
        connection.data_received(b"x" * 1_000_000)
        assert transport.paused
        assert len(await connection.read()) == 1_000_000
        assert not transport.paused
        connection.close()

    asyncio.run(main())


def pass_on(pieces: list[bytes], take, *, closes: bool = False):
    """Feed a reply piece by piece, each in a turn of its own, to a connection that passes it on."""

    async def main():
        connection, transport = Connection(60), Transport()
        connection.connection_made(transport)
        connection.send(b"x")
        loop = asyncio.get_running_loop()

        async def feed():
            for piece in pieces:
                connection.data_received(piece)
                await asyncio.sleep(0)
            if closes:
                connection.connection_lost(None)

        feeding = loop.create_task(feed())
        try:
            await connection.head()
            while not await connection.pass_on(take):
                await asyncio.sleep(0)
            return connection.read_nowait()
        finally:
            await feeding
            connection.close()

    return asyncio.run(main())


@given(bodies, points, st.lists(st.booleans(), max_size=30))
def test_a_body_can_be_passed_on_as_it_comes(parts, at, answers):
    data = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    data += b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    taken = []
    left = list(answers)

    def take(piece):
        assert piece
        taken.append(piece)
        return left.pop() if left else True

    last = pass_on(cut(data, at), take)
    assert b"".join(taken) + last == b"".join(parts)


def test_what_came_before_a_break_is_passed_on():
    taken = []
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"
    with pytest.raises(Broken, match="within the reply"):
        pass_on([head + b"abc", b"def"], lambda piece: taken.append(piece) or True, closes=True)
    assert taken == [b"abc", b"def"]


@pytest.mark.parametrize("at", [1, 2])
def test_who_takes_may_fail(at):
    taken = []

    def take(piece):
        taken.append(piece)
        if len(taken) == at:
            raise ConnectionResetError("gone")
        return True

    head = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"
    with pytest.raises(ConnectionResetError, match="gone"):
        pass_on([head + b"abc", b"def", b"gh"], take)
    assert taken == [b"abc", b"def"][:at]
