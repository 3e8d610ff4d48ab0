"""Every recorded shape at an upstream and through a gateway, as the official clients of Node see it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import anthropic
import httpx
import httpx2
import openai
from aiohttp import web

from lightning_core.capability import Capability
from lightning_core.gateway import GatewayLimits
from lightning_core.gateway.dialects.messages_translation import MessagesTranslator
from lightning_core.gateway.dialects.responses_translation import ResponsesTranslator
from lightning_core.gateway.dialects.translation import Translator
from lightning_core.rollout import Mode

from . import messages_cases, provider_cases, responses_cases
from .conftest import MemoryStore, Site, policy_at

SCRIPT = Path(__file__).parent / "npm_clients.mjs"
FORMATS = ("chat", "responses", "messages")
WHOLE_IDS = frozenset({Capability.TOKEN_IDS, Capability.LOGPROBS, Capability.TOOLS})
IDS = WHOLE_IDS | {Capability.STREAM_TOKEN_IDS}
BROKEN_OFF = ("text", "unicode", "calls interleaved", "reasoning and calls")
"""The cases of which a shape is made whose connection ends in the midst of an event."""
REFUSALS: dict[str, tuple[int, bytes]] = {
    "a bad request": (400, b'{"error":{"message":"bad","type":"t","param":"p","code":"c"}}'),
    "a wrong key": (401, b'{"error":{"message":"no","type":"invalid_request_error","code":"k"}}'),
    "a refusal of vLLM's": (400, b'{"object":"error","message":"bad","type":"t","code":400}'),
    "no such model": (404, b'{"error":{"message":"no model","code":"model_not_found"}}'),
    "a conflict": (409, b'{"error":{"message":"again"}}'),
    "values that do not fit": (422, b'{"detail":[{"loc":["body"],"msg":"missing"}]}'),
    "too many requests": (429, b'{"error":{"message":"slow down","code":"rate_limit_exceeded"}}'),
    "a text for an error": (500, b'{"error":"oops"}'),
    "a page for an error": (502, b"<html>\xc3\xa9</html>"),
    "an error without a word": (503, b""),
}
_TRANSLATORS: dict[str, Translator] = {
    "responses": ResponsesTranslator(),
    "messages": MessagesTranslator(),
}
_PARSED = ("parsed", "parsed_arguments", "parsed_output", "output_parsed", "output_text")
_SIZES = (1, 7, 64, 3, 1000, 20)
_EVENT = re.compile(rb"(?:(?!\r\n\r\n|\n\n|\r\r).)+(?:\r\n\r\n|\n\n|\r\r|\Z)", re.S)
_DATA = re.compile(rb"(?m:^|(?<=\r))data: ?(\{[^\r\n]*\})")


@dataclass(frozen=True)
class Shape:
    """What an upstream says to one question."""

    stream: bytes
    """The stream, of chat completions but for those of a provider's own."""
    responses: dict[str, Any] = field(default_factory=dict)
    """What a Responses request asks for beside its input."""
    messages: dict[str, Any] = field(default_factory=dict)
    """What a Messages request asks for beside its messages."""
    whole: bytes | None = None
    """What the stream says as a whole reply, where it comes to an end."""
    formats: tuple[str, ...] = FORMATS
    """The formats in which it can be asked for."""
    broken_off: bool = False
    """Whether the connection ends in the midst."""
    status: int = 200


def _shapes() -> dict[str, Shape]:
    plain = messages_cases.CASES["text"].request
    shapes = {
        f"responses: {case.name}": Shape(case.stream, case.request, plain, case.body)
        for case in responses_cases.CASES
    }
    tools = [{**responses_cases.FUNCTION, "name": name} for name in "fgh"]
    shapes |= {
        f"messages: {name}": Shape(case.stream, {"tools": tools}, case.request, case.whole)
        for name, case in messages_cases.CASES.items()
    }
    shapes |= {
        f"messages: {name}": Shape(failing.stream, {"tools": tools}, plain)
        for name, failing in messages_cases.FAILING.items()
    }
    for name in BROKEN_OFF:
        case = shapes[f"responses: {name}"]
        said = case.stream[: len(case.stream) * 3 // 5]
        shapes[f"broken off: {name}"] = Shape(said, case.responses, plain, broken_off=True)
    for kind, cases in (
        ("responses", provider_cases.RESPONSES),
        ("messages", provider_cases.MESSAGES),
    ):
        for name, stream in cases.items():
            shapes[f"{kind} themselves: {name}"] = Shape(stream, messages=plain, formats=(kind,))
    for name, (status, body) in REFUSALS.items():
        shapes[f"refused: {name}"] = Shape(body, messages=plain, status=status)
    return shapes


SHAPES = _shapes()


@dataclass(frozen=True)
class Question:
    """One call of a client."""

    name: str
    """The shape that answers it."""
    format: str
    """`chat`, `responses` or `messages`."""
    helper: bool = True
    """Whether the streaming helper reads the reply, or a plain loop."""
    strict: bool = False
    """Whether the helper is to parse the arguments of calls."""
    usage: bool = True
    """Whether token counts are asked for."""

    @property
    def body(self) -> dict[str, Any]:
        """The request."""
        shape = SHAPES[self.name]
        if self.format == "messages":
            said = [{"role": "user", "content": self.name}]
            return {**shape.messages, "messages": said}
        body = {"model": "m", "input": self.name, **shape.responses}
        if self.format == "chat":
            body = dict(_TRANSLATORS["responses"].begin(body, "c0ffee").request)
            if self.usage:
                body["stream_options"] = {"include_usage": True}
        if self.strict:
            body["tools"] = [_strict(tool) for tool in body.get("tools", ())]
        return body


def _strict(tool: dict[str, Any]) -> dict[str, Any]:
    return {**tool, "function": {**tool["function"], "strict": True}}


# The upstream ----------------------------------------------------------------------------------------------------------


def _answer(path: str, body: dict[str, Any]) -> tuple[Shape, bytes]:
    """The shape that is asked for, and what is sent of it."""
    name = body["input"] if "input" in body else body["messages"][-1]["content"]
    shape = SHAPES[name]
    if shape.status != 200:
        return shape, shape.stream
    kind = path.rpartition("/v1/")[2]
    if kind in _TRANSLATORS:
        return shape, _native(name, kind)
    if not body.get("stream"):
        assert shape.whole is not None
        return shape, _with_ids(shape.whole)
    return shape, _as_asked(shape.stream, body)


@cache
def _native(name: str, kind: str) -> bytes:
    """A shape in another format than chat completions."""
    if SHAPES[name].formats == (kind,):
        return SHAPES[name].stream
    sieve = (
        _TRANSLATORS[kind].begin({**Question(name, kind).body, "stream": True}, "c0ffee").sieve()
    )
    return sieve.feed(SHAPES[name].stream) + sieve.close()


def _as_asked(stream: bytes, body: dict[str, Any]) -> bytes:
    """Without token counts that were not asked for, and with token ids and log-probabilities that were."""
    if not (body.get("stream_options") or {}).get("include_usage"):
        stream = _EVENT.sub(lambda event: b"" if _only_counts(event[0]) else event[0], stream)
    if body.get("return_token_ids"):
        stream = _DATA.sub(lambda data: b"data: " + _with_ids(data[1]), stream)
    return stream


def _only_counts(event: bytes) -> bool:
    return b'"choices":[]' in event.replace(b" ", b"") and b'"usage"' in event


def _with_ids(data: bytes) -> bytes:
    try:
        value = json.loads(data)
    except ValueError:  # It is cut.
        return data
    choices = value.get("choices")
    if not choices or not isinstance(choices, list):
        return data
    for choice in choices:
        choice["token_ids"] = [7]
        if choice.get("logprobs", 0) is None:
            choice["logprobs"] = {"content": [responses_cases.logprob("x", -1.0)]}
    return json.dumps({**value, "prompt_token_ids": [1, 2]}, ensure_ascii=False).encode()


@contextlib.asynccontextmanager
async def _serving() -> AsyncIterator[str]:
    """An upstream that speaks all formats; the address."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        body = await request.json()
        shape, data = _answer(request.path, body)
        headers = {"x-request-id": "req-7", "request-id": "req-7"}
        if shape.status != 200:
            headers |= {"Content-Type": "application/json", "Retry-After": "7"}
            return web.Response(status=shape.status, body=data, headers=headers)
        if not body.get("stream"):
            return web.Response(body=data, headers=headers, content_type="application/json")
        headers["Content-Type"] = "text/event-stream; charset=utf-8"
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        at = turn = 0
        while at < len(data):
            size = _SIZES[turn % len(_SIZES)]
            await response.write(data[at : at + size])
            await asyncio.sleep(0)  # so that each piece arrives by itself
            at, turn = at + size, turn + 1
        if shape.broken_off and request.transport is not None:
            request.transport.close()
        return response

    runner = web.ServerRunner(web.Server(handle, access_log=None))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


# The ways to it --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ways:
    """Addresses at which the same shapes are to be had."""

    own: str
    """The upstream's own."""
    observed: str
    """A gateway that passes calls on to it."""
    trained: str
    """A gateway whose policy is at the upstream, gives token ids and speaks only chat completions."""
    remade: str
    """A gateway whose policy gives token ids of whole replies alone."""
    site: Site
    """The gateway of `observed` and `trained`."""


@contextlib.asynccontextmanager
async def ways() -> AsyncIterator[Ways]:
    """Serve the shapes, and a gateway before them."""
    async with _serving() as own, _gateway(own, IDS) as site, _gateway(own, WHOLE_IDS) as whole:
        site.open(upstream=f"{own}/v1", attempt="o.1", rollout="o")
        for each in (site, whole):
            each.open(Mode.TRAIN, attempt="t.1", rollout="t")
        bases = (site.base("o.1"), site.base("t.1"), whole.base("t.1"))
        observed, trained, remade = (base.removesuffix("/v1") for base in bases)
        yield Ways(own, observed, trained, remade, site)


@contextlib.asynccontextmanager
async def _gateway(own: str, gives: frozenset[Capability]) -> AsyncIterator[Site]:
    site = Site(MemoryStore(), GatewayLimits(), None)
    await site.start(front=True)
    try:
        site.gateway.policies.set(policy_at(own, capabilities=gives))
        yield site
    finally:
        await site.stop()


async def ask_by_node(folder: Path, asked: list[tuple[str, Question]]) -> list[Any]:
    """What the official clients of Node make of the replies to questions at addresses; each in its turn.

    `folder` holds the packages.
    """
    script = folder / SCRIPT.name
    script.write_bytes(SCRIPT.read_bytes())
    lines = [
        json.dumps({"url": url, "format": each.format, "helper": each.helper, "body": each.body})
        for url, each in asked
    ]
    process = await asyncio.create_subprocess_exec(
        "node", str(script), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate("\n".join(lines).encode()), 240)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0
    return [json.loads(line) for line in out.splitlines()]


async def ask_by_python(url: str, asked: list[Question]) -> list[Any]:
    """The same of replies at one address by the official clients of Python, of which helpers tell no events."""
    async with (
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as of_openai,
        anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as of_anthropic,
    ):
        resources = {"responses": of_openai.responses, "messages": of_anthropic.messages}
        return [await _told(resources[each.format], each) for each in asked]


async def _told(resource: Any, asked: Question) -> dict[str, Any]:
    told: dict[str, Any] = {"events": []}
    try:
        if asked.helper:
            async with resource.stream(**asked.body) as stream:
                *_, last = [None, *[event async for event in stream]]
                if last is not None and last.type in ("response.incomplete", "response.failed"):
                    told["final"] = last.response.to_dict()
                elif last is not None and last.type == "response.completed":
                    told["final"] = (await stream.get_final_response()).to_dict()
                elif last is not None and last.type == "message_stop":
                    told["final"] = (await stream.get_final_message()).to_dict()
        else:
            async for event in await resource.create(**asked.body, stream=True):
                told["events"].append(event.to_dict())
    except (openai.APIError, anthropic.APIError) as error:
        told["error"] = {"class": type(error).__name__, "body": error.body}
    except (httpx.HTTPError, httpx2.HTTPError) as error:
        told["error"] = {"class": type(error).__name__}
    return told


def plain(value: Any) -> Any:
    """The same without what differs from call to call (the call's id, the time), what is null, and what a helper parses
    beside it."""
    text = re.sub(r"[0-9a-f]{32}|c0ffee", "ID", json.dumps(value))
    text = re.sub(r'"(created_at|completed_at)": [0-9.]+', r'"\1": 0', text)
    return json.loads(text, object_hook=_as_sent)


def _as_sent(value: dict[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in value.items() if item is not None and key not in _PARSED}
