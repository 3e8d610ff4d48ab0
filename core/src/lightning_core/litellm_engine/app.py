"""The HTTP side: OpenAI's routes, answered by LiteLLM."""

from __future__ import annotations

import contextlib
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Any, Final

import msgspec
from aiohttp import web

from lightning_core.litellm_engine.failures import Failure, failure_of

log = logging.getLogger(__name__)

MOST_BYTES: Final = 64 * 2**20
"""Largest request body."""
CHAT: Final = frozenset(
    {
        "audio", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs", "max_completion_tokens",
        "max_tokens", "messages", "modalities", "model", "n", "parallel_tool_calls", "prediction", "presence_penalty",
        "prompt_cache_key", "reasoning_effort", "response_format", "safety_identifier", "seed", "service_tier", "stop",
        "store", "stream", "stream_options", "temperature", "thinking", "tool_choice", "tools", "top_k", "top_logprobs",
        "top_p", "user", "verbosity", "web_search_options",
    }
)  # fmt: skip
"""Parameters of a chat that are passed on. LiteLLM takes others as its own, such as another address for the key to go to."""
EMBEDDINGS: Final = frozenset({"dimensions", "encoding_format", "input", "model", "user"})
"""Parameters of embeddings that are passed on."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class App:
    """Answers requests for the models of one provider."""

    def __init__(
        self,
        library: Any,
        model: str,
        *,
        key: str,
        secrets: Collection[str],
        drop_params: bool,
        timeout: float,
    ) -> None:
        """
        Args:
            library: LiteLLM.
            model: `PROVIDER/NAME`, which is listed; others of the provider are answered too.
            key: what requests must carry.
            secrets: variables whose values no message may hold.
            drop_params: whether parameters that the provider does not know are left out.
            timeout: seconds for which the provider may be silent.
        """
        self._library = library
        self._model = model
        self._key = key.encode()
        self._secrets = secrets
        self._drop_params = drop_params
        # The agent's SDK tries again, and the gateway counts the tries.
        self._ways = {
            "drop_params": drop_params, "timeout": timeout, "max_retries": 0
        }  # fmt: skip
        self._told: set[str] = set()

    def application(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(middlewares=[self._guarded], client_max_size=MOST_BYTES)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/embeddings", self._embeddings)
        return app

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            sent = request.headers.get("authorization", "").encode()
            if not hmac.compare_digest(sent, b"Bearer " + self._key):
                raise Failure(
                    401,
                    "the key is missing or wrong; send `Authorization: Bearer KEY`",
                    code="invalid_api_key",
                )
            return await handler(request)
        except web.HTTPException as error:
            failure = Failure(error.status, f"{request.method} {request.path}: {error.reason}")
        except Exception as error:  # Whatever a provider's module raises ends one request.
            failure = failure_of(error, self._secrets)
            if not hasattr(error, "status_code") and not isinstance(error, Failure):
                log.error("%s failed: %s: %s", request.path, type(error).__name__, failure)
        return web.Response(
            status=failure.status,
            body=failure.body(),
            content_type="application/json",
            headers=failure.headers,
        )

    async def _models(self, request: web.Request) -> web.Response:
        entry = {"id": self._model, "object": "model", "created": 0, "owned_by": "litellm"}
        return _json({"object": "list", "data": [entry]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        fields = self._fields(await request.read(), CHAT)
        messages = fields.get("messages")
        if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
            raise Failure(400, "`messages`: expected a list of objects", param="messages")
        reply = await self._library.acompletion(**fields, **self._ways)
        if fields.get("stream"):
            return await self._stream(request, reply)
        return _json(_whole(reply))

    async def _embeddings(self, request: web.Request) -> web.Response:
        fields = self._fields(await request.read(), EMBEDDINGS)
        if "input" not in fields:
            raise Failure(400, "`input`: missing", param="input")
        return _json(_whole(await self._library.aembedding(**fields, **self._ways)))

    def _fields(self, body: bytes, known: Collection[str]) -> dict[str, Any]:
        """The request's parameters, without those that are null."""
        try:
            sent = msgspec.json.decode(body, type=dict[str, Any])
        except (msgspec.MsgspecError, RecursionError) as error:
            raise Failure(400, f"the body: expected a JSON object: {error}") from None
        fields = {name: value for name, value in sent.items() if value is not None}
        provider = self._model.partition("/")[0]
        model = fields.setdefault("model", self._model)
        if not isinstance(model, str) or model.partition("/")[0] != provider:
            raise Failure(
                404,
                f"model {model!r} is not served here; ask for `{self._model}` or another `{provider}/NAME`",
                code="model_not_found",
                param="model",
            )
        for name in sorted(fields.keys() - known):
            if not self._drop_params:
                raise Failure(
                    400,
                    f"parameter `{name}` is not known; leave it out, or have such parameters left out with"
                    " `--engine-option drop_params=yes`",
                    code="unsupported_parameter",
                    param=name,
                )
            del fields[name]
            if name not in self._told:
                self._told.add(name)
                log.warning("parameter `%s` is left out: it is not known", name)
        return fields

    async def _stream(self, request: web.Request, reply: Any) -> web.StreamResponse:
        async with contextlib.aclosing(reply):
            chunks = aiter(reply)
            # Before the status line, so that a failure still gets its own.
            first = await anext(chunks, None)
            response = web.StreamResponse(
                headers={
                    "content-type": "text/event-stream; charset=utf-8",
                    "cache-control": "no-cache",
                }
            )
            await response.prepare(request)
            # Here only the agent's connection breaks.
            with contextlib.suppress(ConnectionError):
                async for data in self._events(first, chunks):
                    await response.write(b"data: " + data + b"\n\n")
            return response

    async def _events(self, first: Any, rest: AsyncIterator[Any]) -> AsyncIterator[bytes]:
        """The data of a stream's events, from its first chunk on; without the mark at its end where it broke off."""
        if first is not None:
            yield _chunk(first)
        try:
            async for chunk in rest:
                yield _chunk(chunk)
        except Exception as error:
            failure = failure_of(error, self._secrets)
            log.warning("a stream broke off: %s", failure)
            yield failure.body()
            return
        yield b"[DONE]"


def _chunk(chunk: Any) -> bytes:
    body = _plain(chunk)
    for choice in body.get("choices") or ():
        choice.setdefault("finish_reason", None)
    return msgspec.json.encode(body)


def _whole(reply: Any) -> dict[str, Any]:
    """A reply with what it cost in US dollars, where LiteLLM knows the model's price."""
    body = _plain(reply)
    for choice in body.get("choices") or ():
        choice["message"].setdefault("content", None)
    cost = reply._hidden_params.get("response_cost")
    if cost is not None and isinstance(body.get("usage"), dict):
        body["usage"].setdefault("cost", cost)
    return body


def _plain(reply: Any) -> dict[str, Any]:
    # Warnings would put content into the log.
    body: dict[str, Any] = reply.model_dump(mode="json", exclude_none=True, warnings=False)
    return body


def _json(body: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")
