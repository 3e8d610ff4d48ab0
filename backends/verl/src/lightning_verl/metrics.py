"""The numbers that verl's file logger writes, line by line as they come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec


class StepMetrics(msgspec.Struct, frozen=True):
    """One line of the file."""

    step: int
    """verl's global step; 0 before the first."""
    data: dict[str, Any]
    """Numbers by verl's names; None for what is no number."""


class MetricsFile:
    """Reads a file that grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        path.unlink(missing_ok=True)

    def read(self) -> list[StepMetrics]:
        """The whole lines that have come since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                new = file.read()
        except FileNotFoundError:
            return []
        whole, newline, _ = new.rpartition(b"\n")
        self._at += len(whole) + len(newline)
        return [
            msgspec.json.decode(line, type=StepMetrics)
            for line in whole.splitlines()
            if line.strip()
        ]
