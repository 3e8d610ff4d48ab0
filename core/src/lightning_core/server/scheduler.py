"""Scheduler: what becomes of rollouts: queued, leased, ended, tried again. Written through to the store, reloaded from it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from lightning_core.errors import FencedError, RecordError, WireError
from lightning_core.records import Json
from lightning_core.rollout import Attempt, Cause, Rollout, RolloutStatus
from lightning_core.server.events import EventLog
from lightning_core.server.leases import Held, Leases, Sessions
from lightning_core.server.queue import Queue
from lightning_core.server.reaper import Reaper
from lightning_core.server.retention import Retention
from lightning_core.server.rules import ended_by_agent, exit_text, put_down, refuse_conflict
from lightning_core.server.strategies import Strategies
from lightning_core.store.base import Store
from lightning_core.task import Task
from lightning_core.wire import EventKind, Finish, Upstreams

log = logging.getLogger(__name__)

_TEXT_LIMIT: Final = 64 * 1024
"""Characters of an attempt's error and logs that are kept."""


class Scheduler:
    """The single authority over rollouts and attempts."""

    def __init__(
        self,
        store: Store,
        sessions: Sessions,
        *,
        lease_seconds: float,
        retention: Retention,
        strategies: Strategies,
    ) -> None:
        """Args:
        store: holds every record; nothing else writes to it.
        sessions: the gateway, which lets an attempt's calls in while it runs.
        lease_seconds: seconds without a heart-beat after which an attempt is lost.
        retention: deletes what is old.
        strategies: what rollouts run under.
        """
        self.events = EventLog()
        self.ended = 0
        self._store = store
        self._sessions = sessions
        self.queue = Queue()
        self._strategies = strategies
        self._leases = Leases(store, sessions, self.events, lease_seconds, strategies)
        self._reaper = Reaper(self._leases, self._end_unreported, retention)
        self._numbers: dict[str, int] = {}
        self._released: dict[str, int] = {}
        self._ending: dict[str, Held] = {}
        self._adding = asyncio.Lock()

    # Life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take up what the store holds: queued rollouts wait again, running attempts get a fresh lease."""
        await self._leases.start()
        for status in RolloutStatus:
            page: list[Rollout] = []
            while page := await self._store.rollouts(
                status=status, after=page[-1].id if page else None, limit=1000
            ):
                if status.ended:
                    self.ended += len(page)
                else:
                    for rollout in page:
                        await self._take_up(rollout)
        self._reaper.start()

    async def _take_up(self, rollout: Rollout) -> None:
        await self._strategies.require(rollout)
        attempts = await self._store.attempts(rollout.id)
        self._numbers[rollout.id] = len(attempts)
        self._released[rollout.id] = sum(a.cause is Cause.CANCELLED for a in attempts)
        if rollout.status is RolloutStatus.QUEUED or not attempts:
            await self.queue.add([rollout])
            return
        last = attempts[-1]
        if last.ended_at is not None and last.cause is not None:
            # The server ended between the end of the attempt and what follows from it.
            if last.cause is Cause.CANCELLED:
                self._released[rollout.id] -= 1
            await self._conclude(last, rollout, last.cause)
            return
        self._leases.take_up(last, rollout, await self._store.calls(last.id))

    async def close(self) -> None:
        """Stop looking for lost attempts. What runs stays leased, for the next server on this store."""
        await self._reaper.close()

    # For runs ------------------------------------------------------------------------------------------------

    async def claim_run(self, run: str, owner: str) -> None:
        """Keep a run's name for one owner.

        Raises:
            WireError: it is another's (409).
        """
        async with self._adding:
            known = await self._store.get_state(f"run {run}")
            if known is None:
                await self._store.put_state(f"run {run}", owner)
                await self._store.flush()
            elif known != owner:
                raise WireError(
                    f"run `{run}`: another run of this name is on this server; choose another name",
                    409,
                )

    async def enqueue(self, rollouts: Sequence[Rollout]) -> tuple[int, int]:
        """Queue rollouts; how many were new, and how many were known.

        Raises:
            WireError: a task is missing (404), a strategy is (400), or a known id has other content (409). Nothing is
                queued then.
        """
        async with self._adding:
            new: dict[str, Rollout] = {}
            for rollout in rollouts:
                known = new.get(rollout.id) or await self._store.rollout(rollout.id)
                if known is not None:
                    refuse_conflict(known, rollout)
                elif await self._store.task(rollout.run, rollout.task_id) is None:
                    raise WireError(
                        f"rollout `{rollout.id}`: task `{rollout.task_id}` of run `{rollout.run}` is not stored;"
                        " post it to /api/v1/tasks first",
                        404,
                    )
                else:
                    await self._strategies.require(rollout)
                    new[rollout.id] = msgspec.structs.replace(
                        rollout,
                        status=RolloutStatus.QUEUED,
                        created_at=time.time(),
                        ended_at=None,
                        cancel=None,
                    )
            await self._store.put(*new.values())
            await self._store.flush()
        await self.queue.add(new.values())
        return len(new), len(rollouts) - len(new)

    async def cancel(self, rollout_id: str, reason: str) -> RolloutStatus:
        """Take a queued rollout out; tell the worker of a running one at its next heart-beat.

        Raises:
            WireError: there is no such rollout (404).
        """
        queued = self.queue.remove(rollout_id)
        if queued is not None:
            await self._end_unstarted(queued, reason)
            return RolloutStatus.CANCELLED
        for held in (*self._leases.all(), *self._ending.values()):
            if held.rollout.id == rollout_id:
                log.info("rollout %s: cancelled: %s", rollout_id, reason)
                held.rollout = msgspec.structs.replace(held.rollout, cancel=reason)
                if self._leases.get(held.attempt.id) is held:
                    await self._store.put(held.rollout)
                    await self._store.flush()
                return RolloutStatus.RUNNING
        rollout = await self._store.rollout(rollout_id)
        if rollout is None:
            raise WireError(f"rollout `{rollout_id}`: not known", 404)
        return rollout.status

    def refuse_worker(self, worker: str) -> None:
        """Lease nothing more to a worker, whose end the caller has seen. What it holds stays until `lose_worker`."""
        self._leases.gone(worker)

    async def lose_worker(
        self, worker: str, reason: str, exit_status: int | None = None
    ) -> tuple[int, int]:
        """End all attempts that a worker holds, whose end the caller has seen; how many, and how many as `lost`.

        What outlives that is refused leases.

        Args:
            worker: its name, which no other may have.
            reason: how it ended, for a person.
            exit_status: its process's; negative: a signal's number. None where it is not known, or where others than
                the agent ended it.
        """
        self._leases.gone(worker)
        held = [held for held in self._leases.all() if held.attempt.worker == worker]
        if (
            len(held) == 1
            and exit_status is not None
            and await self._is_to_blame(held[0], exit_status)
        ):
            how = exit_text(exit_status)
            error = f"the agent ended its process ({how}), where it ran alone: {reason}"
            await self._end_unreported(held[0], Cause.AGENT_ERROR, error)
            return 1, 0
        for one in held:
            await self._end_unreported(one, Cause.LOST, f"worker `{worker}`: {reason}")
        return len(held), len(held)

    async def _is_to_blame(self, held: Held, exit_status: int) -> bool:
        """Whether an agent that had its worker to itself ended it."""
        earlier = await self._store.attempts(held.rollout.id)
        return ended_by_agent(exit_status, [attempt.cause for attempt in earlier])

    async def _end_unstarted(self, rollout: Rollout, reason: str) -> None:
        """End a rollout that no worker holds, with an attempt that says so: every end has its trace."""
        now = time.time()
        number = self._numbers.get(rollout.id, 0) + 1
        attempt = Attempt(
            id=f"{rollout.id}.{number}",
            rollout_id=rollout.id,
            number=number,
            fence=0,
            worker="",
            started_at=now,
            deadline=now,
            lease_until=now,
            ended_at=now,
            cause=Cause.CANCELLED,
            error=f"cancelled before it started: {reason}",
        )
        await self._store.put(attempt)
        await self._end_rollout(rollout, RolloutStatus.CANCELLED, attempt.id, Cause.CANCELLED)

    # For workers ---------------------------------------------------------------------------------------------

    async def lease(
        self,
        worker: str,
        *,
        capacity: int,
        wait: float,
        upstreams: Upstreams,
        run: str | None = None,
    ) -> list[tuple[Attempt, Rollout, Task]]:
        """Up to `capacity` attempts, of one run where named, waiting up to `wait` seconds for the first.

        Raises:
            WireError: the worker has been told to have ended (409).
        """
        self._leases.heard(worker)
        self._leases.refuse_gone(worker)
        await self.queue.wait(wait, run)
        self._leases.refuse_gone(worker)
        granted: list[tuple[Attempt, Rollout]] = []
        while len(granted) < capacity and (rollout := self.queue.take(run)) is not None:
            granted.append(self._grant(rollout, worker, upstreams))
        announcing = asyncio.ensure_future(self._leases.announce(granted))
        try:
            return await asyncio.shield(announcing)
        except asyncio.CancelledError:
            # The worker went away before it heard of them: nobody would heart-beat.
            taking_back = asyncio.ensure_future(self._take_back(granted, announcing))
            await asyncio.shield(taking_back)
            raise

    async def _take_back(
        self, granted: list[tuple[Attempt, Rollout]], announcing: asyncio.Future[Any]
    ) -> None:
        await asyncio.gather(announcing, return_exceptions=True)
        for attempt, rollout in reversed(granted):
            if self._leases.end(attempt.id) is not None:
                await self._sessions.end(attempt.id)
                self._numbers[rollout.id] -= 1
                await self.events.add(
                    EventKind.ATTEMPT_ENDED, rollout, attempt_id=attempt.id, cause=Cause.CANCELLED
                )
                await self._put_in_queue(rollout, first=True)

    async def open_session(
        self, rollout: Rollout, task: Task, *, worker: str, upstreams: Upstreams
    ) -> tuple[Attempt, Rollout, Task]:
        """Store a rollout and lease it to the caller at once.

        Raises:
            WireError: the rollout is known (409), or its strategy is not (400).
        """
        async with self._adding:
            if await self._store.rollout(rollout.id) is not None:
                raise WireError(f"rollout `{rollout.id}`: already known; choose another id", 409)
            await self._strategies.require(rollout)
            await self._store.put(task, run=rollout.run)
            fresh = msgspec.structs.replace(rollout, created_at=time.time())
            return (await self._leases.announce([self._grant(fresh, worker, upstreams)]))[0]

    def heartbeat(self, attempt_id: str, fence: int) -> tuple[float, bool]:
        """Renew a lease: until when it lasts, and whether the attempt is to be cancelled.

        Raises:
            FencedError: the attempt has ended or is another lease's.
        """
        return self._leases.heartbeat(attempt_id, fence)

    async def finish(self, attempt_id: str, report: Finish) -> RolloutStatus:
        """End an attempt as its worker reports; the rollout's new status.

        Raises:
            FencedError: the attempt ended otherwise before, or is another lease's.
        """
        try:
            held = self._leases.find(attempt_id, report.fence)
        except FencedError:
            status = await self._same_report(attempt_id, report)
            if status is None:
                raise
            return status
        self._leases.heard(held.attempt.worker)
        return await self._end_attempt(held, report)

    def running(self, attempt_id: str) -> Attempt | None:
        """The attempt, while a worker holds it."""
        held = self._leases.get(attempt_id)
        return held.attempt if held else None

    def status(self) -> dict[str, Json]:
        """Counts, and how long ago each worker was heard."""
        return {
            "queued": len(self.queue),
            "running": len(self._leases),
            "ended": self.ended,
            "workers": dict(self._leases.workers()),
        }

    # Inside --------------------------------------------------------------------------------------------------

    async def _same_report(self, attempt_id: str, report: Finish) -> RolloutStatus | None:
        """The rollout's status, if this very report has been taken before: a worker may repeat itself."""
        rollout_id = attempt_id.rpartition(".")[0]
        for attempt in await self._store.attempts(rollout_id):
            if attempt.id == attempt_id and attempt.fence == report.fence:
                same = attempt.cause in (report.cause, Cause.MODEL_ERROR, Cause.BUDGET)
                rollout = await self._store.rollout(rollout_id)
                return rollout.status if rollout and same and attempt.ended_at else None
        return None

    def _grant(
        self, rollout: Rollout, worker: str, upstreams: Upstreams
    ) -> tuple[Attempt, Rollout]:
        number = self._numbers[rollout.id] = self._numbers.get(rollout.id, 0) + 1
        return self._leases.grant(rollout, number, worker, upstreams)

    async def _end_attempt(self, held: Held, report: Finish) -> RolloutStatus:
        attempt = held.attempt
        self._leases.end(attempt.id)
        self._ending[attempt.id] = held
        try:
            session = await self._sessions.end(attempt.id)
            cause = put_down(report.cause, session)
            ended = msgspec.structs.replace(
                attempt,
                ended_at=time.time(),
                cause=cause,
                output=report.output,
                error=report.error and report.error[-_TEXT_LIMIT:],
                logs=report.logs and report.logs[-_TEXT_LIMIT:],
            )
            try:
                await self._store.put(ended)
            except RecordError as error:
                cause = Cause.AGENT_ERROR
                ended = msgspec.structs.replace(
                    ended, cause=cause, output=None, error=str(error), logs=None
                )
                await self._store.put(ended)
            await self.events.add(
                EventKind.ATTEMPT_ENDED, held.rollout, attempt_id=attempt.id, cause=cause
            )
            return await self._conclude(attempt, held.rollout, cause)
        finally:
            del self._ending[attempt.id]

    async def _conclude(self, attempt: Attempt, rollout: Rollout, cause: Cause) -> RolloutStatus:
        """What follows from the end of an attempt: the rollout's end, or another attempt."""
        if cause is Cause.SUCCESS:
            status = RolloutStatus.SUCCEEDED
        elif rollout.cancel is not None:
            status = RolloutStatus.CANCELLED
        elif self._may_try_again(attempt, rollout, cause):
            log.info("rollout %s: another attempt after `%s`", rollout.id, cause)
            # First in the queue: what waits behind it has not been waited for as long.
            return await self._put_in_queue(rollout, first=True)
        else:
            status = RolloutStatus.FAILED
        await self._end_rollout(rollout, status, attempt.id, cause)
        return status

    def _may_try_again(self, attempt: Attempt, rollout: Rollout, cause: Cause) -> bool:
        released = self._released.get(rollout.id, 0)
        if cause is Cause.CANCELLED:
            # The run did not ask for it: the worker was stopped, which says nothing of the rollout.
            self._released[rollout.id] = released + 1
            return True
        return cause in rollout.retry_on and attempt.number - released < rollout.max_attempts

    async def _put_in_queue(self, rollout: Rollout, *, first: bool = False) -> RolloutStatus:
        queued = msgspec.structs.replace(rollout, status=RolloutStatus.QUEUED)
        await self._store.put(queued)
        await self._store.flush()
        await self.queue.add([queued], first=first)
        return RolloutStatus.QUEUED

    async def _end_rollout(
        self, rollout: Rollout, status: RolloutStatus, attempt_id: str, cause: Cause
    ) -> None:
        await self._store.put(msgspec.structs.replace(rollout, status=status, ended_at=time.time()))
        await self._store.flush()
        self._numbers.pop(rollout.id, None)
        self._released.pop(rollout.id, None)
        self.ended += 1
        await self.events.add(EventKind.ROLLOUT_ENDED, rollout, attempt_id=attempt_id, cause=cause)

    async def _end_unreported(self, held: Held, cause: Cause, error: str) -> None:
        if self._leases.get(held.attempt.id) is held:
            await self._end_attempt(
                held, Finish(fence=held.attempt.fence, cause=cause, error=error)
            )
