"""The SQLite store and what can happen to a process, a disk and a file."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from lightning_core.errors import FormatVersionError, StoreError
from lightning_core.rollout import Rollout
from lightning_core.store import SQLiteStore
from lightning_core.testing.store import make_call, make_rollout

PRELUDE = """
import asyncio, os, resource, sys
from pathlib import Path
from lightning_core.errors import StoreError
from lightning_core.store import SQLiteStore
from lightning_core.testing.store import make_call, make_rollout
path = Path(sys.argv[1])
"""


def start(script: str, path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + script, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def outcome(script: str, path: Path) -> str:
    """What a script prints; its standard error where it fails."""
    process = start(script, path)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


KILLED = """
async def main():
    store = await SQLiteStore.open(path)
    index = 0
    while True:
        messages = [{"role": "user", "content": f"{turn} " * 30} for turn in range(index % 100)]
        for _ in range(5):
            await store.put(make_call(
                f"c{index}", index=index, request={"messages": messages},
                prompt_token_ids=tuple(range(index)),
            ))
            index += 1
        await store.flush()
        print(index, flush=True)
asyncio.run(main())
"""


async def test_kill_9_loses_no_call_that_was_flushed(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    acknowledged = 0
    for round_ in range(3):
        process = start(KILLED, path)
        try:
            assert process.stdout is not None
            for line in process.stdout:
                acknowledged = int(line)
                if acknowledged >= 300 + 50 * round_:
                    break
            os.kill(process.pid, signal.SIGKILL)
            # What it acknowledged between our last look and its end counts too.
            rest, err = process.communicate(timeout=60)
            assert process.returncode == -signal.SIGKILL, err
            whole = rest[: rest.rfind("\n") + 1].split()
            acknowledged = int(whole[-1]) if whole else acknowledged
        finally:
            process.kill()
            process.wait()
        async with await SQLiteStore.open(path) as store:
            calls = await store.calls("r.1")
            assert [call.index for call in calls] == list(range(len(calls)))
            assert len(calls) >= acknowledged
            for call in calls:
                assert len(call.messages) == call.index // 5 * 5 % 100
                assert call.prompt_token_ids == tuple(range(call.index))
            assert (await store.usage()).calls == len(calls)
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


async def test_a_second_writer_is_refused_by_the_name_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with await SQLiteStore.open(path):
        with pytest.raises(StoreError, match=rf"process {os.getpid()} is writing.*another"):
            await SQLiteStore.open(path)
        said = outcome(
            """
try:
    asyncio.run(SQLiteStore.open(path))
except StoreError as error:
    print(error)
""",
            path,
        )
        assert f"process {os.getpid()} is writing" in said
    async with await SQLiteStore.open(path) as store:
        await store.put(make_rollout())


async def test_a_reader_sees_what_a_writer_flushed_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with await SQLiteStore.open(path) as writer:
        await writer.put(make_rollout("r1"))
        await writer.flush()
        async with await SQLiteStore.open(path, readonly=True) as looking:
            assert [rollout.id for rollout in await looking.rollouts()] == ["r1"]
            await writer.put(make_rollout("r2"))
            await writer.flush()
            assert [rollout.id for rollout in await looking.rollouts()] == ["r1", "r2"]
            with pytest.raises(StoreError, match="reading only"):
                await looking.put(make_rollout("r3"))
            with pytest.raises(StoreError, match="reading only"):
                await looking.delete(["r1"])


async def test_a_store_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await (await SQLiteStore.open(path)).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 999")
    connection.close()
    for readonly in (False, True):
        with pytest.raises(
            FormatVersionError, match=r"store\.db`: format version 999 .*pip install -U"
        ):
            await SQLiteStore.open(path, readonly=readonly)


async def test_a_file_that_is_no_store_is_refused_and_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database, but long enough to have a header\n" * 100)
    other = tmp_path / "other.db"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE mine (a)")
    connection.commit()
    connection.close()
    for path, why in ((text, "not a SQLite file"), (other, "another program")):
        before = path.read_bytes()
        for readonly in (False, True):
            with pytest.raises(StoreError, match=rf"{path.name}.*{why}"):
                await SQLiteStore.open(path, readonly=readonly)
        assert path.read_bytes() == before


async def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with await SQLiteStore.open(path) as store:
        await store.put(*(make_call(f"c{n}", index=n) for n in range(2000)))
    # Nothing is left in the log: the file alone can be copied.
    assert not (tmp_path / "store.db-wal").exists()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(16_384)
        file.write(os.urandom(size - 16_384))
    store = await SQLiteStore.open(path, readonly=True)
    try:
        with pytest.raises(StoreError, match=r"store\.db.*(damaged|malformed)"):
            await store.calls("r.1")
    finally:
        await store.close()


async def test_a_missing_folder_or_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no folder .*missing.*create it"):
        await SQLiteStore.open(tmp_path / "missing" / "store.db")
    with pytest.raises(StoreError, match="no such file"):
        await SQLiteStore.open(tmp_path / "store.db", readonly=True)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StoreError, match="cannot be opened"):
        await SQLiteStore.open(tmp_path)


READ_ONLY = """
if os.getuid() == 0:
    os.setuid(65534)
async def main():
    try:
        await SQLiteStore.open(path)
    except StoreError as error:
        print(error)
    store = await SQLiteStore.open(path, readonly=True)
    print([rollout.id for rollout in await store.rollouts()])
    await store.close()
asyncio.run(main())
"""


@pytest.mark.parametrize("lock_file", [True, False])
async def test_a_read_only_folder_can_be_read_and_is_named_when_written(lock_file: bool) -> None:
    # Not below `tmp_path`, whose parents let no other user in.
    folder = Path(tempfile.mkdtemp())
    try:
        async with await SQLiteStore.open(folder / "store.db") as store:
            await store.put(make_rollout())
        if not lock_file:
            (folder / "store.db-lock").unlink()
        for file in folder.iterdir():
            file.chmod(0o444)
        folder.chmod(0o555)
        said, listed = outcome(READ_ONLY, folder / "store.db").splitlines()
        assert str(folder) in said
        assert "can write" in said
        assert listed == "['r']"
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


FULL = """
limit = 2_000_000
async def main():
    store = await SQLiteStore.open(path)
    await store.put(make_rollout("first"))
    await store.flush()
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    for flushing in (False, True):
        try:
            index = 0
            while True:
                await store.put(make_call(f"c{index}", index=index, reply={"x": f"{index}" * 1000}))
                index += 1
                if flushing or index % 10 == 0:
                    await store.flush()
        except StoreError as error:
            print(error)
    print([rollout.id for rollout in await store.rollouts()])
    await store.close()
asyncio.run(main())
"""


async def test_a_full_disk_is_told_once_and_then_writes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    first, second, listed = outcome(FULL, path).splitlines()
    assert first.startswith(f"store `{path}`: a write failed: ")
    assert "space" in first
    assert second.startswith(f"store `{path}`: takes no more writes since one failed")
    assert listed == "['first']"
    async with await SQLiteStore.open(path) as store:
        assert await store.rollout("first") == make_rollout("first")
        calls = await store.calls("r.1")
        assert [call.index for call in calls] == list(range(len(calls)))
        await store.put(make_call("more"))


async def test_a_failure_that_nobody_was_told_is_raised_by_close(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = await SQLiteStore.open(path)
    await store.flush()
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE rollout")
    connection.commit()
    connection.close()
    await store.put(make_rollout())
    with pytest.raises(StoreError, match="a write failed: no such table"):
        await store.close()
    await store.close()


async def test_everyone_who_waits_hears_of_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = await SQLiteStore.open(path, queue_rows=1)
    connection = sqlite3.connect(path, isolation_level=None)
    # The writer waits for this lock while the others wait for the writer.
    connection.execute("BEGIN IMMEDIATE")
    waiting = [asyncio.create_task(store.put(make_rollout(f"r{n}"))) for n in range(5)]
    waiting.append(asyncio.create_task(store.flush()))
    await asyncio.wait(waiting, timeout=0.1)
    connection.execute("DROP TABLE rollout")
    connection.execute("COMMIT")
    connection.close()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert results[0] is None
    assert all(isinstance(result, StoreError) for result in results[1:])
    assert sum("a write failed" in str(result)[:200] for result in results[1:]) >= 1
    await store.close()


async def test_put_waits_while_the_queue_is_full_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with await SQLiteStore.open(path, queue_rows=3) as store:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        for number in range(3):
            await asyncio.wait_for(store.put(make_rollout(f"r{number}")), timeout=30)
        waiting = [
            asyncio.create_task(store.put(make_rollout(f"r{number}"))) for number in range(3, 9)
        ]
        done, _ = await asyncio.wait(waiting, timeout=0.2)
        assert done == set()
        connection.execute("COMMIT")
        connection.close()
        await asyncio.gather(*waiting)
        assert [rollout.id for rollout in await store.rollouts()] == [f"r{n}" for n in range(9)]


async def test_a_put_that_waits_when_the_store_closes_is_told(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = await SQLiteStore.open(path, queue_rows=1)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    await store.put(make_rollout("r0"))
    waiting = [asyncio.create_task(store.put(make_rollout(f"r{n}"))) for n in (1, 2)]
    await asyncio.wait(waiting, timeout=0.1)
    closing = asyncio.create_task(store.close())
    for result in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(result, StoreError)
    connection.execute("COMMIT")
    connection.close()
    await closing
    async with await SQLiteStore.open(path) as again:
        assert [rollout.id for rollout in await again.rollouts()] == ["r0"]


async def test_a_cancelled_wait_takes_nothing_with_it(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with await SQLiteStore.open(path, queue_rows=1) as store:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        await store.put(make_rollout("r0"))
        doomed = [
            asyncio.create_task(store.put(make_rollout("r1"))),
            asyncio.create_task(store.flush()),
            asyncio.create_task(store.rollouts()),
        ]
        await asyncio.wait(doomed, timeout=0.1)
        for task in doomed:
            task.cancel()
        await asyncio.wait(doomed)
        connection.execute("COMMIT")
        connection.close()
        await store.put(make_rollout("r2"))
        assert [rollout.id for rollout in await store.rollouts()] == ["r0", "r2"]


async def test_the_event_loop_goes_on_while_the_file_is_locked(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with await SQLiteStore.open(path) as store:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        await store.put(make_rollout())
        flushing = asyncio.create_task(store.flush())
        reading = asyncio.create_task(store.rollouts())
        # The lock is let go by this loop: were it blocked, the writer would give up and the flush would fail.
        await asyncio.wait([flushing, reading], timeout=0.2)
        assert not flushing.done()
        assert not reading.done()
        connection.execute("COMMIT")
        connection.close()
        await flushing
        assert await reading == [make_rollout()]


def test_a_program_that_never_closes_its_store_ends_and_keeps_what_it_flushed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store.db"
    script = """
async def main():
    store = await SQLiteStore.open(path)
    await store.put(make_rollout())
    await store.flush()
    await store.put(make_rollout("late"))
asyncio.run(main())
print("ended")
"""
    assert outcome(script, path) == "ended\n"

    async def look() -> Rollout | None:
        async with await SQLiteStore.open(path) as store:
            return await store.rollout("r")

    assert asyncio.run(look()) == make_rollout()
