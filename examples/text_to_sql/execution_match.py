"""Execution match: does a predicted SQL query return what the gold query returns?

The verdict is that of Spider's execution evaluation on one database, reached safely. A prediction runs on an
immutable, read-only connection that may do nothing but read; it ends at a deadline; no more of its result is fetched
than could still match. The gold query is trusted.

Two results match where one order of the prediction's columns makes them equal: as lists where the gold query says
`order by`, else as multisets. NULL equals NULL, 1 does not equal '1', and floats have no tolerance.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any

Row = tuple[object, ...]

GOLD_TIMEOUT = 30.0
"""Seconds that a gold query may take."""
MAX_GOLD_ROWS = 1_000_000
"""Rows that a gold query may return."""

_ALLOWED = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}
_DENIED_FUNCTIONS = {"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"}
# One instruction on long values can take long, and the deadline is looked at only between instructions.
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 250_000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1_000,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
}
_INSTRUCTIONS_PER_CHECK = 50
_TRIMS = ("trim", "ltrim", "rtrim")
_FORMATS = ("printf", "format")
# Possessive throughout: a pattern that tried again would itself take for ever.
_SHORT_FORMAT = re.compile(
    r"(?:[^%]++|%[-+ 0!#,]*+[0-9]{0,3}+(?:\.[0-9]{0,3}+)?+[a-zA-Z%])*+\Z", re.DOTALL
)
_REFUSED = (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError)
"""What a query that cannot run raises; ValueError covers NUL characters and lone surrogates in its text."""

_SPLIT_OPERATORS = re.compile(r"([><!]) =")
_THIS_YEAR = re.compile(r"YEAR\s*\(\s*CURDATE\s*\(\s*\)\s*\)\s*", re.IGNORECASE)
_TOKENS = re.compile(
    r"'(?:[^']|'')*'?|\"(?:[^\"]|\"\")*\"?|`(?:[^`]|``)*`?|\[[^\]]*\]?"  # quoted
    r"|--[^\n]*|/\*.*?(?:\*/|\Z)"  # comments
    r"|\w+|.",
    re.DOTALL,
)


class DeadlineError(Exception):
    """The time that the comparison may take is over."""


def execution_match(
    prediction: str,
    gold: str,
    database: str | Path,
    *,
    keep_distinct: bool = True,
    timeout: float = 2.0,
) -> bool:
    """Whether `prediction` returns what `gold` returns.

    Args:
        prediction: a query of any provenance: it may be empty, broken, endless or hostile.
        gold: the query that is right.
        database: path of a SQLite file, which is not changed and must not change meanwhile.
        keep_distinct: whether DISTINCT counts. Without it, the word is taken out of both queries, of which only
            the first statement is then run: Spider's own default, under which `count(x)` passes for
            `count(distinct x)`.
        timeout: seconds that the prediction and the comparison may take together.

    Returns:
        The verdict; False too where the prediction cannot run, may not run, or is not done in time.

    Raises:
        ValueError: the database cannot be opened or the gold query fails, which is a fault of the data set.
    """
    if not isinstance(gold, str):
        raise ValueError(
            f"gold query: expected a string but got {gold!r}; correct or drop the item"
        )
    gold = _prepared(gold, keep_distinct)
    expected = _gold_rows(gold, database)
    if not isinstance(prediction, str):
        return False
    deadline = time.monotonic() + timeout
    try:
        rows = _rows_like(expected, _prepared(prediction, keep_distinct), database, deadline)
        return rows is not None and _equal(expected, rows, "order by" in gold.lower(), deadline)
    except (DeadlineError, *_REFUSED):
        return False


def check_gold(gold: str, database: str | Path) -> int:
    """The number of rows that a gold query returns, with DISTINCT kept.

    Raises:
        ValueError: as for `execution_match`.
    """
    return len(_gold_rows(_prepared(gold, keep_distinct=True), database))


def runs(prediction: str, database: str | Path, *, timeout: float = 2.0) -> bool:
    """Whether a prediction is a query that is allowed and starts to return rows, or ends, within `timeout` s."""
    if not isinstance(prediction, str):
        return False
    deadline = time.monotonic() + timeout
    try:
        with closing(read_only(database, deadline)) as connection:
            cursor = connection.execute(_prepared(prediction, keep_distinct=True))
            cursor.fetchone()
            return cursor.description is not None
    except _REFUSED:
        return False


def read_only(
    database: str | Path, deadline: float, *, trusted: bool = False
) -> sqlite3.Connection:
    """A connection that can only read, and whose queries are interrupted at `deadline` (monotonic seconds).

    Values are bounded in length unless `trusted`. Bytes of a text that are not UTF-8 are left out of it.

    Raises:
        sqlite3.OperationalError: there is no such database.
    """
    address = f"{Path(database).resolve().as_uri()}?mode=ro&immutable=1"
    connection = sqlite3.connect(address, uri=True, isolation_level=None, cached_statements=0)
    connection.text_factory = lambda data: data.decode(errors="ignore")
    if not trusted:
        for limit, value in _LIMITS.items():
            connection.setlimit(limit, value)
        _guard_functions(connection)
    connection.set_authorizer(_authorize)
    connection.set_progress_handler(lambda: time.monotonic() > deadline, _INSTRUCTIONS_PER_CHECK)
    return connection


def _guard_functions(connection: sqlite3.Connection) -> None:
    """Bound the functions of which one call can take minutes whatever the limits: a `printf` of a width or precision
    in the millions, a `trim` of many characters. Within the bounds it is SQLite's own function that answers."""

    def guard(name: str, count: int, is_short: Callable[..., bool]) -> None:
        def call(*values: object) -> Any:
            if not is_short(*values):
                raise ValueError(f"`{name}` of arguments that would take too long")
            with closing(sqlite3.connect(":memory:")) as own:
                marks = ", ".join("?" * len(values))
                return own.execute(f"SELECT {name}({marks})", values).fetchone()[0]

        connection.create_function(name, count, call, deterministic=True)

    for name in _TRIMS:
        guard(name, 2, lambda _text, characters: len(str(characters)) <= 1_000)
    for name in _FORMATS:
        guard(name, -1, lambda *values: not values or bool(_SHORT_FORMAT.match(str(values[0]))))


def _authorize(action: int, _one: str | None, two: str | None, *_rest: str | None) -> int:
    if action not in _ALLOWED:
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_FUNCTION and (two or "").lower() in _DENIED_FUNCTIONS:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def _prepared(query: str, keep_distinct: bool) -> str:
    query = _SPLIT_OPERATORS.sub(r"\1=", query)
    if not keep_distinct:
        query = "".join(token for token in _first_statement(query) if token.lower() != "distinct")
    return _THIS_YEAR.sub("2020", query)


def _first_statement(query: str) -> Iterator[str]:
    for match in _TOKENS.finditer(query):
        yield match[0]
        if match[0] == ";":
            return


def _gold_rows(gold: str, database: str | Path) -> tuple[Row, ...]:
    path = Path(database).resolve()
    try:
        stat = path.stat()
    except OSError as error:
        raise ValueError(f"database `{path}` cannot be opened: {error.strerror}") from error
    return _cached_gold_rows(gold, path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=512)
def _cached_gold_rows(gold: str, path: Path, _changed_at: int, _size: int) -> tuple[Row, ...]:
    try:
        deadline = time.monotonic() + GOLD_TIMEOUT
        with closing(read_only(path, deadline, trusted=True)) as connection:
            cursor = connection.execute(gold)
            rows = tuple(cursor.fetchmany(MAX_GOLD_ROWS + 1))
    except _REFUSED as error:
        raise ValueError(
            f"gold query fails on `{path}`: {type(error).__name__}: {error}; correct or drop the item:"
            f" {gold!r}"
        ) from error
    if cursor.description is None:
        raise ValueError(f"gold query is no query: {gold!r}; correct or drop the item")
    if len(rows) > MAX_GOLD_ROWS:
        raise ValueError(
            f"gold query returns more than {MAX_GOLD_ROWS} rows: {gold!r}; drop the item"
        )
    return rows


def _rows_like(
    expected: Sequence[Row], prediction: str, database: str | Path, deadline: float
) -> list[Row] | None:
    """The prediction's rows; None as soon as they can no longer match: too many or too few rows or columns,
    or more text than the gold result holds."""
    with closing(read_only(database, deadline)) as connection:
        cursor = connection.execute(prediction)
        if cursor.description is None:
            return None
        if expected and len(cursor.description) != len(expected[0]):
            return None
        budget = sum(map(_text_size, expected))
        rows: list[Row] = []
        for row in cursor:
            rows.append(row)
            budget -= _text_size(row)
            if len(rows) > len(expected) or budget < 0:
                return None
            if time.monotonic() > deadline:
                raise DeadlineError
        return rows if len(rows) == len(expected) else None


def _text_size(row: Row) -> int:
    return sum(len(cell) for cell in row if isinstance(cell, str | bytes))


def _equal(expected: Sequence[Row], rows: Sequence[Row], ordered: bool, deadline: float) -> bool:
    """Whether one order of the columns of `rows` makes both equal; they have one shape."""
    if not expected:
        return True
    if not _cells_equal(expected, rows, ordered):
        return False
    ours, theirs = list(zip(*expected, strict=True)), list(zip(*rows, strict=True))
    if ordered:
        # Rows are compared in place, so columns can be matched one by one.
        return Counter(ours) == Counter(theirs)
    signatures = [frozenset(Counter(column).items()) for column in theirs]
    candidates = []
    for column in ours:
        signature = frozenset(Counter(column).items())
        candidates.append([i for i, other in enumerate(signatures) if other == signature])
    return _assign(ours, theirs, candidates, deadline)


def _cells_equal(expected: Sequence[Row], rows: Sequence[Row], ordered: bool) -> bool:
    """The evaluation's first look: rows with their cells sorted by text and type. It alone tells (1, 1.5) from
    (1.0, 1.5), so it is part of the verdict and no mere short cut."""
    one, other = ([tuple(sorted(row, key=_cell_key)) for row in side] for side in (expected, rows))
    return one == other if ordered else set(one) == set(other)


def _cell_key(cell: object) -> str:
    return f"{cell}{type(cell)}"


def _assign(
    ours: Sequence[Row], theirs: Sequence[Row], candidates: Sequence[Sequence[int]], deadline: float
) -> bool:
    """Search for the assignment of columns under which both are one multiset of rows.

    Columns are assigned one after another, those with fewest candidates first. A row's class is the tuple of its
    cells so far, numbered alike on both sides; a partial assignment lives only while both sides have as many rows
    of each class, so hardly anything is ever undone.
    """
    order = sorted(range(len(ours)), key=lambda i: len(candidates[i]))
    rows = len(ours[0])

    def extend(depth: int, mine: list[int], other: list[int], used: frozenset[int]) -> bool:
        if depth == len(order):
            return True
        column = ours[order[depth]]
        numbers: dict[tuple[int, object], int] = {}
        next_mine = [
            numbers.setdefault(key, len(numbers)) for key in zip(mine, column, strict=True)
        ]
        counts = Counter(next_mine)
        tried: set[Row] = set()
        for candidate in candidates[order[depth]]:
            if time.monotonic() > deadline:
                raise DeadlineError
            values = theirs[candidate]
            if candidate in used or values in tried:
                continue
            tried.add(values)
            next_other = [numbers.get(key, -1) for key in zip(other, values, strict=True)]
            if Counter(next_other) == counts and extend(
                depth + 1, next_mine, next_other, used | {candidate}
            ):
                return True
        return False

    return extend(0, [0] * rows, [0] * rows, frozenset())
