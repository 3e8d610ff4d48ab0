"""Store: where every record of a run is kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from lightning_core.reward import Reward
from lightning_core.rollout import Attempt, Rollout, RolloutStatus
from lightning_core.task import Task
from lightning_core.trace import Call, Span, Trace


class Store(ABC):
    """Keeps tasks, rollouts, attempts, calls, spans and rewards.

    Every record is replaced as a whole by a later one with the same key. Writes are queued and committed in order;
    a read sees every write that was awaited before it. The server is the only writer. Safe to call from one
    event loop; never blocks it.
    """

    # Writing -----------------------------------------------------------------------------------------------------

    @abstractmethod
    async def put(
        self, *records: Task | Rollout | Attempt | Call | Span, run: str = "default"
    ) -> None:
        """Queue records; waits only while the queue is full (back-pressure).

        Keys: `Task` (`run`, `id`); `Rollout`, `Attempt`, `Call` by `id`; `Span` (`attempt_id`, `id`).
        `run` is the run of a `Task`; the others know theirs.

        Raises:
            RecordError: one of the records cannot be kept, such as what JSON cannot hold; nothing of this put is.
            StoreError: the store is closed, or an earlier write failed (disk full): the first failure, once.
        """

    @abstractmethod
    async def put_rewards(self, rollout_id: str, rewards: Sequence[Reward]) -> None:
        """Queue rewards of a rollout. Key: (`rollout_id`, `name`, `scope`, `target`)."""

    @abstractmethod
    async def put_state(self, key: str, value: Any) -> None:
        """Queue a JSON value under a name of the server's own, such as the last fence."""

    @abstractmethod
    async def flush(self) -> None:
        """Return once everything queued so far is committed: it survives `kill -9`.

        Raises:
            StoreError: a write failed.
        """

    @abstractmethod
    async def delete(self, rollout_ids: Sequence[str]) -> None:
        """Delete rollouts with all that belongs to them, and message and token blocks that nothing else uses."""

    @abstractmethod
    async def close(self) -> None:
        """Flush and close. May be called more than once."""

    # Reading -----------------------------------------------------------------------------------------------------

    @abstractmethod
    async def get_state(self, key: str) -> Any:
        """What `put_state` kept; None where nothing was."""

    @abstractmethod
    async def task(self, run: str, task_id: str) -> Task | None:
        """One task."""

    @abstractmethod
    async def rollout(self, rollout_id: str) -> Rollout | None:
        """One rollout."""

    @abstractmethod
    async def rollouts(
        self,
        *,
        run: str | None = None,
        group: str | None = None,
        status: RolloutStatus | None = None,
        after: str | None = None,
        limit: int = 1000,
    ) -> list[Rollout]:
        """Rollouts in the order in which they were first put; `after` is the id of the last one already seen.

        Raises:
            RecordError: there is no rollout `after`; it may have been deleted.
        """

    @abstractmethod
    async def attempts(self, rollout_id: str) -> list[Attempt]:
        """A rollout's attempts by number."""

    @abstractmethod
    async def call(self, call_id: str) -> Call | None:
        """One call."""

    @abstractmethod
    async def calls(self, attempt_id: str) -> list[Call]:
        """An attempt's calls by index."""

    @abstractmethod
    async def spans(self, attempt_id: str) -> list[Span]:
        """An attempt's spans by start."""

    @abstractmethod
    async def rewards(self, rollout_id: str) -> list[Reward]:
        """A rollout's rewards, in the order in which they were first put."""

    async def trace(self, rollout_id: str, attempt: int | None = None) -> Trace | None:
        """Everything of one attempt, by default the last; None where the rollout has no such attempt."""
        rollout = await self.rollout(rollout_id)
        if rollout is None:
            return None
        attempts = await self.attempts(rollout_id)
        chosen = next(
            (a for a in reversed(attempts) if attempt is None or a.number == attempt), None
        )
        if chosen is None:
            return None
        task = await self.task(rollout.run, rollout.task_id)
        return Trace(
            rollout=rollout,
            task=task or Task(id=rollout.task_id, input=None),
            attempt=chosen,
            spans=tuple(await self.spans(chosen.id)),
            calls=tuple(await self.calls(chosen.id)),
            rewards=tuple(await self.rewards(rollout_id)),
        )
