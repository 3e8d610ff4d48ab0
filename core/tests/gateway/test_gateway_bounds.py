"""Budgets, deadlines, ends of attempts, agents that go away, a store that fails."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest

from lightning_core.rollout import Budget
from lightning_core.trace import CallErrorKind

from .conftest import REQUEST, chunk, chunked, completion, event, head, reply_with, whole


def hanging(upstream, *, started=False):
    async def handler(_, writer):
        if started:
            writer.write(head(200, "text/event-stream", Transfer_Encoding="chunked"))
            writer.write(chunked(event(chunk({"content": "x"}))))
            await writer.drain()
        await asyncio.Event().wait()

    upstream.handler = handler


@pytest.mark.parametrize("budget", [Budget(calls=2), Budget(tokens=10)])
async def test_budgets(site, upstream, budget):
    session = site.open(upstream=f"{upstream.url}/v1", budget=budget)
    upstream.handler = reply_with(whole(completion()))  # 5 tokens
    assert [(await site.ask())[0] for _ in range(2)] == [200, 200]
    status, body, headers = await site.ask()
    assert (status, json.loads(body)["error"]["code"]) == (429, "budget")
    assert headers["x-should-retry"] == "false"
    assert len(upstream.received) == 2
    assert session.calls == 2
    *_, last = await site.calls()
    assert (last.index, last.error.kind) == (2, CallErrorKind.BUDGET)
    assert session.last_error.kind is CallErrorKind.BUDGET


async def test_a_call_after_the_deadline(site, upstream):
    site.open(upstream=f"{upstream.url}/v1", seconds=-1)
    status, body, headers = await site.ask()
    assert (status, json.loads(body)["error"]["code"]) == (504, "deadline")
    assert headers["x-should-retry"] == "false"
    assert upstream.received == []
    assert (await site.call()).error.kind is CallErrorKind.DEADLINE


@pytest.mark.parametrize("started", [False, True])
async def test_the_deadline_ends_calls_under_way(site, upstream, started):
    site.open(upstream=f"{upstream.url}/v1", seconds=0.3)
    hanging(upstream, started=started)
    if started:
        assert b'"x"' in await site.ask_cut({**REQUEST, "stream": True})
    else:
        status, body, _ = await site.ask()
        assert (status, json.loads(body)["error"]["code"]) == (504, "deadline")
    await asyncio.wait_for(upstream.closed.wait(), 30)
    call = await site.call()
    assert (call.error.kind, call.complete) == (CallErrorKind.DEADLINE, False)
    assert call.text == ("x" if started else "")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_agent_that_goes_away_cancels_its_call(site, upstream, stream):
    session = site.open(upstream=f"{upstream.url}/v1")
    hanging(upstream, started=stream)
    async with aiohttp.ClientSession() as client:
        url = f"{site.base()}/chat/completions"
        asking = asyncio.ensure_future(client.post(url, json={**REQUEST, "stream": stream}))
        await upstream.arrived.wait()
        if stream:
            response = await asking
            await response.content.readany()
            response.close()
        else:
            asking.cancel()
    await asyncio.wait_for(upstream.closed.wait(), 30)
    call = await site.call()
    assert (call.error.kind, call.complete) == (CallErrorKind.CLIENT_GONE, False)
    assert call.status == (200 if stream else None)
    assert call.text == ("x" if stream else "")
    assert session.in_flight == 0


async def test_a_call_is_recorded_though_the_agent_leaves_while_the_store_is_slow(site, upstream):
    site.open(upstream=f"{upstream.url}/v1")
    upstream.handler = reply_with(whole(completion()))
    site.store.hold = asyncio.Event()
    async with aiohttp.ClientSession() as client:
        url = f"{site.base()}/chat/completions"
        async with client.post(url, json=REQUEST) as response:
            await response.read()
    ending = asyncio.ensure_future(site.gateway.end("r1.1"))
    await asyncio.sleep(
        0.05
    )  # the connection is gone by now; the end must still wait for the store
    assert not ending.done()
    site.store.hold.set()
    await ending
    (call,) = await site.store.calls("r1.1")
    assert call.complete


async def test_end_gives_grace_then_cancels_and_waits_for_the_record(site, upstream):
    site.open(upstream=f"{upstream.url}/v1")
    release = asyncio.Event()

    async def slow(_, writer):
        await release.wait()
        writer.write(whole(completion("late")))

    upstream.handler = slow
    asking = asyncio.ensure_future(site.ask())
    await upstream.arrived.wait()
    ending = asyncio.ensure_future(site.gateway.end("r1.1", grace=60))
    await asyncio.sleep(0)
    assert (await site.ask())[0] == 401
    release.set()
    session = await ending
    assert (await asking)[0] == 200
    assert (session.calls, session.last_error) == (1, None)
    (call,) = await site.store.calls("r1.1")
    assert call.text == "late"
    assert await site.gateway.end("r1.1") is None


async def test_end_without_grace_cancels(site, upstream):
    site.open(upstream=f"{upstream.url}/v1")
    hanging(upstream)
    asking = asyncio.ensure_future(site.ask())
    await upstream.arrived.wait()
    session = await site.gateway.end("r1.1")
    status, body, _ = await asking
    assert (status, json.loads(body)["error"]["code"]) == (401, "unknown_session")
    await asyncio.wait_for(upstream.closed.wait(), 30)
    (call,) = await site.store.calls("r1.1")
    assert call.error.kind is CallErrorKind.CLIENT_GONE
    assert session.last_error == call.error


async def test_sessions_do_not_share_anything(site, upstream):
    site.open(upstream=f"{upstream.url}/v1", budget=Budget(calls=1))
    site.open(attempt="r2.1", rollout="r2", upstream=f"{upstream.url}/v1")
    upstream.handler = reply_with(whole(completion()))
    assert [(await site.ask())[0] for _ in range(2)] == [200, 429]
    assert [(await site.ask(attempt="r2.1"))[0] for _ in range(2)] == [200, 200]
    assert [call.index for call in await site.calls("r2.1")] == [0, 1]


async def test_what_cannot_be_recorded_is_not_run(site, upstream, caplog):
    site.open(upstream=f"{upstream.url}/v1")
    upstream.handler = reply_with(whole(completion()))
    site.store.fail = True
    assert (await site.ask())[0] == 200
    assert "disk full" in caplog.text
    assert site.token()[:40] not in caplog.text
    status, body, _ = await site.ask()
    assert (status, json.loads(body)["error"]["code"]) == (500, "store")
    assert len(upstream.received) == 1
