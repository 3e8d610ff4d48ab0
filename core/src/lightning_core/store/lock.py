"""A lock beside the store, so that one server at a time writes to a run folder.

It is the kernel's advisory lock on `FILE-lock`, so it ends with the process however that ends. The file stays behind and
holds the process id of the last writer. On Windows, which has no such lock, none is taken.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from lightning_core.errors import StoreError

if sys.platform != "win32":
    import fcntl


class WriterLock:
    """Held from construction until `release`.

    Raises:
        StoreError: another process, or another store of this one, holds it; or the folder cannot be written.
    """

    def __init__(self, store: Path) -> None:
        self._path = store.with_name(store.name + "-lock")
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StoreError(
                f"store `{store}`: cannot create `{self._path.name}` beside it: {error.strerror};"
                " give a folder that this user can write to"
            ) from error
        try:
            self._acquire(store)
        except BaseException:
            os.close(self._descriptor)
            raise

    def _acquire(self, store: Path) -> None:
        if sys.platform != "win32":
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                holder = os.pread(self._descriptor, 32, 0).decode(errors="replace").strip()
                raise StoreError(
                    f"store `{store}`: process {holder or '(unknown)'} is writing to it; stop that server, use"
                    " another run folder, or open it with `readonly=True`"
                ) from error
            except OSError as error:
                raise StoreError(
                    f"store `{store}`: cannot lock `{self._path.name}`: {error.strerror};"
                    " put the run folder on a file system with locks, such as a local disk"
                ) from error
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        """Let another writer in. May be called more than once."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
