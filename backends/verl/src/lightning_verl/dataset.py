"""Dataset: the rows that verl draws from. A row names a task; the task itself stays with the server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from lightning_core.learn.samplers import TaskSampler
from lightning_core.optimization import OptimizeConfig
from lightning_core.rollout import Mode
from lightning_core.task import Task


def drawn(asked: OptimizeConfig, sampler: TaskSampler) -> list[Task]:
    """The tasks of all steps, in the order in which verl is to take them.

    Args:
        asked: how many steps there are, and what may be taken beside them: groups that replace others, and the step that
            is ahead.
        sampler: what draws them; it hears of no rewards.
    """
    batches = asked.steps * (1 + asked.refill) + asked.asynchronous
    return [task for _ in range(batches) for task in sampler.draw(asked.batch_size)]


def write_rows(path: Path, tasks: Sequence[Task], mode: Mode, *, kind: str | None = None) -> None:
    """Write a row for each task, as JSON lines.

    Args:
        path: the file.
        tasks: what verl takes, in order; a task may be there several times.
        mode: what rollouts of these rows are run in.
        kind: the metadata field by which validation results are told apart.
    """
    with path.open("wb") as file:
        for index, task in enumerate(tasks):
            name = task.metadata.get(kind) if kind is not None else None
            row = {
                "data_source": "all" if name is None else str(name),
                # verl wants messages; what the agent says to the model is the agent's own.
                "prompt": [{"role": "user", "content": task.id}],
                # verl's form has it. Grading is the run's; what only the grader may see is not here.
                "reward_model": {"style": "rule", "ground_truth": ""},
                "extra_info": {"index": index, "task": task.id, "mode": str(mode)},
            }
            file.write(msgspec.json.encode(row) + b"\n")
