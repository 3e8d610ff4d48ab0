"""ReflectionModel: the model that reads what went wrong and writes better prompts, behind an OpenAI-compatible address."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import re
import threading
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
import msgspec
from yarl import URL

from lightning_core.errors import EngineError, UsageError
from lightning_core.litellm_engine import LiteLLMEngine, LiteLLMEngineFactory, provider_of
from lightning_core.provider import (
    LOOPBACK,
    NOT_OF_THE_FORM,
    OPENAI,
    is_openai,
    key_for,
    passes,
    retry_after,
    said,
)
from lightning_core.records import Json, Record
from lightning_core.redaction import without_userinfo
from lightning_prompt.budget import Spent
from lightning_prompt.journal import Journal
from lightning_prompt.prices import Prices
from lightning_prompt.retrying import Patience, Tell

_NAME: Final = re.compile(r"(?P<model>[^@\s]+)(?:@(?P<url>https?://[^\s/]\S*))?")
_OPENAI: Final = "openai/"
_TEXT_TRIES: Final = 3
_DEATH_SECONDS: Final = 1.0
_ADVICE: Final = {
    401: "the key is missing or wrong; set `OPENAI_API_KEY`, or name the variable that holds the key with `api_key_env`",
    403: "the key may not use this model; take another key or model",
    404: "the server has no such model, or its address is another: it ends in `/v1`",
    429: "the account is out of credit; `--resume` goes on once it has some",
}

Prompt = str | list[dict[str, Any]]
"""A user's message, or messages in the form of OpenAI's chats."""


class _Answer(Record, frozen=True, kw_only=True):
    """A reply as the journal keeps it."""

    text: str
    model: str
    usage: dict[str, Any] = msgspec.field(default_factory=dict)
    finish_reason: str | None = None


class ReflectionModel:
    """Asks a model for text, and no question of a run twice. Use it as `async with`.

    A reply lies in the journal before `ask` returns it, and is taken from there when a program that was ended asks the same
    questions again. What is overloaded, unreachable or silent is asked again for as long as `patience` says; what refuses is
    one error at once.
    """

    def __init__(
        self,
        name: str,
        journal: Journal,
        *,
        prices: Prices = Prices(),  # noqa: B008 - frozen
        priced: bool = False,
        api_key_env: str | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        timeout: float = 600.0,
        patience: float = 3600.0,
        tell: Tell = lambda text: None,
    ) -> None:
        """Args:
            name: `NAME` or `openai/NAME`, at `OPENAI_BASE_URL`, else at OpenAI's own address; or `NAME@http://HOST/v1`; or
                `PROVIDER/NAME`, through LiteLLM. OpenAI is asked for the name without `openai/`.
            journal: keeps the replies; its own, as it tells what was spent. LiteLLM's log lies beside it, in `logs/reflection`.
            prices: what the model's tokens cost.
            priced: whether a reply whose cost is not known is an error, as it is under a budget in US dollars.
            api_key_env: the variable that holds the key. By default `OPENAI_API_KEY`, which is sent to OpenAI and to the host
                of `OPENAI_BASE_URL` alone. A provider's key is in its own variable.
            temperature: of the replies; None leaves it to the server.
            max_tokens: bound of a reply; None leaves it to the server.
            timeout: seconds that one reply may take.
            patience: seconds for which a question is asked again.
            tell: called with what is waited for, and with None once it goes on.

        Raises:
            UsageError: the name cannot be read, a key is needed and not set, or LiteLLM is needed and not installed.
            FormatError: the journal holds something else than replies.
        """
        self._engine = _engine_of(name, journal, api_key_env)
        self._key: str | None = None
        if self._engine is None:
            self.model, self._url = _read_name(name)
            self._key = key_for(self._url.host, api_key_env, who="reflection model at")
        else:
            self.model, self._url = name, URL()  # known once it serves
        self._prices = prices
        self._priced = priced
        if priced and is_openai(self._url.host):
            prices.require([self.model])
        self._sampling: dict[str, Json] = {}
        if temperature is not None:
            self._sampling["temperature"] = temperature
        if max_tokens is not None:
            # OpenAI's reasoning models refuse `max_tokens`; other servers know nothing else.
            known = "max_completion_tokens" if is_openai(self._url.host) else "max_tokens"
            self._sampling[known] = max_tokens
        self._timeout = aiohttp.ClientTimeout(total=timeout, sock_connect=min(timeout, 30.0))
        self._patience = patience
        self._tell = tell
        self._journal = journal
        self._http: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: int | None = None
        self._waiting: set[concurrent.futures.Future[str]] = set()
        self.spent = Spent()
        """What the replies that were asked for have cost, those from the journal too: a search that is begun anew so finds
        its budget as it was then. Not `seconds`."""
        self.cut_short = 0
        """Replies that ended at `max_tokens`."""
        for value in journal:
            _Answer.from_value(value)  # what is none is said before anything is asked

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        if self._engine is not None:
            (endpoint,) = await self._engine.start()
            self._url, self._key = URL(endpoint.base_url), endpoint.api_key
        self._http = aiohttp.ClientSession(
            timeout=self._timeout,
            headers={"authorization": f"Bearer {self._key}"} if self._key else {},
            trust_env=self._url.host not in LOOPBACK,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        http, self._http = self._http, None
        # Else threads that wait for a reply would wait for ever.
        for future in tuple(self._waiting):
            future.cancel()
        if http is not None:
            await http.close()
        if self._engine is not None:
            await self._engine.stop()

    def __call__(self, prompt: Prompt) -> str:
        """As `ask`, from another thread than that of the event loop; blocks it. Raises as `ask` does, also once closed."""
        if threading.get_ident() == self._thread:
            raise RuntimeError(
                f"{self}: this thread runs its event loop; `await ask(prompt)` there"
            )
        loop = self._loop
        if loop is None or self._http is None:
            raise self._closed()
        future = asyncio.run_coroutine_threadsafe(self.ask(prompt), loop)
        self._waiting.add(future)
        try:
            if self._http is None:
                future.cancel()
            return future.result()
        except concurrent.futures.CancelledError:
            raise self._closed() from None
        finally:
            self._waiting.discard(future)

    async def ask(self, prompt: Prompt) -> str:
        """The model's reply to a prompt. The same prompt asked again in one process is another question.

        Raises:
            EngineError: the server refuses, does not answer for as long as `patience` says, or answers without text.
            UsageError: the reply's cost is not known, and `priced`. The reply is kept.
        """
        if self._http is None:
            raise self._closed()
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        body = {"model": self.model, "messages": messages, **self._sampling}
        key = self._journal.key(body)
        kept = self._journal.get(key)
        if kept is not None:
            answer = _Answer.from_value(kept)
        else:
            answer = await self._answer(self._http, body)
            self._journal.put(key, msgspec.to_builtins(answer))
        self._count(answer)
        if self._priced and self._prices.cost(answer.model, answer.usage) is None:
            self._prices.require([answer.model])
            raise EngineError(
                f"{self}: its reply has no token counts, so that a budget in USD cannot be kept; bound `calls` instead"
            )
        return answer.text

    def __str__(self) -> str:
        where = "" if self._engine is not None else f" at {self._url.host}"
        return f"reflection model `{self.model}`{where}"

    async def _answer(self, http: aiohttp.ClientSession, body: dict[str, Json]) -> _Answer:
        """The first reply with text."""
        patience = Patience(self._patience, self._tell)
        for _ in range(_TEXT_TRIES):
            data = await self._reply(http, body, patience)
            answer = _read_answer(data, self.model)
            if answer is None:
                fault = f"not a chat's reply: {said(data, self._key)}"
            elif answer.text.strip():
                return answer
            else:
                self._count(answer)
                fault = f"no text, finish reason {answer.finish_reason!r}"
        raise EngineError(
            f"{self}: {_TEXT_TRIES} replies without text; the last: {fault}; allow more tokens, or take another model"
        )

    async def _reply(
        self, http: aiohttp.ClientSession, body: dict[str, Json], patience: Patience
    ) -> bytes:
        """The body of a reply of status 200."""
        data = msgspec.json.encode(body)
        while True:
            wanted = 0.0
            try:
                async with http.post(
                    self._url / "chat" / "completions",
                    data=data,
                    headers={"content-type": "application/json"},
                    allow_redirects=False,
                ) as response:
                    answered = await response.read()
            except TimeoutError:
                fault = f"{self}: no reply in {self._timeout.total:g} s"
            except aiohttp.ClientConnectorCertificateError as error:
                raise EngineError(f"{self}: {error}") from error
            except (aiohttp.ClientError, OSError) as error:
                await self._check_engine()
                fault = f"{self}: cannot be reached: {type(error).__name__}: {error}"
            else:
                if response.status == 200:
                    patience.over()
                    return answered
                fault = f"{self}: answered {response.status}: {said(answered, self._key)}"
                if not passes(response.status, answered):
                    raise EngineError(fault + self._advice(response.status))
                wanted = retry_after(response.headers.get("retry-after", "")) or 0.0
            await patience.wait(fault, at_least=wanted)

    def _count(self, answer: _Answer) -> None:
        usd = self._prices.cost(answer.model, answer.usage) or 0.0
        counts = [answer.usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
        tokens = sum(count for count in counts if isinstance(count, int))
        self.spent += Spent(calls=1, tokens=tokens, usd=usd, reflection_usd=usd)
        self.cut_short += answer.finish_reason == "length"

    async def _check_engine(self) -> None:
        """Raise where what asks the provider has ended: it does not come back."""
        if self._engine is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DEATH_SECONDS):
                    raise await self._engine.died()

    def _advice(self, status: int) -> str:
        if self._engine is None or status == 429:
            return f"; {_ADVICE[status]}" if status in _ADVICE else ""
        names = ", ".join(f"`{name}`" for name in sorted(self._engine.secrets))
        return f"; the key is wrong, which is in one of {names}" if status == 401 else ""

    def _closed(self) -> EngineError:
        return EngineError(f"{self}: is not open; use it within `async with`")


def _engine_of(name: str, journal: Journal, api_key_env: str | None) -> LiteLLMEngine | None:
    """What asks a provider of LiteLLM's; None for a model at an address."""
    if provider_of(name) is None:
        return None
    if api_key_env is not None:
        raise UsageError(
            f"reflection model {name!r}: `api_key_env` is for a model at an address; a provider's key is in its own variable"
        )
    folder = journal.path.parent / "logs" / "reflection"
    return LiteLLMEngineFactory().create(name, folder=folder, options={})


def _read_name(name: str) -> tuple[str, URL]:
    """The model's name as its server knows it, and the server's address."""
    found = _NAME.fullmatch(name)
    if found is None or found["model"].startswith(("http://", "https://")):
        raise UsageError(
            f"reflection model {without_userinfo(name)!r}: expected `NAME`, `openai/NAME`, `NAME@http://HOST/v1` or"
            " `PROVIDER/NAME`"
        )
    address = found["url"] or os.environ.get("OPENAI_BASE_URL") or OPENAI
    where = f"reflection model {without_userinfo(name)!r}: address {without_userinfo(address)!r}"
    try:
        url = URL(address.rstrip("/"))
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise UsageError(f"{where}: expected `http://HOST/v1` or `https://HOST/v1`")
    if url.user or url.password:
        raise UsageError(
            f"{where}: holds a user or password, which would be written down; name the variable that holds the key with"
            " `api_key_env`"
        )
    model = found["model"]
    return (model.removeprefix(_OPENAI) if is_openai(url.host) else model), url


def _read_answer(data: bytes, model: str) -> _Answer | None:
    """A chat's reply; None where it is none."""
    try:
        body = msgspec.json.decode(data)
        choice = body["choices"][0]
        text = choice["message"].get("content") or ""
        return _Answer.from_value(
            {
                "text": text,
                "model": model,
                "usage": body.get("usage") or {},
                "finish_reason": choice.get("finish_reason"),
            }
        )
    except NOT_OF_THE_FORM:
        return None
