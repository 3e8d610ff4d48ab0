"""Workforce: the workers of a run, kept alive.

An agent may end the process that runs it, and with it every other attempt there. What such a worker held ends as `lost`
and is tried again; until all of that has ended, workers run one attempt at a time, so that an agent which ends its
process a second time takes no other attempt with it, and the server knows whose fault it is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Final, Protocol, Self

from lightning_core.client import WorkerEnd
from lightning_core.errors import LightningError, WireError
from lightning_core.executor import WorkerHandle
from lightning_core.redaction import redacted

log = logging.getLogger("lightning_core.run")

_STRIKES: Final = 3
"""Times in a row that a worker is started again though it died early and held nothing."""
_LIVED: Final = 30.0
"""Seconds after which a worker's death is not put down to its start."""
_STARTS: Final = 4
"""Workers that start at once: each may take a processor while it loads its agent."""
_LOOK: Final = 0.5
_PAUSE: Final = 0.5


class Caller(Protocol):
    """What the workforce needs of the run."""

    @property
    def lost_attempts(self) -> int:
        """How many attempts were seen to end as `lost`."""

    @property
    def suspects(self) -> int:
        """How many rollouts lost their last attempt and have not shown since that they are harmless."""

    async def worker_holds(self, name: str) -> bool:
        """Whether the server believes that a worker holds an attempt."""

    async def worker_gone(self, name: str) -> None:
        """Tell the server to lease nothing more to a worker, which has ended."""

    async def worker_lost(
        self, name: str, reason: str, exit_status: int | None = None
    ) -> WorkerEnd:
        """Give back what a worker held that has ended; what became of its attempts."""


class Workforce:
    """Starts the workers on entry, ends them on exit, and starts again those that end by themselves.

    Args:
        run: the run.
        make: a worker that has not started, of a number, the name that the server is to call it, and a concurrency.
        names: what the server calls each worker, by number; one that is started again has a name of its own, as its
            forerunner may outlive the news of its end.
        concurrency: attempts at once for each.
    """

    def __init__(
        self,
        run: Caller,
        make: Callable[[int, str, int], WorkerHandle],
        names: tuple[str, ...],
        concurrency: int,
    ) -> None:
        self._run = run
        self._make = make
        self._names = names
        self._full = concurrency
        self._lost = 0
        self._untold = 0
        self._paces: dict[int, int] = {}
        self._starts: Counter[int] = Counter()
        self._workers: dict[int, WorkerHandle] = {}
        self._refusing: set[asyncio.Task[None]] = set()
        self._keeping: list[asyncio.Task[LightningError]] = []

    async def __aenter__(self) -> Self:
        """Start the workers.

        Raises:
            WireError: one did not start; those that did are ended.
        """
        few = asyncio.Semaphore(_STARTS)

        async def start(number: int) -> WireError | None:
            async with few:
                return await self._start(number, self._full)

        try:
            numbers = range(len(self._names))
            problems = await asyncio.gather(*map(start, numbers), return_exceptions=True)
            for problem in problems:
                if problem is not None:
                    raise problem
        except BaseException:
            await self._stop()
            raise
        self._keeping = [
            asyncio.create_task(self._keep(number), name=f"keep {name}")
            for number, name in enumerate(self._names)
        ]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        await self._stop()

    async def died(self) -> LightningError:
        """Wait until no worker can be kept alive; why."""
        errors = await asyncio.gather(*map(asyncio.shield, self._keeping))
        return LightningError(
            f"no worker can be kept alive. The last one: {errors[-1]}. If the agent ends its process or blocks it, run with"
            " `--isolate`, which gives each attempt a process of its own"
        )

    async def _stop(self) -> None:
        workers = list(self._workers.values())
        self._workers.clear()
        await asyncio.gather(*(worker.stop() for worker in workers))

    @property
    def _pace(self) -> int:
        """Attempts at once for each worker, now."""
        awaited = self._lost > 0 and (
            self._run.suspects > 0 or self._run.lost_attempts < self._lost
        )
        return 1 if awaited or self._untold else self._full

    async def _keep(self, number: int) -> LightningError:
        """Start a worker again whenever it ends; why that is given up."""
        pace, strikes = self._full, 0
        while True:
            began = time.monotonic()
            problem = await self._end(number, pace)
            try:
                held = await self._give_back(number, problem)
            except LightningError as error:
                return error
            if held or time.monotonic() - began > _LIVED:
                strikes = 0
            while True:
                if problem is not None:
                    strikes += 1
                    if strikes > _STRIKES:
                        self._paces.pop(number, None)
                        log.warning("%s; given up after %d tries", problem, strikes)
                        return problem
                    await asyncio.sleep(_PAUSE * (2**strikes - 2))
                pace = self._pace
                problem = await self._start(number, pace)
                if problem is None:
                    break

    async def _end(self, number: int, pace: int) -> WireError | None:
        """Wait until the worker ends by itself, and why; or end it where it is to go at another pace."""
        worker = self._workers[number]
        dying = asyncio.ensure_future(worker.died())
        try:
            while True:
                await asyncio.wait([dying], timeout=_LOOK)
                if dying.done():
                    return dying.result()
                if self._pace != pace:
                    # What it runs is reported as cancelled, which costs no attempt.
                    await worker.stop()
                    return None
        finally:
            dying.cancel()
            await asyncio.gather(dying, return_exceptions=True)

    async def _give_back(self, number: int, problem: WireError | None) -> int:
        """Give back what a worker held that has ended, once no other can take several of it; how many attempts."""
        name = self._name(number)
        if problem is None:
            reason = "did not end in order when the run ended it"
            return (await self._tell(name, reason)).ended
        reason = redacted(str(problem).partition(": ")[2])
        del self._paces[number]
        await self._refuse(name)
        others = bool(self._paces) and await self._run.worker_holds(name)
        self._untold += others
        try:
            while others and any(pace > 1 for pace in self._paces.values()):
                await asyncio.sleep(_LOOK / 5)
            status = self._workers[number].exit_status
            end = await self._tell(name, f"{reason}; it ran this attempt then", status)
        finally:
            self._untold -= others
        if end.ended and not end.lost:
            what = "It ran one attempt alone, whose agent ended it"
        else:
            what = f"{end.lost} attempts that it held are lost"
        log.warning(
            "worker %d: %s. %s. It is started again; an agent that ends its process takes no other attempt with it when"
            " run with `--isolate`",
            number, reason, what,
        )  # fmt: skip
        return end.ended

    async def _refuse(self, name: str) -> None:
        """Have a worker that has ended refused leases, and all others that were seen to end meanwhile.

        Of workers that are cut off together one may still be about when another's attempt is given back, and would take
        it and lose it once more.
        """
        refusing = asyncio.create_task(self._run.worker_gone(name))
        self._refusing.add(refusing)
        refusing.add_done_callback(self._refusing.discard)
        try:
            while self._refusing:
                await asyncio.wait(self._refusing)
            await refusing
        finally:
            refusing.cancel()

    async def _tell(self, name: str, reason: str, exit_status: int | None = None) -> WorkerEnd:
        end = await self._run.worker_lost(name, reason, exit_status)
        self._lost += end.lost
        return end

    def _name(self, number: int) -> str:
        starts = self._starts[number]
        return self._names[number] if starts <= 1 else f"{self._names[number]}.{starts}"

    async def _start(self, number: int, pace: int) -> WireError | None:
        self._starts[number] += 1
        worker = self._make(number, self._name(number), pace)
        self._paces[number] = pace
        try:
            await worker.start()
        except WireError as error:
            return error
        self._workers[number] = worker
        return None
