"""Files that the trainer writes line by line, read as they grow."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")


class StepMetrics(msgspec.Struct, frozen=True):
    """A line of verl's file logger."""

    step: int
    """verl's global step; 0 before the first."""
    data: dict[str, Any]
    """Numbers by verl's names; None for what is no number."""


class LinesFile(Generic[T]):
    """Reads a file of JSON lines that grows; begins it anew, and keeps what an earlier start has left in it.

    Args:
        path: the file.
        kind: what a line is.
    """

    def __init__(self, path: Path, kind: type[T]) -> None:
        self._path = path
        self._decoder = msgspec.json.Decoder(kind)
        self._at = 0
        self.left = self.read()
        """The lines of an earlier start."""
        self._at = 0
        path.unlink(missing_ok=True)

    def read(self) -> list[T]:
        """The whole lines that have come since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                new = file.read()
        except FileNotFoundError:
            return []
        whole, newline, _ = new.rpartition(b"\n")
        self._at += len(whole) + len(newline)
        return [self._decoder.decode(line) for line in whole.splitlines() if line.strip()]
