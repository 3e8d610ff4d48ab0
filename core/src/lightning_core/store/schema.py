"""The SQLite file: its tables, its version, and how it is opened.

Every record is one row of JSON with the columns by which it is found. A `call` lacks what is large and repeats: its
`parts` say how to put it together from blocks (see `codec`, `blocks`). A block lies in the row of the call that first
brought it, and is known by a number: the first in a row is `n`, and each has one of the `hashes` and one of the `bodies`.
A row for each block would cost the writer half as much again.

An `owner` is an attempt, or a part of one, as the calls know it. `ref` names the owners that use a block of another's,
so that deleting one keeps what they share; such a block then lies in `kept`, as do those of calls that were replaced.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from urllib.parse import quote

from lightning_core.errors import FormatVersionError, StoreError

SCHEMA_VERSION = 1
"""Grows when an older release could no longer read the file, whether tables or a record's JSON changed."""

APPLICATION_ID = 0x4C43_7374
"""Marks the file as ours (`LCst`)."""

_TABLES = """
CREATE TABLE task (n INTEGER PRIMARY KEY, run TEXT NOT NULL, id TEXT NOT NULL, data BLOB NOT NULL, UNIQUE (run, id));
CREATE TABLE rollout (
    n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, run TEXT NOT NULL, grp TEXT, status TEXT NOT NULL, data BLOB NOT NULL
);
CREATE INDEX rollout_run ON rollout (run);
CREATE INDEX rollout_group ON rollout (grp);
CREATE INDEX rollout_status ON rollout (status);
CREATE INDEX rollout_run_status ON rollout (run, status);
CREATE TABLE attempt (
    n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, rollout TEXT NOT NULL, number INTEGER NOT NULL, data BLOB NOT NULL
);
CREATE INDEX attempt_rollout ON attempt (rollout, number);
CREATE TABLE span (
    n INTEGER PRIMARY KEY, attempt TEXT NOT NULL, id TEXT NOT NULL, started REAL, data BLOB NOT NULL,
    UNIQUE (attempt, id)
);
CREATE TABLE reward (
    n INTEGER PRIMARY KEY, rollout TEXT NOT NULL, name TEXT NOT NULL, scope TEXT NOT NULL, target TEXT NOT NULL,
    data BLOB NOT NULL, UNIQUE (rollout, name, scope, target)
);
CREATE TABLE state (key TEXT PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE owner (n INTEGER PRIMARY KEY, attempt TEXT NOT NULL, rollout TEXT NOT NULL);
CREATE INDEX owner_attempt ON owner (attempt);
CREATE INDEX owner_rollout ON owner (rollout);
CREATE TABLE call (
    n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, owner INTEGER NOT NULL, idx INTEGER NOT NULL, hashes BLOB NOT NULL,
    data BLOB NOT NULL, parts BLOB, bodies BLOB
);
CREATE INDEX call_owner ON call (owner, idx);
CREATE TABLE kept (n INTEGER PRIMARY KEY, owner INTEGER NOT NULL, hashes BLOB NOT NULL, bodies BLOB);
CREATE INDEX kept_owner ON kept (owner);
CREATE TABLE ref (block INTEGER NOT NULL, owner INTEGER NOT NULL, PRIMARY KEY (block, owner)) WITHOUT ROWID;
CREATE INDEX ref_owner ON ref (owner);
"""

_TRIGGER = """
CREATE TRIGGER call_replaced BEFORE UPDATE ON call WHEN old.bodies IS NOT NULL BEGIN
    INSERT INTO kept VALUES (old.n, old.owner, old.hashes, old.bodies);
END
"""

_PAGE_SIZE = 32_768
"""Calls of a few KiB fill such a page with little waste; with 4 KiB pages they spill, at a third of the speed."""

_WAL_LIMIT = 16 * 1024 * 1024
"""Bytes to which the log is cut back; at half of it, it is moved into the file."""

_CACHE_KIB = 16_384
"""A batch of 500 calls fits; where it does not, pages are written more than once."""


def open_for_writing(path: Path) -> sqlite3.Connection:
    """Open the file, making it first where there is none.

    Raises:
        StoreError: it cannot be opened, or is not a store.
        FormatVersionError: a newer release wrote it.
    """
    connection = _connect(path, "rwc")
    try:
        if _check(connection, path):
            connection.execute(f"PRAGMA page_size = {_PAGE_SIZE}")
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise StoreError(
                f"store `{path}`: its file system gives no write-ahead log (got `{mode}`); use a local disk"
            )
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_WAL_LIMIT // 2 // _PAGE_SIZE}")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        connection.execute("PRAGMA temp_store = MEMORY")
        # A read-only file is found now, not at the first call that is lost.
        connection.execute("BEGIN IMMEDIATE")
        if _check(connection, path):
            for statement in (*_TABLES.split(";"), _TRIGGER):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        connection.close()
        raise failure(path, "cannot be opened for writing", error) from error
    except BaseException:
        connection.close()
        raise
    return connection


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Open an existing file read-only, while another process may write to it.

    Raises:
        StoreError: there is none, it cannot be read, or is not a store.
        FormatVersionError: a newer release wrote it.
    """
    if not path.is_file():
        raise StoreError(f"store `{path}`: there is no such file; check the run's name and folder")
    connection = _connect(path, "ro")
    try:
        try:
            empty = _check(connection, path)
        except sqlite3.OperationalError:
            # A log cannot be made in a read-only folder, nor is one needed where no writer left any.
            if path.with_name(path.name + "-wal").exists():
                raise
            connection.close()
            connection = _connect(path, "ro&immutable=1")
            empty = _check(connection, path)
    except sqlite3.Error as error:
        connection.close()
        raise failure(path, "cannot be read", error) from error
    except BaseException:
        connection.close()
        raise
    if empty:
        connection.close()
        raise StoreError(f"store `{path}`: the file is empty; no server has written to it")
    return connection


def failure(path: Path, what: str, error: Exception) -> StoreError:
    """A StoreError that says what happened to which file, and what to do."""
    text = str(error)
    code = getattr(error, "sqlite_errorname", "")
    if code.startswith("SQLITE_NOTADB"):
        step = "it is not a SQLite file; give another path, or move the file away"
    elif code.startswith("SQLITE_CORRUPT"):
        step = "the file is damaged; move it away, and salvage it with `sqlite3 FILE .recover`"
    elif code.startswith("SQLITE_FULL"):
        step = (
            f"free space on the disk of `{path.parent}`, then start again; what was flushed is safe"
        )
    elif code.startswith("SQLITE_IOERR"):
        step = (
            f"check space, quota and file size limit (`ulimit -f`) for `{path.parent}`, then start again;"
            " what was flushed is safe"
        )
    elif code.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        step = f"make file and folder `{path.parent}` writable for this user, or use another folder"
    elif code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        step = "another program holds a lock on the file; close it and start again"
    else:
        step = "what was flushed before is safe; open the store again to go on"
    return StoreError(f"store `{path}`: {what}: {text}; {step}")


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"file:{quote(str(path.absolute()))}?mode={mode}"
    try:
        # The writer thread and the pool of readers each use a connection by one thread at a time.
        return sqlite3.connect(
            uri, uri=True, isolation_level=None, timeout=10.0, check_same_thread=False
        )
    except sqlite3.Error as error:
        raise failure(path, "cannot be opened", error) from error


def _check(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether the file is still without tables; raises where it is not ours to read."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    if application == APPLICATION_ID:
        if version > SCHEMA_VERSION:
            raise FormatVersionError(
                f"store `{path}`: format version {version} is newer than {SCHEMA_VERSION}, which this release"
                " reads; upgrade with `pip install -U lightning-core`, or use another run folder"
            )
        return False
    if application or version or connection.execute("SELECT 1 FROM sqlite_schema").fetchone():
        raise StoreError(
            f"store `{path}`: it is a SQLite file of another program; give another path"
        )
    return True
