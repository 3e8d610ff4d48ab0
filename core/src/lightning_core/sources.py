"""Task sources: tasks from a file of rows, or from any iterable of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from lightning_core.errors import FormatVersionError, TaskError
from lightning_core.readers import READERS, Row
from lightning_core.task import Task

_FIELDS: Final = ("id", "input", "expected", "metadata", "split")


def load_tasks(
    source: str | os.PathLike[str] | Iterable[Mapping[str, Any] | Task],
    *,
    fields: Mapping[str, str] | None = None,
    split: str | None = None,
    limit: int | None = None,
) -> list[Task]:
    """Read tasks.

    A row has `input`, and may have `id`, `expected`, `metadata` (an object) and `split`; every other key goes to
    the task's metadata. A row without an id gets `STEM-N`, where STEM is the file's name without its suffix
    (`task` for an iterable) and N counts the rows from 1. In a CSV file an empty cell stands for no value,
    except under `input`, and a `metadata` cell holds JSON.

    Args:
        source: path of a `.jsonl`, `.csv` or `.parquet` file, or an iterable of rows (dicts) and Tasks.
        fields: for a Task's field, the row's key: `{"input": "question", "expected": "query"}`. Several keys
            with commas between them, `{"input": "question,db_id"}`, make an object of these keys. A key named
            here must be in every row. Tasks are taken as they are.
        split: keep the rows of this split; rows that name none are taken to belong to it.
        limit: read no further than this many tasks.

    Returns:
        The tasks, in the source's order; at least one.

    Raises:
        TaskError: the source cannot be read, a row is no task, two tasks have one id, or nothing is left. The
            message names the row.
        FormatVersionError: a row is a Task that a newer release wrote.
    """
    if limit is not None and limit < 1:
        raise TaskError(f"`limit`: expected at least 1 but got {limit!r}")
    wanted = _check_fields(fields or {})
    rows, name, stem, in_csv = _open(source)
    tasks: list[Task] = []
    where_by_id: dict[str, str] = {}
    other_splits: dict[str, None] = {}
    for number, (where, row) in enumerate(rows, 1):
        task = _task(row, where, f"{stem}-{number}", wanted, split or "train", in_csv)
        if task.id in where_by_id:
            raise TaskError(
                f"{where}: id {task.id!r} is also that of {where_by_id[task.id]}; ids must be unique"
            )
        where_by_id[task.id] = where
        if split is not None and task.split != split:
            other_splits[task.split] = None
            continue
        tasks.append(task)
        if len(tasks) == limit:
            break
    if not tasks and other_splits:
        found = ", ".join(f"`{other}`" for other in other_splits)
        raise TaskError(f"{name}: no task has split {split!r}; the splits found are {found}")
    if not tasks:
        raise TaskError(f"{name}: no tasks in it; expected at least one row with `input`")
    return tasks


def _check_fields(fields: Mapping[str, str]) -> dict[str, str]:
    for ours, theirs in fields.items():
        if ours not in _FIELDS:
            known = ", ".join(f"`{field}`" for field in _FIELDS)
            raise TaskError(
                f"field {ours!r}: a task has no such field; expected one of {known},"
                " as in `--field input=COLUMN`"
            )
        if not isinstance(theirs, str) or not all(part.strip() for part in theirs.split(",")):
            raise TaskError(
                f"field `{ours}`: expected a column, or several with commas between, but got {theirs!r}"
            )
    return dict(fields)


def _open(source: object) -> tuple[Iterator[Row], str, str, bool]:
    """The rows, the source's name for messages, its stem for ids, and whether cells are CSV's."""
    if isinstance(source, str | os.PathLike):
        path = Path(os.fsdecode(source))
        reader = READERS.get(path.suffix.lower())
        if reader is None:
            known = ", ".join(f"`{suffix}`" for suffix in READERS)
            raise TaskError(
                f"tasks file `{path}`: unknown suffix {path.suffix!r}; expected one of {known}"
            )
        if not path.is_file():
            what = "is not a file" if path.exists() else "does not exist"
            raise TaskError(f"tasks file `{path}` {what} (looked from `{Path.cwd()}`)")
        return reader(path), f"tasks file `{path}`", path.stem, path.suffix.lower() == ".csv"
    if isinstance(source, Mapping | Task | bytes) or not isinstance(source, Iterable):
        raise TaskError(
            f"tasks: expected a path or an iterable of dicts or Tasks but got `{type(source).__name__}`"
            + ("; put it into a list" if isinstance(source, Mapping | Task) else "")
        )
    return ((f"row {n}", row) for n, row in enumerate(source, 1)), "tasks", "task", False


def _task(
    row: object, where: str, default_id: str, fields: dict[str, str], split: str, in_csv: bool
) -> Task:
    if isinstance(row, Task):
        return _checked_task(row, where)
    if not isinstance(row, Mapping):
        raise TaskError(f"{where}: expected an object (dict) but got `{type(row).__name__}`")
    rest = dict(_json(dict(row), where))
    if in_csv:
        kept = fields.get("input", "input").split(",")
        rest = {key: value for key, value in rest.items() if value != "" or key.strip() in kept}
    _check_version(rest, where)
    taken = _take(rest, fields, where)
    if "input" not in taken:
        keys = ", ".join(f"`{key}`" for key in row) or "none"
        raise TaskError(
            f"{where}: no `input`; its keys are {keys}; say which one it is with"
            ' `--field input=COLUMN`, from Python `fields={"input": "COLUMN"}`'
        )
    return Task(
        id=_id(taken.get("id"), where) or default_id,
        input=taken["input"],
        expected=taken.get("expected"),
        metadata=_metadata(taken.get("metadata"), rest, where, in_csv),
        split=_split(taken.get("split"), where) or split,
    )


def _take(rest: dict[str, Any], fields: dict[str, str], where: str) -> dict[str, Any]:
    """Move what is a Task's field out of the row; a key may serve several fields."""
    taken: dict[str, Any] = {}
    used: set[str] = set()
    for ours in _FIELDS:
        theirs = fields.get(ours, ours)
        # A row's key may itself hold a comma.
        keys = [theirs] if theirs in rest else [key.strip() for key in theirs.split(",")]
        missing = [key for key in keys if key not in rest]
        if missing and ours in fields:
            have = ", ".join(f"`{key}`" for key in rest) or "none"
            raise TaskError(
                f"{where}: no `{missing[0]}`, which is to be the task's `{ours}`; its keys are {have};"
                f" correct `--field {ours}={theirs}`"
            )
        if missing or (ours not in fields and ours in used):
            continue
        taken[ours] = rest[keys[0]] if len(keys) == 1 else {key: rest[key] for key in keys}
        used.update(keys)
    for key in used:
        del rest[key]
    return taken


def _check_version(row: dict[str, Any], where: str) -> None:
    """A row that `Task.to_json` wrote carries its format version."""
    version = row.get("format_version")
    if not isinstance(version, int) or isinstance(version, bool):
        return
    if version > Task.VERSION:
        raise FormatVersionError(
            f"{where}: format version {version!r} is newer than {Task.VERSION}, which this release reads;"
            " upgrade with `pip install -U lightning-core`"
        )
    del row["format_version"]


def _id(value: object, where: str) -> str | None:
    if value is None or (isinstance(value, str) and value):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise TaskError(f"{where}: `id`: expected a string that is not empty but got {value!r}")


def _split(value: object, where: str) -> str | None:
    if value is None or (isinstance(value, str) and value):
        return value
    raise TaskError(f"{where}: `split`: expected a string that is not empty but got {value!r}")


def _metadata(value: object, rest: dict[str, Any], where: str, in_csv: bool) -> dict[str, Any]:
    if in_csv and isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError as error:
            raise TaskError(f"{where}: `metadata` is not JSON: {error}") from error
    if value is None:
        return rest
    if not isinstance(value, dict):
        raise TaskError(f"{where}: `metadata`: expected an object but got `{type(value).__name__}`")
    for key in rest:
        if key in value:
            raise TaskError(f"{where}: `{key}` is both a key of the row and of its `metadata`")
    return {**value, **rest}


def _checked_task(task: Task, where: str) -> Task:
    values = {
        name: _json(getattr(task, name), f"{where}: `{name}`")
        for name in ("input", "expected", "metadata")
    }
    for name in ("id", "split"):
        value = getattr(task, name)
        if not isinstance(value, str) or not value:
            raise TaskError(
                f"{where}: `{name}`: expected a string that is not empty but got {value!r}"
            )
    return msgspec.structs.replace(task, **values)


def _json(value: object, where: str) -> Any:
    """`value` as JSON holds it (dates as text, arrays as lists); raises where that would lose something."""
    try:
        plain = msgspec.to_builtins(value, enc_hook=_to_list, str_keys=True)
        _refuse_unwritable(plain, "")
        return plain
    except (TypeError, ValueError, RecursionError) as error:
        raise TaskError(f"{where}: JSON cannot hold it: {error}") from error


def _to_list(value: object) -> object:
    """Arrays and scalars of numpy and its kin, without importing any."""
    convert = getattr(value, "tolist", None)
    if callable(convert):
        return convert()
    raise TypeError(f"a value of type `{type(value).__name__}`; make it plain data first")


def _refuse_unwritable(value: object, path: str) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _refuse_unwritable(key, f"{path} key")
            _refuse_unwritable(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _refuse_unwritable(item, f"{path}[{index}]")
    elif isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise ValueError(f"`{path or 'value'}` is {value!r}, which JSON lacks; use null")
    elif isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"`{(path or 'value').encode(errors='replace').decode()}` has half a surrogate pair"
            ) from error
