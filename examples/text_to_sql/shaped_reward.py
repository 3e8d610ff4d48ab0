"""A reward for models that hardly write SQL yet: it has steps below the right answer, which `agent.py:score` has not.

A group in which every query is wrong teaches nothing. Here wrong queries are told apart by how near they come: whether
they run, whether they begin as a query does, and which of the tables and columns they name that the right one names.
Such partial rewards are those of Reasoning-SQL (arXiv 2503.23157). Where a model writes queries that run, take
`agent.py:score`: it is what counts.
"""

from __future__ import annotations

import re
import time
from contextlib import closing
from functools import lru_cache
from typing import Any

from agent import QUERY_SECONDS, last_query
from agent import score as right
from execution_match import read_only, runs

RUNS = 0.3
"""For a query that runs."""
BEGINS = 0.1
"""For text that does not, and begins as a query does."""
NAMES = 0.2
"""For the tables and columns of the right query and no others: their Jaccard index times this."""
WRITERS = ("write_query", "rewrite_query")


def score(task: Any, trace: Any) -> dict[str, float]:
    """1 where the last query is right; else the mean, over the queries written, of what each is worth.

    `right` is `agent.py:score`'s number. The others are its.
    """
    matched = right(task, trace)
    gold, database = task.expected["query"], task.input["database"]
    written = [last_query(call.text) for call in trace.calls if call.node in WRITERS]
    worth = [_worth(query, gold, database) for query in written]
    partial = sum(worth) / len(worth) if worth else 0.0
    return matched | {"right": matched["reward"], "reward": max(matched["reward"], partial)}


def _worth(query: str, gold: str, database: str) -> float:
    if runs(query, database):
        form = RUNS
    else:
        form = BEGINS if re.match(r"(SELECT|WITH)\b", query, re.IGNORECASE) else 0.0
    names = names_of(database)
    asked, used = (names.intersection(re.findall(r"\w+", text.lower())) for text in (gold, query))
    both = asked | used
    return form + (NAMES * len(asked & used) / len(both) if both else 0.0)


@lru_cache(maxsize=256)
def names_of(database: str) -> frozenset[str]:
    """The names of a database's tables and columns, in small letters."""
    names = set()
    with closing(read_only(database, time.monotonic() + QUERY_SECONDS)) as connection:
        listed = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
        for (table,) in connection.execute(listed).fetchall():
            quoted = table.replace('"', '""')
            columns = connection.execute(f'SELECT * FROM "{quoted}" LIMIT 0').description
            names |= {table, *(column[0] for column in columns)}
    return frozenset(name.lower() for name in names)
