"""Choosing the engine that serves a model."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from lightning_core.capability import Capability
from lightning_core.engine import Engine, EngineFactory
from lightning_core.errors import UsageError
from lightning_core.plugins import Plugins
from lightning_core.redaction import without_userinfo


class ChosenEngine(msgspec.Struct, frozen=True):
    """A factory and the model that it is to serve."""

    factory: EngineFactory
    model: str

    @property
    def name(self) -> str:
        """The engine's name."""
        return self.factory.name

    def create(self, *, folder: Path, options: Mapping[str, str]) -> Engine:
        """The engine, not yet started; raises as `EngineFactory.create` does."""
        return self.factory.create(self.model, folder=folder, options=options)

    def check(self, options: Mapping[str, str]) -> frozenset[Capability]:
        """What the engine would give; raises what `create` would. It is never started, so that nothing is left."""
        return self.create(folder=Path(tempfile.gettempdir()), options=options).gives


def create_engine(model: str | None, engine: str | None, plugins: Plugins) -> ChosenEngine | None:
    """What serves `model`; None where no model is named.

    Args:
        model: what the user named.
        engine: the engine's name, where the user gave one.
        plugins: the engines that there are.

    Raises:
        UsageError: no engine or several accept the model, or the engine is not installed.
    """
    if model is None:
        if engine is not None:
            raise UsageError(f"engine `{engine}`: which model? add `--model`")
        return None
    factories = plugins.engines()
    if engine is not None:
        if engine not in factories:
            installed = ", ".join(f"`{name}`" for name in factories)
            raise UsageError(f"engine `{engine}`: not installed; installed are {installed}")
        return ChosenEngine(factories[engine], model)
    accepting = [factory for factory in factories.values() if factory.accepts(model)]
    if len(accepting) == 1:
        return ChosenEngine(accepting[0], model)
    if accepting:
        names = " and ".join(f"`{factory.name}`" for factory in accepting)
        raise UsageError(
            f"model {without_userinfo(model)!r}: engines {names} both accept it; choose one with `--engine`"
        )
    raise UsageError(
        f"model {without_userinfo(model)!r}: no engine accepts it; expected `http://HOST/v1`, `NAME@http://HOST/v1`,"
        " `anthropic/NAME`, `azure/NAME`, `bedrock/NAME`, `gemini/NAME`, or with `lightning-local` installed `smollm2`, a"
        " model folder or `ORGANISATION/NAME`; `--engine litellm` takes any provider of LiteLLM's"
    )
