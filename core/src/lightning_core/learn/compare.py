"""Comparing two policies or strategies on the same tasks: the gain, and how sure of it one may be.

Intervals are of the bootstrap over tasks (Efron and Tibshirani 1993), paired as in Koehn 2004. The percentile interval is
too narrow for few tasks; it is widened as Student's t widens that of a mean ("expanded percentile", Hesterberg 2015).
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from typing import Final

from lightning_core.learn.spread import means, t_quantile
from lightning_core.records import Record

LEAST_TASKS: Final = 5
"""With fewer tasks there is no interval, and no claim is made."""


class Gain(Record, frozen=True, kw_only=True):
    """By how much the mean reward on the same tasks differs, after less before."""

    before: float
    """Mean over tasks of the mean reward before (no unit)."""
    after: float
    """The same after."""
    gain: float
    """`after` less `before`."""
    low: float | None = None
    """Lower end of the 95 % interval of the gain; None where fewer than `LEAST_TASKS` were resampled."""
    high: float | None = None
    """Upper end of it."""
    tasks: int
    """Tasks that were scored both times; the others are left out of every number here."""
    clusters: int
    """What was resampled: tasks, or kinds of tasks."""

    @property
    def improved(self) -> bool:
        """Whether the whole interval lies above zero."""
        return self.low is not None and self.low > 0.0

    def __str__(self) -> str:
        """Before, after, the gain with its interval, and what is sure of it."""
        of = "1 task" if self.tasks == 1 else f"{self.tasks} tasks"
        if self.clusters != self.tasks:
            of += f" of {self.clusters} kinds"
        told = f"{self.before:.3f} before, {self.after:.3f} after; gain {self.gain:+.3f}, "
        if self.low is None or self.high is None:
            return told + f"over {of}: too few for a claim, which needs {LEAST_TASKS}"
        told += f"95 % interval [{self.low:+.3f}, {self.high:+.3f}] over {of}"
        if self.improved:
            return told
        return told + ("; it got worse" if self.high < 0.0 else "; no improvement is shown")


def paired_gain(
    before: Mapping[str, Sequence[float]],
    after: Mapping[str, Sequence[float]],
    *,
    kinds: Mapping[str, str] | None = None,
    draws: int = 10_000,
    seed: int = 0,
) -> Gain | None:
    """The gain. A task's rewards are averaged first, so that repeats make its mean less noisy and not its weight greater.

    Args:
        before: rewards by task.
        after: rewards by task.
        kinds: the kind of each task, such as its wording. Tasks of one kind stand or fall together, so whole kinds are
            resampled then (cluster bootstrap), and the interval says what to expect of other kinds; without it tasks
            are, and it says what to expect of other tasks of these kinds.
        draws: how often tasks are resampled.
        seed: of the resampling; the order of tasks plays no part.

    Returns:
        None where no task was scored both times.
    """
    first, second = means(before), means(after)
    shared = [task for task in first if task in second]
    if not shared:
        return None
    clusters: dict[str, list[float]] = {}
    for task in shared:
        kind = task if kinds is None else kinds.get(task, task)
        clusters.setdefault(kind, []).append(second[task] - first[task])
    low, high = interval(list(clusters.values()), draws=draws, seed=seed) or (None, None)
    return Gain(
        before=statistics.fmean(first[task] for task in shared),
        after=statistics.fmean(second[task] for task in shared),
        gain=statistics.fmean(second[task] - first[task] for task in shared),
        low=low,
        high=high,
        tasks=len(shared),
        clusters=len(clusters),
    )


def interval(
    clusters: Sequence[Sequence[float]], *, draws: int, seed: int
) -> tuple[float, float] | None:
    """The 95 % interval of the mean over all values. Where all are the same it is that one point.

    Args:
        clusters: values that stand or fall together; whole ones are resampled.
        draws: how often.
        seed: of the resampling.

    Returns:
        None with fewer clusters than `LEAST_TASKS`.
    """
    count = len(clusters)
    if count < LEAST_TASKS:
        return None
    draw = random.Random(seed)
    whole = [(math.fsum(values), len(values)) for values in clusters]
    found = []
    for _ in range(draws):
        sums, sizes = zip(*draw.choices(whole, k=count), strict=True)
        found.append(math.fsum(sums) / sum(sizes))
    found.sort()
    tail = statistics.NormalDist().cdf(-math.sqrt(count / (count - 1)) * t_quantile(count - 1))
    return _quantile(found, tail), _quantile(found, 1.0 - tail)


def _quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which a share of the ordered values lies, between neighbours in proportion."""
    whole, part = divmod(share * (len(ordered) - 1), 1.0)
    low, high = ordered[int(whole)], ordered[min(int(whole) + 1, len(ordered) - 1)]
    return low + part * (high - low)
