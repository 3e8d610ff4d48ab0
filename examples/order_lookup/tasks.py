"""Make the example's tasks: messages to a shop, each with several numbers, one of which is the order's.

`python tasks.py [--output FOLDER]` writes `train.jsonl` and `val.jsonl`. The same tasks come out each time. The two
share no wording and no order number, so a gain on the second is not remembered from the first.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path

from wordings import HELD_OUT, TRAIN

SEED = 4
PER_WORDING = {"train": 6, "val": 4}
"""How many messages of each wording are made."""
NUMBERS = range(10_000, 100_000)
"""What order numbers are drawn from, and the numbers that look like them."""
POOL = 2_000
"""How many of them each split may use."""


def write_tasks(folder: Path) -> dict[str, list[dict[str, object]]]:
    """Write `train.jsonl` and `val.jsonl` into `folder`, replacing what is there.

    Returns:
        The tasks of each split.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Drawn without repetition, so that no number is an order's twice, or an order's here and another's there.
    pool = random.Random(SEED).sample(NUMBERS, 2 * POOL)
    made = {
        "train": _split("train", TRAIN, iter(pool[:POOL])),
        "val": _split("val", HELD_OUT, iter(pool[POOL:])),
    }
    for split, tasks in made.items():
        lines = "".join(json.dumps(task) + "\n" for task in tasks)
        (folder / f"{split}.jsonl").write_text(lines, encoding="utf-8")
    return made


def _split(
    split: str, wordings: Mapping[str, str], numbers: Iterator[int]
) -> list[dict[str, object]]:
    rng = random.Random(f"{SEED} {split}")  # so that one split does not change with the other
    tasks: list[dict[str, object]] = []
    for number in range(PER_WORDING[split]):
        for name, wording in wordings.items():
            order, message = fill(wording, rng, numbers)
            tasks.append(
                {
                    "id": f"{name}-{number + 1}",
                    "input": {"message": message},
                    "expected": {"number": order},
                    "metadata": {"wording": name},
                    "split": split,
                }
            )
    return tasks


def fill(wording: str, rng: random.Random, numbers: Iterator[int]) -> tuple[str, str]:
    """An order number, and the wording with it and with other numbers in it."""
    few = rng.randrange(2, 9)
    order = str(next(numbers))
    message = wording.format(
        order=order,
        code=next(numbers),
        amount=f"{rng.randrange(10, 400)}.{rng.randrange(100):02}",
        phone=f"555 {rng.randrange(10_000):04}",
        year=rng.randrange(2018, 2025),
        day=rng.randrange(4, 21),
        many=few + rng.randrange(3, 30),
        few=few,
    )
    return order, message


def main() -> None:
    """Write the tasks and say what was written."""
    parser = argparse.ArgumentParser(description="Make messages to a shop.")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "data")
    output = parser.parse_args().output
    made = write_tasks(output)
    print(", ".join(f"{len(tasks)} tasks in {output / s}.jsonl" for s, tasks in made.items()))


if __name__ == "__main__":
    main()
