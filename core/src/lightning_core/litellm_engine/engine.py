"""LiteLLMEngine: starts and ends the process that asks a provider."""

from __future__ import annotations

import importlib.util
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final

from lightning_core.capability import Capability
from lightning_core.children import Child
from lightning_core.engine import Endpoint, Engine, EngineFactory
from lightning_core.errors import EngineError, UsageError, WireError
from lightning_core.litellm_engine.providers import PROVIDERS, check_keys, provider_of

GIVES: Final = frozenset({Capability.TOOLS})
"""What it can: no provider tells token ids."""
_OPTIONS: Final = ("drop_params", "timeout")
_MODEL: Final = re.compile(r"[A-Za-z0-9][\w-]*/\S+")
_READY_SECONDS: Final = 180.0
_SECONDS: Final = re.compile(r"[1-9]\d{0,5}")


class LiteLLMEngine(Engine):
    """A provider's model, behind an OpenAI-compatible address on 127.0.0.1 that asks for a key of its own.

    The provider's keys are read by that process alone, from the environment of this one.
    """

    name: ClassVar[str] = "litellm"

    def __init__(
        self,
        model: str,
        *,
        folder: Path,
        drop_params: bool = False,
        timeout: float = 600.0,
    ) -> None:
        """An engine, not yet started.

        Args:
            model: `PROVIDER/NAME`, as LiteLLM names it.
            folder: where the log `engine.log` goes.
            drop_params: whether parameters that the provider does not know are left out, rather than refused.
            timeout: seconds for which the provider may be silent.
        """
        self._model = model
        self._key = secrets.token_urlsafe(32)
        arguments = ["--model", model, "--timeout", str(timeout)]
        self._child = Child(
            f"engine `{self.name}`",
            "lightning_core.litellm_engine",
            [*arguments, "--drop-params"] if drop_params else arguments,
            log=folder / "engine.log",
            secret=self._key,
            ready_seconds=_READY_SECONDS,
        )

    @property
    def gives(self) -> frozenset[Capability]:
        """Tool calls."""
        return GIVES

    @property
    def secrets(self) -> frozenset[str]:
        """The variables with the provider's keys; of one that is not in `PROVIDERS`, `PROVIDER_API_KEY`."""
        prefix = self._model.partition("/")[0]
        known = PROVIDERS.get(prefix)
        return frozenset(known.secrets if known else (f"{prefix.upper()}_API_KEY",))

    async def start(self) -> tuple[Endpoint, ...]:
        """Import LiteLLM, 8 to 20 s, and serve. Asks the provider nothing.

        Raises:
            EngineError: it did not come up, or what the model needs is not set.
        """
        try:
            ready = await self._child.start()
        except WireError as error:
            raise EngineError(str(error)) from error
        return (Endpoint(base_url=ready["url"], model=self._model, api_key=self._key),)

    async def stop(self) -> None:
        """End the process."""
        await self._child.stop()

    async def died(self) -> EngineError:
        """Wait until the process ends by itself; why it did."""
        return EngineError(str(await self._child.died()))


class LiteLLMEngineFactory(EngineFactory):
    """Makes `LiteLLMEngine` from `PROVIDER/NAME`."""

    name: ClassVar[str] = "litellm"

    def accepts(self, model: str) -> bool:
        """Whether its prefix names one of `PROVIDERS`. Any other provider of LiteLLM's needs `--engine litellm`."""
        return provider_of(model) is not None

    def create(self, model: str, *, folder: Path, options: Mapping[str, str]) -> LiteLLMEngine:
        """An engine for a provider's model; options `drop_params` and `timeout`.

        Raises:
            UsageError: the name or an option cannot be used, a key is not set, or LiteLLM is not installed.
        """
        who = f"engine `{self.name}`"
        if not _MODEL.fullmatch(model):
            raise UsageError(
                f"{who}: model {model!r}: expected `PROVIDER/NAME`, such as `anthropic/NAME`; LiteLLM's documentation"
                " lists the providers"
            )
        unknown = sorted(set(options) - set(_OPTIONS))
        if unknown:
            raise UsageError(
                f"{who}: option `{unknown[0]}` is not known; expected {', '.join(f'`{o}`' for o in _OPTIONS)}"
            )
        drop = options.get("drop_params", "no")
        if drop not in ("yes", "no"):
            raise UsageError(
                f"{who}: option `drop_params`: expected `yes` or `no` but got {drop!r}"
            )
        timeout = options.get("timeout", "600")
        if not _SECONDS.fullmatch(timeout):
            raise UsageError(
                f"{who}: option `timeout`: expected seconds, 1 or more, but got {timeout!r}"
            )
        if importlib.util.find_spec("litellm") is None:
            raise UsageError(
                f'{who}: model {model!r} needs LiteLLM; run `pip install "lightning-core[litellm]"`'
            )
        check_keys(model)
        return LiteLLMEngine(
            model, folder=folder, drop_params=drop == "yes", timeout=float(timeout)
        )
