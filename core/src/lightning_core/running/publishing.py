"""Publishing: which weights answer the model calls of a run, and new ones in their place."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

from lightning_core.capability import Capability, require
from lightning_core.client import Client
from lightning_core.engine import Endpoint, Engine
from lightning_core.errors import CapabilityError, EngineError, LightningError
from lightning_core.running.patience import Patience
from lightning_core.runs import RunConfig
from lightning_core.wire import ServedPolicy

log = logging.getLogger("lightning_core.run")

DRAIN_SECONDS: Final = 120.0
"""Seconds that model calls under way have to end before new weights are loaded."""
_WITHDRAW_SECONDS: Final = 10.0


class Publishing:
    """The policy of one run on a server."""

    def __init__(
        self, config: RunConfig, client: Client, patience: Patience, drain: float = DRAIN_SECONDS
    ) -> None:
        """
        Args:
            config: what was asked of the run.
            client: open, with an admin's token.
            patience: with which the server is asked.
            drain: seconds that calls under way have before new weights are loaded.
        """
        self._config = config
        self._client = client
        self._patience = patience
        self._drain = drain
        self._engine: Engine | None = None
        self._endpoints: tuple[Endpoint, ...] = ()
        self._policy: ServedPolicy | None = None
        self._changing = asyncio.Lock()

    @property
    def engine(self) -> Engine | None:
        """What serves the policy; None where the run has none of its own."""
        return self._engine

    async def serve(self, engine: Engine, endpoints: tuple[Endpoint, ...], *, version: int) -> None:
        """Have this run's train and val calls go to an engine that has started.

        Raises:
            WireError: the server cannot reach the engine.
        """
        self._engine, self._endpoints = engine, endpoints
        async with self._changing:
            await self._set_policy(version)

    async def withdraw(self) -> None:
        """Let the server forget this run's policy, whose engine ends. What has not ended of the run waits there."""
        try:
            async with asyncio.timeout(_WITHDRAW_SECONDS):
                await self._client.drop_policy(self._config.name)
        except (LightningError, TimeoutError) as error:
            log.warning(
                "the server %s keeps the policy of run `%s`, whose engine ends: %s",
                self._client.shown, self._config.name, error or "no answer in time",
            )  # fmt: skip

    async def _set_policy(self, version: int) -> None:
        assert self._engine is not None
        policy = ServedPolicy(
            version=version,
            endpoints=self._endpoints,
            capabilities=self._engine.gives,
            train=self._config.sampling,
            val=self._config.validation,
        )
        await self._patience.ask(lambda: self._client.set_policy(policy, run=self._config.name))
        self._policy = policy

    async def serve_again(self) -> None:
        """Tell a server that was started again where this run's policy is: it keeps no address or key."""
        async with self._changing:
            policy = self._policy
            if policy is not None:
                await self._patience.ask(
                    lambda: self._client.set_policy(policy, run=self._config.name)
                )

    async def publish(self, folder: Path, *, version: int) -> None:
        """Serve the weights in `folder` as policy `version`: pause, drain, load, resume.

        Raises:
            CapabilityError: the run has no engine, or its engine cannot take weights while it serves.
            EngineError: model calls did not end in time, or the weights do not fit; the old ones stay.
        """
        engine = self._engine
        if engine is None:
            raise CapabilityError("publish: the run has no engine; start it with `model=`")
        require(
            {Capability.WEIGHTS_IN_PLACE},
            engine.gives,
            by=f"publishing policy {version}",
            of=f"engine `{engine.name}`",
        )
        ask, name = self._patience.ask, self._config.name
        async with self._changing:
            try:
                drain = await ask(lambda: self._client.pause(self._drain, run=name))
                if not drain.drained:
                    calls = (
                        "1 model call runs"
                        if drain.in_flight == 1
                        else f"{drain.in_flight} model calls run"
                    )
                    raise EngineError(
                        f"publish: {calls} still after {self._drain:g} s, so policy {version} was not loaded and the old"
                        " one serves on; publish between rollouts, or let replies be shorter (`max_tokens`)"
                    )
                await engine.load_weights(folder)
                await self._set_policy(version)
            finally:
                await ask(lambda: self._client.resume(run=name))
