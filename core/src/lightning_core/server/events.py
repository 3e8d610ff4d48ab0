"""EventLog: what happened, in order, for clients that wait for it."""

from __future__ import annotations

import asyncio
import time
from collections import deque

from lightning_core.rollout import Cause
from lightning_core.wire import Event

_KEPT = 100_000


class EventLog:
    """The last events. Numbers grow over restarts too, so that a client sees that it has missed some."""

    def __init__(self) -> None:
        self._next = int(time.time() * 1000)
        self._events: deque[Event] = deque(maxlen=_KEPT)
        self._changed = asyncio.Condition()

    async def add(
        self, kind: str, rollout_id: str, attempt_id: str | None = None, cause: Cause | None = None
    ) -> None:
        """Append an event and wake those who wait."""
        self._events.append(
            Event(
                number=self._next,
                kind=kind,
                rollout_id=rollout_id,
                attempt_id=attempt_id,
                cause=cause,
            )
        )
        self._next += 1
        async with self._changed:
            self._changed.notify_all()

    def missed(self, after: int) -> bool:
        """Whether events after number `after` may be gone. 0 asks for whatever is there."""
        oldest = self._events[0].number if self._events else self._next
        return after != 0 and after < oldest - 1

    async def after(self, number: int, *, wait: float, limit: int = 1000) -> list[Event]:
        """Events above `number`, waiting up to `wait` seconds for the first."""
        if not self._newer(number) and wait > 0:
            try:
                async with asyncio.timeout(wait), self._changed:
                    await self._changed.wait_for(lambda: self._newer(number))
            except TimeoutError:
                return []
        skip = max(0, number + 1 - self._events[0].number) if self._events else 0
        return [self._events[i] for i in range(skip, min(len(self._events), skip + limit))]

    def _newer(self, number: int) -> bool:
        return bool(self._events) and self._events[-1].number > number

    @property
    def last(self) -> int:
        """The number of the newest event."""
        return self._next - 1
