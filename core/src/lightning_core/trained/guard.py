"""SQLite connections on which a query that a model wrote can do nothing but read, and not for long."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any, Final

_ALLOWED: Final = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)
_DENIED_FUNCTIONS: Final = frozenset(
    {"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"}
)
# The deadline is looked at only between instructions, and one on long values can take long.
_LIMITS: Final = {
    sqlite3.SQLITE_LIMIT_LENGTH: 250_000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 500,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1_000,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
}
_INSTRUCTIONS: Final = 50
"""Instructions between two looks at the clock."""
# Possessive: a pattern that tried again would itself take for ever.
_SHORT_FORMAT: Final = re.compile(
    r"(?:[^%]++|%[-+ 0!#,]*+[0-9]{0,3}+(?:\.[0-9]{0,3}+)?+[a-zA-Z%])*+\Z", re.DOTALL
)


def guard(connection: sqlite3.Connection, deadline: float, *, trusted: bool = False) -> None:
    """Allow nothing but reading: no PRAGMA, ATTACH, or functions that touch files; and interrupt queries at the deadline.

    Args:
        connection: to a database that was opened for reading alone.
        deadline: `time.monotonic()` seconds.
        trusted: whether values may be of any length, and functions take any time. Else a value has at most 250,000 bytes.
    """
    if not trusted:
        for limit, value in _LIMITS.items():
            connection.setlimit(limit, value)
        _bound_functions(connection)
    connection.set_authorizer(_authorize)
    connection.set_progress_handler(lambda: time.monotonic() > deadline, _INSTRUCTIONS)


def _bound_functions(connection: sqlite3.Connection) -> None:
    """Bound the functions of which one call can take minutes: `printf` of a huge width, `trim` of many characters.

    Within the bounds it is SQLite's own function that answers.
    """

    def bound(name: str, count: int, is_short: Callable[..., bool]) -> None:
        def call(*values: object) -> Any:
            if not is_short(*values):
                raise ValueError(f"`{name}` of arguments that would take too long")
            with closing(sqlite3.connect(":memory:")) as own:
                marks = ", ".join("?" * len(values))
                return own.execute(f"SELECT {name}({marks})", values).fetchone()[0]

        connection.create_function(name, count, call, deterministic=True)

    for name in ("trim", "ltrim", "rtrim"):
        bound(name, 2, lambda _text, characters: len(str(characters)) <= 1_000)
    for name in ("printf", "format"):
        bound(name, -1, lambda *values: not values or bool(_SHORT_FORMAT.match(str(values[0]))))


def _authorize(action: int, _one: str | None, two: str | None, *_rest: str | None) -> int:
    denied = action == sqlite3.SQLITE_FUNCTION and (two or "").lower() in _DENIED_FUNCTIONS
    return sqlite3.SQLITE_DENY if denied or action not in _ALLOWED else sqlite3.SQLITE_OK
