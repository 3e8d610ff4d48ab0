"""EventLog: what happened, in order, for clients that wait for it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from itertools import islice

from lightning_core.rollout import Cause, Rollout
from lightning_core.wire import Event, EventKind

_KEPT = 100_000


class EventLog:
    """The last events. Numbers grow over restarts too, so that a client sees that it has missed some."""

    def __init__(self) -> None:
        self._next = int(time.time() * 1000)
        self._events: deque[Event] = deque(maxlen=_KEPT)
        self._changed = asyncio.Condition()

    async def add(
        self,
        kind: EventKind,
        rollout: Rollout,
        *,
        attempt_id: str | None = None,
        cause: Cause | None = None,
    ) -> None:
        """Append an event of a rollout and wake those who wait."""
        await self._append(
            Event(
                number=self._next,
                kind=kind,
                rollout_id=rollout.id,
                run=rollout.run,
                attempt_id=attempt_id,
                cause=cause,
            )
        )

    async def add_of_run(self, kind: EventKind, run: str) -> None:
        """Append an event of a run as a whole and wake those who wait."""
        await self._append(Event(number=self._next, kind=kind, rollout_id="", run=run))

    async def _append(self, event: Event) -> None:
        self._events.append(event)
        self._next += 1
        async with self._changed:
            self._changed.notify_all()

    def missed(self, after: int) -> bool:
        """Whether events after number `after` may be gone. 0 asks for whatever is there."""
        oldest = self._events[0].number if self._events else self._next
        return after != 0 and after < oldest - 1

    async def after(
        self, number: int, *, wait: float, run: str | None = None, limit: int = 1000
    ) -> list[Event]:
        """Events above `number`, of one run where named, waiting up to `wait` seconds for the first."""
        deadline = asyncio.get_running_loop().time() + wait
        while True:
            if found := self._found(number, run, limit):
                return found
            changed = self._later_than(self.last)
            try:
                async with asyncio.timeout_at(deadline), self._changed:
                    await self._changed.wait_for(changed)
            except TimeoutError:
                return []

    def _later_than(self, number: int) -> Callable[[], bool]:
        return lambda: self.last > number

    def _found(self, number: int, run: str | None, limit: int) -> list[Event]:
        if not self._events or self._events[-1].number <= number:
            return []
        skip = max(0, number + 1 - self._events[0].number)
        wanted = (e for e in islice(self._events, skip, None) if run is None or e.run == run)
        return list(islice(wanted, limit))

    @property
    def last(self) -> int:
        """The number of the newest event."""
        return self._next - 1
