"""Journal: an append-only file of what was paid for, so that nothing is paid for twice.

Each line is `{"key": SHA-256, "value": …}`, and lies on the disk before `put` returns.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from io import RawIOBase
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from lightning_core.errors import FormatError, RecordError, StoreError
from lightning_core.records import Json
from lightning_core.store.lock import WriterLock

_log: Final = logging.getLogger(__name__)


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: str
    value: Json


class Journal:
    """What came of paid work, by the key of what was asked. Open from construction until `close`; for any thread.

    The lock beside the file, `FILE-lock`, keeps other processes out, and ends with this one however that ends.
    """

    def __init__(self, path: Path, *, tell: Callable[[str], None] = _log.warning) -> None:
        """Args:
            path: the file; made where it is missing, in a folder that is there.
            tell: called with what the user should know: that a kill has cut the last line short, and it is gone.

        Raises:
            StoreError: another process has it open, or it cannot be read or written.
            FormatError: a line is not the journal's; the message names it.
        """
        self.path = path
        self._thread_lock = threading.Lock()
        self._asked: Counter[str] = Counter()
        self._lock = _locked(path)
        try:
            self._values, self._end = _read(path, tell)
            self._file = path.open("ab", buffering=0)
            _sync_folder(path.parent)
        except OSError as error:
            self._lock.release()
            raise _unusable(path, error) from error
        except FormatError:
            self._lock.release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let another process in. May be called more than once."""
        with self._thread_lock:
            self._file.close()
        self._lock.release()

    def __iter__(self) -> Iterator[Json]:
        """The values, in the order in which they were put."""
        return iter(tuple(self._values.values()))

    def key(self, asked: Json) -> str:
        """The key of something that is asked now.

        The same asked again has another key: the first, second, … asking since the journal was opened. So a program that
        asks the same things after a restart gets the same keys, and so the same values, whatever other things it asks
        between them.

        Raises:
            RecordError: JSON cannot hold it.
        """
        asking = self._encoded(asked)
        with self._thread_lock:
            digest = hashlib.sha256(asking).hexdigest()
            ordinal = self._asked[digest]
            self._asked[digest] += 1
        return hashlib.sha256(b"%d %b" % (ordinal, asking)).hexdigest()

    def get(self, key: str) -> Json | None:
        """The value of a key; None where there is none."""
        return self._values.get(key)

    def put(self, key: str, value: Json) -> None:
        """Keep the value of a key; on the disk once this returns. Blocks for as long as the disk takes.

        Raises:
            RecordError: the key has a value already, or JSON cannot hold this one.
            StoreError: it cannot be written; the journal is as it was before.
        """
        line = self._encoded({"key": key, "value": value}) + b"\n"
        with self._thread_lock:
            if self._file.closed:
                raise StoreError(f"journal `{self.path}`: is closed")
            if key in self._values:
                raise RecordError(f"journal `{self.path}`: key {key!r} has a value already")
            try:
                _write(self._file, line)
            except OSError as error:
                self._file.truncate(self._end)
                raise _unusable(self.path, error) from error
            self._end += len(line)
            # As it would be read after a restart.
            self._values[key] = msgspec.json.decode(line, type=_Line).value

    def _encoded(self, value: Json) -> bytes:
        try:
            return msgspec.json.encode(value, order="sorted")
        except (TypeError, ValueError, RecursionError) as error:
            raise RecordError(f"journal `{self.path}`: JSON cannot hold this: {error}") from error


def _locked(path: Path) -> WriterLock:
    try:
        return WriterLock(path)
    except StoreError as error:
        if not isinstance(error.__cause__, BlockingIOError):
            raise
        raise StoreError(
            f"journal `{path}`: another process has it open; wait for that run to end, or stop it, then go on with `--resume`"
        ) from error


def _read(path: Path, tell: Callable[[str], None]) -> tuple[dict[str, Json], int]:
    """The values, and where the next line begins. A last line that a kill has cut short is cut off."""
    values: dict[str, Json] = {}
    if not path.exists():
        return values, 0
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    for number, line in enumerate(data[:end].split(b"\n")[:-1], start=1):
        try:
            entry = msgspec.json.decode(line, type=_Line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise FormatError(
                f'journal `{path}`, line {number}: expected `{{"key": …, "value": …}}` but got {line[:80]!r}: {error};'
                " mend or remove the line: what it holds will be asked and paid for again"
            ) from error
        if entry.key in values:
            raise FormatError(f"journal `{path}`, line {number}: key {entry.key!r} comes twice")
        values[entry.key] = entry.value
    if end < len(data):
        os.truncate(path, end)
        tell(
            f"journal `{path}`: its last line was cut short, and is cut off ({len(data) - end} bytes);"
            " what it held will be asked for again"
        )
    return values, end


def _write(file: RawIOBase, line: bytes) -> None:
    rest = memoryview(line)
    while rest:
        rest = rest[file.write(rest) :]
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make sure that the file's name is on the disk too. Windows opens no folders."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unusable(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"journal `{path}`: {error.strerror}; give a folder on a disk with room that this user can write to"
    )
