"""What a run of the backend keeps between two starts: its state, and verl's own checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from lightning_core.errors import UsageError
from lightning_core.optimization import OptimizeConfig
from lightning_core.rollout import Mode, Rollout
from lightning_verl.config import CHECKPOINTS
from lightning_verl.steps import STEP

_LATEST: Final = "latest_checkpointed_iteration.txt"


class State(msgspec.Struct, kw_only=True):
    """What `run.save` keeps; the weights are in verl's own checkpoints."""

    backend: str = "verl"
    """Whose state it is."""
    python: str = ""
    """The Python of the verl environment, for `export`."""
    step: int = 0
    """Steps that are done."""
    vals: dict[str, dict[str, list[float]]] = msgspec.field(default_factory=dict)
    """Rewards of validation by step and task."""


def state_of(saved: dict[str, Any] | None, run: str) -> State:
    """The state that a run has saved; a new one where there is none.

    Raises:
        UsageError: it is not ours.
    """
    if saved is None:
        return State()
    try:
        if saved.get("backend") != "verl":
            raise UsageError(f"run `{run}`: its state is not backend `verl`'s")
        return msgspec.convert(saved, State)
    except msgspec.ValidationError as error:
        raise UsageError(f"run `{run}`: its state is not backend `verl`'s: {error}") from error


def newest_checkpoint(folder: Path) -> Path:
    """verl's newest whole checkpoint in a run's folder.

    Raises:
        UsageError: there is none yet.
    """
    step = checkpoint_step(folder)
    if not step:
        raise UsageError(
            f"run `{folder.name}`: has no checkpoint of verl's yet; it writes one every `--save-every` steps"
        )
    return folder / "verl" / CHECKPOINTS / f"global_step_{step}"


def checkpoint_step(folder: Path) -> int:
    """The step after which verl's newest checkpoint was written; 0 where there is none yet."""
    try:
        return int((folder / "verl" / CHECKPOINTS / _LATEST).read_text())
    except (OSError, ValueError):
        return 0


def of_later(state: State, staleness: int, rollout: Rollout) -> bool:
    """Whether a rollout is of a step that is not done, or of a validation that is not known.

    Args:
        state: the state with which the run goes on.
        staleness: how many steps ahead of what learns from it a rollout may be asked for.
        rollout: the rollout.
    """
    step = rollout.metadata.get(STEP)
    if not isinstance(step, int):
        return False
    if rollout.mode is Mode.VAL:
        return str(step) not in state.vals
    return step > state.step - staleness


def gone_back(state: State, folder: Path) -> State:
    """The state with which a run goes on: verl repeats the steps after its newest checkpoint.

    Their rollouts are not run again. They are learnt from once more from the same weights, and so lead to the same,
    but for rounding.
    """
    step = checkpoint_step(folder)
    return msgspec.structs.replace(
        state,
        step=min(state.step, step),
        vals={after: each for after, each in state.vals.items() if int(after) <= step},
    )


def passed_validation(folder: Path, state: State, asked: OptimizeConfig) -> bool:
    """Whether verl goes on from a checkpoint without validating it first.

    It validates first where the run was cut off between a checkpoint and the validation that was due after it.
    """
    step = checkpoint_step(folder)
    if not step:
        return False
    every = asked.val_every or asked.steps
    return str(step) in state.vals or (step % every != 0 and step < asked.steps)
