"""Dataset: the rows that verl draws from. A row names a task; the task itself stays with the server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from lightning_core.rollout import Mode
from lightning_core.task import Task


def write_rows(
    path: Path, tasks: Sequence[Task], mode: Mode, *, at_least: int = 1, kind: str | None = None
) -> None:
    """Write a row for each task, as JSON lines.

    Args:
        path: the file.
        tasks: what verl draws from.
        mode: what rollouts of these rows are run in.
        at_least: rows to write; tasks are repeated where there are fewer, since verl drops a batch that is not full.
        kind: the metadata field by which validation results are told apart.
    """
    rounds = -(-at_least // len(tasks))
    many = [*tasks] * rounds
    count = max(at_least, len(tasks))
    with path.open("wb") as file:
        for index, task in enumerate(many[:count]):
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
