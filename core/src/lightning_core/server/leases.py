"""Leases: attempts in the hands of workers, their fences, and who was heard when."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from lightning_core.errors import FencedError, WireError
from lightning_core.gateway.session import Session
from lightning_core.rollout import Attempt, Rollout, RolloutStatus
from lightning_core.server.events import EventLog
from lightning_core.server.strategies import Strategies
from lightning_core.store.base import Store
from lightning_core.task import Task
from lightning_core.trace import Call
from lightning_core.wire import EventKind, Upstreams

LEASE_SECONDS: Final = 30.0
"""Seconds without a heart-beat after which an attempt is lost."""
_FENCE_BITS: Final = 28
"""Random bits of a fence: it grows with each lease, and no agent guesses another's."""
_FORGET_LEASES: Final = 20
"""A worker unheard for so many leases is no longer shown."""


class Sessions(Protocol):
    """The part of the gateway that leases use."""

    def open(self, session: Session) -> None:
        """Let a session's calls in."""

    async def end(self, attempt_id: str, *, grace: float = 0.0) -> Session | None:
        """Let no more in; return once every call is recorded."""


class Held(msgspec.Struct):
    """An attempt that a worker holds."""

    attempt: Attempt
    rollout: Rollout


class Leases:
    """Grants attempts, and knows who holds them."""

    def __init__(
        self,
        store: Store,
        sessions: Sessions,
        events: EventLog,
        lease_seconds: float,
        strategies: Strategies,
    ) -> None:
        """Args:
        store: where each lease is committed before anyone hears of it.
        sessions: the gateway, which lets an attempt's calls in while it runs.
        events: told of each lease.
        lease_seconds: seconds without a heart-beat after which an attempt is lost.
        strategies: what the calls of attempts are changed by.
        """
        self.seconds = lease_seconds
        self._store = store
        self._sessions = sessions
        self._events = events
        self._strategies = strategies
        self._held: dict[str, Held] = {}
        self._heard: dict[str, float] = {}
        self._gone: set[str] = set()
        self._granted = 0

    def __len__(self) -> int:
        """How many attempts are held."""
        return len(self._held)

    async def start(self) -> None:
        """Go on where the last server on this store ended."""
        self._granted = int(await self._store.get_state("leases") or 0)

    def take_up(self, attempt: Attempt, rollout: Rollout, calls: Sequence[Call]) -> None:
        """Renew a lease that an earlier server granted; `calls` are those that the attempt made then."""
        attempt = msgspec.structs.replace(attempt, lease_until=time.time() + self.seconds)
        self._hold(attempt, rollout, calls)

    def grant(
        self, rollout: Rollout, number: int, worker: str, upstreams: Upstreams
    ) -> tuple[Attempt, Rollout]:
        """Lease attempt `number` of a rollout to a worker; to be announced before anyone hears of it."""
        now = time.time()
        self._granted += 1
        attempt = Attempt(
            id=f"{rollout.id}.{number}",
            rollout_id=rollout.id,
            number=number,
            fence=self._granted << _FENCE_BITS | secrets.randbits(_FENCE_BITS),
            worker=worker,
            started_at=now,
            deadline=now + rollout.timeout,
            lease_until=now + self.seconds,
            upstream=upstreams.default,
            upstreams=upstreams.by_format,
        )
        rollout = msgspec.structs.replace(rollout, status=RolloutStatus.RUNNING)
        self._hold(attempt, rollout)
        return attempt, rollout

    async def announce(
        self, granted: Sequence[tuple[Attempt, Rollout]]
    ) -> list[tuple[Attempt, Rollout, Task]]:
        """Commit leases before anyone hears of them, so that no restart forgets one."""
        if not granted:
            return []
        await self._store.put_state("leases", self._granted)
        await self._store.put(*(record for pair in granted for record in pair))
        await self._store.flush()
        leases = []
        for attempt, rollout in granted:
            await self._events.add(EventKind.ATTEMPT_STARTED, rollout, attempt_id=attempt.id)
            task = await self._store.task(rollout.run, rollout.task_id)
            leases.append((attempt, rollout, task or Task(id=rollout.task_id, input=None)))
        return leases

    def heartbeat(self, attempt_id: str, fence: int) -> tuple[float, bool]:
        """Renew a lease: until when it lasts, and whether the attempt is to be cancelled.

        Raises:
            FencedError: the attempt has ended or is another lease's.
        """
        held = self.find(attempt_id, fence)
        self.heard(held.attempt.worker)
        until = time.time() + self.seconds
        held.attempt = msgspec.structs.replace(held.attempt, lease_until=until)
        return until, held.rollout.cancel is not None

    def find(self, attempt_id: str, fence: int) -> Held:
        """What is held under a fence.

        Raises:
            FencedError: the attempt has ended or is another lease's.
        """
        held = self._held.get(attempt_id)
        if held is None:
            raise FencedError(f"attempt `{attempt_id}`: has ended or is not known; drop it", 409)
        if held.attempt.fence != fence:
            # The lease's own is not told: it would let the caller in.
            raise FencedError(
                f"attempt `{attempt_id}`: fence {fence} is not the lease's; drop it", 409
            )
        return held

    def get(self, attempt_id: str) -> Held | None:
        """What is held of this id."""
        return self._held.get(attempt_id)

    def all(self) -> list[Held]:
        """Everything that is held."""
        return list(self._held.values())

    def end(self, attempt_id: str) -> Held | None:
        """Hold an attempt no longer; what it was, None where it was not held."""
        return self._held.pop(attempt_id, None)

    def heard(self, worker: str) -> None:
        """A worker has asked or told something."""
        if worker not in self._gone:
            self._heard[worker] = time.time()

    def gone(self, worker: str) -> None:
        """A worker's end has been seen: nothing is leased under its name any more."""
        self._gone.add(worker)
        self._heard.pop(worker, None)

    def refuse_gone(self, worker: str) -> None:
        """Refuse one that outlived the news of its end (`WireError`, 409)."""
        if worker in self._gone:
            raise WireError(
                f"worker `{worker}`: has been told to have ended, and what it held is given to others; start it under"
                " another name",
                409,
            )

    def workers(self) -> dict[str, float]:
        """Seconds since each worker was last heard; those silent for long are forgotten."""
        now = time.time()
        for worker, at in list(self._heard.items()):
            if now - at > _FORGET_LEASES * self.seconds:
                del self._heard[worker]
        return {worker: round(now - at, 1) for worker, at in self._heard.items()}

    def _hold(self, attempt: Attempt, rollout: Rollout, calls: Sequence[Call] = ()) -> None:
        """Hold an attempt and let its calls in; `calls` are those that it made before this server was started."""
        self._held[attempt.id] = Held(attempt, rollout)
        strategy, tally = self._strategies.of(rollout)
        self._sessions.open(
            Session(
                earlier=calls,
                attempt_id=attempt.id,
                rollout_id=rollout.id,
                run=rollout.run,
                mode=rollout.mode,
                deadline=attempt.deadline,
                budget=rollout.budget,
                upstream=attempt.upstream,
                upstreams=attempt.upstreams,
                strategy=strategy,
                tally=tally,
            )
        )
