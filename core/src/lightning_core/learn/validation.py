"""Validation: what the rollouts of held-out tasks say, at one moment and from the first to the last."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from lightning_core.learn.compare import paired_gain
from lightning_core.learn.spread import means
from lightning_core.reward import RewardScope
from lightning_core.task import Task
from lightning_core.trace import Trace

Rewards = Mapping[str, Sequence[float]]
"""Rewards by task id; empty for a task of which no rollout is scored."""


def rewards_by_task(traces: Iterable[Trace]) -> dict[str, list[float]]:
    """The rewards of graded traces, by task."""
    found: dict[str, list[float]] = {}
    for trace in traces:
        values = found.setdefault(trace.task.id, [])
        if trace.reward is not None:
            values.append(trace.reward)
    return found


def validation_line(traces: Sequence[Trace]) -> dict[str, Any]:
    """The numbers of a validation, for a line of `metrics.jsonl`: counts, mean reward, mean of each further reward."""
    values = [value for rewards in rewards_by_task(traces).values() for value in rewards]
    line: dict[str, Any] = {"val/rollouts": len(traces), "val/scored": len(values)}
    others: dict[str, list[float]] = {}
    for trace in traces:
        for reward in trace.rewards:
            whole = reward.scope is RewardScope.ROLLOUT and reward.name != "reward"
            if whole and reward.value is not None:
                others.setdefault(reward.name, []).append(reward.value)
    if values:
        line["val/reward"] = sum(values) / len(values)
    return line | {f"val/reward/{name}": value for name, value in means(others).items()}


def compared(vals: Mapping[str, Rewards], tasks: Iterable[Task], by: str | None) -> dict[str, Any]:
    """What an artifact says of the first and the last validation.

    Args:
        vals: rewards by the number of the step after which they were had, as text.
        tasks: the validation tasks.
        by: the metadata field that names a task's kind; None where tasks have none.

    Returns:
        `val`, a `Gain` as JSON, where some task was scored both times; `kinds`, for each kind the mean reward before
        and after and the number of tasks. Empty with fewer than two validations.
    """
    if len(vals) < 2:
        return {}
    steps = sorted(vals, key=int)
    before, after = vals[steps[0]], vals[steps[-1]]
    kinds = {task.id: str(task.metadata[by]) for task in tasks if by in task.metadata}
    found: dict[str, Any] = {}
    gain = paired_gain(before, after, kinds=kinds or None)
    if gain is not None:
        found["val"] = msgspec.to_builtins(gain)
    if kinds:
        found["kinds"] = _by_kind(before, after, kinds)
    return found


def _by_kind(
    before: Rewards, after: Rewards, kinds: Mapping[str, str]
) -> dict[str, tuple[float, float, int]]:
    """Mean reward before and after, and the number of tasks, of each kind of tasks scored both times."""
    first: dict[str, list[float]] = {}
    second: dict[str, list[float]] = {}
    for task, kind in kinds.items():
        if before.get(task) and after.get(task):
            first.setdefault(kind, []).append(sum(before[task]) / len(before[task]))
            second.setdefault(kind, []).append(sum(after[task]) / len(after[task]))
    later = means(second)
    return {kind: (mean, later[kind], len(first[kind])) for kind, mean in means(first).items()}
