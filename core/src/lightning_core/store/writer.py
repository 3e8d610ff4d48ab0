"""The writer: one thread that commits what is queued, in batches."""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from lightning_core.errors import StoreError
from lightning_core.store.schema import failure
from lightning_core.store.writes import Delete, Write, apply

BATCH_ROWS = 500
"""Records that are not kept waiting for more."""
BATCH_SECONDS = 0.02
"""How long a record waits for others to be committed with it, at most."""


class Writer:
    """Commits writes in the order in which they are added. After a failure it commits nothing more.

    `committed(records, bytes)` and `failed(error)` are called in its thread, after each transaction.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: Path,
        *,
        committed: Callable[[int, int], None],
        failed: Callable[[StoreError], None],
    ) -> None:
        self._connection = connection
        self._path = path
        self._committed = committed
        self._failed = failed
        self._queue: deque[Write | Delete] = deque()
        self._changed = threading.Condition()
        self._hurry = False
        self._stop = False
        # A daemon, so that a program that never closes its store can still end; what was flushed is safe.
        self._thread = threading.Thread(target=self._run, name="lightning-store-write", daemon=True)
        self._thread.start()

    def add(self, write: Write | Delete) -> None:
        """Queue a write. Never blocks for longer than it takes to wake the thread."""
        queue = self._queue
        queue.append(write)
        # Without the lock: the thread looks again, holding it, before it waits.
        if len(queue) in (1, BATCH_ROWS):
            with self._changed:
                self._changed.notify()

    def hurry(self) -> None:
        """Commit what is queued at once, without waiting for more."""
        with self._changed:
            self._hurry = True
            self._changed.notify()

    def stop(self) -> None:
        """Commit what is queued, then end the thread. The connection stays open. Blocks."""
        with self._changed:
            self._stop = True
            self._changed.notify()
        self._thread.join()

    def _ripe(self) -> bool:
        return self._hurry or self._stop or len(self._queue) >= BATCH_ROWS

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._stop)
                if not self._queue:
                    return
                self._changed.wait_for(self._ripe, timeout=BATCH_SECONDS)
                self._hurry = False
                batch = [self._queue.popleft() for _ in range(len(self._queue))]
            try:
                apply(self._connection, batch)
            # Whatever went wrong, the records are not in the file, and whoever put them must hear of it.
            except Exception as error:
                self._failed(failure(self._path, "a write failed", error))
                return
            self._committed(len(batch), sum(write.size for write in batch))
