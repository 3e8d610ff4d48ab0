"""Comparing strategies by noisy rewards: the difference on the same tasks, and how sure of it one may be.

Intervals are of the bootstrap over tasks (Efron and Tibshirani 1993), paired as in Koehn 2004. The percentile interval is
too narrow for few tasks; it is widened as Student's t widens that of a mean ("expanded percentile", Hesterberg 2015).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from lightning_core.errors import UsageError
from lightning_core.records import Record

if TYPE_CHECKING:
    from numpy.typing import NDArray

Rewards = Mapping[str, Sequence[float | None]]
"""By task the reward of each rollout; None is a rollout that was not scored."""

LEAST_TASKS: Final = 5
"""With fewer tasks there is no interval, and no claim is made."""
_CHUNK: Final = 1 << 20


class Interval(Record, frozen=True, kw_only=True):
    """The mean reward of one strategy."""

    mean: float | None = None
    """Mean over tasks of a task's mean reward; None where nothing is scored."""
    low: float | None = None
    """Lower end of its interval; None with fewer than `LEAST_TASKS` tasks."""
    high: float | None = None
    """Its upper end."""
    tasks: int = 0
    """Tasks with a scored rollout."""
    unscored: int = 0
    """Rollouts that were not scored; they are in no other number here."""


class Comparison(Record, frozen=True, kw_only=True):
    """Two strategies on the same tasks. Means are over tasks, of the mean over a task's rollouts."""

    before: float | None = None
    """Mean reward of the one, over `tasks`; None where there are none."""
    after: float | None = None
    """Mean reward of the other."""
    difference: float | None = None
    """`after` less `before`."""
    low: float | None = None
    """Lower end of the interval of the difference; None where fewer than `LEAST_TASKS` were resampled."""
    high: float | None = None
    """Its upper end."""
    confidence: float = 0.95
    """How often such an interval holds the true difference."""
    tasks: int = 0
    """Tasks with scored rollouts of both."""
    clusters: int = 0
    """What was resampled: tasks, or kinds of tasks."""
    left_out: int = 0
    """Tasks with scored rollouts of one alone, or of none."""
    unscored: int = 0
    """Rollouts that were not scored, of both."""

    @property
    def improved(self) -> bool:
        """Whether the whole interval lies above 0."""
        return self.low is not None and self.low > 0.0

    def __str__(self) -> str:
        """Before, after, difference with its interval, the verdict, and what was left out."""
        if self.before is None or self.after is None or self.difference is None:
            told = "no task has scored rollouts of both: nothing can be compared"
        else:
            told = f"{self.before:.3f} before, {self.after:.3f} after; difference {self.difference:+.3f}, "
            if self.low is None or self.high is None:
                told += f"over {_of(self)}: too few for a claim, which needs {LEAST_TASKS}"
            else:
                told += f"{self.confidence * 100:g} % interval [{self.low:+.3f}, {self.high:+.3f}] over {_of(self)}"
                if not self.improved:
                    told += "; no improvement is shown"
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
    confidence: float = 0.95,
    draws: int = 10_000,
    seed: int = 0,
    kinds: Mapping[str, str] | None = None,
) -> Comparison:
    """Compare two strategies by their rewards on the same tasks.

    A task's rollouts are averaged first, so that repeats make its mean less noisy and not its weight greater. Where all
    tasks differ by the same the interval is that one point.

    Args:
        before: rewards of the one.
        after: rewards of the other.
        confidence: of the interval, above 0 and below 1.
        draws: how often tasks are resampled.
        seed: of the resampling; the order of tasks plays no part.
        kinds: the kind of each task. Tasks of a kind stand or fall together, so that whole kinds are resampled, and the
            interval says what to expect of other kinds.

    Raises:
        UsageError: the confidence is none.
    """
    first, second = _means(before), _means(after)
    shared = sorted(first.keys() & second.keys())
    counts = Comparison(
        confidence=confidence,
        tasks=len(shared),
        left_out=len(before.keys() | after.keys()) - len(shared),
        unscored=_unscored(before) + _unscored(after),
    )
    if not shared:
        return counts
    clusters: dict[str, list[float]] = {}
    for task in shared:
        kind = task if kinds is None else kinds.get(task, task)
        clusters.setdefault(kind, []).append(second[task] - first[task])
    low, high = _bootstrap(list(clusters.values()), confidence, draws, seed) or (None, None)
    return msgspec.structs.replace(
        counts,
        before=statistics.fmean(first[task] for task in shared),
        after=statistics.fmean(second[task] for task in shared),
        difference=statistics.fmean(second[task] - first[task] for task in shared),
        low=low,
        high=high,
        clusters=len(clusters),
    )


def mean_interval(
    rewards: Rewards, *, confidence: float = 0.95, draws: int = 10_000, seed: int = 0
) -> Interval:
    """The mean reward of one strategy. Takes what `compare` takes, and raises as it does.

    Where all tasks have the same mean the interval is that one point: it knows nothing of what was not seen.
    """
    means = _means(rewards)
    unscored = _unscored(rewards)
    if not means:
        return Interval(unscored=unscored)
    values = [[means[task]] for task in sorted(means)]
    low, high = _bootstrap(values, confidence, draws, seed) or (None, None)
    mean = statistics.fmean(means.values())
    return Interval(mean=mean, low=low, high=high, tasks=len(means), unscored=unscored)


def spread(draws: Sequence[float]) -> Spread:
    """The spread of the results of several draws, such as of several seeds; at least one."""
    return Spread(count=len(draws), min=min(draws), median=statistics.median(draws), max=max(draws))


def _bootstrap(
    clusters: Sequence[Sequence[float]], confidence: float, draws: int, seed: int
) -> tuple[float, float] | None:
    """The interval of the mean over all values, with whole clusters resampled; None for too few of them."""
    if not 0.0 < confidence < 1.0:
        raise UsageError(f"confidence: expected a number between 0 and 1 but got {confidence!r}")
    count = len(clusters)
    if count < LEAST_TASKS:
        return None
    sums = np.array([math.fsum(values) for values in clusters])
    sizes = np.array([len(values) for values in clusters])
    random = np.random.default_rng(seed)
    means: list[NDArray[np.float64]] = []
    rows = max(1, _CHUNK // count)
    for start in range(0, draws, rows):
        chosen = random.integers(0, count, size=(min(rows, draws - start), count))
        means.append(sums[chosen].sum(axis=1) / sizes[chosen].sum(axis=1))
    reach = math.sqrt(count / (count - 1)) * _t_quantile((1.0 + confidence) / 2.0, count - 1)
    tail = statistics.NormalDist().cdf(-reach)
    low, high = np.quantile(np.concatenate(means), [tail, 1.0 - tail])
    return float(low), float(high)


def _t_quantile(p: float, degrees: int) -> float:
    """Quantile of Student's t by its expansion about the normal distribution (Abramowitz and Stegun 26.7.5)."""
    x = statistics.NormalDist().inv_cdf(p)
    terms = (
        x,
        (x**3 + x) / 4,
        (5 * x**5 + 16 * x**3 + 3 * x) / 96,
        (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384,
        (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160,
    )
    return math.fsum(term / degrees**power for power, term in enumerate(terms))


def _means(rewards: Rewards) -> dict[str, float]:
    """The mean reward of each task that has a scored rollout."""
    scored = {
        task: [value for value in values if value is not None] for task, values in rewards.items()
    }
    return {task: statistics.fmean(values) for task, values in scored.items() if values}


def _unscored(rewards: Rewards) -> int:
    return sum(value is None for values in rewards.values() for value in values)


def _of(comparison: Comparison) -> str:
    tasks = "1 task" if comparison.tasks == 1 else f"{comparison.tasks} tasks"
    return (
        tasks
        if comparison.clusters == comparison.tasks
        else f"{tasks} of {comparison.clusters} kinds"
    )
