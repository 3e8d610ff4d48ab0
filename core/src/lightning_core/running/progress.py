"""Progress: how a run stands, for whoever shows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from lightning_core.rollout import Cause
from lightning_core.trace import Trace


class Progress:
    """Counts of one run, updated as rollouts end. Read it; do not change it."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.ended = 0
        self.running = 0
        self.scored = 0
        self.reward_sum = 0.0
        self.calls = 0
        self.tokens = 0
        self.causes: dict[Cause, int] = {}
        self.reward_errors = 0
        self.note: str | None = None
        """What the run waits for, such as its server; None where all is well."""
        self.phase: str | None = None
        """What a backend is doing; None where there is none."""
        self.panel: Callable[[], object] | None = None
        """Gives what a backend shows of its own, for rich to render; None where it shows nothing."""
        self.steps: dict[int, dict[str, Any]] = {}
        """The metrics of each step that a backend has logged, by its number."""
        self._before = 0

    @property
    def mean_reward(self) -> float | None:
        """Mean reward over scored rollouts; None where none is scored."""
        return self.reward_sum / self.scored if self.scored else None

    @property
    def batch(self) -> tuple[int, int] | None:
        """Of the rollouts that were asked for since none was waited for: how many have ended, and how many there are; None
        where none is waited for."""
        if self.ended >= self.total:
            return None
        return self.ended - self._before, self.total - self._before

    def expect(self, count: int) -> None:
        """So many rollouts are asked for."""
        if self.ended >= self.total:
            self._before = self.ended
        self.total += count

    def add(self, trace: Trace) -> None:
        """Count a rollout that has ended and been graded."""
        self.ended += 1
        self.calls += len(trace.calls)
        self.tokens += sum(call.total_tokens for call in trace.calls)
        if trace.reward is not None:
            self.scored += 1
            self.reward_sum += trace.reward
        cause = trace.attempt.cause
        if cause is not None:
            self.causes[cause] = self.causes.get(cause, 0) + 1
        if cause is Cause.SUCCESS and trace.rewards and trace.reward is None:
            self.reward_errors += 1


ProgressListener = Callable[[Progress], None]
"""Called in the run's event loop whenever a count changes; must return at once."""


class Line(msgspec.Struct, frozen=True):
    """One line of `metrics.jsonl` for a rollout."""

    rollout: str
    task: str
    split: str
    mode: str
    cause: str | None
    reward: float | None
    rewards: dict[str, float]
    calls: int
    tokens: int
    seconds: float
    ended_at: float | None

    @classmethod
    def of(cls, trace: Trace) -> Line:
        """The line for a rollout that has ended and been graded."""
        attempt = trace.attempt
        return cls(
            rollout=trace.rollout.id,
            task=trace.task.id,
            split=trace.task.split,
            mode=str(trace.rollout.mode),
            cause=str(attempt.cause) if attempt.cause else None,
            reward=trace.reward,
            rewards={r.name: r.value for r in trace.rewards if r.value is not None},
            calls=len(trace.calls),
            tokens=sum(call.total_tokens for call in trace.calls),
            seconds=round((attempt.ended_at or attempt.started_at) - attempt.started_at, 3),
            ended_at=attempt.ended_at,
        )
