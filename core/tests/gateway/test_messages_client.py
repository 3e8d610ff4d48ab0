"""The official client reads translated replies as if Anthropic had sent them."""

from __future__ import annotations

import asyncio
import json

import anthropic
import pytest
from aiohttp import web
from anthropic.types import Message

from lightning_core.gateway.dialects.messages_translation import MessagesTranslator, failure

from .messages_cases import CASES, COUNTS, FAILING

ID = "c0ffee"


@pytest.fixture
async def server():
    """Answers the case that a request names as its model: whole, or as a stream of pieces of some size."""

    async def messages(request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        name, _, size = body["model"].partition("/")
        case = {**CASES, **FAILING}[name]
        translation = MessagesTranslator().begin(body, ID)
        if not body.get("stream"):
            return web.Response(body=translation.reply(case.whole), content_type="application/json")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        sieve, step = translation.sieve(), int(size or 10_000)
        for at in range(0, len(case.stream), step):
            if shown := sieve.feed(case.stream[at : at + step]):
                await response.write(shown)
        if shown := sieve.close():
            await response.write(shown)
        return response

    async def refused(request: web.Request) -> web.Response:
        body = failure(429, b'{"error": {"message": "slow down"}}', ID)
        return web.Response(body=body, status=429, content_type="application/json")

    async def count(request: web.Request) -> web.Response:
        MessagesTranslator().tokenize(json.loads(await request.read()))
        body = MessagesTranslator().count(b'{"count": 12, "max_model_len": 99, "tokens": []}')
        return web.Response(body=body, content_type="application/json")

    app = web.Application()
    app.router.add_post("/v1/messages", messages)
    app.router.add_post("/v1/messages/count_tokens", count)
    app.router.add_post("/refused/v1/messages", refused)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
    await runner.cleanup()


def options(name, size=10_000):
    body = {**CASES["text"].request, "model": f"{name}/{size}"}
    if name in CASES:
        body |= CASES[name].request | {"model": f"{name}/{size}"}
    return body


def expected(name) -> dict:
    case = CASES[name]
    return {
        "id": f"msg_{ID}", "type": "message", "role": "assistant", "model": "m-1",
        "content": case.content, "stop_reason": case.stop, "stop_sequence": case.sequence,
        "usage": case.counts,
    }  # fmt: skip


def same(message: Message, wanted: dict) -> bool:
    # The client builds its models without a check.
    checked = Message.model_validate(wanted, strict=True)
    got = message.model_dump(mode="json", exclude_none=True)
    return got == checked.model_dump(mode="json", exclude_none=True)


@pytest.mark.parametrize("name", CASES)
async def test_it_parses_a_whole_reply(server, name):
    async with anthropic.AsyncAnthropic(api_key="k", base_url=server, max_retries=0) as client:
        assert same(await client.messages.create(**options(name)), expected(name))


@pytest.mark.parametrize("name", CASES)
async def test_its_streaming_helper_makes_the_same_message(server, name):
    async with anthropic.AsyncAnthropic(api_key="k", base_url=server, max_retries=0) as client:
        for size in (5, 10_000):
            async with client.messages.stream(**options(name, size)) as stream:
                texts = "".join([text async for text in stream.text_stream])
                message = await stream.get_final_message()
            assert same(message, expected(name))
            assert texts == "".join(b["text"] for b in CASES[name].content if b["type"] == "text")


@pytest.mark.parametrize(
    "name", ["text", "three calls interleaved", "thinking, text and a call", "many alphabets"]
)
async def test_the_sync_client_reads_the_same(server, name):
    def ask():
        with anthropic.Anthropic(api_key="k", base_url=server, max_retries=0) as client:
            whole = client.messages.create(**options(name))
            with client.messages.stream(**options(name, 7)) as stream:
                kinds = [event.type for event in stream]
                final = stream.get_final_message()
            with client.messages.create(**options(name, 7), stream=True) as stream:
                raw = [event.type for event in stream]
            return whole, final, kinds, raw

    whole, final, kinds, raw = await asyncio.to_thread(ask)
    assert same(whole, expected(name))
    assert same(final, expected(name))
    assert kinds[-1] == raw[-1] == "message_stop"
    assert {"content_block_start", "content_block_delta", "content_block_stop"} <= set(raw)


@pytest.mark.parametrize("name", FAILING)
async def test_it_raises_on_an_error_in_mid_stream(server, name):
    case = FAILING[name]
    seen = []
    async with anthropic.AsyncAnthropic(api_key="k", base_url=server, max_retries=0) as client:

        async def read():
            async with client.messages.stream(**options(name)) as stream:
                async for text in stream.text_stream:
                    seen.append(text)

        with pytest.raises(anthropic.APIStatusError, match=case.message) as raised:
            await read()
    assert raised.value.body["error"]["type"] == case.kind
    assert "".join(seen) == case.shown


async def test_it_raises_what_a_status_means(server):
    base = f"{server}/refused"
    async with anthropic.AsyncAnthropic(api_key="k", base_url=base, max_retries=0) as client:
        with pytest.raises(anthropic.RateLimitError, match="slow down") as raised:
            await client.messages.create(**options("text"))
    assert raised.value.type == "rate_limit_error"


async def test_it_counts_tokens(server):
    async with anthropic.AsyncAnthropic(api_key="k", base_url=server, max_retries=0) as client:
        body = {k: v for k, v in options("text").items() if k != "max_tokens"}
        counted = await client.messages.count_tokens(**body, system="s")
    assert counted.input_tokens == 12


async def test_a_conversation_goes_back_as_it_came(server):
    """What an agent appends of a reply becomes the chat message that the model said."""
    name = "thinking, text and a call"
    async with anthropic.AsyncAnthropic(api_key="k", base_url=server, max_retries=0) as client:
        message = await client.messages.create(**options(name))
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "ok"}
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [block.to_dict() for block in message.content]},
        {"role": "user", "content": [result]},
    ]
    asked = MessagesTranslator().begin({"max_tokens": 1, "messages": turns}, "next").request
    assert asked["messages"][1] == {"role": "assistant", **CASES[name].message}
    assert message.usage.input_tokens == COUNTS["input_tokens"]
