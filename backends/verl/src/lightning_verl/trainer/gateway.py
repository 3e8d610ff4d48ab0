"""The run's gateway, as the trainer steers it: told of each policy, held while the weights change."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from typing import Any, Final, Self, TypeVar

from lightning_core.client import Client
from lightning_core.errors import EngineError, LightningError, WireError
from lightning_core.running.patience import Patience
from lightning_core.wire import EventKind, ServedPolicy
from lightning_verl.job import Job
from lightning_verl.unended import cancel_unended

log = logging.getLogger("lightning_verl.trainer")
T = TypeVar("T")

DRAIN_SECONDS: Final = 120.0
"""Seconds that calls under way have to end before vLLM sleeps or takes weights."""
END_SECONDS: Final = 30.0
"""Seconds that calls of cancelled rollouts have to end before vLLM does; their workers hear of it by a heart-beat."""


class Gateway:
    """Speaks with the run's server from a thread of its own: verl's trainer blocks, and has event loops of its own.

    A server that is started again has forgotten where the policy is served, and is told once more.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="gateway")
        self._patience = Patience.logged(log)
        self._client = Client(job.url, job.token)
        self._policy: ServedPolicy | None = None
        self._following: asyncio.Task[None] | None = None
        self._one = asyncio.Lock()
        self._fault: WireError | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._client.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def serve(self, policy: ServedPolicy) -> None:
        """Send model calls to a policy from now on.

        Raises:
            LightningError: the server refused, or stayed away.
        """
        self._check()
        self._do(self._serve(policy))

    def hold(self, seconds: float = DRAIN_SECONDS) -> None:
        """Let model calls wait until a policy is served, and wait for those under way; what still runs then is cut off by
        vLLM.

        Raises:
            LightningError: the server refused, or stayed away.
        """
        self._check()
        self._do(self._hold(seconds))

    def end(self, seconds: float = END_SECONDS) -> None:
        """Let go of what the run has still under way, as its steps are done: cancel it, and hold model calls for good.

        Before vLLM ends: else agents would meet one that is gone, and their rollouts count as failed.
        """
        try:
            self._do(self._end(seconds))
        except LightningError as error:
            log.warning("the rollouts that the run needs no more: %s", error)

    def _check(self) -> None:
        if self._fault is not None:
            raise EngineError(
                f"gateway: the server's events cannot be followed any more: {self._fault}; go on with `--resume`"
            ) from self._fault

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        await self._client.__aexit__(None, None, None)

    async def _serve(self, policy: ServedPolicy) -> None:
        async with self._one:
            await self._tell(policy)
            self._policy = policy
        if self._following is None:
            self._following = self._loop.create_task(self._follow(), name="policy awaited")

    async def _tell(self, policy: ServedPolicy) -> None:
        run = self._job.run
        await self._patience.ask(lambda: self._client.set_policy(policy, run=run))
        await self._patience.ask(lambda: self._client.resume(run=run))

    async def _tell_again(self) -> None:
        async with self._one:
            if self._policy is not None:  # Else the weights change, and it is told of them soon.
                log.info("the server was started again; telling it of the policy")
                await self._tell(self._policy)

    async def _hold(self, seconds: float) -> None:
        async with self._one:
            self._policy = None
            drain = await self._patience.ask(lambda: self._client.pause(seconds, run=self._job.run))
        if not drain.drained:
            log.warning(
                "%d model calls run still after %g s; vLLM ends them; bound replies with `--max-tokens`",
                drain.in_flight, seconds,
            )  # fmt: skip

    async def _end(self, seconds: float) -> None:
        await cancel_unended(self._client, self._job.run, self._patience)
        await self._hold(seconds)

    async def _follow(self) -> None:
        after = 0
        while True:
            try:
                events = await self._patience.ask(
                    lambda after=after: self._client.events(after, run=self._job.run)  # type: ignore[misc]
                )
            except WireError as error:
                if error.status != 410:
                    self._fault = error
                    return
                after = 0
                continue
            for event in events:
                after = event.number
                if event.kind is EventKind.POLICY_AWAITED:
                    await self._tell_again()
