"""Retention: deleting what ended longer ago than is kept."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from lightning_core.store.base import Store

log = logging.getLogger(__name__)

_EVERY: Final = 3600.0
"""Seconds between two looks."""
_PAGE: Final = 1000
"""Rollouts looked at in one step."""


class Retention:
    """Deletes rollouts that ended more than `keep_seconds` ago; with None it deletes nothing."""

    def __init__(self, store: Store, keep_seconds: float | None) -> None:
        self._store = store
        self._keep_seconds = keep_seconds
        self._deleted: Callable[[str], Awaitable[None]] | None = None
        self._next_look = 0.0

    def tell(self, deleted: Callable[[str], Awaitable[None]]) -> None:
        """Have `deleted` called with each run of which rollouts were deleted."""
        self._deleted = deleted

    async def look(self, now: float) -> None:
        """Delete what is old, oldest first; does nothing where the last look was a short while ago."""
        if self._keep_seconds is None or now < self._next_look:
            return
        self._next_look = now + min(_EVERY, self._keep_seconds)
        cutoff = now - self._keep_seconds
        while True:
            # From the start each time: what was deleted cannot be gone on after.
            page = await self._store.rollouts(limit=_PAGE)
            gone = [r for r in page if r.ended_at is not None and r.ended_at < cutoff]
            old = [r.id for r in gone]
            if not old:
                return
            log.info(
                "%d rollouts that ended over %.0f s ago are deleted", len(old), self._keep_seconds
            )
            await self._store.delete(old)
            if self._deleted is not None:
                for run in {r.run for r in gone}:
                    await self._deleted(run)
            if len(old) < len(page):
                return
