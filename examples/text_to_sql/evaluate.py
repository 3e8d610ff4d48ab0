"""Run the agent on questions and say how well it did.

`python evaluate.py` takes the example's own validation questions, made first where they are missing;
`--data FOLDER` takes Spider-shaped data. `--model smollm2` serves the embedded model, `--model URL` uses a server
that runs; without it the agent's calls go where its environment says.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import make_data
from agent import graph, score
from data import spider_tasks
from execution_match import check_gold, execution_match

import lightning_core as lc

DATA = Path(__file__).parent / "data"
CONSTANT = "SELECT 1 WHERE 0"
"""An answer that knows nothing; a score means something only above what this one gets."""


def load(folder: Path | None, split: str, limit: int | None) -> list[lc.Task]:
    """The tasks of a folder, or the example's own, each gold query checked.

    Raises:
        ValueError: a task or a gold query is not usable.
    """
    if folder is not None:
        tasks = spider_tasks(folder, split, limit)
    else:
        if not (DATA / f"{split}.jsonl").exists():
            make_data.make(DATA)
        tasks = lc.load_tasks(DATA / f"{split}.jsonl", limit=limit)
    for task in tasks:
        check_gold(task.expected["query"], task.input["database"])
    return tasks


def floor(tasks: Sequence[lc.Task]) -> float:
    """What the constant answer scores on the tasks."""
    hits = [
        execution_match(CONSTANT, task.expected["query"], task.input["database"]) for task in tasks
    ]
    return sum(hits) / len(hits)


def report(tasks: Sequence[lc.Task], result: lc.RunResult) -> str:
    """The run in a few lines."""
    mean = "no rollout was scored" if result.mean_reward is None else f"{result.mean_reward:.3f}"
    lines = [
        f"execution match  {mean} (constant answer: {floor(tasks):.3f})",
        f"scored           {result.scored} of {len(result.traces)} rollouts on {len(tasks)} questions",
    ]
    for name in ("official", "runs"):
        values = [
            reward.value
            for trace in result.traces
            for reward in trace.rewards
            if reward.name == name and reward.value is not None
        ]
        if values:
            lines.append(f"{name:<16} {sum(values) / len(values):.3f}")
    lines += [
        f"ended in         {cause.value}: {count}" for cause, count in sorted(result.causes.items())
    ]
    return "\n".join([*lines, f"run              {result.folder}"])


def main() -> None:
    """Evaluate as the command line says."""
    parser = argparse.ArgumentParser(description="Score the text-to-SQL agent.")
    parser.add_argument("--data", type=Path, help="Spider-shaped folder")
    parser.add_argument("--split", default="val", choices=["train", "val"])
    parser.add_argument("--limit", type=int, help="take no more questions than this")
    parser.add_argument("--model", help="smollm2, another local model, or a server's address")
    parser.add_argument("--max-tokens", type=int, default=256, help="of each reply, with --model")
    parser.add_argument("--concurrency", type=int, default=8)
    options = parser.parse_args()
    tasks = load(options.data, options.split, options.limit)
    result = lc.run_sync(
        graph,
        tasks,
        reward=score,
        model=options.model,
        sampling=lc.SamplingPolicy(temperature=0.0, max_tokens=options.max_tokens),
        concurrency=options.concurrency,
    )
    print(report(tasks, result))


if __name__ == "__main__":
    main()
