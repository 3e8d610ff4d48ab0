"""Make the example's tasks: requests, each with the one call that answers it; and refunds, each with yes or no.

`python tasks.py [--output FOLDER]` writes `train.jsonl`, `val.jsonl`, `refunds_train.jsonl` and `refunds_val.jsonl`.
The same tasks come out each time. A training file and its validation file share no wording and no argument, so what is
found on the first is not remembered on the second.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools import ARTICLES, CITIES, NUMBERS, PEOPLE
from wordings import CALLS_HELD_OUT, CALLS_TRAIN, REFUNDS_HELD_OUT, REFUNDS_TRAIN

SEED = 5
ARGUMENTS = {
    "weather": CITIES,
    "flight": CITIES,
    "price": ARTICLES,
    "order": NUMBERS,
    "phone": PEOPLE,
}
"""What each tool is asked about."""
CALLS_PER_WORDING = 4
REFUNDS_PER_WORDING = {"train": 6, "val": 4}
"""How many tasks of each wording are made; even, as half of the answers are yes."""
LIMIT = 30
"""Days after which nothing is refunded."""

Task = dict[str, Any]


def write_tasks(folder: Path) -> dict[str, list[Task]]:
    """Write the four files into `folder`, replacing what is there.

    Returns:
        The tasks of each file, by its name without the ending.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made = {
        "train": _calls("train", CALLS_TRAIN),
        "val": _calls("val", CALLS_HELD_OUT),
        "refunds_train": _refunds("train", REFUNDS_TRAIN),
        "refunds_val": _refunds("val", REFUNDS_HELD_OUT),
    }
    for name, tasks in made.items():
        lines = "".join(json.dumps(task) + "\n" for task in tasks)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    return made


def _calls(split: str, wordings: dict[str, dict[str, str]]) -> list[Task]:
    tasks = []
    for tool, named in wordings.items():
        arguments = iter(_share(ARGUMENTS[tool], split, tool))
        for name, wording in named.items():
            for number in range(CALLS_PER_WORDING):
                argument = next(arguments)
                request = wording.format(argument=argument)
                tasks.append(_task(split, name, number, request, f"{tool}({argument})"))
    return _shuffled(tasks, split)


def _refunds(split: str, wordings: dict[str, str]) -> list[Task]:
    rng = random.Random(f"{SEED} days {split}")
    articles = _share(ARTICLES, split, "refunds")
    # Even numbers of days in one split and odd ones in the other, so that neither has the other's.
    days = range(2, 2 * LIMIT, 2) if split == "train" else range(3, 2 * LIMIT, 2)
    sides = {"yes": [day for day in days if day <= LIMIT], "no": [day for day in days if day > LIMIT]}  # fmt: skip
    tasks = []
    for name, wording in wordings.items():
        for number, article in enumerate(rng.sample(articles, REFUNDS_PER_WORDING[split])):
            expected = "no" if number % 2 else "yes"
            request = wording.format(article=article, days=rng.choice(sides[expected]))
            tasks.append(_task(split, name, number, request, expected))
    return _shuffled(tasks, split)


def _share(arguments: Sequence[str], split: str, purpose: str) -> list[str]:
    """The arguments of a split, in an order of its purpose's own: three fifths are for training."""
    shuffled = random.Random(SEED).sample(arguments, len(arguments))
    cut = len(shuffled) * 3 // 5
    share = shuffled[:cut] if split == "train" else shuffled[cut:]
    return random.Random(f"{SEED} {purpose}").sample(share, len(share))


def _task(split: str, wording: str, number: int, request: str, expected: str) -> Task:
    return {
        "id": f"{wording}-{number + 1}",
        "input": {"request": request},
        "expected": expected,
        "metadata": {"wording": wording},
        "split": split,
    }


def _shuffled(tasks: list[Task], split: str) -> list[Task]:
    """The tasks in an order in which the first few are of many kinds."""
    return random.Random(f"{SEED} order {split}").sample(tasks, len(tasks))


def main() -> None:
    """Write the tasks and say what was written."""
    parser = argparse.ArgumentParser(description="Make requests to an assistant.")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "data")
    output = parser.parse_args().output
    made = write_tasks(output)
    print(", ".join(f"{len(tasks)} tasks in {output / n}.jsonl" for n, tasks in made.items()))


if __name__ == "__main__":
    main()
