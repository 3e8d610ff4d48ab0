"""Checkpoints: folders that are there whole or not at all."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from lightning_core.errors import StoreError, UsageError
from lightning_core.records import Record

STATE = "trainer.json"
"""What the checkpoint is of; a checkpoint without it is none."""
WEIGHTS = "weights"
"""The policy: a PEFT adapter folder, or a Hugging Face folder."""
OPTIMIZER = "optimizer.pt"
"""States of the optimisers and of torch's random numbers."""
VALUE = "value.pt"
"""The value network."""


class Lora(Record, frozen=True, kw_only=True):
    """The shape of an adapter."""

    rank: int
    """Its rank."""
    alpha: float
    """Its scale, before division by the rank."""
    targets: tuple[str, ...]
    """The modules that have one."""


class CheckpointState(Record, frozen=True, kw_only=True):
    """What a checkpoint is of, and how far it got."""

    base_model: str
    """The model that training began from, as the user named it."""
    fingerprint: str
    """Tells one base model from another whatever it is called."""
    lora: Lora | None = None
    """The adapter's shape; None: the full weights are trained."""
    temperature: float
    """What log-probabilities are taken under."""
    options: dict[str, object] = msgspec.field(default_factory=dict)
    """The options that it was trained with."""
    updates: int = 0
    """Steps of the trainer so far."""
    optimizer_steps: int = 0
    """Optimiser steps so far."""
    version: int = 0
    """The policy version that the last step began from."""


@contextlib.contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """A folder to write into, that takes `target`'s place when the block ends.

    Until then, and if anything fails, what was at `target` stays as it was.

    Raises:
        StoreError: it cannot be written, such as on a full disk.
    """
    aside: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for left in target.parent.glob(
            f"{glob.escape(_part(target))}*"
        ):  # by a program that was killed
            shutil.rmtree(left, ignore_errors=True)
        aside = Path(tempfile.mkdtemp(prefix=_part(target), dir=target.parent))
        yield aside
        for path in sorted(aside.rglob("*")):
            _flush(path)
        aside.chmod(0o755)  # a temporary folder is its maker's alone
        previous = _previous(target)
        if target.exists():
            shutil.rmtree(previous, ignore_errors=True)
            target.rename(previous)
        aside.rename(target)
        _flush(target.parent)
        shutil.rmtree(previous, ignore_errors=True)
    except UsageError:
        raise
    except Exception as error:  # torch and safetensors have their own errors for a full disk
        free = _free(target.parent)
        raise StoreError(
            f"{str(target)!r} cannot be written: {type(error).__name__}: {error}; {free} are free there;"
            " what was there before is unchanged"
        ) from error
    finally:
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)


def newest(folder: Path) -> Path:
    """The checkpoint at `folder`; the one before it where the program died between taking away and putting there.

    Raises:
        UsageError: there is none.
    """
    for path in (folder, _previous(folder)):
        if (path / STATE).is_file():
            return path
    raise UsageError(f"{str(folder)!r} holds no checkpoint: `{STATE}` is missing")


def read_state(folder: Path) -> CheckpointState:
    """What a checkpoint is of.

    Raises:
        UsageError: there is none at `folder`.
        FormatError: its state cannot be read.
    """
    return CheckpointState.from_json((newest(folder) / STATE).read_bytes())


def read_tensors(path: Path, *, device: str = "cpu") -> dict[str, Any]:
    """What `torch.save` wrote, read without running any code in it.

    Raises:
        UsageError: it cannot be read.
    """
    import torch

    try:
        content: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # pickle, zip and torch each have errors of their own
        raise UsageError(
            f"{str(path)!r} cannot be read: {type(error).__name__}: {error}; take an older checkpoint"
        ) from error
    return content


def _part(target: Path) -> str:
    """How the names of folders begin that are being written to take `target`'s place. Nobody else has such names."""
    return f".{target.name}.lightning-part-"


def _previous(target: Path) -> Path:
    """Where what is being replaced lies for a moment."""
    return target.with_name(f".{target.name}.lightning-previous")


def _flush(path: Path) -> None:
    if os.name == "nt" and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _free(folder: Path) -> str:
    try:
        return f"{shutil.disk_usage(folder).free / 2**20:.0f} MiB"
    except OSError:
        return "unknown bytes"
