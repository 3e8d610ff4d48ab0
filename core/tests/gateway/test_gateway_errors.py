"""What goes wrong: the agent sees it as it was, and it is recorded."""

from __future__ import annotations

import asyncio
import json
import socket

import aiohttp
import pytest

from lightning_core.gateway import GatewayLimits
from lightning_core.tokens import Claims, Scope, TokenSigner
from lightning_core.trace import CallErrorKind

from .conftest import (
    REQUEST,
    chunk,
    chunked,
    completion,
    event,
    head,
    reply_with,
    stream_of,
    whole,
)

STREAM = {**REQUEST, "stream": True}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (429, b'{"error": {"message": "slow down", "code": 1}}', "application/json", "slow down"),
        (500, b"upstream exploded", "text/plain", "upstream exploded"),
        (503, b"<html>no</html>", "text/html", "<html>no</html>"),
        (400, b'{"detail": "x"}', "application/json", '{"detail":"x"}'),
        (502, b"", "text/plain", ""),
    ],
)
async def test_upstream_errors_pass_unchanged(site, upstream, status, body, kind, message, stream):
    session = site.open(upstream=f"{upstream.url}/v1")
    upstream.handler = reply_with(whole(body, status, kind, Retry_After="7"))
    got, data, headers = await site.ask(STREAM if stream else REQUEST)
    assert (got, data) == (status, body)
    assert headers["retry-after"] == "7"
    assert headers["content-type"].startswith(kind)
    call = await site.call()
    assert (call.status, call.complete, call.stream) == (status, False, stream)
    assert (call.error.kind, call.error.status, call.error.message) == (
        CallErrorKind.STATUS,
        status,
        message,
    )
    kept = json.loads(body) if kind == "application/json" else {"text": body.decode()}
    assert call.reply == kept
    assert session.last_error == call.error


async def test_an_errors_message_is_bounded(site, upstream):
    site.open(upstream=f"{upstream.url}/v1")
    upstream.handler = reply_with(whole(b"\xe2\x82\xac" * 100_000, 500, "text/plain"))
    await site.ask()
    call = await site.call()
    assert len(call.error.message.encode()) <= 4096
    assert len(call.reply["text"].encode()) <= 65536


async def test_no_connection(site):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        session = site.open(upstream=f"http://127.0.0.1:{port}/v1")
        status, body, _ = await site.ask()
    assert (status, json.loads(body)["error"]["code"]) == (502, "refused")
    call = await site.call()
    assert (call.status, call.error.kind) == (502, CallErrorKind.REFUSED)
    assert f"127.0.0.1:{port}" in call.error.message
    assert session.last_error.kind is CallErrorKind.REFUSED


@pytest.mark.parametrize("sent", [b"", head(200, Content_Length=10)])
async def test_a_connection_that_breaks_before_the_first_byte(site, upstream, sent):
    site.open(upstream=f"{upstream.url}/v1")

    async def close(_, writer):
        writer.write(sent)
        await writer.drain()
        writer.close()

    upstream.handler = close
    status, body, _ = await site.ask()
    assert (status, json.loads(body)["error"]["code"]) == (502, "cut")
    call = await site.call()
    assert (call.error.kind, call.complete) == (CallErrorKind.CUT, False)


async def test_a_whole_reply_that_is_cut(site, upstream):
    site.open(upstream=f"{upstream.url}/v1")

    async def cut(_, writer):
        writer.write(head(200, Content_Length=100) + b'{"choices": [')
        await writer.drain()
        writer.close()

    upstream.handler = cut
    with pytest.raises(aiohttp.ClientPayloadError):
        await site.ask()
    call = await site.call()
    assert (call.status, call.error.kind, call.complete) == (200, CallErrorKind.CUT, False)


PIECES = [event(chunk({"content": "hel"})), event(chunk({"content": "lo"}))]


async def test_a_cut_stream_is_cut_for_the_agent_too(site, upstream):
    session = site.open(upstream=f"{upstream.url}/v1")
    upstream.handler = stream_of(*PIECES, end=False)
    assert await site.ask_cut(STREAM) == b"".join(PIECES)
    call = await site.call()
    assert (call.text, call.status, call.complete) == ("hello", 200, False)
    assert call.error.kind is CallErrorKind.CUT
    assert session.last_error.kind is CallErrorKind.CUT


async def test_a_stream_cut_within_an_event(site, upstream):
    site.open(upstream=f"{upstream.url}/v1")
    upstream.handler = stream_of(PIECES[0], PIECES[1][:40], end=False)
    assert await site.ask_cut(STREAM) == PIECES[0] + PIECES[1][:40]
    call = await site.call()
    assert (call.text, call.complete, call.error.kind) == ("hel", False, CallErrorKind.CUT)


async def test_a_stream_that_ends_with_its_connection(site, upstream):
    site.open(upstream=f"{upstream.url}/v1")
    data = b"".join(PIECES)

    async def until_close(received, writer):
        ending = event("[DONE]") if len(upstream.received) == 1 else b""
        writer.write(head(200, "text/event-stream") + data + ending)
        await writer.drain()
        writer.close()

    upstream.handler = until_close
    assert (await site.ask(STREAM))[1] == data + event("[DONE]")
    with pytest.raises(aiohttp.ClientPayloadError):
        await site.ask(STREAM)
    whole_call, cut_call = await site.calls()
    assert (whole_call.complete, whole_call.text) == (True, "hello")
    assert (cut_call.complete, cut_call.error.kind) == (False, CallErrorKind.CUT)


async def test_a_stream_without_terminator_is_incomplete(site, upstream):
    site.open(upstream=f"{upstream.url}/v1")
    upstream.handler = stream_of(*PIECES)
    assert (await site.ask(STREAM))[1] == b"".join(PIECES)
    call = await site.call()
    assert (call.complete, call.error.kind) == (False, CallErrorKind.CUT)


@pytest.mark.parametrize("ending", [b"", event("[DONE]")])
async def test_an_error_within_a_stream(site, upstream, ending):
    site.open(upstream=f"{upstream.url}/v1")
    failure = event({"error": {"message": "engine died", "code": 500}})
    upstream.handler = stream_of(*PIECES, failure + ending)
    assert (await site.ask(STREAM))[1] == b"".join(PIECES) + failure + ending
    call = await site.call()
    assert (call.text, call.complete) == ("hello", False)
    assert (call.error.kind, call.error.message) == (CallErrorKind.CUT, "engine died")


@pytest.mark.parametrize("started", [False, True])
async def test_a_silent_upstream(make_site, upstream, started):
    site = await make_site(GatewayLimits(idle_timeout=0.2))
    site.open(upstream=f"{upstream.url}/v1")

    async def silent(_, writer):
        if started:
            writer.write(head(200, "text/event-stream", Transfer_Encoding="chunked"))
            writer.write(chunked(PIECES[0]))
        await asyncio.Event().wait()

    upstream.handler = silent
    if started:
        with pytest.raises(aiohttp.ClientPayloadError):
            await site.ask(STREAM)
    else:
        status, body, _ = await site.ask(STREAM)
        assert (status, json.loads(body)["error"]["code"]) == (504, "timeout")
    call = await site.call()
    assert (call.error.kind, call.complete) == (CallErrorKind.TIMEOUT, False)
    assert call.status == (200 if started else 504)
    await asyncio.wait_for(upstream.closed.wait(), 30)


@pytest.mark.parametrize(
    "garbage",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nbroken header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n",
    ],
)
async def test_an_upstream_that_does_not_speak_http(site, upstream, garbage):
    site.open(upstream=f"{upstream.url}/v1")
    upstream.handler = reply_with(garbage)
    status, body, _ = await site.ask()
    assert (status, json.loads(body)["error"]["code"]) == (502, "cut")
    assert (await site.call()).error.kind is CallErrorKind.CUT


@pytest.mark.parametrize(
    "body", [b"not json", b"[]", b'{"choices": 3}', b'{"choices": [{"index": 0}]}', b"\xff\xfe"]
)
async def test_success_with_a_body_that_is_not_the_formats(site, upstream, body):
    site.open(upstream=f"{upstream.url}/v1")
    upstream.handler = reply_with(whole(body))
    assert (await site.ask())[:2] == (200, body)
    call = await site.call()
    assert (call.status, call.complete) == (200, False)
    assert call.error.kind is CallErrorKind.UNREADABLE


@pytest.mark.parametrize(
    ("body", "kind", "status", "code"),
    [
        (b"{not json", "application/json", 400, "bad_request"),
        (b"[1]", "application/json", 400, "bad_request"),
        (b"", "application/json", 400, "bad_request"),
        (b"\xff\xfe", "application/json", 400, "bad_request"),
        (b"[" * 100_000, "application/json", 400, "bad_request"),
        (b"a=b", "application/x-www-form-urlencoded", 415, "content_type"),
        (b"x" * (20 * 2**20), "application/json", 413, "too_large"),
    ],
)
async def test_bad_requests_are_refused_and_recorded(site, upstream, body, kind, status, code):
    session = site.open(upstream=f"{upstream.url}/v1")
    got, data, _ = await site.ask(body, headers={"Content-Type": kind})
    error = json.loads(data)["error"]
    assert (got, error["code"], error["type"], error["param"]) == (
        status,
        code,
        f"lightning_{code}",
        None,
    )
    assert upstream.received == []
    call = await site.call()
    assert (call.status, call.error.kind, call.request) == (status, CallErrorKind.BAD_REQUEST, {})
    assert session.last_error.kind is CallErrorKind.BAD_REQUEST


async def test_a_body_that_is_too_large_without_saying_so(make_site, upstream):
    site = await make_site(GatewayLimits(max_body=1000))
    site.open(upstream=f"{upstream.url}/v1")

    async def body():
        for _ in range(30):
            yield b"x" * 100

    headers = {"Content-Type": "application/json"}
    url = f"{site.base()}/chat/completions"
    async with site.client.post(url, data=body(), headers=headers) as response:
        assert response.status == 413


async def refused(site, url, **kw):
    async with site.client.post(url, json=REQUEST, **kw) as response:
        assert response.status == 401
        error = (await response.json())["error"]
        assert error["code"] == "unknown_session"
        return error["message"]


async def test_unknown_sessions_are_refused_and_told_why(site):
    site.open()
    path = "/v1/chat/completions"
    assert "no session" in await refused(site, site.url + path)
    bearer = {"Authorization": "Bearer sk-other"}
    assert "no session" in await refused(site, site.url + path, headers=bearer)
    forged = TokenSigner(b"x" * 32).sign(
        Claims(scope=Scope.SESSION, expires_at=9e9, attempt_id="r1.1")
    )
    assert "signature" in await refused(site, f"{site.url}/s/{forged}{path}")
    for garbage in ("lc1.é.x", "lc1.a.b", "lc1.", "zzz"):
        await refused(site, f"{site.url}/s/{garbage}{path}")
    expired = site.token(seconds=-5)
    assert "expired" in await refused(site, f"{site.url}/s/{expired}{path}")
    worker = site.token(scope=Scope.WORKER)
    assert "`worker`" in await refused(site, f"{site.url}/s/{worker}{path}")
    assert "`r2.1`" in await refused(site, f"{site.url}/s/{site.token('r2.1')}{path}")
    await site.gateway.end("r1.1")
    assert "ended" in await refused(site, f"{site.base()}/chat/completions")


async def test_a_token_that_was_good_expires(site, upstream, monkeypatch):
    site.open(upstream=f"{upstream.url}/v1")
    upstream.handler = reply_with(whole(completion()))
    url = f"{site.url}/s/{site.token(seconds=1000)}/v1/chat/completions"
    async with site.client.post(url, json=REQUEST) as response:
        assert response.status == 200
    import time

    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 2000)
    assert "expired" in await refused(site, url)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/responses"),
        ("GET", "/chat/completions"),
        ("POST", "/models"),
        ("POST", "/x"),
        ("POST", "/threads/thread_1/messages"),
    ],
)
async def test_unknown_routes(site, method, path):
    site.open()
    async with site.client.request(method, site.base() + path, json=REQUEST) as response:
        assert response.status == 404
        assert (await response.json())["error"]["code"] == "unknown_route"
    assert await site.calls() == []
