"""Tries of one call are one Call, and nothing else is."""

from __future__ import annotations

import asyncio

import aiohttp
import openai
import pytest

from lightning_core.gateway import GatewayLimits
from lightning_core.rollout import Budget
from lightning_core.trace import CallErrorKind

from .conftest import (
    REQUEST,
    USAGE,
    chunk,
    completion,
    event,
    replies,
    reply_with,
    stream_of,
    whole,
)

FAILURE = whole(b'{"error": {"message": "boom"}}', 500)


def tagged(call=None, retry=None, stainless=None):
    headers = {}
    if call is not None:
        headers["x-lightning-call"] = call
    if retry is not None:
        headers["x-lightning-retry"] = str(retry)
    if stainless is not None:
        headers["x-stainless-retry-count"] = str(stainless)
    return headers


@pytest.mark.parametrize("tags", [{"call": "c1", "retry": 0}, {"stainless": 0}, {"call": "c1"}])
async def test_a_retry_after_a_failure_is_the_same_call(site, upstream, tags):
    session = site.open(upstream=f"{upstream.url}/v1", budget=Budget(calls=1))
    upstream.handler = replies(FAILURE, FAILURE, whole(completion()))
    for number in range(3):
        now = {key: number if key != "call" else value for key, value in tags.items()}
        status, _, _ = await site.ask(headers=tagged(**now))
        assert status == (200 if number == 2 else 500)
    assert (session.calls, session.last_error) == (1, None)
    call = await site.call()
    assert (call.index, call.complete, call.error) == (0, True, None)
    assert [attempt.error.kind for attempt in call.tries] == [CallErrorKind.STATUS] * 2
    assert call.tries[0].started_at <= call.tries[0].ended_at <= call.tries[1].started_at
    assert call.tries[1].ended_at <= call.started_at
    assert len({put.id for put in site.store.puts}) == 1


async def test_calls_without_retry_marks_are_never_folded(site, upstream):
    site.open(upstream=f"{upstream.url}/v1")
    upstream.handler = replies(FAILURE, whole(completion()))
    await site.ask()
    await site.ask()
    await site.ask(headers=tagged(stainless=0))
    await site.ask(headers=tagged(call="c", retry=0))
    await site.ask(headers=tagged(call="c", retry=0))
    calls = await site.calls()
    assert [call.index for call in calls] == [0, 1, 2, 3, 4]
    assert all(call.tries == () for call in calls)


async def test_one_call_id_with_another_body_is_another_call(site, upstream):
    site.open(upstream=f"{upstream.url}/v1")
    upstream.handler = reply_with(whole(completion()))
    await site.ask(headers=tagged(call="c", retry=0))
    await site.ask({**REQUEST, "user": "other"}, headers=tagged(call="c", retry=1))
    assert len(await site.calls()) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_committed_reply_is_given_again(site, upstream, stream):
    session = site.open(upstream=f"{upstream.url}/v1")
    if stream:
        upstream.handler = stream_of(
            event(chunk({"content": "x"}, finish="stop")),
            event(chunk(None, usage=USAGE)),
            event("[DONE]"),
        )
    else:
        upstream.handler = reply_with(whole(completion()))
    request = {**REQUEST, "stream": stream}
    first = await site.ask(request, headers=tagged(stainless=0))
    again = await site.ask(request, headers=tagged(stainless=1))
    assert again[:2] == first[:2]
    assert again[2]["content-type"] == first[2]["content-type"]
    assert len(upstream.received) == 1
    assert session.tokens == 5
    call = await site.call()
    assert call.complete
    assert [attempt.error for attempt in call.tries] == [None]


async def test_the_replay_cache_is_bounded(make_site, upstream):
    site = await make_site(GatewayLimits(replay_bytes=3000, remember=2))
    site.open(upstream=f"{upstream.url}/v1")
    upstream.handler = reply_with(whole(completion("y" * 1500)))
    await site.ask(headers=tagged(call="a", retry=0))
    await site.ask(headers=tagged(call="b", retry=0))
    await site.ask(headers=tagged(call="a", retry=1))  # its reply is no longer kept: sampled anew
    assert len(upstream.received) == 3
    await site.ask(headers=tagged(call="c", retry=0))
    await site.ask(headers=tagged(call="d", retry=0))
    await site.ask(headers=tagged(call="a", retry=2))  # no longer remembered: a call of its own
    calls = await site.calls()
    assert len(calls) == 5
    assert [len(call.tries) for call in calls] == [1, 0, 0, 0, 0]


async def test_a_retry_waits_for_its_twin(site, upstream):
    site.open(upstream=f"{upstream.url}/v1")
    release = asyncio.Event()

    async def slow(_, writer):
        await release.wait()
        writer.write(whole(completion()))

    upstream.handler = slow
    first = asyncio.ensure_future(site.ask(headers=tagged(call="c", retry=0)))
    await upstream.arrived.wait()
    second = asyncio.ensure_future(site.ask(headers=tagged(call="c", retry=1)))
    await asyncio.sleep(0.05)  # time to do wrong: to ask the upstream again
    release.set()
    assert (await first)[1] == (await second)[1]
    assert len(upstream.received) == 1
    assert len((await site.call()).tries) == 1


async def test_a_retry_after_the_clients_time_out(site, upstream):
    site.open(upstream=f"{upstream.url}/v1")

    async def hang_once(_, writer):
        if len(upstream.received) == 1:
            await asyncio.Event().wait()
        writer.write(whole(completion()))

    upstream.handler = hang_once
    async with aiohttp.ClientSession() as client:
        url = f"{site.base()}/chat/completions"
        first = asyncio.ensure_future(client.post(url, json=REQUEST, headers=tagged(stainless=0)))
        await upstream.arrived.wait()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        async with client.post(url, json=REQUEST, headers=tagged(stainless=1)) as response:
            assert response.status == 200
    call = await site.call()
    assert call.complete
    assert [attempt.error.kind for attempt in call.tries] == [CallErrorKind.CLIENT_GONE]


async def test_parallel_equal_calls_with_retries_are_not_mixed_up(site, upstream):
    site.open(upstream=f"{upstream.url}/v1")
    failed = set()

    async def every_other_fails_once(received, writer):
        number = next(i for i, item in enumerate(upstream.received) if item is received)
        if (
            number % 2
            and number not in failed
            and received.headers.get("x-stainless-retry-count") == "0"
        ):
            failed.add(number)
            writer.write(FAILURE)
        else:
            writer.write(whole(completion(f"reply {number}")))

    upstream.handler = every_other_fails_once

    async def sdk():
        for retry in range(3):
            status, body, _ = await site.ask(headers=tagged(stainless=retry))
            if status == 200:
                return body
        raise AssertionError("three failures")

    bodies = await asyncio.gather(*(sdk() for _ in range(40)))
    assert len(set(bodies)) == 40
    calls = await site.calls()
    assert len(calls) == 40
    assert all(call.complete for call in calls)
    assert sum(len(call.tries) for call in calls) == len(failed)


# With the SDK itself ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [FAILURE, whole(b"slow", 429, "text/plain", Retry_After="0")])
async def test_the_openai_sdks_retries(site, upstream, failure):
    site.open(upstream=f"{upstream.url}/v1")
    upstream.handler = replies(failure, whole(completion("hello")))
    async with openai.AsyncOpenAI(base_url=site.base(), api_key="sk-x") as client:
        reply = await client.chat.completions.create(**REQUEST)
    assert reply.choices[0].message.content == "hello"
    call = await site.call()
    assert [attempt.error.kind for attempt in call.tries] == [CallErrorKind.STATUS]
    assert call.complete


async def test_the_openai_sdk_streams(site, upstream):
    site.open(upstream=f"{upstream.url}/v1")
    upstream.handler = stream_of(
        event(chunk({"role": "assistant", "content": ""})),
        event(chunk({"content": "hel"})) + event(chunk({"content": "lo"})),
        event(chunk({}, finish="stop")),
        event(chunk(None, usage=USAGE)),
        event("[DONE]"),
    )
    async with openai.AsyncOpenAI(base_url=site.base(), api_key="sk-x") as client:
        stream = await client.chat.completions.create(**REQUEST, stream=True)
        chunks = [item async for item in stream]
    assert all(len(item.choices) == 1 for item in chunks)
    assert "".join(item.choices[0].delta.content or "" for item in chunks) == "hello"
    call = await site.call()
    assert (call.text, call.usage, call.complete) == ("hello", USAGE, True)


async def test_the_sync_openai_sdk(site, upstream):
    site.open(upstream=f"{upstream.url}/v1")
    upstream.handler = replies(FAILURE, whole(completion("hello")))
    base = site.base()

    def ask() -> str | None:
        with openai.OpenAI(base_url=base, api_key="sk-x") as client:
            return client.chat.completions.create(**REQUEST).choices[0].message.content

    assert await asyncio.to_thread(ask) == "hello"
    assert len((await site.call()).tries) == 1


async def test_the_openai_sdk_with_the_session_as_key(site, upstream):
    site.open(upstream=f"{upstream.url}/v1", budget=Budget(calls=0))
    async with openai.AsyncOpenAI(base_url=f"{site.url}/v1", api_key=site.token()) as client:
        with pytest.raises(openai.RateLimitError, match="used up"):
            await client.chat.completions.create(**REQUEST)
    (call,) = await site.calls()
    assert (call.error.kind, call.tries) == (CallErrorKind.BUDGET, ())
