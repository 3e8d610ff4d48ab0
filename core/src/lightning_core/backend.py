"""Backend: an optimiser that takes a Run and gives an Artifact."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from lightning_core.capability import Capability
from lightning_core.runs import Artifact, Run, RunConfig


class Backend(ABC):
    """An optimiser. It drives: it asks the run for rollouts, learns from them, and publishes."""

    name: ClassVar[str]
    """The backend's name, as in `--backend NAME`."""
    needs: ClassVar[frozenset[Capability]] = frozenset()
    """What the engine must give."""
    gives: ClassVar[frozenset[Capability]] = frozenset()
    """What it changes."""
    serves: ClassVar[bool] = False
    """Whether it serves the policy itself while it trains, from `--model`; the run then starts no engine."""
    formats: ClassVar[tuple[str, ...]] = ()
    """The formats in which `export` writes, the default first."""

    def check(self, config: RunConfig) -> None:  # noqa: B027 - most have nothing to check
        """Refuse what cannot work, before anything is started or written.

        Raises:
            UsageError: an option is unknown or cannot be; the message says what may be given.
        """

    def engine_options(self, config: RunConfig) -> Mapping[str, str]:
        """Options that the engine needs for this backend; the user's own go before them."""
        return {}

    @abstractmethod
    async def optimize(self, run: Run) -> Artifact:
        """Optimise until the run's goal or budget is reached; resume where `run.load()` gives a state."""

    def export(self, folder: Path, *, format: str, output: Path) -> Path:
        """Write what a run has come to, whether or not it has ended.

        Args:
            folder: the run's folder, `runs/NAME`.
            format: one of `formats`.
            output: a folder, made where it is missing, or a file, as the format has it.

        Returns:
            What was written.

        Raises:
            UsageError: there is nothing to export yet, or it cannot be written there.
        """
        raise NotImplementedError(f"backend `{self.name}` exports nothing")
