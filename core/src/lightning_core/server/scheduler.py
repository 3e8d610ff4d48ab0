"""Scheduler: queue, leases, deadlines and retries of rollouts. Written through to the store, reloaded from it."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Protocol

import msgspec

from lightning_core.errors import FencedError, LightningError, RecordError, WireError
from lightning_core.gateway.session import Session
from lightning_core.records import Json
from lightning_core.rollout import Attempt, Cause, Rollout, RolloutStatus
from lightning_core.server.events import EventLog
from lightning_core.server.retention import Retention
from lightning_core.store.base import Store
from lightning_core.task import Task
from lightning_core.trace import Call, CallErrorKind
from lightning_core.wire import EventKind, Finish

log = logging.getLogger(__name__)

LEASE_SECONDS: Final = 30.0
"""Seconds without a heart-beat after which an attempt is lost."""
_OVERDUE: Final = 30.0
"""Seconds after its deadline at which an attempt is ended whose worker did not end it."""
_FENCE_BITS: Final = 28
"""Random bits of a fence: it grows with each lease, and no agent guesses another's."""
_TEXT_LIMIT: Final = 64 * 1024
"""Characters of an attempt's error and logs that are kept."""
_CALLER_SET: Final = (
    "task_id", "run", "group", "mode", "timeout", "max_attempts", "retry_on", "budget", "metadata",
)  # fmt: skip
"""The fields of a rollout that its caller gives; two of one id must agree in them."""


class Sessions(Protocol):
    """The part of the gateway that the scheduler uses."""

    def open(self, session: Session) -> None:
        """Let a session's calls in."""

    async def end(self, attempt_id: str, *, grace: float = 0.0) -> Session | None:
        """Let no more in; return once every call is recorded."""


class _Running(msgspec.Struct):
    """An attempt that a worker holds."""

    attempt: Attempt
    rollout: Rollout


class Scheduler:
    """The single authority over rollouts and attempts."""

    def __init__(
        self,
        store: Store,
        sessions: Sessions,
        *,
        lease_seconds: float = LEASE_SECONDS,
        keep_seconds: float | None = None,
    ) -> None:
        """Args:
        store: holds every record; nothing else writes to it.
        sessions: the gateway, which lets an attempt's calls in while it runs.
        lease_seconds: seconds without a heart-beat after which an attempt is lost.
        keep_seconds: seconds after its end for which a rollout is kept; None keeps all.
        """
        self.events = EventLog()
        self.ended = 0
        self._store = store
        self._sessions = sessions
        self._lease_seconds = lease_seconds
        self._retention = Retention(store, keep_seconds)
        self._queue: deque[Rollout] = deque()
        self._numbers: dict[str, int] = {}
        self._released: dict[str, int] = {}
        self._running: dict[str, _Running] = {}
        self._ending: dict[str, _Running] = {}
        self._heard: dict[str, float] = {}
        self._leases = 0
        self._work = asyncio.Condition()
        self._adding = asyncio.Lock()
        self._reaper: asyncio.Task[None] | None = None

    # Life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take up what the store holds: queued rollouts wait again, running attempts get a fresh lease."""
        self._leases = int(await self._store.get_state("leases") or 0)
        now = time.time()
        for status in RolloutStatus:
            page: list[Rollout] = []
            while page := await self._store.rollouts(
                status=status, after=page[-1].id if page else None, limit=1000
            ):
                if status.ended:
                    self.ended += len(page)
                else:
                    for rollout in page:
                        await self._take_up(rollout, now)
        self._reaper = asyncio.create_task(self._reap_for_ever(), name="lightning-core reaper")

    async def _take_up(self, rollout: Rollout, now: float) -> None:
        attempts = await self._store.attempts(rollout.id)
        self._numbers[rollout.id] = len(attempts)
        self._released[rollout.id] = sum(a.cause is Cause.CANCELLED for a in attempts)
        if rollout.status is RolloutStatus.QUEUED or not attempts:
            self._queue.append(rollout)
            return
        last = attempts[-1]
        if last.ended_at is not None and last.cause is not None:
            # The server ended between the end of the attempt and what follows from it.
            if last.cause is Cause.CANCELLED:
                self._released[rollout.id] -= 1
            await self._conclude(last, rollout, last.cause)
            return
        attempt = msgspec.structs.replace(last, lease_until=now + self._lease_seconds)
        self._running[attempt.id] = _Running(attempt, rollout)
        self._open(attempt, rollout, await self._store.calls(attempt.id))

    async def close(self) -> None:
        """Stop looking for lost attempts. What runs stays leased, for the next server on this store."""
        if self._reaper is not None:
            self._reaper.cancel()
            await asyncio.gather(self._reaper, return_exceptions=True)

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
            WireError: a task is missing (404), or a known id has other content (409). Nothing is queued then.
        """
        async with self._adding:
            new: dict[str, Rollout] = {}
            for rollout in rollouts:
                known = new.get(rollout.id) or await self._store.rollout(rollout.id)
                if known is not None:
                    _refuse_conflict(known, rollout)
                elif await self._store.task(rollout.run, rollout.task_id) is None:
                    raise WireError(
                        f"rollout `{rollout.id}`: task `{rollout.task_id}` of run `{rollout.run}` is not stored;"
                        " post it to /api/v1/tasks first",
                        404,
                    )
                else:
                    new[rollout.id] = msgspec.structs.replace(
                        rollout,
                        status=RolloutStatus.QUEUED,
                        created_at=time.time(),
                        ended_at=None,
                        cancel=None,
                    )
            await self._store.put(*new.values())
            await self._store.flush()
            self._queue.extend(new.values())
        async with self._work:
            self._work.notify_all()
        return len(new), len(rollouts) - len(new)

    async def cancel(self, rollout_id: str, reason: str) -> RolloutStatus:
        """Take a queued rollout out; tell the worker of a running one at its next heart-beat.

        Raises:
            WireError: there is no such rollout (404).
        """
        for queued in self._queue:
            if queued.id == rollout_id:
                self._queue.remove(queued)
                await self._end_unstarted(queued, reason)
                return RolloutStatus.CANCELLED
        for running in (*self._running.values(), *self._ending.values()):
            if running.rollout.id == rollout_id:
                log.info("rollout %s: cancelled: %s", rollout_id, reason)
                running.rollout = msgspec.structs.replace(running.rollout, cancel=reason)
                if running.attempt.id in self._running:
                    await self._store.put(running.rollout)
                    await self._store.flush()
                return RolloutStatus.RUNNING
        rollout = await self._store.rollout(rollout_id)
        if rollout is None:
            raise WireError(f"rollout `{rollout_id}`: not known", 404)
        return rollout.status

    async def lose_worker(self, worker: str, reason: str) -> int:
        """End all attempts that a worker holds, whose end the caller has seen; how many."""
        held = [r for r in self._running.values() if r.attempt.worker == worker]
        for running in held:
            await self._end_unreported(running, Cause.LOST, f"worker `{worker}`: {reason}")
        return len(held)

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
        self, worker: str, *, capacity: int, wait: float, upstream: str | None
    ) -> list[tuple[Attempt, Rollout, Task]]:
        """Up to `capacity` attempts, waiting up to `wait` seconds for the first."""
        self._heard[worker] = time.time()
        if not self._queue and wait > 0:
            try:
                async with asyncio.timeout(wait), self._work:
                    await self._work.wait_for(lambda: bool(self._queue))
            except TimeoutError:
                return []
        granted: list[tuple[Attempt, Rollout]] = []
        while self._queue and len(granted) < capacity:
            granted.append(self._grant(self._queue.popleft(), worker, upstream))
        announcing = asyncio.ensure_future(self._announce(granted))
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
            if self._running.pop(attempt.id, None) is not None:
                await self._sessions.end(attempt.id)
                self._numbers[rollout.id] -= 1
                await self.events.add(
                    EventKind.ATTEMPT_ENDED, rollout, attempt_id=attempt.id, cause=Cause.CANCELLED
                )
                await self._put_in_queue(rollout, first=True)

    async def open_session(
        self, rollout: Rollout, task: Task, *, worker: str, upstream: str | None
    ) -> tuple[Attempt, Rollout, Task]:
        """Store a rollout and lease it to the caller at once.

        Raises:
            WireError: the rollout is known (409).
        """
        async with self._adding:
            if await self._store.rollout(rollout.id) is not None:
                raise WireError(f"rollout `{rollout.id}`: already known; choose another id", 409)
            await self._store.put(task, run=rollout.run)
            fresh = msgspec.structs.replace(rollout, created_at=time.time())
            return (await self._announce([self._grant(fresh, worker, upstream)]))[0]

    def heartbeat(self, attempt_id: str, fence: int) -> tuple[float, bool]:
        """Renew a lease: until when it lasts, and whether the attempt is to be cancelled.

        Raises:
            FencedError: the attempt has ended or is another lease's.
        """
        running = self._held(attempt_id, fence)
        now = time.time()
        self._heard[running.attempt.worker] = now
        running.attempt = msgspec.structs.replace(
            running.attempt, lease_until=now + self._lease_seconds
        )
        return running.attempt.lease_until, running.rollout.cancel is not None

    async def finish(self, attempt_id: str, report: Finish) -> RolloutStatus:
        """End an attempt as its worker reports; the rollout's new status.

        Raises:
            FencedError: the attempt ended otherwise before, or is another lease's.
        """
        try:
            running = self._held(attempt_id, report.fence)
        except FencedError:
            status = await self._same_report(attempt_id, report)
            if status is None:
                raise
            return status
        self._heard[running.attempt.worker] = time.time()
        return await self._end_attempt(running, report)

    def running(self, attempt_id: str) -> Attempt | None:
        """The attempt, while a worker holds it."""
        running = self._running.get(attempt_id)
        return running.attempt if running else None

    def status(self) -> dict[str, Json]:
        """Counts, and how long ago each worker was heard."""
        now = time.time()
        return {
            "queued": len(self._queue),
            "running": len(self._running),
            "ended": self.ended,
            "workers": {worker: round(now - at, 1) for worker, at in self._heard.items()},
        }

    # Inside --------------------------------------------------------------------------------------------------

    def _held(self, attempt_id: str, fence: int) -> _Running:
        running = self._running.get(attempt_id)
        if running is None:
            raise FencedError(f"attempt `{attempt_id}`: has ended or is not known; drop it", 409)
        if running.attempt.fence != fence:
            # The lease's own is not told: it would let the caller in.
            raise FencedError(
                f"attempt `{attempt_id}`: fence {fence} is not the lease's; drop it", 409
            )
        return running

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
        self, rollout: Rollout, worker: str, upstream: str | None
    ) -> tuple[Attempt, Rollout]:
        now = time.time()
        number = self._numbers.get(rollout.id, 0) + 1
        self._numbers[rollout.id] = number
        self._leases += 1
        attempt = Attempt(
            id=f"{rollout.id}.{number}",
            rollout_id=rollout.id,
            number=number,
            fence=self._leases << _FENCE_BITS | secrets.randbits(_FENCE_BITS),
            worker=worker,
            started_at=now,
            deadline=now + rollout.timeout,
            lease_until=now + self._lease_seconds,
            upstream=upstream,
        )
        rollout = msgspec.structs.replace(rollout, status=RolloutStatus.RUNNING)
        self._running[attempt.id] = _Running(attempt, rollout)
        self._open(attempt, rollout)
        return attempt, rollout

    async def _announce(
        self, granted: list[tuple[Attempt, Rollout]]
    ) -> list[tuple[Attempt, Rollout, Task]]:
        """Commit leases before anyone hears of them, so that no restart forgets one."""
        if not granted:
            return []
        await self._store.put_state("leases", self._leases)
        await self._store.put(*(record for pair in granted for record in pair))
        await self._store.flush()
        leases = []
        for attempt, rollout in granted:
            await self.events.add(EventKind.ATTEMPT_STARTED, rollout, attempt_id=attempt.id)
            task = await self._store.task(rollout.run, rollout.task_id)
            leases.append((attempt, rollout, task or Task(id=rollout.task_id, input=None)))
        return leases

    def _open(self, attempt: Attempt, rollout: Rollout, calls: Sequence[Call] = ()) -> None:
        """Let the attempt's calls in; `calls` are those that it made before this server was started."""
        self._sessions.open(
            Session(
                earlier=calls,
                attempt_id=attempt.id,
                rollout_id=rollout.id,
                mode=rollout.mode,
                deadline=attempt.deadline,
                budget=rollout.budget,
                upstream=attempt.upstream,
            )
        )

    async def _end_attempt(self, running: _Running, report: Finish) -> RolloutStatus:
        attempt = running.attempt
        del self._running[attempt.id]
        self._ending[attempt.id] = running
        try:
            session = await self._sessions.end(attempt.id)
            cause = _put_down(report.cause, session)
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
                EventKind.ATTEMPT_ENDED, running.rollout, attempt_id=attempt.id, cause=cause
            )
            return await self._conclude(attempt, running.rollout, cause)
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
        if first:
            self._queue.appendleft(queued)
        else:
            self._queue.append(queued)
        async with self._work:
            self._work.notify_all()
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

    async def _reap_for_ever(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, self._lease_seconds / 4))
            try:
                now = time.time()
                await self._reap(now)
                await self._retention.look(now)
            except LightningError:
                log.exception("looking for lost attempts failed; trying again")

    async def _reap(self, now: float) -> None:
        for worker, at in list(self._heard.items()):
            if now - at > 20 * self._lease_seconds:
                del self._heard[worker]
        for running in list(self._running.values()):
            attempt = running.attempt
            if attempt.lease_until < now:
                silent = now - attempt.lease_until + self._lease_seconds
                error = (
                    f"worker `{attempt.worker}` was not heard for {silent:.0f} s;"
                    " its host died, hangs, or cannot reach the server"
                )
                await self._end_unreported(running, Cause.LOST, error)
            elif attempt.deadline + _OVERDUE < now:
                error = f"worker `{attempt.worker}` did not end the agent {_OVERDUE:.0f} s after the deadline"
                await self._end_unreported(running, Cause.TIMEOUT, error)

    async def _end_unreported(self, running: _Running, cause: Cause, error: str) -> None:
        if running.attempt.id in self._running:
            await self._end_attempt(
                running, Finish(fence=running.attempt.fence, cause=cause, error=error)
            )


def _refuse_conflict(known: Rollout, rollout: Rollout) -> None:
    differing = [name for name in _CALLER_SET if getattr(known, name) != getattr(rollout, name)]
    if differing:
        field = differing[0]
        values: tuple[Any, Any] = (getattr(known, field), getattr(rollout, field))
        raise WireError(
            f"rollout `{rollout.id}`: is known with another `{field}`: {values[0]!r} and not {values[1]!r};"
            " give a new rollout a new id",
            409,
        )


def _put_down(reported: Cause, session: Session | None) -> Cause:
    """The one cause: an agent that fails after its model call did, failed because of it."""
    error = session.last_error if session else None
    if reported is not Cause.AGENT_ERROR or error is None:
        return reported
    if error.kind is CallErrorKind.BUDGET:
        return Cause.BUDGET
    if error.kind is CallErrorKind.DEADLINE:
        return Cause.TIMEOUT
    if error.kind in (CallErrorKind.CLIENT_GONE, CallErrorKind.BAD_REQUEST):
        return reported
    return Cause.MODEL_ERROR
