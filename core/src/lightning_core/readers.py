"""Readers of the files that hold tasks: each yields row by row, with where the row stands."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from lightning_core.errors import TaskError

Row = tuple[str, object]
"""Where a row stands, for messages, and the row."""

_BOM: Final = b"\xef\xbb\xbf"


def read_jsonl(path: Path) -> Iterator[Row]:
    """One JSON value a line; blank lines are skipped. UTF-8, with or without a byte order mark."""
    for number, text in _lines(path):
        if not text.strip():
            continue
        where = f"`{path}` line {number}"
        try:
            value = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
        except json.JSONDecodeError as error:
            raise TaskError(
                f"{where}: broken JSON at column {error.colno}: {error.msg}; got {_excerpt(text)}"
            ) from error
        except RecursionError as error:
            raise TaskError(f"{where}: JSON that is nested too deeply") from error
        except ValueError as error:
            raise TaskError(f"{where}: {error}") from error
        yield where, value


def read_csv(path: Path) -> Iterator[Row]:
    """A header, then rows of as many cells; values are strings."""
    lines = (text for _, text in _lines(path))
    reader = csv.reader(lines, strict=True)
    header: list[str] | None = None
    where = f"`{path}` line 1"
    try:
        for cells in reader:
            if not cells:
                continue
            if header is None:
                header = _header(cells, where)
            elif len(cells) != len(header):
                raise TaskError(
                    f"{where}: expected {len(header)} cells, as in the header, but got {len(cells)};"
                    " a cell that holds a comma stands in double quotes"
                )
            else:
                yield where, dict(zip(header, cells, strict=True))
            where = f"`{path}` line {reader.line_num + 1}"
    except csv.Error as error:
        hint = "; a cell this long needs a `.jsonl` file" if "field limit" in str(error) else ""
        raise TaskError(f"{where}: broken CSV: {error}{hint}") from error


def read_parquet(path: Path) -> Iterator[Row]:
    """Rows of a Parquet file, batch by batch.

    Raises:
        TaskError: also where `pyarrow` is missing.
    """
    try:
        import pyarrow as arrow  # type: ignore[import-untyped]  # noqa: PLC0415 - an untyped extra, imported on use
        import pyarrow.parquet as parquet  # type: ignore[import-untyped]  # noqa: PLC0415 - likewise
    except ImportError as error:
        raise TaskError(
            f'`{path}`: a Parquet file needs `pyarrow`; run `pip install "lightning-core[parquet]"`'
        ) from error
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    yield f"`{path}` row {number}", row
    except (arrow.ArrowException, OSError) as error:
        raise TaskError(
            f"`{path}` after row {number}: not a readable Parquet file: {error}"
        ) from error


READERS: Final[Mapping[str, Callable[[Path], Iterator[Row]]]] = {
    ".jsonl": read_jsonl,
    ".csv": read_csv,
    ".parquet": read_parquet,
}
"""The reader for each suffix."""


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Decoded lines with their numbers, so that bytes that are not UTF-8 are put down to their line."""
    try:
        with path.open("rb") as file:
            _skip_bom(file)
            for number, line in enumerate(file, 1):
                try:
                    yield number, line.decode()
                except UnicodeDecodeError as error:
                    raise TaskError(
                        f"`{path}` line {number}: not UTF-8: {error.reason} at byte {error.start};"
                        " save the file as UTF-8"
                    ) from error
    except OSError as error:
        raise TaskError(f"tasks file `{path}` cannot be read: {error.strerror}") from error


def _skip_bom(file: io.BufferedReader) -> None:
    if file.peek(3)[:3] == _BOM:
        file.read(3)


def _header(cells: list[str], where: str) -> list[str]:
    names = [cell.strip() for cell in cells]
    for index, name in enumerate(names):
        if not name:
            raise TaskError(f"{where}: column {index + 1} of the header has no name")
        if name in names[:index]:
            raise TaskError(f"{where}: the header names column `{name}` twice")
    return names


def _no_constant(text: str) -> Any:
    raise ValueError(f"`{text}` is no JSON value; write null where there is no number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"`{_excerpt(text)}` is too large for a number; write it as a string")
    return number


def _excerpt(text: str) -> str:
    text = text.strip()
    return repr(text if len(text) <= 60 else text[:60] + "…")
