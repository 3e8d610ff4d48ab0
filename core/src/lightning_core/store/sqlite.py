"""SQLiteStore: the default store, one SQLite file in the run folder."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from lightning_core.errors import StoreError
from lightning_core.reward import Reward
from lightning_core.rollout import Attempt, Rollout, RolloutStatus
from lightning_core.store import reader
from lightning_core.store.base import Store
from lightning_core.store.blocks import HASH, BlockNumbers
from lightning_core.store.codec import SplitCall
from lightning_core.store.lock import WriterLock
from lightning_core.store.reader import Readers, StoreUsage
from lightning_core.store.schema import failure, open_for_writing
from lightning_core.store.writer import Writer
from lightning_core.store.writes import Delete, Rows, Write
from lightning_core.task import Task
from lightning_core.trace import Call, Span

P = ParamSpec("P")
T = TypeVar("T")

_QUEUE_BYTES = 8 * 1024 * 1024
_WARM_ROWS = 10_000
"""How many of the latest calls an opened store knows the blocks of, so that conversations under way go on sharing."""


class SQLiteStore(Store):
    """A store in one SQLite file, with a write-ahead log (`-wal`, `-shm`) and a lock file (`-lock`) beside it.

    What was flushed survives the death of the process, `kill -9` included. The log is not forced to the disk with every
    commit, so a power cut or a kernel crash may take the last moments with it; the file stays whole.

    Reads use connections of their own and see every write that was awaited before. Records given to `put` are encoded
    before it returns. Calls read together share the messages that they have in common: treat them as frozen.
    A record that replaces another of its key keeps its place; blocks of a replaced call stay until its rollout is
    deleted. NaN and infinities in JSON values become null, as in every JSON of ours; log-probabilities keep them.

    Use `open`, and `close` or `async with`.
    """

    def __init__(
        self,
        path: Path,
        readers: Readers,
        writing: tuple[WriterLock, sqlite3.Connection, Rows] | None,
        queue_rows: int,
    ) -> None:
        self.path = path
        """The file."""
        self._readers = readers
        self._loop = asyncio.get_running_loop()
        self._limit = queue_rows
        self._added = self._committed = self._queued_bytes = 0
        self._full = False
        self._flushes: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._gate = asyncio.Lock()
        self._room = asyncio.Event()
        self._failure: StoreError | None = None
        self._failure_told = False
        self._closed = False
        self._writer: Writer | None = None
        self._lock: WriterLock | None = None
        self._connection: sqlite3.Connection | None = None
        if writing is not None:
            self._lock, self._connection, self._rows = writing
            self._writer = Writer(
                self._connection,
                path,
                committed=partial(self._tell, self._on_committed),
                failed=partial(self._tell, self._on_failed),
            )

    @classmethod
    async def open(
        cls, path: Path | str, *, queue_rows: int = 20_000, readonly: bool = False
    ) -> Self:
        """Open the file, making it where there is none; its folder must exist.

        Args:
            path: The file.
            queue_rows: Records that may wait to be committed before `put` waits; so do 8 MiB of them.
            readonly: Only read, while a server may be writing. Takes no lock and creates nothing.

        Raises:
            StoreError: it cannot be opened, is not a store, or another server writes to it.
            FormatVersionError: a newer release wrote it.
        """
        path = Path(path)
        if queue_rows < 1:
            raise StoreError(f"store `{path}`: `queue_rows` must be at least 1 but is {queue_rows}")
        return cls(*await asyncio.to_thread(_open, path, readonly), queue_rows)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    # Writing -----------------------------------------------------------------------------------------------------

    async def put(
        self, *records: Task | Rollout | Attempt | Call | Span, run: str = "default"
    ) -> None:
        """See `Store.put`. Either all records can be kept, or none is queued.

        Raises:
            StoreError: as `Store.put`, or JSON cannot hold a record.
        """
        self._check_writable()
        writes = [self._rows.record(record, run) for record in records]
        await self._queue(writes)

    async def put_rewards(self, rollout_id: str, rewards: Sequence[Reward]) -> None:
        """See `Store.put_rewards`; raises as `put` does."""
        self._check_writable()
        await self._queue(self._rows.rewards(rollout_id, rewards))

    async def put_state(self, key: str, value: Any) -> None:
        """See `Store.put_state`; raises as `put` does."""
        self._check_writable()
        await self._queue([self._rows.state(key, value)])

    async def delete(self, rollout_ids: Sequence[str]) -> None:
        """See `Store.delete`. Returns once it is committed. The file keeps its size; the space is used again."""
        self._check_writable()
        if rollout_ids:
            await self._queue([self._rows.deletion(rollout_ids)])
            await self.flush()

    async def flush(self) -> None:
        """See `Store.flush`."""
        self._check_writable()
        await self._settle()

    async def close(self) -> None:
        """See `Store.close`.

        Raises:
            StoreError: a write failed and nobody has been told yet. The store is closed all the same.
        """
        if self._closed:
            return
        self._closed = True
        self._room.set()
        await asyncio.to_thread(self._close)
        self._release_flushes()
        if self._failure is not None and not self._failure_told:
            self._failure_told = True
            raise self._failure

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.stop()
        self._readers.close()
        # Last, because only a connection that may write moves the log into the file when it closes.
        if self._connection is not None:
            self._connection.close()
        if self._lock is not None:
            self._lock.release()

    def _check_writable(self) -> None:
        if self._writer is None:
            raise StoreError(
                f"store `{self.path}`: is open for reading only; open it without `readonly=True` to write"
            )
        if self._failure is not None:
            raise self._telling()
        if self._closed:
            raise StoreError(f"store `{self.path}`: is closed; open it again to write")

    def _telling(self) -> StoreError:
        assert self._failure is not None
        if not self._failure_told:
            self._failure_told = True
            return self._failure
        return StoreError(
            f"store `{self.path}`: takes no more writes since one failed; mend the cause and start again."
            f" It was: {self._failure}"
        )

    async def _queue(self, writes: Sequence[Write | SplitCall | Delete]) -> None:
        for write in writes:
            # Whoever waits goes first, so that records are queued in the order in which they were put.
            if self._full or self._gate.locked():
                async with self._gate:
                    self._check_writable()
                    while self._full:
                        self._room.clear()
                        self._writer_hurry()
                        await self._room.wait()
                        self._check_writable()
                    self._add(write)
            else:
                self._add(write)

    def _add(self, write: Write | SplitCall | Delete) -> None:
        assert self._writer is not None
        if isinstance(write, SplitCall):
            write = self._rows.call(write)
        elif isinstance(write, Delete):
            self._rows.forget()
        self._writer.add(write)
        self._added += 1
        self._queued_bytes += write.size
        self._measure()

    def _measure(self) -> None:
        rows = self._added - self._committed
        self._full = rows >= self._limit or self._queued_bytes >= _QUEUE_BYTES

    def _writer_hurry(self) -> None:
        assert self._writer is not None
        self._writer.hurry()

    async def _settle(self) -> None:
        """Return once everything queued so far is committed."""
        if self._committed == self._added or self._closed:
            return
        self._writer_hurry()
        done: asyncio.Future[None] = self._loop.create_future()
        self._flushes.append((self._added, done))
        await done

    def _tell(self, listener: Callable[..., None], *args: Any) -> None:
        """Call a method in the event loop; runs in the writer's thread."""
        try:
            self._loop.call_soon_threadsafe(listener, *args)
        except RuntimeError:
            # The loop was closed before the store, and with it went all who could be told.
            if not self._loop.is_closed():
                raise

    def _on_committed(self, records: int, size: int) -> None:
        self._committed += records
        self._queued_bytes -= size
        self._measure()
        self._room.set()
        self._release_flushes()

    def _on_failed(self, error: StoreError) -> None:
        self._failure = error
        self._room.set()
        self._release_flushes()

    def _release_flushes(self) -> None:
        while self._flushes and (
            self._flushes[0][0] <= self._committed or self._failure is not None or self._closed
        ):
            wanted, done = self._flushes.popleft()
            if done.done():
                continue
            if wanted <= self._committed:
                done.set_result(None)
            elif self._failure is not None:
                done.set_exception(self._telling())
            else:
                done.set_exception(StoreError(f"store `{self.path}`: was closed meanwhile"))

    # Reading -----------------------------------------------------------------------------------------------------

    async def _read(
        self,
        query: Callable[Concatenate[sqlite3.Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        if self._failure is None:
            await self._settle()
        elif not self._failure_told:
            raise self._telling()
        if self._closed:
            raise StoreError(f"store `{self.path}`: is closed; open it again to read")
        return await self._readers.run(query, *args, **kwargs)

    async def get_state(self, key: str) -> Any:
        """See `Store.get_state`."""
        return await self._read(reader.state, key)

    async def task(self, run: str, task_id: str) -> Task | None:
        """See `Store.task`."""
        return await self._read(reader.task, run, task_id)

    async def rollout(self, rollout_id: str) -> Rollout | None:
        """See `Store.rollout`."""
        return await self._read(reader.rollout, rollout_id)

    async def rollouts(
        self,
        *,
        run: str | None = None,
        group: str | None = None,
        status: RolloutStatus | None = None,
        after: str | None = None,
        limit: int = 1000,
    ) -> list[Rollout]:
        """See `Store.rollouts`.

        Raises:
            StoreError: there is no rollout `after`.
        """
        return await self._read(reader.rollouts, run, group, status, after, limit)

    async def attempts(self, rollout_id: str) -> list[Attempt]:
        """See `Store.attempts`."""
        return await self._read(reader.attempts, rollout_id)

    async def call(self, call_id: str) -> Call | None:
        """See `Store.call`."""
        return await self._read(reader.call, call_id)

    async def calls(self, attempt_id: str) -> list[Call]:
        """See `Store.calls`."""
        return await self._read(reader.calls, attempt_id)

    async def spans(self, attempt_id: str) -> list[Span]:
        """See `Store.spans`."""
        return await self._read(reader.spans, attempt_id)

    async def rewards(self, rollout_id: str) -> list[Reward]:
        """See `Store.rewards`."""
        return await self._read(reader.rewards, rollout_id)

    async def usage(self) -> StoreUsage:
        """Count what the store holds; reads through the whole file."""
        return await self._read(reader.usage)


def _open(
    path: Path, readonly: bool
) -> tuple[Path, Readers, tuple[WriterLock, sqlite3.Connection, Rows] | None]:
    if readonly:
        return path, Readers(path), None
    if not path.parent.is_dir():
        raise StoreError(
            f"store `{path}`: there is no folder `{path.parent}`; create it or correct the path"
        )
    lock = WriterLock(path)
    try:
        connection = open_for_writing(path)
        try:
            return path, Readers(path), (lock, connection, _rows(connection, path))
        except BaseException:
            connection.close()
            raise
    except BaseException:
        lock.release()
        raise


def _rows(connection: sqlite3.Connection, path: Path) -> Rows:
    """What a new writer must know of an existing file."""
    try:
        next_owner = connection.execute("SELECT coalesce(max(n), 0) + 1 FROM owner").fetchone()[0]
        latest = [
            row
            for table in ("call", "kept")
            for row in connection.execute(
                f"SELECT n, owner, hashes FROM {table} ORDER BY n DESC LIMIT ?", (_WARM_ROWS,)
            )
        ]
    except sqlite3.Error as error:
        raise failure(path, "cannot be read", error) from error
    ends = (number + len(hashes) // HASH for number, _, hashes in latest)
    blocks = BlockNumbers(max(ends, default=0) + 1)
    for first, owner, hashes in reversed(latest):
        for at in range(0, len(hashes), HASH):
            blocks.learn(hashes[at : at + HASH], first + at // HASH, owner)
    return Rows(blocks, next_owner)
