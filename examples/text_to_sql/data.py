"""Spider-shaped data as tasks: a folder with `train.jsonl`, `dev.jsonl` and `database/NAME/NAME.sqlite`.

The files as Spider itself names them, `train_spider.json` and `dev.json`, do as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from lightning_core import Task

SPLITS = {"train": "train.jsonl", "val": "dev.jsonl", "dev": "dev.jsonl"}
"""The file of each split."""
ORIGINAL = {"train.jsonl": "train_spider.json", "dev.jsonl": "dev.json"}
"""What Spider calls them: one JSON list in each, whose items have no id."""


def spider_tasks(folder: str | Path, split: str = "val", limit: int | None = None) -> list[Task]:
    """Tasks of a Spider-shaped folder.

    Items whose gold query returns no row are left out, since any query without rows would match them; so are
    those marked `plan_sensitive`, whose gold result depends on the order in which SQLite reads.

    Args:
        folder: the data.
        split: `train`, or `val` (`dev` is the same).
        limit: take no more than this many, spread evenly over the file and so over its databases.

    Raises:
        ValueError: the split is unknown, a file or field is missing, or nothing is left.
    """
    root = Path(folder).resolve()
    if split not in SPLITS:
        raise ValueError(f"split {split!r}: expected one of {', '.join(map(repr, SPLITS))}")
    path, original = root / SPLITS[split], root / ORIGINAL[SPLITS[split]]
    if not path.is_file() and original.is_file():
        path = original
    if not path.is_file():
        raise ValueError(
            f"`{path}` does not exist; expected Spider's items as JSON lines, or `{original.name}`"
        )
    items = list(_items(path))
    if not items:
        raise ValueError(f"`{path}`: no items in it whose gold query returns a row")
    if limit is not None:
        count = min(max(limit, 1), len(items))
        items = [items[index * len(items) // count] for index in range(count)]
    return [_task(item, root, "train" if split == "train" else "val") for item in items]


def _items(path: Path) -> Iterator[dict[str, object]]:
    for where, item in _lines(path) if path.suffix == ".jsonl" else _listed(path):
        for field in ("id", "db_id", "question", "query"):
            if not isinstance(item.get(field), str):
                raise ValueError(f"`{path}` {where}: no `{field}`; got {sorted(item)}")
        if item.get("gold_rows") != 0 and not item.get("plan_sensitive"):
            yield item


def _lines(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield f"line {number}", json.loads(line)


def _listed(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    for number, item in enumerate(json.loads(path.read_text(encoding="utf-8")), 1):
        yield f"item {number}", {"id": f"{path.stem}-{number:04}", **item}


def _task(item: dict[str, object], root: Path, split: str) -> Task:
    name = str(item["db_id"])
    database = root / "database" / name / f"{name}.sqlite"
    if not database.is_file():
        raise ValueError(f"item `{item['id']}`: its database `{database}` does not exist")
    return Task(
        id=str(item["id"]),
        input={"question": item["question"], "database": str(database)},
        expected={"query": item["query"]},
        metadata={"schema": name} | ({"hardness": item["hardness"]} if "hardness" in item else {}),
        split=split,
    )
