"""Rollouts on the run's server: enqueued, waited for, and read once they are graded. Imports neither verl nor torch."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Sequence
from typing import Final

from lightning_core.client import Client
from lightning_core.errors import WireError
from lightning_core.reward import RewardScope
from lightning_core.rollout import Rollout
from lightning_core.running.patience import Patience
from lightning_core.trace import Trace
from lightning_core.wire import EventKind

log = logging.getLogger("lightning_verl.trainer")

_LOOK_SECONDS: Final = 15.0
"""Seconds after which a rollout that no event has told of is looked at."""


class Rollouts:
    """Runs groups of rollouts. One for each event loop.

    Args:
        client: open, with an admin's token.
        run: the run's name.
        grading_timeout: seconds for which a reward is waited for.
    """

    def __init__(self, client: Client, run: str, *, grading_timeout: float) -> None:
        self._client = client
        self._run = run
        self._grading_timeout = grading_timeout
        self._patience = Patience.logged(log)
        self._awaited: dict[str, _Awaited] = {}
        self._groups: dict[str, tuple[asyncio.Task[list[Trace]], int]] = {}
        self._following: asyncio.Task[None] | None = None

    async def group(self, rollouts: Sequence[Rollout]) -> list[Trace]:
        """The graded traces of a group, in order. Each of the group's rollouts may ask; it is run once.

        Raises:
            WireError: the server refused, or stayed away.
        """
        key = rollouts[0].group or rollouts[0].id
        task, left = self._groups.get(key) or (
            asyncio.create_task(self._run_group(rollouts)),
            len(rollouts),
        )
        self._groups[key] = (task, left - 1)
        try:
            return await asyncio.shield(task)
        finally:
            if not self._groups.get(key, (task, 0))[1]:
                self._groups.pop(key, None)

    async def _run_group(self, rollouts: Sequence[Rollout]) -> list[Trace]:
        if self._following is None or self._following.done():
            self._following = asyncio.create_task(self._follow())
        for rollout in rollouts:
            self._awaited[rollout.id] = _Awaited(rollout)
        try:
            new = await self._patience.ask(lambda: self._client.enqueue(rollouts))
            if new < len(rollouts):
                # Known from before a restart: some may have ended, which no event will tell.
                await self._look([self._awaited[rollout.id] for rollout in rollouts])
            return list(await asyncio.gather(*map(self._graded, rollouts)))
        finally:
            for rollout in rollouts:
                self._awaited.pop(rollout.id, None)

    async def _graded(self, rollout: Rollout) -> Trace:
        """The trace once the rollout has ended and the run has graded it; or as it is, where that takes too long."""
        loop = asyncio.get_running_loop()
        awaited = self._awaited[rollout.id]
        while not await _is_set(awaited.ended, _LOOK_SECONDS):
            # An event may have been missed, or told before the rollout was enqueued anew.
            await self._look([awaited])
        until = loop.time() + self._grading_timeout
        while True:
            await _is_set(awaited.rewarded, min(_LOOK_SECONDS, until - loop.time()))
            awaited.rewarded.clear()
            trace = await self._trace(rollout.id)
            if any(reward.scope is RewardScope.ROLLOUT for reward in trace.rewards):
                return trace
            if loop.time() >= until:
                log.warning(
                    "rollout `%s`: has no reward %g s after its end; it is left out",
                    rollout.id, self._grading_timeout,
                )  # fmt: skip
                return trace

    async def _look(self, some: Iterable[_Awaited]) -> None:
        """See which have ended, where no event may tell. Those may be rewarded too, which reading them tells."""
        for group in {awaited.rollout.group for awaited in some}:
            for rollout in await self._patience.ask(
                lambda group=group: self._client.rollouts(run=self._run, group=group)  # type: ignore[misc]
            ):
                awaited = self._awaited.get(rollout.id)
                if awaited is not None and rollout.status.ended:
                    awaited.ended.set()
                    awaited.rewarded.set()

    async def _trace(self, rollout_id: str) -> Trace:
        return await self._patience.ask(lambda: self._client.trace(rollout_id))

    async def _follow(self) -> None:
        after = 0
        while True:
            try:
                events = await self._patience.ask(
                    lambda after=after: self._client.events(after, run=self._run)  # type: ignore[misc]
                )
            except WireError as error:
                if error.status != 410:
                    raise
                after = 0  # The server was started again; each is looked at.
                await self._look(list(self._awaited.values()))
                continue
            for event in events:
                after = event.number
                awaited = self._awaited.get(event.rollout_id)
                if awaited is not None and event.kind is EventKind.ROLLOUT_ENDED:
                    awaited.ended.set()
                elif awaited is not None and event.kind is EventKind.REWARDED:
                    awaited.rewarded.set()


class _Awaited:
    """A rollout that a step waits for."""

    def __init__(self, rollout: Rollout) -> None:
        self.rollout: Final = rollout
        self.ended: Final = asyncio.Event()
        self.rewarded: Final = asyncio.Event()


async def _is_set(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event; whether it came."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, seconds)):
            await event.wait()
    return event.is_set()
