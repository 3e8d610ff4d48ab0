"""LoRA adapters (arXiv 2106.09685) through PEFT: made, written and read."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_core.errors import UsageError
from lightning_local.serve.adapter import CONFIG, WEIGHTS
from lightning_local.train.options import LocalOptions


def add_lora(base: Any, options: LocalOptions, *, seed: int) -> Any:
    """Wrap a model in a fresh adapter; the model's own weights are frozen.

    Raises:
        UsageError: a target names no linear module.
    """
    import peft

    head = base.get_output_embeddings()
    linear = [
        name for name, module in base.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not head
    ]  # fmt: skip
    targets: list[str] | str = list(options.lora_targets)
    if targets == ["all-linear"]:
        targets = sorted({name.rpartition(".")[2] for name in linear})
    for target in targets:
        if not any(name == target or name.endswith(f".{target}") for name in linear):
            there = ", ".join(
                f"`{name}`" for name in sorted({n.rpartition(".")[2] for n in linear})
            )
            raise UsageError(
                f"LoRA target {target!r} is no linear module of the model; it has {there or 'none'};"
                " name some with `--set lora_targets=A,B`"
            )
    config = peft.LoraConfig(
        task_type="CAUSAL_LM" if head is not None else "FEATURE_EXTRACTION",
        r=options.lora_rank,
        lora_alpha=options.lora_alpha,  # type: ignore[arg-type]  # typed int, but only divided by the rank
        target_modules=targets,
        lora_dropout=0.0,
    )
    with torch.random.fork_rng(), warnings.catch_warnings():
        # PEFT asks the model for a property that transformers has renamed.
        warnings.filterwarnings(
            "ignore", message=".*is_gradient_checkpointing", category=FutureWarning
        )
        torch.manual_seed(seed)
        network = peft.get_peft_model(base, config)
    return network.eval()


def write_adapter(network: Any, folder: Path, base: str) -> None:
    """Write `adapter_model.safetensors` and `adapter_config.json`, which names the base model `base`."""
    import peft
    import safetensors.torch

    folder.mkdir(parents=True, exist_ok=True)
    state = peft.get_peft_model_state_dict(network, save_embedding_layers=False)
    tensors = {key: value.detach().cpu().contiguous() for key, value in state.items()}
    safetensors.torch.save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    config = network.peft_config[network.active_adapter].to_dict()
    config["base_model_name_or_path"] = str(Path(base).resolve()) if Path(base).is_dir() else base
    config["inference_mode"] = True
    config["target_modules"] = sorted(config["target_modules"])
    text = json.dumps(config, indent=2, sort_keys=True, default=_plain)
    (folder / CONFIG).write_text(text)


def read_adapter(network: Any, folder: Path) -> None:
    """Put an adapter in place that `write_adapter` wrote.

    Raises:
        UsageError: it has other modules or another shape, or cannot be read.
    """
    import peft
    import safetensors.torch

    where = f"adapter in {str(folder)!r}"
    try:
        state = safetensors.torch.load_file(folder / WEIGHTS)
    except Exception as error:  # safetensors' own errors derive from Exception
        raise UsageError(f"{where} cannot be read: {type(error).__name__}: {error}") from error
    check_adapter(
        peft.get_peft_model_state_dict(network, save_embedding_layers=False), state, where
    )
    peft.set_peft_model_state_dict(network, state)


def check_adapter(there: Mapping[str, Tensor], state: Mapping[str, Tensor], where: str) -> None:
    """Refuse an adapter of another shape.

    Raises:
        UsageError: a weight is missing, unknown or of another shape.
    """
    for key in sorted(there.keys() | state.keys()):
        ours, theirs = (tuple(each[key].shape) if key in each else None for each in (there, state))
        if ours != theirs:
            raise UsageError(
                f"{where} is of another LoRA: `{key}` has shape {theirs}, expected {ours}; use the same"
                " `lora_rank` and `lora_targets`"
            )


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, (set, frozenset)) else str(value)
