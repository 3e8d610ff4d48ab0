"""The journal of paid work: what `put` has returned for is there, whatever happens then."""

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_core.errors import FormatError, RecordError, StoreError
from lightning_prompt.journal import Journal

WRITER = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from lightning_prompt.journal import Journal

    journal = Journal(Path(sys.argv[1]), tell=lambda text: print("told", flush=True))
    number = len(list(journal))
    while True:
        journal.put(f"key-{number}", {"number": number, "text": "ä" * (number * 7919 % 60000)})
        print(number, flush=True)
        number += 1
    """
)


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def test_what_was_put_is_there_after_it_was_opened_again(path):
    with Journal(path) as journal:
        assert journal.get("a") is None
        journal.put("a", {"text": "grüße\n\x00\u2028", "n": [1, None, True]})
        journal.put("b", 2.5)
        assert journal.get("b") == 2.5
    with Journal(path) as journal:
        assert journal.get("a") == {"text": "grüße\n\x00\u2028", "n": [1, None, True]}
        assert list(journal) == [journal.get("a"), 2.5]
        journal.put("c", "more")
    assert [json.loads(line)["key"] for line in path.read_bytes().splitlines()] == ["a", "b", "c"]


def test_a_writer_that_is_killed_again_and_again_loses_nothing_that_it_was_told_is_kept(path):
    chance, told, kept = random.Random(7), 0, 0
    for _ in range(6):
        process = start(WRITER, path)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(chance.uniform(0.0, 0.25))
        process.send_signal(signal.SIGKILL)
        lines = process.stdout.read().split()
        process.wait()
        process.stdout.close()
        numbers = [int(line) for line in lines if line != "told"]
        told = max([told, *(number + 1 for number in numbers)])
        with Journal(path, tell=lambda text: None) as journal:
            values = list(journal)
        assert len(values) >= told > 0
        assert [value["number"] for value in values] == list(range(len(values)))
        assert len(values) > kept
        kept = len(values)


@settings(deadline=None)
@given(st.data())
def test_a_line_cut_at_any_byte_is_cut_off_and_told_and_the_lines_before_it_stay(
    tmp_path_factory, data
):
    path = tmp_path_factory.mktemp("cut") / "journal.jsonl"
    with Journal(path) as journal:
        journal.put("first", "ä\n}")
        journal.put("second", {"a": [1, "ü"]})
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    cut = data.draw(st.integers(first, len(whole) - 1))
    path.write_bytes(whole[:cut])
    told: list[str] = []
    with Journal(path, tell=told.append) as journal:
        assert list(journal) == ["ä\n}"]
        assert len(told) == (cut > first)
        assert all("was cut short" in text and f"{cut - first} bytes" in text for text in told)
        journal.put("second", "anew")
    with Journal(path) as journal:
        assert list(journal) == ["ä\n}", "anew"]


@pytest.mark.parametrize(
    "broken",
    [b"{", b"", b'{"key": "x"}', b'{"key": 1, "value": 2}', b'{"key": "x", "value": 1, "z": 2}', b"\xff\xfe",
     b'{"key": "a", "value": 1}', b"[" * 5000],
)  # fmt: skip
def test_a_broken_line_that_is_not_the_last_is_an_error_that_names_it(path, broken):
    path.write_bytes(b'{"key": "a", "value": 1}\n' + broken + b'\n{"key": "b", "value": 1}\n')
    with pytest.raises(FormatError, match=r"journal\.jsonl`, line 2: "):
        Journal(path)
    path.write_bytes(b'{"key": "a", "value": 1}\n')
    Journal(path).close()  # The lock was let go.


def test_another_process_is_refused_while_it_is_open(path):
    process = start(WRITER, path)
    assert process.stdout is not None
    process.stdout.readline()
    with pytest.raises(StoreError, match="another process has it open"):
        Journal(path)
    process.kill()
    process.wait()
    process.stdout.close()
    with Journal(path, tell=lambda text: None), pytest.raises(StoreError, match="another process"):
        Journal(path)
    Journal(path).close()


def test_keys_tell_equal_askings_apart_and_come_again_after_a_restart(path):
    with Journal(path) as journal:
        first = [journal.key(asked) for asked in ({"b": 1, "a": 2}, "x", {"a": 2, "b": 1}, "y")]
    with Journal(path) as journal:
        again = [journal.key(asked) for asked in ("y", {"a": 2, "b": 1}, "x", {"a": 2, "b": 1})]
    assert len(set(first)) == 4
    assert again == [first[3], first[0], first[1], first[2]]
    assert all(len(key) == 64 for key in first)


def test_a_key_has_one_value_and_a_value_is_json(path):
    with Journal(path) as journal:
        journal.put("a", 1)
        with pytest.raises(RecordError, match="has a value already"):
            journal.put("a", 2)
        endless: list[object] = []
        endless.append(endless)
        for value in (object(), "\ud800", endless):
            with pytest.raises(RecordError, match="JSON cannot hold"):
                journal.put("b", value)
            with pytest.raises(RecordError, match="JSON cannot hold"):
                journal.key(value)
        assert list(journal) == [1]
    with pytest.raises(StoreError, match="is closed"):
        journal.put("c", 1)


def test_a_full_disk_is_an_error_and_leaves_the_journal_whole(path):
    program = textwrap.dedent(
        """
        import resource, sys
        from pathlib import Path
        from lightning_core.errors import StoreError
        from lightning_prompt.journal import Journal

        journal = Journal(Path(sys.argv[1]))
        journal.put("a", "small")
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            journal.put("b", "x" * 5000)
        except StoreError as error:
            print(error)
        journal.put("c", "after")
        """
    )
    process = start(program, path)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "File too large; give a folder on a disk with room" in output
    with Journal(path) as journal:
        assert list(journal) == ["small", "after"]


def test_a_line_is_on_the_disk_before_put_returns(path, monkeypatch):
    synced: list[bytes] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(path.read_bytes()))
    with Journal(path) as journal:
        synced.clear()
        journal.put("a", 1)
        assert synced == [b'{"key":"a","value":1}\n']


def test_threads_may_put_at_once(path):
    with Journal(path) as journal:

        def put(thread: int) -> None:
            for number in range(20):
                journal.put(journal.key("the same"), [thread, number])

        threads = [threading.Thread(target=put, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        values = list(journal)
    assert sorted(map(tuple, values)) == [(t, n) for t in range(4) for n in range(20)]
    with Journal(path) as journal:
        assert list(journal) == values


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(StoreError, match="No such file"):
        Journal(tmp_path / "missing" / "journal.jsonl")
