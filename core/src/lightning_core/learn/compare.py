"""Comparing two policies on the same tasks: the gain, and how sure of it one may be."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Final

from lightning_core.records import Record

_RESAMPLES: Final = 4000


class Gain(Record, frozen=True, kw_only=True):
    """By how much the mean reward on the same tasks differs, after less before."""

    before: float
    """Mean over tasks of the mean reward before (no unit)."""
    after: float
    """The same after."""
    gain: float
    """`after` less `before`."""
    low: float
    """Lower end of the 95 % interval of the gain."""
    high: float
    """Upper end of it."""
    tasks: int
    """Tasks that were scored both times; the others are left out of every number here."""
    clusters: int
    """What was resampled: tasks, or kinds of tasks."""

    @property
    def certain(self) -> bool:
        """Whether the interval lies on one side of zero."""
        return self.low > 0.0 or self.high < 0.0


def paired_gain(
    before: Mapping[str, Sequence[float]],
    after: Mapping[str, Sequence[float]],
    *,
    kinds: Mapping[str, str] | None = None,
    seed: int = 0,
) -> Gain | None:
    """The gain, with a percentile bootstrap interval (Efron 1979) over paired differences.

    Args:
        before: rewards by task.
        after: rewards by task.
        kinds: the kind of each task, such as its wording. Tasks of one kind stand or fall together, so whole kinds are
            resampled then (cluster bootstrap), and the interval says what to expect of other kinds; without it tasks
            are, and it says what to expect of other tasks of these kinds.
        seed: of the resampling.

    Returns:
        None where no task was scored both times.
    """
    shared = sorted(task for task in before if before[task] and after.get(task))
    if not shared:
        return None
    first = {task: _mean(before[task]) for task in shared}
    second = {task: _mean(after[task]) for task in shared}
    clusters: dict[str, list[float]] = {}
    for task in shared:
        kind = task if kinds is None else kinds.get(task, task)
        clusters.setdefault(kind, []).append(second[task] - first[task])
    sums = [(sum(values), len(values)) for _, values in sorted(clusters.items())]
    draw = random.Random(seed)
    means = []
    for _ in range(_RESAMPLES):
        chosen = draw.choices(sums, k=len(sums))
        means.append(sum(total for total, _ in chosen) / sum(count for _, count in chosen))
    means.sort()
    return Gain(
        before=_mean(list(first.values())),
        after=_mean(list(second.values())),
        gain=_mean([second[task] - first[task] for task in shared]),
        low=means[round(0.025 * (_RESAMPLES - 1))],
        high=means[round(0.975 * (_RESAMPLES - 1))],
        tasks=len(shared),
        clusters=len(sums),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
