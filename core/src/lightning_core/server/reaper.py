"""Reaper: ends attempts whose worker is silent or late, and has old rollouts deleted."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from lightning_core.errors import LightningError
from lightning_core.rollout import Cause
from lightning_core.server.leases import Held, Leases
from lightning_core.server.retention import Retention

log = logging.getLogger(__name__)

_OVERDUE: Final = 30.0
"""Seconds after its deadline at which an attempt is ended whose worker did not end it."""

End = Callable[[Held, Cause, str], Awaitable[object]]
"""Ends an attempt that its worker did not report."""


class Reaper:
    """Looks at all leases, about once a second.

    Args:
        leases: what is held.
        end: called for each attempt that is to end.
        retention: deletes what is old.
    """

    def __init__(self, leases: Leases, end: End, retention: Retention) -> None:
        self._leases = leases
        self._end = end
        self._retention = retention
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.create_task(self._look_for_ever(), name="lightning-core reaper")

    async def close(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _look_for_ever(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, self._leases.seconds / 4))
            try:
                now = time.time()
                await self._look(now)
                await self._retention.look(now)
            except LightningError:
                log.exception("looking for lost attempts failed; trying again")

    async def _look(self, now: float) -> None:
        for held in self._leases.all():
            attempt = held.attempt
            if attempt.lease_until < now:
                silent = now - attempt.lease_until + self._leases.seconds
                error = (
                    f"worker `{attempt.worker}` was not heard for {silent:.0f} s;"
                    " its host died, hangs, or cannot reach the server"
                )
                await self._end(held, Cause.LOST, error)
            elif attempt.deadline + _OVERDUE < now:
                error = f"worker `{attempt.worker}` did not end the agent {_OVERDUE:.0f} s after the deadline"
                await self._end(held, Cause.TIMEOUT, error)
