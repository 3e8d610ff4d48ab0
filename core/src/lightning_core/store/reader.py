"""The readers: queries on read-only connections, in a few threads of their own."""

from __future__ import annotations

import asyncio
import queue
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec

from lightning_core.errors import FormatError, RecordError
from lightning_core.records import Record
from lightning_core.reward import Reward
from lightning_core.rollout import Attempt, Rollout, RolloutStatus
from lightning_core.store.blocks import HASH
from lightning_core.store.codec import CallJoiner, decode, decode_bodies, decode_value
from lightning_core.store.schema import failure, open_for_reading
from lightning_core.task import Task
from lightning_core.trace import Call, Span

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R", bound=Record)


class StoreUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What a store holds."""

    tasks: int
    """Tasks."""
    rollouts: int
    """Rollouts."""
    attempts: int
    """Attempts."""
    calls: int
    """Calls."""
    spans: int
    """Spans."""
    rewards: int
    """Rewards."""
    blocks: int
    """Messages, token blocks and other parts of requests, each stored once."""
    block_bytes: int
    """Bytes of those."""
    file_bytes: int
    """Size of the file, without its write-ahead log. Deleting does not shrink it: the space is used again."""


class Readers:
    """A pool of read-only connections."""

    def __init__(self, path: Path, count: int = 2) -> None:
        self._path = path
        self._idle: queue.SimpleQueue[sqlite3.Connection] = queue.SimpleQueue()
        self._count = count
        connections: list[sqlite3.Connection] = []
        try:
            for _ in range(count):
                connections.append(open_for_reading(path))
        except BaseException:
            for connection in connections:
                connection.close()
            raise
        for connection in connections:
            self._idle.put(connection)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="lightning-store-read")

    async def run(
        self,
        query: Callable[Concatenate[sqlite3.Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """What a query gives, on one consistent state of the file.

        Raises:
            StoreError: the file cannot be read, or is damaged.
        """
        call = partial(self._run, partial(query, **kwargs), *args)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _run(self, query: Callable[..., T], *args: Any) -> T:
        connection = self._idle.get()
        try:
            connection.execute("BEGIN")
            try:
                return query(connection, *args)
            finally:
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise failure(self._path, "cannot be read", error) from error
        except UnicodeEncodeError as error:
            raise RecordError(
                f"store `{self._path}`: no id is {error.object!r}: it is not valid Unicode"
            ) from error
        except (msgspec.MsgspecError, ValueError, LookupError) as error:
            raise FormatError(
                f"store `{self._path}`: a record is damaged: {type(error).__name__}: {error};"
                " check the file with `sqlite3 FILE 'PRAGMA integrity_check'`"
            ) from error
        finally:
            self._idle.put(connection)

    def close(self) -> None:
        """Wait for queries under way and close the connections. Blocks."""
        self._threads.shutdown()
        for _ in range(self._count):
            self._idle.get().close()


def _one(
    connection: sqlite3.Connection, kind: type[R], table: str, where: str, *args: Any
) -> R | None:
    row = connection.execute(f"SELECT data FROM {table} WHERE {where}", args).fetchone()
    return None if row is None else decode(row[0], kind)


def _many(connection: sqlite3.Connection, kind: type[R], sql: str, *args: Any) -> list[R]:
    return [decode(data, kind) for (data,) in connection.execute(sql, args)]


def task(connection: sqlite3.Connection, run: str, task_id: str) -> Task | None:
    """See `Store.task`."""
    return _one(connection, Task, "task", "run = ? AND id = ?", run, task_id)


def rollout(connection: sqlite3.Connection, rollout_id: str) -> Rollout | None:
    """See `Store.rollout`."""
    return _one(connection, Rollout, "rollout", "id = ?", rollout_id)


def rollouts(
    connection: sqlite3.Connection,
    run: str | None,
    group: str | None,
    status: RolloutStatus | None,
    after: str | None,
    limit: int,
) -> list[Rollout]:
    """See `Store.rollouts`."""
    conditions, args = ["1"], list[Any]()
    for column, value in (("run", run), ("grp", group), ("status", status and status.value)):
        if value is not None:
            conditions.append(f"{column} = ?")
            args.append(value)
    if after is not None:
        seen = connection.execute("SELECT n FROM rollout WHERE id = ?", (after,)).fetchone()
        if seen is None:
            raise RecordError(
                f"store: there is no rollout {after!r} to go on after; it was deleted or never put:"
                " list from the start"
            )
        conditions.append("n > ?")
        args.append(seen[0])
    where = " AND ".join(conditions)
    sql = f"SELECT data FROM rollout WHERE {where} ORDER BY n LIMIT ?"
    return _many(connection, Rollout, sql, *args, max(0, limit))


def attempts(connection: sqlite3.Connection, rollout_id: str) -> list[Attempt]:
    """See `Store.attempts`."""
    sql = "SELECT data FROM attempt WHERE rollout = ? ORDER BY number, n"
    return _many(connection, Attempt, sql, rollout_id)


def spans(connection: sqlite3.Connection, attempt_id: str) -> list[Span]:
    """See `Store.spans`."""
    sql = "SELECT data FROM span WHERE attempt = ? ORDER BY started, n"
    return _many(connection, Span, sql, attempt_id)


def rewards(connection: sqlite3.Connection, rollout_id: str) -> list[Reward]:
    """See `Store.rewards`."""
    return _many(
        connection, Reward, "SELECT data FROM reward WHERE rollout = ? ORDER BY n", rollout_id
    )


def state(connection: sqlite3.Connection, key: str) -> Any:
    """See `Store.get_state`."""
    row = connection.execute("SELECT data FROM state WHERE key = ?", (key,)).fetchone()
    return None if row is None else decode_value(row[0])


def call(connection: sqlite3.Connection, call_id: str) -> Call | None:
    """See `Store.call`."""
    found = _calls(connection, "call WHERE call.id = ?", call_id)
    return found[0] if found else None


def calls(connection: sqlite3.Connection, attempt_id: str) -> list[Call]:
    """See `Store.calls`."""
    return _calls(
        connection,
        "owner JOIN call ON call.owner = owner.n WHERE owner.attempt = ? ORDER BY call.idx, call.n",
        attempt_id,
    )


def _calls(connection: sqlite3.Connection, where: str, *args: Any) -> list[Call]:
    rows = connection.execute(
        f"SELECT call.n, call.data, call.parts, call.bodies FROM {where}", args
    ).fetchall()
    joiner = CallJoiner(partial(blocks_with, connection))
    for number, _, _, bodies in rows:
        joiner.learn(decode_bodies(number, bodies))
    return [joiner.join(data, parts) for _, data, parts, _ in rows]


def blocks_with(connection: sqlite3.Connection, number: int) -> dict[int, bytes]:
    """A block and those that lie in the same row."""
    for table in ("call", "kept"):
        row = connection.execute(
            f"SELECT n, bodies FROM {table} WHERE n <= ? ORDER BY n DESC LIMIT 1", (number,)
        ).fetchone()
        if row is not None and number in (found := decode_bodies(*row)):
            return found
    raise LookupError(f"block {number} is missing")


def usage(connection: sqlite3.Connection) -> StoreUsage:
    """Count what there is; reads through the whole file."""
    counts = {
        f"{table}s": connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        for table in ("task", "rollout", "attempt", "call", "span", "reward")
    }
    hashes, bodies = connection.execute(
        "SELECT coalesce(sum(length(hashes)), 0), coalesce(sum(length(bodies)), 0)"
        " FROM (SELECT hashes, bodies FROM call UNION ALL SELECT hashes, bodies FROM kept)"
    ).fetchone()
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    page_size = connection.execute("PRAGMA page_size").fetchone()[0]
    return StoreUsage(
        **counts, blocks=hashes // HASH, block_bytes=bodies, file_bytes=pages * page_size
    )
