"""What the official client makes of translated replies: the same of a stream as of a whole reply."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import openai
import pytest
from aiohttp import web
from openai.types.responses import Response
from pydantic import BaseModel

from lightning_core.gateway.dialects.responses_translation import ResponsesTranslator

from .responses_cases import CASES, FUNCTION, Case, call, streamed

TRANSLATOR = ResponsesTranslator()
WHOLE = [case for case in CASES if case.body is not None and case.in_order]
BROKEN = [case for case in CASES if case.error is not None]
_SIZES = (1, 7, 64, 3, 1000, 20)


class Person(BaseModel):
    name: str
    age: int


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[Case], Awaitable[str]]]:
    """Serves the translation of a case, its stream in pieces of all sizes, and gives the address."""
    runners: list[web.AppRunner] = []

    async def start(case: Case) -> str:
        async def handle(request: web.Request) -> web.StreamResponse:
            body = await request.json()
            translation = TRANSLATOR.begin(body, "c0ffee")
            if not translation.request.get("stream"):
                return web.Response(
                    body=translation.reply(case.body or b""), content_type="application/json"
                )
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            sieve, at, turn = translation.sieve(), 0, 0
            while at < len(case.stream):
                size = _SIZES[turn % len(_SIZES)]
                await response.write(sieve.feed(case.stream[at : at + size]))
                at, turn = at + size, turn + 1
            await response.write(sieve.close())
            return response

        app = web.Application()
        app.router.add_post("/v1/responses", handle)
        runner = web.AppRunner(app)
        runners.append(runner)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0]
        return f"http://{host}:{port}/v1"

    yield start
    for runner in runners:
        await runner.cleanup()


def same(response: Response, case: Case) -> dict[str, Any]:
    """What the client has, after a check that it is what the case says; without the time."""
    assert response.status == case.status
    text = case.message.get("content")
    assert response.output_text == (text or "")
    called = [item for item in response.output if item.type == "function_call"]
    assert [call(item.call_id, item.name, item.arguments) for item in called] == (
        case.message.get("tool_calls") or []
    )
    return {**response.model_dump(), "created_at": 0}


@pytest.mark.parametrize("case", WHOLE, ids=lambda case: case.name)
async def test_the_client_gets_of_a_stream_what_it_gets_whole(case: Case, serve) -> None:
    base = await serve(case)
    asked: Any = {"model": "m", "input": "hi", **case.request}
    async with openai.AsyncOpenAI(base_url=base, api_key="k", max_retries=0) as client:
        whole = same(await client.responses.create(**asked), case)
        events = [event async for event in await client.responses.create(**asked, stream=True)]
        assert same(events[-1].response, case) == whole
        async with client.responses.stream(**asked) as stream:
            kinds = [event.type async for event in stream]
            if case.status != "completed":
                assert kinds[-1] == f"response.{case.status}"
                return
            final = await stream.get_final_response()
    parsed = same(final, case)
    for item in parsed["output"]:
        item.pop("parsed_arguments", None)
        for part in item.get("content") or ():
            part.pop("parsed", None)
    assert parsed == whole


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case.name)
async def test_the_client_learns_that_a_reply_failed(case: Case, serve) -> None:
    base = await serve(case)
    async with (
        openai.AsyncOpenAI(base_url=base, api_key="k", max_retries=0) as client,
        client.responses.stream(model="m", input="hi") as stream,
    ):
        events = [event async for event in stream]
        with pytest.raises(RuntimeError, match=r"response\.completed"):
            await stream.get_final_response()
    last = events[-1]
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert case.error is not None
    assert case.error in last.response.error.message
    assert last.response.output_text == (case.message.get("content") or "")


async def test_what_the_client_is_told_of_a_text_adds_up(serve) -> None:
    case = next(case for case in CASES if case.name == "unicode")
    base = await serve(case)
    async with (
        openai.AsyncOpenAI(base_url=base, api_key="k") as client,
        client.responses.stream(model="m", input="hi") as stream,
    ):
        deltas = [event async for event in stream if event.type == "response.output_text.delta"]
    assert "".join(event.delta for event in deltas) == deltas[-1].snapshot == case.said["content"]


async def test_the_client_parses_a_schema(serve) -> None:
    text = '{"name":"Ada","age":36}'
    case = Case("", streamed({"content": text[:9]}, {"content": text[9:]}), {"content": text})
    base = await serve(case)
    asked: Any = {"model": "m", "input": "hi", "text_format": Person}
    async with openai.AsyncOpenAI(base_url=base, api_key="k") as client:
        whole = await client.responses.parse(**asked)
        assert whole.output_parsed == Person(name="Ada", age=36)
        async with client.responses.stream(**asked) as stream:
            assert (await stream.get_final_response()).output_parsed == whole.output_parsed


async def test_the_client_parses_arguments(serve) -> None:
    case = next(case for case in CASES if case.name == "calls interleaved")
    base = await serve(case)
    strict = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    tools: Any = [
        {**FUNCTION, "name": n, "strict": True, "parameters": strict} for n in ("add", "sub")
    ]
    async with (
        openai.AsyncOpenAI(base_url=base, api_key="k") as client,
        client.responses.stream(model="m", input="hi", tools=tools) as stream,
    ):
        final = await stream.get_final_response()
    parsed = [getattr(item, "parsed_arguments", None) for item in final.output]
    assert parsed == [{"a": 1}, {"b": 2}]


async def test_the_client_sends_back_what_it_got(serve) -> None:
    case = next(case for case in CASES if case.name == "reasoning by its other name")
    base = await serve(case)
    async with openai.AsyncOpenAI(base_url=base, api_key="k") as client:
        response = await client.responses.create(model="m", input="hi")
    for items in (
        [item.model_dump() for item in response.output],
        [item.to_dict() for item in response.output],
        [item.model_dump(exclude_none=True, mode="json") for item in response.output],
    ):
        assert TRANSLATOR.prompt({"input": items}) == [case.said]


@pytest.mark.parametrize("name", ["text", "calls in turn", "reasoning", "a refusal"])
async def test_the_client_that_waits_gets_the_same(name: str, serve) -> None:
    case = next(case for case in CASES if case.name == name)
    base = await serve(case)
    asked: Any = {"model": "m", "input": "hi", **case.request}

    def ask() -> None:
        with openai.OpenAI(base_url=base, api_key="k") as client:
            whole = same(client.responses.create(**asked), case)
            *_, last = client.responses.create(**asked, stream=True)
            assert same(last.response, case) == whole
            with client.responses.stream(**asked) as stream:
                assert same(stream.get_final_response(), case)["usage"] == whole["usage"]

    await asyncio.to_thread(ask)
