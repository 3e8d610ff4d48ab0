"""Make the example's tasks: word problems of two steps, with solutions as GSM8K writes them.

`python tasks.py [--output FOLDER]` writes `train.jsonl` and `val.jsonl`. The same tasks come out each time. The two share
no wording, so a gain on the second is not remembered from the first.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

SEED = 7
PER_WORDING = {"train": 12, "val": 8}
"""How many problems of each wording are made."""

TRAIN = {
    "boxes": ("A shop packs {a} boxes of {b} pens and keeps {c} single pens. How many pens is that?", "+"),
    "bus": ("A bus holds {a} people. {b} full buses arrive and {c} people get off. How many stay?", "-"),
    "wages": ("Ada earns {a} dollars an hour and works {b} hours. She spends {c} dollars. How much is left?", "-"),
    "shelves": ("There are {a} shelves with {b} books each, and {c} more lie on a table. How many books?", "+"),
    "eggs": ("Hens lay {a} eggs on each of {b} days. {c} break. How many eggs are whole?", "-"),
    "tickets": ("{b} friends buy tickets for {a} dollars each and share snacks for {c} dollars. What do they pay?", "+"),
    "garden": ("A garden has {b} rows of {a} tulips. {c} tulips are picked. How many are left?", "-"),
    "run": ("Tim runs {a} miles on each of {b} mornings and {c} miles on Sunday. How far does he run?", "+"),
}  # fmt: skip
HELD_OUT = {
    "bakery": ("Every tray takes {a} rolls. The baker fills {b} trays, then sells {c} rolls. How many remain?", "-"),
    "coins": ("Each of {b} jars contains {a} coins; another {c} coins are in a purse. Count the coins.", "+"),
    "pages": ("For {b} evenings Mia reads {a} pages, and today {c} pages. What is her total?", "+"),
    "paint": ("{b} cans with {a} litres were bought, of which {c} litres have dried up. What can be used?", "-"),
}  # fmt: skip
"""Wordings by name: the text, and whether `c` is added to `a` times `b` or taken away."""


def write_tasks(folder: Path) -> dict[str, list[dict[str, object]]]:
    """Write `train.jsonl` and `val.jsonl` into `folder`, replacing what is there.

    Returns:
        The tasks of each split.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made = {"train": _split("train", TRAIN), "val": _split("val", HELD_OUT)}
    for split, tasks in made.items():
        lines = "".join(json.dumps(task) + "\n" for task in tasks)
        (folder / f"{split}.jsonl").write_text(lines, encoding="utf-8")
    return made


def _split(split: str, wordings: dict[str, tuple[str, str]]) -> list[dict[str, object]]:
    rng = random.Random(f"{SEED} {split}")  # so that one split does not change with the other
    tasks: list[dict[str, object]] = []
    for number in range(PER_WORDING[split]):
        for name, (wording, sign) in wordings.items():
            a, b, c = rng.randrange(12, 60), rng.randrange(6, 30), rng.randrange(11, 70)
            product = a * b
            total = product + c if sign == "+" else product - c
            solution = f"<<{a}*{b}={product}>>{product}, <<{product}{sign}{c}={total}>>{total}\n#### {total}"
            tasks.append(
                {
                    "id": f"{name}-{number + 1}",
                    "input": wording.format(a=a, b=b, c=c),
                    "expected": solution,
                    "metadata": {"wording": name},
                    "split": split,
                }
            )
    return tasks


def main() -> None:
    """Write the tasks and say what was written."""
    parser = argparse.ArgumentParser(description="Make word problems.")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "data")
    output = parser.parse_args().output
    made = write_tasks(output)
    print(", ".join(f"{len(tasks)} tasks in {output / s}.jsonl" for s, tasks in made.items()))


if __name__ == "__main__":
    main()
