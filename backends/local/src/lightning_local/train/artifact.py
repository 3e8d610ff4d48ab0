"""Artifacts: what training ends in, for others to load.

`policy.pt` is a dictionary of three, which `torch.load(path, weights_only=True)` reads:

- `model_state_dict`: all weights by name where the full weights were trained; empty with LoRA, so that the file stays
  small: the policy is then the base model with the adapter;
- `adapter_state_dict`: the adapter's `lora_A` and `lora_B` matrices under PEFT's names; empty with full weights;
- `training_config`: `base_model`, `base_fingerprint`, `learning_rate` and every other option as plain values; with LoRA
  also `adapter_config`, PEFT's settings.

`export.json` says what was exported. `value.pt`, beside it where there is a value network: `value_state_dict` and `training_config`.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import torch

from lightning_core.errors import EngineError, UsageError
from lightning_local import models
from lightning_local.serve.adapter import CONFIG, WEIGHTS
from lightning_local.serve.policy import FILE, base_model, check_base, fingerprint, put_on
from lightning_local.train import checkpoint
from lightning_local.train.checkpoint import CheckpointState
from lightning_local.train.lora import add_lora, read_adapter
from lightning_local.train.options import LocalOptions

MARK = "export.json"
"""What the checkpoint was of; a folder with it was made here, and may be replaced."""
FORMATS = ("policy.pt", "peft", "hf")


def export(checkpoint_folder: Path, format: str, output: Path) -> Path:
    """Turn a checkpoint into something that others load. Whole or not at all.

    Args:
        checkpoint_folder: what `Trainer.save` wrote.
        format: `policy.pt`, one file; `peft`, an adapter folder; `hf`, a Hugging Face folder with the adapter merged.
        output: the folder to write; new, empty, or an earlier export, which is replaced. For `policy.pt` it holds
            `policy.pt`; in each, `value.pt` where there is a value network.

    Returns:
        What was written: the file for `policy.pt`, else the folder.

    Raises:
        UsageError: the format is unknown or does not fit, there is no checkpoint, or the output holds something else.
        StoreError: it cannot be written.
    """
    if format not in FORMATS:
        raise UsageError(
            f"format {format!r} is unknown; there are {', '.join(f'`{name}`' for name in FORMATS)}"
        )
    _check_output(output)
    there = checkpoint.newest(checkpoint_folder)
    state = checkpoint.read_state(there)
    if format == "peft" and state.lora is None:
        raise UsageError(
            f"checkpoint {str(there)!r} trained the full weights, so it has no adapter; export `hf` or `policy.pt`"
        )
    with checkpoint.whole_folder(output) as aside:
        weights = there / checkpoint.WEIGHTS
        if format == "policy.pt":
            torch.save(_policy(state, weights), aside / FILE)
        elif format == "peft" or state.lora is None:
            shutil.copytree(weights, aside, dirs_exist_ok=True)
        else:
            loaded = _base(state.base_model, state.fingerprint, "cpu")
            merged = _with_adapter(loaded.model, state, weights).merge_and_unload()
            merged.save_pretrained(aside)
            loaded.tokenizer.save_pretrained(aside)
        if (there / checkpoint.VALUE).is_file():
            shutil.copyfile(there / checkpoint.VALUE, aside / checkpoint.VALUE)
        (aside / MARK).write_bytes(state.to_json())
    return output / FILE if format == "policy.pt" else output


def _check_output(output: Path) -> None:
    if output.exists() and not output.is_dir():
        raise UsageError(f"output {str(output)!r} is a file, expected a folder, which may be new")
    if output.is_dir() and not (output / MARK).is_file() and any(output.iterdir()):
        raise UsageError(
            f"output {str(output)!r} holds something that is no export; give a new or empty folder"
        )


def load_policy(path: Path, *, base: str | None = None, device: str = "auto") -> models.Loaded:
    """Load a `policy.pt`: the base model, with the trained weights in place or the adapter merged.

    Args:
        path: the file, or the folder that holds it.
        base: where the base model lies now, if no longer where training found it.
        device: where the model goes.

    Raises:
        UsageError: it is no `policy.pt`, the base model is not there, or it is another one.
    """
    folder = path if path.is_dir() else path.parent
    name = base or base_model(folder)
    loaded = models.load(name, device=device)
    check_base(loaded.model, folder, name=name)
    try:
        put_on(loaded.model, folder)
    except EngineError as error:
        raise UsageError(str(error)) from error
    return loaded


def _policy(state: CheckpointState, weights: Path) -> dict[str, Any]:
    import safetensors.torch

    config = {
        "base_model": state.base_model,
        "base_fingerprint": state.fingerprint,
        "temperature": state.temperature,
        "updates": state.updates,
        "optimizer_steps": state.optimizer_steps,
        **state.options,
    }
    trained: dict[str, Any] = {}
    adapter: dict[str, Any] = {}
    if state.lora is not None:
        adapter = safetensors.torch.load_file(weights / WEIGHTS)
        config["adapter_config"] = json.loads((weights / CONFIG).read_bytes())
    else:
        trained = dict(models.load(str(weights), device="cpu", dtype="auto").model.state_dict())
    return {
        "model_state_dict": trained,
        "adapter_state_dict": adapter,
        "training_config": config,
    }


def _base(model: str, expected: str | None, device: str) -> models.Loaded:
    loaded = models.load(model, device=device, dtype="auto")
    found = fingerprint(loaded.model)
    if expected is not None and found != expected:
        raise UsageError(
            f"base model {model!r} is not the one that was trained: its weights differ; say where that one lies"
        )
    return loaded


def _with_adapter(base: Any, state: CheckpointState, folder: Path) -> Any:
    network = add_lora(base, _options(state.options), seed=0)
    read_adapter(network, folder)
    return network


def _options(config: dict[str, Any]) -> LocalOptions:
    names = ("lora_rank", "lora_alpha", "lora_targets")
    return msgspec.convert({name: config[name] for name in names}, LocalOptions)
