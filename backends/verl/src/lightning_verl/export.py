"""Export: from verl's checkpoint to what others load. The work is done in the verl environment, which has torch."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from lightning_core.errors import EngineError, UsageError
from lightning_core.runs import RunConfig
from lightning_verl import environment
from lightning_verl.options import OWN
from lightning_verl.plan import model_path

FORMATS: Final = ("hf", "policy.pt")
"""What a checkpoint is exported as, the default first."""
ADAPTER: Final = "lora_adapter"
"""The folder in which verl's merger leaves a LoRA adapter, beside the base model's weights."""
_LR: Final = "actor_rollout_ref.actor.optim.lr"
_SHOWN: Final = 2000


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What `lightning_verl.trainer.export` is to write."""

    format: str
    """One of `FORMATS`."""
    merged: str
    """The folder that verl's merger wrote."""
    output: str
    """The folder to write into; it is there and empty."""
    base_model: str
    """The model that training began from: a folder's absolute path, or a hub id."""
    training: dict[str, Any]
    """What a `policy.pt` says of the training."""


def export(config: RunConfig, checkpoint: Path, python: Path, *, format: str, output: Path) -> Path:
    """Write a checkpoint for others to load. Whole or not at all.

    Args:
        config: the run's configuration.
        checkpoint: verl's checkpoint, `global_step_N`.
        python: the Python of the verl environment.
        format: `hf`, a Hugging Face folder, with a LoRA adapter merged in; `policy.pt`, one file in the form of the
            backend `local`'s: all weights, or with LoRA the adapter.
        output: the folder to write, new or empty. For `policy.pt` it holds `policy.pt`.

    Returns:
        What was written: the file for `policy.pt`, else the folder.

    Raises:
        UsageError: the format is unknown, the output holds something, or the base model is not there.
        EngineError: verl's merger or the writer failed.
    """
    if format not in FORMATS:
        raise UsageError(
            f"format {format!r}: backend `verl` writes {', '.join(f'`{each}`' for each in FORMATS)}"
        )
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UsageError(f"output {str(output)!r}: is there already and not an empty folder")
    base = model_path(config.model or "") if format == "policy.pt" else config.model or ""
    with _aside(output) as (merged, written):
        _run(
            "verl's merger", python, "verl.model_merger", "merge", "--backend", "fsdp",
            "--local_dir", str((checkpoint / "actor").resolve()), "--target_dir", str(merged),
        )  # fmt: skip
        if format == "hf" and not (merged / ADAPTER).is_dir():
            written = merged
        else:
            order = Order(
                format=format, merged=str(merged), output=str(written), base_model=base,
                training=_training(config, checkpoint),
            )  # fmt: skip
            _run("the writer", python, "lightning_verl.trainer.export", order=order)
        if output.is_dir():
            output.rmdir()
        shutil.move(written, output)
    return output / format if format == "policy.pt" else output


@contextmanager
def _aside(output: Path) -> Iterator[tuple[Path, Path]]:
    """Two empty folders beside the output, so that what is written can take its place at once."""
    parent = output.resolve().parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=parent))
    except OSError as error:
        raise UsageError(f"output {str(output)!r}: cannot be written: {error}") from error
    try:
        folders = aside / "merged", aside / "written"
        for each in folders:
            each.mkdir()
        yield folders
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _training(config: RunConfig, checkpoint: Path) -> dict[str, Any]:
    asked = config.optimize
    assert asked is not None
    kept = msgspec.to_builtins(asked)
    options = kept.pop("options")
    rate = {"learning_rate": float(options[_LR])} if _is_number(options.get(_LR)) else {}
    return {
        "temperature": config.sampling.temperature,
        "updates": int(checkpoint.name.rpartition("_")[2]),
        **kept,
        **rate,
        # Where and how long something was looked for is of no use to whoever loads it.
        **{key: value for key, value in options.items() if key not in OWN},
    }


def _is_number(text: str | None) -> bool:
    try:
        float(text or "")
    except ValueError:
        return False
    return True


def _run(what: str, python: Path, *words: str, order: Order | None = None) -> None:
    # Else the current folder's modules, such as a `datasets.py` of the user's, would stand before that environment's.
    command: Sequence[str] = [str(python), "-P", "-m", *words]
    done = subprocess.run(
        command, capture_output=True, env=environment.environ(),
        input=b"" if order is None else msgspec.json.encode(order),
    )  # fmt: skip
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise EngineError(f"export: {what} failed with status {done.returncode}:\n{said[-_SHOWN:]}")
