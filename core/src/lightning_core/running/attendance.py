"""Attendance: what a server tells of a run's attempts and workers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from lightning_core.client import Client, WorkerEnd
from lightning_core.rollout import Cause, RolloutStatus
from lightning_core.running.listing import listed
from lightning_core.running.patience import Patience
from lightning_core.wire import Event, EventKind

log = logging.getLogger("lightning_core.run")

_WORKER_SECONDS: Final = 30.0
"""Seconds without any worker after which the user is told."""
_LOOK_SECONDS: Final = 5.0
_SILENT_SECONDS: Final = 90.0
"""Seconds unheard after which a worker that elsewhere asks every 30 s does not count as there."""


class Attendance:
    """Who works on a run. The same event may come twice, since a server that restarts tells its events anew."""

    def __init__(self, run: str, client: Client, patience: Patience) -> None:
        """
        Args:
            run: the run's name.
            client: open, with an admin's token.
            patience: with which the server is asked.
        """
        self._run = run
        self._client = client
        self._patience = patience
        self._running: set[str] = set()
        self._lost: set[str] = set()
        self._suspects: set[str] = set()

    @property
    def running(self) -> int:
        """How many attempts are under way."""
        return len(self._running)

    @property
    def lost_attempts(self) -> int:
        """How many attempts were seen to end as `lost`."""
        return len(self._lost)

    @property
    def suspects(self) -> int:
        """How many rollouts lost their last attempt and have not ended, nor another attempt of theirs, since."""
        return len(self._suspects)

    async def worker_holds(self, name: str) -> bool:
        """Whether the server believes that a worker holds an attempt."""
        running = listed(self._client, self._patience, self._run, status=RolloutStatus.RUNNING)
        async for rollout in running:
            trace = await self._patience.ask(partial(self._client.trace, rollout.id))
            if trace.attempt.worker == name and trace.attempt.ended_at is None:
                return True
        return False

    async def worker_gone(self, name: str) -> None:
        """Have the server lease nothing more to a worker, which has ended."""
        await self._patience.ask(partial(self._client.worker_gone, name))

    async def worker_lost(
        self, name: str, reason: str, exit_status: int | None = None
    ) -> WorkerEnd:
        """Have the server give back what a worker held that has ended; what became of its attempts."""
        return await self._patience.ask(
            partial(self._client.worker_lost, name, reason, exit_status)
        )

    def add(self, event: Event) -> None:
        """Take an event."""
        attempt = event.attempt_id or ""
        if event.kind is EventKind.ATTEMPT_STARTED:
            self._running.add(attempt)
        elif event.kind is EventKind.ATTEMPT_ENDED:
            self._running.discard(attempt)
            if event.cause is Cause.LOST:
                self._lost.add(attempt)
                self._suspects.add(event.rollout_id)
            elif event.cause is not Cause.CANCELLED:
                self._suspects.discard(event.rollout_id)
        elif event.kind is EventKind.ROLLOUT_ENDED:
            self._suspects.discard(event.rollout_id)

    def missed(self) -> None:
        """Events were missed: those of attempts that are under way come again."""
        self._running.clear()

    async def look(self, note: Callable[[str | None], None], waits: Callable[[], bool]) -> None:
        """Look for workers elsewhere, for as long as the run goes on.

        Args:
            note: told while there is none, and with None once there is one.
            waits: whether the run waits for any.
        """
        loop = asyncio.get_running_loop()
        without_since, told = loop.time(), False
        while True:
            status = await self._patience.ask(self._client.status)
            if any(silent < _SILENT_SECONDS for silent in status.workers.values()):
                without_since = loop.time()
                if told:
                    note(None)
            elif loop.time() - without_since > _WORKER_SECONDS and waits():
                text = f"no worker is at {self._client.shown}"
                note(text)
                if not told:
                    told = True
                    log.warning(
                        "%s; start one with `lightning-core work AGENT --server %s`; waiting",
                        text,
                        self._client.shown,
                    )
            await asyncio.sleep(_LOOK_SECONDS)
