"""Turn a Spider folder into Parquet files for `--tasks` and `--val`.

`python convert_dataset.py FOLDER` writes `data/spider/train.parquet` and `data/spider/val.parquet`. Tasks name their
database by its full path, so convert again after moving the folder. The data itself is not copied.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet
from data import spider_tasks
from execution_match import check_gold

from lightning_core import Task

OUTPUT = Path(__file__).parent / "data" / "spider"
SPLITS = {"train": "train.parquet", "val": "val.parquet"}
"""The file of each split."""


def convert(folder: Path, output: Path, limit: int | None = None) -> dict[str, list[Task]]:
    """Write the files.

    Every gold query is run. Tasks whose query fails or returns nothing are left out, and said on standard error: a
    result without rows would match any other.

    Args:
        folder: the data, as `data.py` takes it.
        output: where the files are written; made where it is missing.
        limit: take no more than this many of each split, spread evenly over its databases.

    Returns:
        The tasks of each split.

    Raises:
        ValueError: the folder is not Spider's; the message says what is missing. Nothing was written.
    """
    if not (folder / "database").is_dir():
        raise ValueError(
            f"`{folder}` is no Spider folder: `database`, which holds NAME/NAME.sqlite, is missing"
        )
    found = {split: fit(spider_tasks(folder, split, limit), split) for split in SPLITS}
    output.mkdir(parents=True, exist_ok=True)
    for split, tasks in found.items():
        rows = [
            {name: getattr(task, name) for name in ("id", "input", "expected", "metadata", "split")}
            for task in tasks
        ]
        table = pyarrow.Table.from_pylist(rows)
        pyarrow.parquet.write_table(table, output / SPLITS[split])
    return found


def fit(tasks: Sequence[Task], split: str) -> list[Task]:
    """The tasks whose gold query returns rows.

    Raises:
        ValueError: there are none.
    """
    kept, why = [], ""
    for task in tasks:
        try:
            if check_gold(task.expected["query"], task.input["database"]):
                kept.append(task)
                continue
            reason = "its gold query returns no row"
        except ValueError as error:
            reason = str(error)
        why = why or f"{task.id}: {reason}"
    if why:
        print(f"{split}: {len(tasks) - len(kept)} left out; first {why}", file=sys.stderr)
    if not kept:
        raise ValueError(f"{split}: no task is left; first {why}")
    return kept


def main() -> None:
    """Convert as the command line says."""
    parser = argparse.ArgumentParser(description="Turn a Spider folder into Parquet task files.")
    parser.add_argument("folder", type=Path, help="train, dev and database, as Spider has them")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--limit", type=int, help="take no more tasks of each split than this")
    options = parser.parse_args()
    try:
        found = convert(options.folder, options.output, options.limit)
    except ValueError as error:
        sys.exit(f"error: {error}")
    print(", ".join(f"{len(found[s])} tasks in {options.output / SPLITS[s]}" for s in SPLITS))


if __name__ == "__main__":
    main()
