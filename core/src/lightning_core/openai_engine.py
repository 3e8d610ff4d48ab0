"""The engine `openai`: a model that somebody else serves behind an OpenAI-compatible address."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import aiohttp
import msgspec

from lightning_core.capability import Capability
from lightning_core.engine import Endpoint, Engine, EngineFactory
from lightning_core.errors import EngineError, UsageError
from lightning_core.provider import key_for
from lightning_core.redaction import without_userinfo

_ADDRESS: Final = re.compile(r"(?:(?P<model>[^@\s]+)@)?(?P<url>https?://\S+)")
_TOKEN_SERVERS: Final = ("vllm", "lightning-local")
"""`owned_by` in the model list of servers that return token ids when asked with `return_token_ids`."""
_OPTIONS: Final = ("api_key_env", "capabilities")


class _Address(NamedTuple):
    model: str | None
    url: str


class OpenAIEngine(Engine):
    """A served model at an address. Starts nothing; asks the server what it serves."""

    name = "openai"

    def __init__(self, address: _Address, options: Mapping[str, str]) -> None:
        self._address = address
        self._key_variable = options.get("api_key_env")
        try:
            declared = options.get("capabilities")
            self._gives = (
                None
                if declared is None
                else frozenset(Capability(c.strip()) for c in declared.split(",") if c.strip())
            )
        except ValueError as error:
            raise UsageError(
                f"engine `openai`: option `capabilities`: {error};"
                f" expected some of {', '.join(f'`{c}`' for c in Capability)}"
            ) from error

    @property
    def gives(self) -> frozenset[Capability]:
        """What was declared, or what the server's model list tells of it."""
        return self._gives or frozenset()

    async def start(self) -> tuple[Endpoint, ...]:
        """Ask for the model list; the endpoint of the named model, else of the first.

        Raises:
            EngineError: no model list came, and no model is named.
            UsageError: a key is needed and not set, or is none.
        """
        host = urlsplit(self._address.url).hostname
        key = key_for(host, self._key_variable, who="engine `openai` at")
        listed = await self._models(key)
        model = self._address.model or (listed[0].get("id") if listed else None)
        if not model:
            raise EngineError(
                f"engine `openai`: {self._address.url} lists no model; name one: `--model NAME@{self._address.url}`"
            )
        if self._gives is None:
            entry: dict[str, Any] = next((m for m in listed if m.get("id") == model), {})
            tokens = entry.get("owned_by") in _TOKEN_SERVERS
            self._gives = frozenset(
                {Capability.TOKEN_IDS, Capability.LOGPROBS, Capability.STREAM_TOKEN_IDS}
                if tokens
                else ()
            ) | {Capability.TOOLS}
        return (Endpoint(base_url=self._address.url, model=model, api_key=key),)

    async def stop(self) -> None:
        """Nothing was started."""

    async def _models(self, key: str | None) -> list[dict[str, Any]]:
        url = f"{self._address.url}/models"
        headers = {"authorization": f"Bearer {key}"} if key else {}
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as http,
                http.get(url, headers=headers) as response,
            ):
                data = await response.read()
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # A ValueError is an address that is none.
            raise EngineError(
                f"engine `openai`: {url} cannot be reached: {type(error).__name__}: {error}"
            ) from error
        if response.status in (401, 403):
            raise EngineError(
                f"engine `openai`: {url} answered {response.status}: the key is missing or wrong;"
                " name the variable that holds it: `--engine-option api_key_env=VARIABLE`"
            )
        if response.status != 200:
            # Some servers have no model list; with a name from the user that is no obstacle.
            if self._address.model:
                return []
            raise EngineError(
                f"engine `openai`: {url} answered {response.status}: {data[:200]!r};"
                f" name the model: `--model NAME@{self._address.url}`"
            )
        try:
            return msgspec.convert(msgspec.json.decode(data)["data"], list[dict[str, Any]])
        except (msgspec.MsgspecError, KeyError, TypeError, RecursionError) as error:
            raise EngineError(
                f"engine `openai`: {url} did not answer with a model list: {data[:200]!r}"
            ) from error


class OpenAIEngineFactory(EngineFactory):
    """Makes `OpenAIEngine` from `http://HOST:PORT/v1` or `MODEL@http://HOST:PORT/v1`."""

    name = "openai"

    def accepts(self, model: str) -> bool:
        """Whether it is an address."""
        return _ADDRESS.fullmatch(model) is not None

    def create(self, model: str, *, folder: Path, options: Mapping[str, str]) -> Engine:
        """An engine for the address; options `api_key_env` and `capabilities`."""
        match = _ADDRESS.fullmatch(model)
        if match is None:
            raise UsageError(
                f"engine `openai`: model {without_userinfo(model)!r}: expected `http://HOST:PORT/v1` or"
                " `MODEL@http://HOST:PORT/v1`"
            )
        if without_userinfo(match["url"]) != match["url"]:
            raise UsageError(
                f"engine `openai`: model {without_userinfo(model)!r}: the address holds a user or password, which"
                " would be written into records; give a key with OPENAI_API_KEY, or name a variable with"
                " `--engine-option api_key_env=VARIABLE`"
            )
        unknown = sorted(set(options) - set(_OPTIONS))
        if unknown:
            raise UsageError(
                f"engine `openai`: option `{unknown[0]}` is not known; expected {', '.join(f'`{o}`' for o in _OPTIONS)}"
            )
        return OpenAIEngine(_Address(match["model"], match["url"].rstrip("/")), options)
