"""Engine: serves a model behind an OpenAI-compatible address and says what it can."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import msgspec

from lightning_core.capability import Capability
from lightning_core.errors import EngineError


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where an engine serves."""

    base_url: str
    """The address, ending in `/v1`."""
    model: str
    """The name to ask for."""
    api_key: str | None = None
    """The key to send, if it wants one. Never stored or logged."""


class Engine(ABC):
    """Serves one model. Started once, stopped once; owns every process that it starts."""

    name: ClassVar[str]
    """The engine's name, as in `--engine NAME`."""

    @property
    @abstractmethod
    def gives(self) -> frozenset[Capability]:
        """What it can. Known before `start` where possible; exact after it."""

    @property
    def secrets(self) -> frozenset[str]:
        """Environment variables with keys that are for this engine alone; agents that a run starts get a placeholder."""
        return frozenset()

    @abstractmethod
    async def start(self) -> tuple[Endpoint, ...]:
        """Start serving and return the replicas' endpoints, once each answers.

        Raises:
            EngineError: it did not come up; the message carries the last lines of its log.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Stop serving and end every process that `start` began. May be called more than once."""

    async def died(self) -> EngineError:
        """Wait until it ends by itself after `start`; why it did. One that cannot know waits for ever."""
        never: asyncio.Future[EngineError] = asyncio.get_running_loop().create_future()
        return await never

    async def load_weights(self, folder: Path) -> None:
        """Serve the weights in `folder` (Hugging Face layout) from the next request on.

        The caller pauses and drains the gateway first. Only with `Capability.WEIGHTS_IN_PLACE`.

        Raises:
            EngineError: the weights do not fit the served model; the old ones stay.
        """
        raise NotImplementedError(f"engine `{self.name}` cannot take weights in place")


class EngineFactory(ABC):
    """Makes engines of one kind; what a plugin registers."""

    name: ClassVar[str]
    """The engine's name, as in `--engine NAME`."""

    @abstractmethod
    def accepts(self, model: str) -> bool:
        """Whether `--model MODEL` without `--engine` means this engine. Must not load the model or import torch."""

    @abstractmethod
    def create(self, model: str, *, folder: Path, options: Mapping[str, str]) -> Engine:
        """An engine, not yet started.

        Args:
            model: what the user named: an address, a folder, a hub id or a short name.
            folder: where it may write logs and caches; the run's own.
            options: `--engine-option KEY=VALUE` pairs.

        Raises:
            UsageError: the model or an option cannot be used; the message says what is needed.
        """
