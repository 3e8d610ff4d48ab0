"""Backend: an optimiser that takes a Run and gives an Artifact."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import msgspec

from lightning_core.capability import Capability
from lightning_core.records import Record
from lightning_core.runs import Run


class Artifact(Record, frozen=True, kw_only=True):
    """What an optimisation ends in: a file or folder that a user can apply."""

    kind: str
    """`strategy`, `lora`, `checkpoint`."""
    path: str
    """Where it lies, relative to the run folder."""
    apply: str
    """The command that applies it."""
    metrics: dict[str, Any] = msgspec.field(default_factory=dict)
    """What is known of it, such as validation reward before and after."""


class Backend(ABC):
    """An optimiser. It drives: it asks the run for rollouts, learns from them, and publishes."""

    name: ClassVar[str]
    """The backend's name, as in `--backend NAME`."""
    needs: ClassVar[frozenset[Capability]] = frozenset()
    """What the engine must give."""
    gives: ClassVar[frozenset[Capability]] = frozenset()
    """What it changes."""

    @abstractmethod
    async def optimize(self, run: Run) -> Artifact:
        """Optimise until the run's goal or budget is reached; resume where `run.load()` gives a state."""
