"""State: where an optimisation stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from lightning_core.errors import FormatError, UsageError
from lightning_core.folder import RunFolder


class State(msgspec.Struct, kw_only=True):
    """Where an optimisation stands; what `run.save` keeps. It names a checkpoint that is whole."""

    base: str
    """The model that is trained."""
    step: int = 0
    """Steps that are done."""
    version: int = 0
    """The policy's version: how often it has changed."""
    checkpoint: str | None = None
    """The checkpoint's folder, relative to the run's; None before the first."""
    sampler: dict[str, Any] = msgspec.field(default_factory=dict)
    """The sampler's state before it draws the tasks of the step to come."""
    ahead: list[str] | None = None
    """Ids of the tasks whose rollouts already run, with `--async`: they were drawn before `sampler`."""
    vals: dict[str, dict[str, list[float]]] = msgspec.field(default_factory=dict)
    """Rewards of validation by step and task."""
    line: dict[str, Any] = msgspec.field(default_factory=dict)
    """The metrics of the last step, which may not have been logged yet."""

    def checkpoint_in(self, folder: Path) -> Path:
        """The checkpoint's folder.

        Raises:
            UsageError: there is none yet.
        """
        if self.checkpoint is None:
            raise UsageError(
                f"run `{folder.name}`: has trained nothing yet, so there is no checkpoint"
            )
        return folder / self.checkpoint


def read_state(folder: Path) -> State:
    """The state in a run's folder.

    Raises:
        UsageError: there is none.
        FormatError: it is another backend's.
    """
    saved = RunFolder(folder).load_state()
    if saved is None:
        raise UsageError(f"run `{folder.name}`: has trained nothing yet")
    return to_state(saved, folder.name)


def to_state(saved: dict[str, Any], run: str) -> State:
    """A state as it was saved.

    Raises:
        FormatError: it is another backend's.
    """
    try:
        return msgspec.convert(saved, State)
    except msgspec.ValidationError as error:
        raise FormatError(f"run `{run}`: its state is not backend `local`'s: {error}") from error
