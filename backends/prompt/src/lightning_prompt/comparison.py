"""Comparing strategies by noisy rewards, some of which were not scored: see `lightning_core.learn.compare`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from lightning_core.learn.compare import Gain, interval, paired_gain
from lightning_core.records import Record

Rewards = Mapping[str, Sequence[float | None]]
"""By task the reward of each rollout; None is a rollout that was not scored."""


class Interval(Record, frozen=True, kw_only=True):
    """The mean reward of one strategy."""

    mean: float | None = None
    """Mean over tasks of a task's mean reward; None where nothing is scored."""
    low: float | None = None
    """Lower end of its 95 % interval; None with fewer than `LEAST_TASKS` tasks."""
    high: float | None = None
    """Its upper end."""
    tasks: int = 0
    """Tasks with a scored rollout."""
    unscored: int = 0
    """Rollouts that were not scored; they are in no other number here."""


class Comparison(Record, frozen=True, kw_only=True):
    """Two strategies on the same tasks."""

    gain: Gain | None = None
    """What the one is worth, what the other, and by how much they differ; None where no task has scored rollouts of both."""
    left_out: int = 0
    """Tasks with scored rollouts of one alone, or of none."""
    unscored: int = 0
    """Rollouts that were not scored, of both."""

    @property
    def improved(self) -> bool:
        """Whether the whole interval lies above 0."""
        return self.gain is not None and self.gain.improved

    def __str__(self) -> str:
        """Before, after, the gain with its interval, the verdict, and what was left out."""
        told = str(self.gain or "no task has scored rollouts of both: nothing can be compared")
        if self.left_out:
            told += f"; {self.left_out} tasks without scored rollouts of both left out"
        if self.unscored:
            told += f"; {self.unscored} rollouts not scored"
        return told


class Spread(Record, frozen=True, kw_only=True):
    """How far the results of several draws lie apart."""

    count: int
    """How many there are; at least 1."""
    min: float
    """The smallest."""
    median: float
    """The middle one, or the mean of the two in the middle."""
    max: float
    """The greatest."""


def compare(
    before: Rewards,
    after: Rewards,
    *,
    draws: int = 10_000,
    seed: int = 0,
    kinds: Mapping[str, str] | None = None,
) -> Comparison:
    """Compare two strategies by their rewards on the same tasks; takes what `paired_gain` takes."""
    gain = paired_gain(_scored(before), _scored(after), kinds=kinds, draws=draws, seed=seed)
    tasks = 0 if gain is None else gain.tasks
    return Comparison(
        gain=gain,
        left_out=len(before.keys() | after.keys()) - tasks,
        unscored=_unscored(before) + _unscored(after),
    )


def mean_interval(rewards: Rewards, *, draws: int = 2_000, seed: int = 0) -> Interval:
    """The mean reward of one strategy.

    Where all tasks have the same mean the interval is that one point: it knows nothing of what was not seen.
    """
    means = {task: statistics.fmean(some) for task, some in _scored(rewards).items() if some}
    unscored = _unscored(rewards)
    if not means:
        return Interval(unscored=unscored)
    values = [[means[task]] for task in sorted(means)]
    low, high = interval(values, draws=draws, seed=seed) or (None, None)
    mean = statistics.fmean(means.values())
    return Interval(mean=mean, low=low, high=high, tasks=len(means), unscored=unscored)


def spread(draws: Sequence[float]) -> Spread:
    """The spread of the results of several draws, such as of several seeds; at least one."""
    return Spread(count=len(draws), min=min(draws), median=statistics.median(draws), max=max(draws))


def _scored(rewards: Rewards) -> dict[str, list[float]]:
    return {
        task: [value for value in values if value is not None] for task, values in rewards.items()
    }


def _unscored(rewards: Rewards) -> int:
    return sum(value is None for values in rewards.values() for value in values)
