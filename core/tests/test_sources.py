"""Task sources: what a user's file or list becomes, and what each bad row says."""

import csv
import datetime
import json
import string
import sys
import tracemalloc

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.errors import FormatVersionError, TaskError
from lightning_core.sources import load_tasks
from lightning_core.task import Task


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_a_jsonl_row_becomes_a_task(tmp_path):
    path = write(
        tmp_path / "train.jsonl",
        {"input": "1+1", "expected": 2, "id": "sum", "split": "val", "metadata": {"a": 1}, "b": 2},
        {"input": {"question": "?"}},
    )
    assert load_tasks(path) == [
        Task(id="sum", input="1+1", expected=2, split="val", metadata={"a": 1, "b": 2}),
        Task(id="train-2", input={"question": "?"}),
    ]
    assert load_tasks(str(path)) == load_tasks(path)


def test_rows_and_tasks_may_stand_in_one_list():
    task = Task(id="mine", input="x", expected=[1])
    assert load_tasks([task, {"input": "y"}]) == [task, Task(id="task-2", input="y")]


def test_csv_cells_are_strings_and_empty_ones_are_no_value(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(
        b"\xef\xbb\xbfinput,expected,level,metadata\r\n"
        b'"a, ""quoted""\r\ntwo lines",4,easy,"{""k"": 1}"\r\n\r\n,,,\r\n'
    )
    assert load_tasks(path) == [
        Task(id="t-1", input='a, "quoted"\r\ntwo lines', expected="4", metadata={"k": 1, "level": "easy"}),
        Task(id="t-2", input=""),
    ]  # fmt: skip


def test_parquet(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "p.parquet"
    day = datetime.date(2024, 2, 3)
    rows = [{"input": {"q": f"{i}"}, "expected": [i], "day": day} for i in range(3000)]
    parquet.write_table(arrow.Table.from_pylist(rows), path)
    tasks = load_tasks(path, limit=2500)
    assert len(tasks) == 2500
    assert tasks[2400] == Task(
        id="p-2401", input={"q": "2400"}, expected=[2400], metadata={"day": "2024-02-03"}
    )


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    (tmp_path / "p.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(TaskError, match=r'pip install "lightning-core\[parquet\]"'):
        load_tasks(tmp_path / "p.parquet")


def test_a_file_that_is_no_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "p.parquet").write_bytes(b"nonsense")
    with pytest.raises(TaskError, match="not a readable Parquet file"):
        load_tasks(tmp_path / "p.parquet")


def test_fields_rename_and_join_columns():
    row = {"question": "?", "db": "x", "query": "SELECT", "id": 7, "input": "other"}
    (task,) = load_tasks([row], fields={"input": "question, db", "expected": "query"})
    assert task == Task(
        id="7", input={"question": "?", "db": "x"}, expected="SELECT", metadata={"input": "other"}
    )


def test_a_column_may_serve_two_fields():
    (task,) = load_tasks([{"q": "?"}], fields={"id": "q", "input": "q"})
    assert task == Task(id="?", input="?")


def test_a_column_whose_name_holds_a_comma():
    (task,) = load_tasks([{"a,b": 1, "a": 2}], fields={"input": "a,b"})
    assert task == Task(id="task-1", input=1, metadata={"a": 2})


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"input": "qestion"}, r"row 1: no `qestion`.*`question`.*--field input=qestion"),
        ({"inptu": "question"}, "field 'inptu': a task has no such field"),
        ({"input": "question,"}, "expected a column"),
    ],
)
def test_wrong_fields(fields, says):
    with pytest.raises(TaskError, match=says):
        load_tasks([{"question": "?"}], fields=fields)


def test_split_keeps_its_rows_and_is_taken_for_granted_where_none_is_named():
    rows = [{"input": 1, "split": "train"}, {"input": 2}, {"input": 3, "split": "val"}]
    assert [(t.id, t.split) for t in load_tasks(rows, split="val")] == [
        ("task-2", "val"),
        ("task-3", "val"),
    ]
    assert [t.split for t in load_tasks(rows)] == ["train", "train", "val"]
    with pytest.raises(TaskError, match="no task has split 'test'; the splits found are `train`"):
        load_tasks(rows[:1], split="test")


def test_limit_reads_no_further():
    def rows():
        yield {"input": 1}
        yield {"input": 2}
        raise AssertionError("read on")

    assert [task.input for task in load_tasks(rows(), limit=2)] == [1, 2]
    with pytest.raises(TaskError, match="`limit`: expected at least 1 but got 0"):
        load_tasks([{"input": 1}], limit=0)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"input": ', r"line 3: broken JSON at column"),
        (b'{"input": NaN}', r"line 3: `NaN` is no JSON value"),
        (b'{"input": 1e999}', r"line 3: .*too large"),
        (b'["input"]', r"line 3: expected an object \(dict\) but got `list`"),
        (b"\xff\xfe", r"line 3: not UTF-8"),
        (b'{"input": "\\ud800"}', r"line 3: JSON cannot hold it: `input` has half a surrogate pair"),
        (b'{"input": ' + b"[" * 100_000, r"line 3: JSON that is nested too deeply"),
        (b'{"question": 1}', r"line 3: no `input`; its keys are `question`.*--field input=COLUMN"),
        (b'{"input": 1, "id": "one"}', r"line 3: id 'one' is also that of `.*` line 1"),
        (b'{"input": 1, "id": 1.5}', r"line 3: `id`: expected a string"),
        (b'{"input": 1, "id": ""}', r"line 3: `id`: expected a string"),
        (b'{"input": 1, "split": 3}', r"line 3: `split`: expected a string"),
        (b'{"input": 1, "metadata": 3}', r"line 3: `metadata`: expected an object but got `int`"),
        (b'{"input": 1, "metadata": {"a": 1}, "a": 2}', r"line 3: `a` is both a key"),
    ],
)  # fmt: skip
def test_a_bad_line_is_named(tmp_path, line, says):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"input": 1, "id": "one"}\r\n\r\n' + line + b"\n")
    with pytest.raises(TaskError, match=says):
        load_tasks(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("input,a\n1\n", "line 2: expected 2 cells, as in the header, but got 1"),
        ("input,a\n1,2\n1,2,3\n", "line 3: expected 2 cells"),
        ("input,input\n1,2\n", "line 1: the header names column `input` twice"),
        ("input,\n1,2\n", "line 1: column 2 of the header has no name"),
        ('input\n"open\n', "line 2: broken CSV"),
        ("input\n" + "x" * 200_000 + "\n", "field limit.*`.jsonl`"),
        ("input,metadata\n1,{\n", "line 2: `metadata` is not JSON"),
        ("input\n", "no tasks in it"),
        ("", "no tasks in it"),
    ],
)
def test_a_bad_csv_row_is_named(tmp_path, text, says):
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(TaskError, match=says):
        load_tasks(tmp_path / "bad.csv")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("none.jsonl", "does not exist"),
        ("folder.jsonl", "is not a file"),
        ("rows.json", r"unknown suffix '.json'; expected one of `.jsonl`, `.csv`, `.parquet`"),
        ("empty.jsonl", "no tasks in it"),
    ],
)
def test_a_file_that_will_not_do(tmp_path, name, says):
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(TaskError, match=says):
        load_tasks(tmp_path / name)


@pytest.mark.parametrize(
    "source", [None, 3, {"input": 1}, Task(id="a", input=1), b"tasks.jsonl", [], [1], ["a.jsonl"]]
)
def test_what_is_no_source(source):
    with pytest.raises(TaskError):
        load_tasks(source)


@pytest.mark.parametrize("value", [object(), float("nan"), {"a": [float("inf")]}, {(1, 2): 3}, 1j])
def test_what_json_cannot_hold_is_refused_in_rows_and_in_tasks(value):
    with pytest.raises(TaskError, match="row 1"):
        load_tasks([{"input": value}])
    with pytest.raises(TaskError, match="row 1"):
        load_tasks([Task(id="a", input="x", expected=value)])


def test_numpy_values_become_plain_ones():
    (task,) = load_tasks([{"input": numpy.arange(3), "expected": numpy.float32(0.5)}])
    assert (task.input, task.expected) == ([0, 1, 2], 0.5)
    assert type(task.expected) is float


def test_a_task_without_an_id_is_refused():
    with pytest.raises(TaskError, match="`id`"):
        load_tasks([Task(id="", input=1)])


def test_a_newer_record_is_refused():
    with pytest.raises(FormatVersionError, match="version 99 is newer"):
        load_tasks([{"format_version": 99, "id": "a", "input": 1}])


def test_a_file_is_read_line_by_line(tmp_path):
    path = tmp_path / "big.jsonl"
    line = json.dumps({"input": "x" * 1000, "split": "train"}) + "\n"
    path.write_text(line * 20_000 + json.dumps({"input": "last", "split": "val"}) + "\n")
    tracemalloc.start()
    (task,) = load_tasks(path, split="val")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert task.id == "big-20001"
    assert peak < path.stat().st_size / 2


text = st.text(st.characters(exclude_categories=["Cs"]))
scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | text
    | st.floats(allow_nan=False, allow_infinity=False)
)  # fmt: skip
values = st.recursive(scalars, lambda s: st.lists(s) | st.dictionaries(text, s), max_leaves=8)
records = st.builds(
    Task,
    id=text.filter(bool),
    input=values,
    expected=values,
    metadata=st.dictionaries(text, values, max_size=3),
    split=text.filter(bool),
)


@given(st.lists(records, min_size=1, max_size=5, unique_by=lambda task: task.id), st.booleans())
def test_tasks_round_trip_through_a_file(tmp_path_factory, tasks, crlf):
    path = tmp_path_factory.mktemp("trip") / "tasks.jsonl"
    path.write_bytes(b"".join(task.to_json() + (b"\r\n" if crlf else b"\n") for task in tasks))
    assert load_tasks(path) == tasks
    assert load_tasks(tasks) == tasks


cells = st.text(string.printable, min_size=1).filter(lambda cell: "\x00" not in cell)


@given(st.lists(st.tuples(cells, cells), min_size=1, max_size=5))
def test_csv_round_trip(tmp_path_factory, pairs):
    path = tmp_path_factory.mktemp("trip") / "tasks.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow(["input", "expected"])
        writer.writerows(pairs)
    assert [(task.input, task.expected) for task in load_tasks(path)] == pairs
