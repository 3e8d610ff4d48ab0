"""The HTTP side: OpenAI's routes, health, counters and new weights."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from lightning_core.errors import EngineError
from lightning_local.models import Loaded
from lightning_local.serve import requests
from lightning_local.serve.chat import ChatTemplate
from lightning_local.serve.errors import BadRequest
from lightning_local.serve.limits import Limits
from lightning_local.serve.replies import Reply
from lightning_local.serve.requests import ChatRequest, CompletionRequest
from lightning_local.serve.sampling import Logprobs
from lightning_local.serve.scheduler import Scheduler
from lightning_local.serve.sequence import Delta, Failure, Job
from lightning_local.serve.text import Vocabulary
from lightning_local.serve.weights import Weights

log = logging.getLogger(__name__)

MOST_BYTES = 64 * 2**20
"""Largest request body."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """Answers the requests for one model."""

    def __init__(
        self,
        loaded: Loaded,
        *,
        name: str,
        limits: Limits,
        api_key: str | None,
        loop: asyncio.AbstractEventLoop,
        logprobs: Logprobs = Logprobs.RAW,
    ) -> None:
        self._loaded = loaded
        self._weights = Weights(loaded.model, base=loaded.name)
        self._name = name
        self._limits = limits
        self._api_key = api_key
        self._template = ChatTemplate(loaded.tokenizer)
        self._vocabulary = Vocabulary(loaded.tokenizer)
        self._size = int(loaded.model.get_input_embeddings().weight.shape[0])
        self.scheduler = Scheduler(
            loaded.model,
            loaded.tokenizer,
            name=name,
            eos=loaded.eos,
            limits=limits,
            loop=loop,
            logprobs=logprobs,
        )

    def app(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(middlewares=[self._errors, self._auth], client_max_size=MOST_BYTES)
        app.router.add_get("/health", self._health)
        app.router.add_get("/stats", self._stats)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/models/{model:.+}", self._model)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/admin/weights", self._load_weights)
        return app

    @web.middleware
    async def _errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except BadRequest as error:
            return _error(error.status, error.message, error.kind, error.param, error.code)
        except web.HTTPNotFound:
            return _error(
                404, f"there is no route {request.method} {request.path}", code="unknown_route"
            )
        except web.HTTPRequestEntityTooLarge:
            return _error(413, f"the body is over {MOST_BYTES} bytes", code="too_large")
        except web.HTTPException as error:
            return _error(error.status, error.reason)
        except Exception as error:  # a fault of ours ends one request, and is told as such
            log.exception("%s %s failed", request.method, request.path)
            return _error(500, f"{type(error).__name__}: {error}", "server_error", code="internal")

    @web.middleware
    async def _auth(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._api_key is None and request.path.startswith("/admin/"):
            # Any page in a browser on this machine could post here.
            return _error(
                403,
                f"{request.path} needs a server with a key; start it with `LIGHTNING_CORE_ENGINE_KEY` set",
                "permission_error",
                code="no_key",
            )
        if self._api_key is not None and request.path != "/health":
            sent = request.headers.get("authorization", "")
            if not hmac.compare_digest(sent.encode(), f"Bearer {self._api_key}".encode()):
                return _error(
                    401,
                    "the API key is missing or wrong; send `Authorization: Bearer KEY`",
                    "authentication_error",
                    code="invalid_api_key",
                )
        return await handler(request)

    async def _health(self, request: web.Request) -> web.Response:
        return _json({"status": "ok"})

    async def _stats(self, request: web.Request) -> web.Response:
        return _json(self.scheduler.stats())

    async def _models(self, request: web.Request) -> web.Response:
        return _json({"object": "list", "data": [self._card()]})

    async def _model(self, request: web.Request) -> web.Response:
        self._check_model(request.match_info["model"])
        return _json(self._card())

    def _card(self) -> dict[str, Any]:
        return {
            "id": self._name,
            "object": "model",
            "created": 0,
            "owned_by": "lightning-local",
            "max_model_len": self._limits.max_context,
        }

    def _check_model(self, model: str | None) -> None:
        if model is not None and model != self._name:
            raise BadRequest(
                f"model {model!r} is not served here; ask for {self._name!r}",
                param="model",
                code="model_not_found",
                status=404,
            )

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = requests.decode(await request.read(), ChatRequest)
        self._check_model(body.model)
        tools = body.usable_tools()
        prompt = self._template.encode(body.messages, tools)
        return await self._answer(request, body, [prompt], tools=bool(tools))

    async def _tokenize(self, request: web.Request) -> web.Response:
        """The prompt's tokens of what would be a chat request, in vLLM's form."""
        body = requests.decode(await request.read(), ChatRequest)
        self._check_model(body.model)
        ids = self._template.encode(body.messages, body.usable_tools())
        limit = self._limits.max_context
        return _json({"count": len(ids), "max_model_len": limit, "tokens": ids, "token_strs": None})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = requests.decode(await request.read(), CompletionRequest)
        self._check_model(body.model)
        prompts = []
        for prompt in body.prompts():
            if isinstance(prompt, str):
                ids: list[int] = self._loaded.tokenizer(prompt)["input_ids"]
            else:
                ids = list(requests.check_ids(prompt, self._size, "prompt"))
            if not ids:
                raise BadRequest("`prompt` is empty", param="prompt")
            prompts.append(ids)
        return await self._answer(request, body, prompts, tools=False)

    async def _answer(
        self,
        request: web.Request,
        body: ChatRequest | CompletionRequest,
        prompts: list[list[int]],
        *,
        tools: bool,
    ) -> web.StreamResponse:
        n = requests.choices(body)
        params = [
            requests.params(
                body,
                prompt=len(prompt),
                context=self._limits.max_context,
                vocabulary=self._size,
            )
            for prompt in prompts
        ]
        job = Job(list(zip(prompts, params, strict=True)), n=n)
        reply = Reply(
            chat=isinstance(body, ChatRequest),
            model=self._name,
            prompts=prompts,
            n=n,
            vocabulary=self._vocabulary,
            logprobs=params[0].logprobs,
            token_ids=bool(body.return_token_ids),
            tools=tools,
        )
        self.scheduler.submit(job)
        try:
            deltas = _until_done(job)
            if not body.stream:
                collected = [delta async for delta in deltas]
                return _json(reply.whole(collected, job.weights_version))
            usage = bool(body.stream_options and body.stream_options.include_usage)
            return await _stream(request, reply, deltas, job, usage=usage)
        finally:
            # Also on the way out of a cancelled handler, which is how a client that has gone is seen.
            self.scheduler.cancel(job)

    async def _load_weights(self, request: web.Request) -> web.Response:
        try:
            folder = json.loads(await request.read())["folder"]
            path = Path(folder)
        except (ValueError, KeyError, TypeError) as error:
            raise BadRequest('expected {"folder": PATH}') from error
        try:
            put = await asyncio.to_thread(self._weights.read, path)
            version = await asyncio.wrap_future(self.scheduler.swap(put))
        except (EngineError, RuntimeError) as error:
            raise BadRequest(str(error), param="folder", code="weights", status=409) from error
        log.info("weights version %d: %s", version, path)
        return _json({"weights_version": version})


async def _until_done(job: Job) -> AsyncIterator[Delta]:
    """The deltas of a request until each choice has ended.

    Raises:
        BadRequest: with status 500, where the computation failed.
    """
    choices = job.choices
    while choices:
        event = await job.events.get()
        if isinstance(event, Failure):
            raise BadRequest(
                f"the model failed: {event.message}", code="engine", status=500, kind="server_error"
            )
        if event.finish_reason is not None:
            choices -= 1
        yield event


async def _stream(
    request: web.Request,
    reply: Reply,
    deltas: AsyncIterator[Delta],
    job: Job,
    *,
    usage: bool,
) -> web.StreamResponse:
    first = await anext(deltas)  # before the status line, so that a failure still gets its own
    response = web.StreamResponse(
        headers={"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
    )
    await response.prepare(request)

    async def send(delta: Delta) -> None:
        for chunk in reply.chunks(delta, job.weights_version):
            await response.write(b"data: " + msgspec.json.encode(chunk) + b"\n\n")

    try:
        await send(first)
        async for delta in deltas:
            await send(delta)
    except BadRequest as error:
        # The status is gone; the stream ends without its mark, so that nobody takes it for whole.
        await response.write(
            b"data: " + msgspec.json.encode(_body(error.message, error.kind)) + b"\n\n"
        )
        return response
    if usage:
        last = reply.last(job.weights_version)
        await response.write(b"data: " + msgspec.json.encode(last) + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def _json(body: Any, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(body), status=status, content_type="application/json"
    )


def _body(
    message: str, kind: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _error(
    status: int,
    message: str,
    kind: str = "invalid_request_error",
    param: str | None = None,
    code: str | None = None,
) -> web.Response:
    return _json(_body(message, kind, param, code), status)
