"""Writes: records as rows, and the statements that put them into the file."""

from __future__ import annotations

import functools
import re
import sqlite3
from collections.abc import Sequence
from itertools import chain
from typing import Any

import msgspec

from lightning_core.errors import RecordError
from lightning_core.reward import Reward
from lightning_core.rollout import Attempt, Rollout
from lightning_core.store.blocks import HASH, BlockNumbers, RecentlyUsed, body
from lightning_core.store.codec import (
    CallParts,
    SplitCall,
    encode,
    encode_bodies,
    encode_parts,
    split,
)
from lightning_core.store.reader import blocks_with
from lightning_core.task import Task
from lightning_core.trace import Call, Span

Row = tuple[Any, ...]

_TASK = """INSERT INTO task (run, id, data) VALUES (?, ?, ?)
ON CONFLICT (run, id) DO UPDATE SET data = excluded.data"""
_ROLLOUT = """INSERT INTO rollout (id, run, grp, status, data) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET run = excluded.run, grp = excluded.grp, status = excluded.status, data = excluded.data"""
_ATTEMPT = """INSERT INTO attempt (id, rollout, number, data) VALUES (?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET rollout = excluded.rollout, number = excluded.number, data = excluded.data"""
_SPAN = """INSERT INTO span (attempt, id, started, data) VALUES (?, ?, ?, ?)
ON CONFLICT (attempt, id) DO UPDATE SET started = excluded.started, data = excluded.data"""
_REWARD = """INSERT INTO reward (rollout, name, scope, target, data) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (rollout, name, scope, target) DO UPDATE SET data = excluded.data"""
_STATE = """INSERT INTO state (key, data) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET data = excluded.data"""
_CALL = """INSERT INTO call (n, id, owner, idx, hashes, data, parts, bodies) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET n = excluded.n, owner = excluded.owner, idx = excluded.idx, hashes = excluded.hashes,
data = excluded.data, parts = excluded.parts, bodies = excluded.bodies"""
_OWNER = "INSERT INTO owner (n, attempt, rollout) VALUES (?, ?, ?)"
_KEPT = "INSERT INTO kept (n, owner, hashes, bodies) VALUES (?, ?, ?, ?)"
_REF = "INSERT OR IGNORE INTO ref (block, owner) VALUES (?, ?)"

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1

_VALUES = re.compile(r"(?<=VALUES )(\([?, ]+\))")
_MOST = 256
_STEP = 64
"""Rows in one statement: a multiple of `_STEP` up to `_MOST`, and then the rest. The interpreter's lock is let go for each
statement, and while the event loop is busy it takes long to get it back: with many small ones the writer would fall
behind. So few shapes, because each has to be compiled and is kept."""

_ORPHANS = f"""SELECT ref.block, min(ref.owner)
FROM (
    SELECT n, hashes FROM call WHERE owner IN leaving UNION ALL SELECT n, hashes FROM kept WHERE owner IN leaving
) AS row
CROSS JOIN ref ON ref.block >= row.n AND ref.block < row.n + length(row.hashes) / {HASH}
GROUP BY ref.block"""
_DELETE = (
    """DELETE FROM span WHERE attempt IN (
        SELECT id FROM attempt WHERE rollout IN gone UNION SELECT attempt FROM owner WHERE n IN leaving
    )""",
    "DELETE FROM kept WHERE owner IN leaving",
    "DELETE FROM call WHERE owner IN leaving",
    "DELETE FROM owner WHERE n IN leaving",
    "DELETE FROM reward WHERE rollout IN gone",
    "DELETE FROM attempt WHERE rollout IN gone",
    "DELETE FROM rollout WHERE id IN gone",
)


class Write(msgspec.Struct, frozen=True, gc=False):
    """One queued record."""

    batches: Sequence[tuple[str, Sequence[Row]]]
    """Statements with the rows that each takes."""
    size: int
    """Bytes that it keeps in memory, about."""


class Delete(msgspec.Struct, frozen=True, gc=False):
    """A queued deletion."""

    rollout_ids: Sequence[str]
    """The rollouts that go, with all that belongs to them."""
    size: int = 0
    """As in `Write`."""


def apply(connection: sqlite3.Connection, writes: Sequence[Write | Delete]) -> None:
    """Put writes into the file, in order, as one transaction.

    Raises:
        sqlite3.Error: it did not work; nothing of them is in the file.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        grouped: dict[str, list[Row]] = {}
        for write in writes:
            if isinstance(write, Delete):
                _insert(connection, grouped)
                _delete(connection, write.rollout_ids)
            else:
                for statement, rows in write.batches:
                    grouped.setdefault(statement, []).extend(rows)
        _insert(connection, grouped)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _insert(connection: sqlite3.Connection, grouped: dict[str, list[Row]]) -> None:
    limit = connection.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER)
    for statement, rows in grouped.items():
        most = min(_MOST, limit // len(rows[0]))
        done = 0
        while left := len(rows) - done:
            many = min(left - left % _STEP or left, most)
            flat = list(chain.from_iterable(rows[done : done + many]))
            connection.execute(_for_rows(statement, many), flat)
            done += many
    grouped.clear()


@functools.lru_cache(maxsize=256)
def _for_rows(statement: str, count: int) -> str:
    """The statement for several rows at once."""
    before, one, after = _VALUES.split(statement)
    return before + ", ".join([one] * count) + after


def _delete(connection: sqlite3.Connection, rollout_ids: Sequence[str]) -> None:
    connection.execute("CREATE TEMP TABLE IF NOT EXISTS gone (rollout TEXT PRIMARY KEY)")
    connection.execute("CREATE TEMP TABLE IF NOT EXISTS leaving (owner INTEGER PRIMARY KEY)")
    connection.execute("DELETE FROM gone")
    connection.execute("DELETE FROM leaving")
    connection.executemany("INSERT OR IGNORE INTO gone VALUES (?)", [(id_,) for id_ in rollout_ids])
    connection.execute("INSERT INTO leaving SELECT n FROM owner WHERE rollout IN gone")
    connection.execute("DELETE FROM ref WHERE owner IN leaving")
    # What another attempt still uses becomes that one's.
    inherited = []
    for number, heir in connection.execute(_ORPHANS).fetchall():
        block = body(blocks_with(connection, number)[number])
        inherited.append((number, heir, block[0], encode_bodies([block[1]])))
    for statement in _DELETE:
        connection.execute(statement)
    connection.executemany(_KEPT, inherited)


class Rows:
    """Makes rows of records. Used in the event loop only.

    Records are encoded there, not in the writer's thread: a thread that holds the interpreter for long makes each
    request wait, and what is queued is then what the record held when it was put.
    """

    def __init__(self, blocks: BlockNumbers, next_owner: int) -> None:
        self._blocks = blocks
        self._next_owner = next_owner
        self._owners: RecentlyUsed[tuple[str, str], int] = RecentlyUsed(20_000)

    def record(self, record: Task | Rollout | Attempt | Call | Span, run: str) -> Write | SplitCall:
        """A record that is ready to queue; a call still has to pass through `call`.

        Raises:
            RecordError: JSON, or a column, cannot hold it.
        """
        match record:
            case Call():
                _column(record.id + record.attempt_id + record.rollout_id, record.index)
                return split(record)
            case Span():
                _column(f"{record.attempt_id} {record.id}")
                data = encode(record, f"span `{record.id}`")
                row: Row = (record.attempt_id, record.id, record.started_at, data)
                return Write([(_SPAN, [row])], len(data))
            case Rollout():
                _column(f"{record.id} {record.run} {record.group}")
                data = encode(record, f"rollout `{record.id}`")
                row = (record.id, record.run, record.group, record.status.value, data)
                return Write([(_ROLLOUT, [row])], len(data))
            case Attempt():
                _column(f"{record.id} {record.rollout_id}", record.number)
                data = encode(record, f"attempt `{record.id}`")
                row = (record.id, record.rollout_id, record.number, data)
                return Write([(_ATTEMPT, [row])], len(data))
            case Task():
                _column(f"{run} {record.id}")
                data = encode(record, f"task `{record.id}`")
                return Write([(_TASK, [(run, record.id, data)])], len(data))
            case _:
                raise RecordError(
                    f"store: cannot keep {type(record).__name__!r};"
                    " give a `Task`, `Rollout`, `Attempt`, `Call` or `Span`"
                )

    def call(self, part: SplitCall) -> Write:
        """A call with its blocks numbered. Must be queued before the next one is numbered."""
        call, blocks = part.call, self._blocks
        batches: list[tuple[str, Sequence[Row]]] = []
        key = (call.attempt_id, call.rollout_id)
        owner = self._owners[key]
        if owner is None:
            owner = self._owners[key] = self._next_owner
            self._next_owner += 1
            batches.append((_OWNER, [(owner, *key)]))
        packed = None
        if not part.whole:
            packed = encode_parts(
                CallParts(
                    part.key,
                    blocks.fold(part.messages, owner) if part.key else None,
                    blocks.number(part.request, owner) if part.request else None,
                    None if part.prompt is None else blocks.fold(part.prompt, owner),
                    part.tail,
                    part.choices,
                    part.sent_key,
                    blocks.fold(part.sent, owner) if part.sent_key else None,
                    None if part.chat is None else blocks.fold(part.chat, owner),
                    None if part.chat_rest is None else blocks.number(part.chat_rest, owner),
                    None if part.chat_sent is None else blocks.fold(part.chat_sent, owner),
                )
            )
        new = blocks.take()
        if new.refs:
            batches.append((_REF, new.refs))
        bodies = encode_bodies(new.bodies)
        data = part.data
        hashes = b"".join(new.hashes)
        row = (new.first, call.id, owner, call.index, hashes, data, packed, bodies)
        batches.append((_CALL, (row,)))
        size = len(data) + len(packed or b"") + len(bodies or b"")
        return Write(batches, size)

    def rewards(self, rollout_id: str, rewards: Sequence[Reward]) -> list[Write]:
        """Rewards of a rollout; raises as `record` does."""
        writes = []
        for reward in rewards:
            target = reward.target or ""
            _column(f"{rollout_id} {reward.name} {target}")
            data = encode(reward, f"reward `{reward.name}` of rollout `{rollout_id}`")
            row = (rollout_id, reward.name, reward.scope.value, target, data)
            writes.append(Write([(_REWARD, [row])], len(data)))
        return writes

    def state(self, key: str, value: Any) -> Write:
        """A value of the server's own; raises as `record` does."""
        _column(key)
        data = encode(value, f"state `{key}`")
        return Write([(_STATE, [(key, data)])], len(data))

    def deletion(self, rollout_ids: Sequence[str]) -> Delete:
        """A deletion; raises as `record` does."""
        _column(" ".join(rollout_ids))
        return Delete(tuple(rollout_ids))

    def forget(self) -> None:
        """Number from here on without what is in the file: a deletion has just been queued."""
        self._blocks.forget()
        self._owners.clear()


def _column(name: str, number: int = 0) -> None:
    """Raise for what SQLite cannot hold in a column, so that it does not fail in the writer, where it ends the store."""
    try:
        if not name.isascii():
            name.encode()
    except UnicodeEncodeError as error:
        raise RecordError(
            f"store: no id or name may be {name!r}: it is not valid Unicode: {error.reason}"
        ) from error
    if not _INT64_MIN <= number <= _INT64_MAX:
        raise RecordError(f"store: the number {number} of `{name}` does not fit into 64 bits")
