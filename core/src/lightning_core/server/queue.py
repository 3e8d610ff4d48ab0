"""Queue: rollouts that wait for a worker."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from lightning_core.rollout import Rollout


class Queue:
    """First come, first served, over all runs or within one. Rollouts of a run that is held are passed over."""

    def __init__(self) -> None:
        # Each with its place in the order over all runs.
        self._runs: dict[str, deque[tuple[int, Rollout]]] = {}
        self._held: set[str] = set()
        self._first = 0
        self._last = 0
        self._work = asyncio.Condition()

    def __len__(self) -> int:
        """How many wait, those of held runs included."""
        return sum(map(len, self._runs.values()))

    async def add(self, rollouts: Iterable[Rollout], *, first: bool = False) -> None:
        """Queue rollouts, last or each before all others, and wake who waits for them."""
        for rollout in rollouts:
            queue = self._runs.setdefault(rollout.run, deque())
            if first:
                self._first -= 1
                queue.appendleft((self._first, rollout))
            else:
                self._last += 1
                queue.append((self._last, rollout))
        async with self._work:
            self._work.notify_all()

    def take(self, run: str | None = None) -> Rollout | None:
        """The next one, of one run where named, which no longer waits; None where there is none."""
        name = self._next(run)
        if name is None:
            return None
        queue = self._runs[name]
        _, rollout = queue.popleft()
        if not queue:
            del self._runs[name]
        return rollout

    def remove(self, rollout_id: str) -> Rollout | None:
        """Take one out by its id; None where it does not wait."""
        for name, queue in self._runs.items():
            for place in queue:
                if place[1].id == rollout_id:
                    queue.remove(place)
                    if not queue:
                        del self._runs[name]
                    return place[1]
        return None

    async def wait(self, seconds: float, run: str | None = None) -> None:
        """Wait at most so long for one that can be taken."""
        if seconds <= 0 or self._next(run) is not None:
            return
        try:
            async with asyncio.timeout(seconds), self._work:
                await self._work.wait_for(lambda: self._next(run) is not None)
        except TimeoutError:
            return

    def hold(self, run: str) -> None:
        """Pass over the rollouts of a run, those that come later too."""
        self._held.add(run)

    async def let_go(self, run: str) -> None:
        """Let a run's rollouts be taken again, each at its old place."""
        self._held.discard(run)
        async with self._work:
            self._work.notify_all()

    def _next(self, run: str | None) -> str | None:
        """The run whose first rollout is next."""
        names = self._runs if run is None else (run,)
        heads = [
            (self._runs[name][0][0], name)
            for name in names
            if name in self._runs and name not in self._held
        ]
        return min(heads)[1] if heads else None
