"""Backend: an optimiser that takes a Run and gives an Artifact."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import ClassVar

from lightning_core.capability import Capability
from lightning_core.errors import UsageError
from lightning_core.findings import Finding
from lightning_core.recipe import Recipe
from lightning_core.records import Json
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
    needs_model: ClassVar[bool] = True
    """Whether it needs `--model`; else the agent's calls may go where they always went."""
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

    def option_text(self, value: Json) -> str:
        """A value of a run file's table `[backend.NAME]`, as `--set` takes it: text as it is, a list with commas."""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, list | tuple):
            return ",".join(map(self.option_text, value))
        return str(value)

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

    def examine(self, options: Mapping[str, str]) -> Iterable[Finding]:
        """What `lightning-core doctor --backend NAME` shows beside its own: whether this backend can work here.

        Args:
            options: the backend's own options that say where to look, such as `python`.
        """
        return ()

    def recipe(self, venv: Path, *, python: Path, variant: str | None) -> Recipe:
        """How `lightning-core setup NAME` makes the environment in which this backend's trainer runs.

        Args:
            venv: the folder of the environment; it may be there already, whole or in part.
            python: the Python to make it with.
            variant: what it is for, such as `cpu` or a CUDA version; None for what fits this machine.

        Raises:
            UsageError: the backend needs none, or it cannot be made so; the message says what may be given.
        """
        raise UsageError(
            f"backend `{self.name}`: needs no environment of its own; `lightning-core doctor` says what it lacks here"
        )
