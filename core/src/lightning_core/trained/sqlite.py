"""SqliteReader: runs one query on a SQLite database, whoever wrote the query."""

from __future__ import annotations

import os
import re
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import msgspec

from lightning_core.errors import UsageError
from lightning_core.trained.guard import guard

_LARGEST: Final = 1_000_000
"""Characters and bytes of all rows together."""
_SHOWN_CELL: Final = 80
_BEGINNING: Final = re.compile(r"(?:\s++|--[^\n]*+(?:\n|\Z)|/\*.*?\*/)*+(?P<word>\w*+)", re.DOTALL)


class Rows(msgspec.Struct, frozen=True):
    """What a query returned. Its text is a table, a line for each row."""

    columns: tuple[str, ...]
    """The names of the columns."""
    rows: tuple[tuple[Any, ...], ...]
    """The rows; a cell is None, int, float, str or bytes."""
    more: bool = False
    """Whether there were more rows than were read."""

    def __str__(self) -> str:
        if not self.rows:
            return "(no rows)"
        lines = [self.columns, *(tuple(map(_cell, row)) for row in self.rows)]
        return "\n".join([*map(" | ".join, lines), *(["… more rows"] if self.more else [])])


class SqliteReader:
    """Runs queries on a SQLite file; an executor for `TrainedAgent`. Safe against whatever a model writes.

    One SELECT, with or without WITH, is run; anything else is refused. The database is opened for reading alone, and nothing
    but reading is allowed: no PRAGMA, ATTACH, or functions that touch files. A query ends after `seconds`, endless recursion
    included; no more than `rows` rows, or 1,000,000 characters, are read of its result; a value has at most 250,000 bytes. May
    be used by several threads at once.
    """

    def __init__(
        self, database: str | os.PathLike[str], *, seconds: float = 2.0, rows: int = 1_000
    ) -> None:
        """
        Args:
            database: path of the file.
            seconds: how long a query may take.
            rows: how many rows are read.

        Raises:
            UsageError: there is no such file, it is no SQLite database, or a bound is not above 0.
        """
        if seconds <= 0 or rows < 1:
            raise UsageError(
                f"`SqliteReader`: expected `seconds` above 0 and `rows` of 1 or more but got {seconds!r} and {rows!r}"
            )
        self._path = Path(database).resolve()
        self._seconds, self._rows = seconds, rows
        if not self._path.is_file():
            raise UsageError(f"database `{database}`: there is no such file")
        try:
            self._schema = self._read_schema()
        except sqlite3.Error as error:
            raise UsageError(f"database `{database}`: cannot be read: {error}") from error

    @property
    def schema(self) -> str:
        """The statements that made its tables and views, as they were when it was opened."""
        return self._schema

    def __call__(self, query: str) -> Rows:
        """Run a query.

        Raises:
            UsageError: it is no SELECT.
            TimeoutError: it took too long.
            sqlite3.Error: SQLite does not accept it, or it may not do what it asks for.
        """
        found = _BEGINNING.match(query)
        word = found["word"].upper() if found else ""
        if word not in ("SELECT", "WITH"):
            raise UsageError(f"query: expected one SELECT statement but it begins with {word!r}")
        ends = time.monotonic() + self._seconds
        with closing(self._open(ends)) as connection:
            try:
                return self._read(connection.execute(query), ends)
            except sqlite3.OperationalError as error:
                if time.monotonic() < ends:
                    raise
                raise TimeoutError(f"the query took more than {self._seconds:g} s") from error
            except (sqlite3.Warning, ValueError, MemoryError) as error:
                # Two statements; NUL characters and lone surrogates; values that are too large.
                raise sqlite3.ProgrammingError(str(error) or type(error).__name__) from error

    def _read(self, cursor: sqlite3.Cursor, ends: float) -> Rows:
        columns = tuple(column[0] for column in cursor.description or ())
        rows: list[tuple[Any, ...]] = []
        size, more = 0, False
        for row in cursor:
            size += sum(len(cell) for cell in row if isinstance(cell, str | bytes))
            more = len(rows) == self._rows or size > _LARGEST
            if more:
                break
            rows.append(row)
            if time.monotonic() > ends:
                raise TimeoutError(f"the query took more than {self._seconds:g} s")
        return Rows(columns, tuple(rows), more)

    def _open(self, ends: float) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"{self._path.as_uri()}?mode=ro", uri=True, isolation_level=None, cached_statements=0
        )
        connection.text_factory = lambda data: data.decode(errors="replace")
        guard(connection, ends)
        return connection

    def _read_schema(self) -> str:
        with closing(self._open(time.monotonic() + self._seconds)) as connection:
            rows = connection.execute(
                "SELECT sql FROM sqlite_master WHERE type IN ('table', 'view') AND sql IS NOT NULL"
                " AND name NOT LIKE 'sqlite%' ORDER BY rowid"
            )
            return ";\n".join(" ".join(sql.split()) for (sql,) in rows)


def _cell(value: object) -> str:
    text = "NULL" if value is None else str(value)
    return text if len(text) <= _SHOWN_CELL else f"{text[:_SHOWN_CELL]}…"
