"""Make the example's data: three SQLite databases and 60 questions with gold queries.

`python make_data.py [--output FOLDER]` writes `train.jsonl` (40 tasks), `val.jsonl` (20) and
`databases/NAME.sqlite`. The same rows come out each time. Tasks name their database by its full path, so make the
data again after moving the folder.
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Protocol, cast

import schema_clinic
import schema_library
import schema_railway
from execution_match import check_gold

SEED = 20
VALIDATION_EVERY = 3
"""Every third question is for validation, so that both parts hold every schema and every hardness."""


class Schema(Protocol):
    """What a `schema_*` module holds."""

    NAME: str
    TABLES: str
    QUESTIONS: list[tuple[str, str, str]]

    def rows(self, rng: random.Random) -> dict[str, Sequence[tuple[object, ...]]]:
        """The rows of each table."""


SCHEMAS = tuple(cast(Schema, module) for module in (schema_library, schema_clinic, schema_railway))


def make(output: Path) -> dict[str, list[dict[str, object]]]:
    """Write the data into `output`, replacing what it made before.

    Returns:
        The tasks of each split.

    Raises:
        ValueError: a gold query fails, returns nothing, or depends on the order in which rows are read.
    """
    folder = output.resolve() / "databases"
    folder.mkdir(parents=True, exist_ok=True)
    tasks: dict[str, list[dict[str, object]]] = {"train": [], "val": []}
    made = 0
    for schema in SCHEMAS:
        database = folder / f"{schema.NAME}.sqlite"
        make_database(schema, database)
        for number, (hardness, question, query) in enumerate(schema.QUESTIONS, 1):
            check(query, database)
            made += 1
            split = "val" if made % VALIDATION_EVERY == 0 else "train"
            tasks[split].append(
                {
                    "id": f"{schema.NAME}-{number:02}",
                    "input": {"question": question, "database": str(database)},
                    "expected": {"query": query},
                    "metadata": {"schema": schema.NAME, "hardness": hardness},
                    "split": split,
                }
            )
    for split, items in tasks.items():
        lines = "".join(json.dumps(item) + "\n" for item in items)
        (output / f"{split}.jsonl").write_text(lines, encoding="utf-8")
    return tasks


def make_database(schema: Schema, path: Path) -> None:
    """Write one database."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(schema.TABLES)
        for table, rows in schema.rows(random.Random(SEED)).items():
            marks = ", ".join("?" * len(rows[0]))
            connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)


def check(query: str, database: Path) -> None:
    """Refuse a gold query that returns nothing, or whose rows and their order the question does not settle.

    Raises:
        ValueError: the query is such.
    """
    if not check_gold(query, database):
        raise ValueError(f"gold query returns no row, so any empty result would match: {query!r}")
    # Without a cache, so that the query is prepared anew once there are tables that go before the given ones.
    with closing(sqlite3.connect(":memory:", uri=True, cached_statements=0)) as connection:
        connection.execute("ATTACH ? AS given", (f"{database.as_uri()}?mode=ro",))
        tables = "SELECT name FROM given.sqlite_master WHERE type = 'table'"
        forwards = connection.execute(query).fetchall()
        for (table,) in connection.execute(tables).fetchall():
            rows = f"SELECT * FROM given.{table} ORDER BY rowid DESC"
            connection.execute(f"CREATE TABLE main.{table} AS {rows}")
        backwards = connection.execute(query).fetchall()
    if "order by" not in query.lower():
        forwards, backwards = sorted(forwards), sorted(backwards)
    if forwards != backwards:
        raise ValueError(f"gold query depends on the order in which rows are read: {query!r}")


def main() -> None:
    """Make the data and say what was made."""
    parser = argparse.ArgumentParser(description="Make databases and questions for the example.")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "data")
    output = parser.parse_args().output
    tasks = make(output)
    print(
        ", ".join(f"{len(items)} tasks in {output / split}.jsonl" for split, items in tasks.items())
    )


if __name__ == "__main__":
    main()
