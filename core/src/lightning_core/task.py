"""Task: one input for the agent, plus what only the grader may see."""

from __future__ import annotations

from typing import Any

import msgspec

from lightning_core.records import Json, Record


class Task(Record, frozen=True, kw_only=True):
    """One input for the agent."""

    id: str
    """Unique within a run; the caller's own where the source has one."""
    input: Json
    """What the agent gets: a string, or any JSON value that the adapter maps to the agent's input."""
    expected: Json = None
    """What only the grader may see. Never sent to a worker."""
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    """Anything else about the task; the agent's process may see it."""
    split: str = "train"
    """Which part of the data this is: `train`, `val`, `test` or a name of the user's."""

    def without_expected(self) -> Task:
        """The same task as a worker may see it."""
        return msgspec.structs.replace(self, expected=None)
