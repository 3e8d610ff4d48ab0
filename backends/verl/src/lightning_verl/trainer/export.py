"""`python -m lightning_verl.trainer.export`: writes what verl's merger left as others load it; reads an `Order`.

`policy.pt` is in the form of the backend `local`'s: `model_state_dict`, all weights by name, empty with LoRA;
`adapter_state_dict`, the adapter's matrices under PEFT's names, else empty; `training_config` with `base_model` and
`base_fingerprint`, by which a loader refuses another base model of the same shape.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from lightning_core.errors import LightningError, UsageError
from lightning_verl.export import ADAPTER, Order

FILE: Final = "policy.pt"


def main() -> int:
    """Write what the order on standard input says; the exit status."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    try:
        write(order)
    except LightningError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def write(order: Order) -> None:
    """Write a `policy.pt`, or a Hugging Face folder with the adapter merged in.

    Raises:
        UsageError: an adapter does not say its scale, or the base model cannot be loaded.
    """
    if order.format == FILE:
        _write_policy(order)
    else:
        _write_merged(order)


def fingerprint(model: Any) -> str:
    """What tells one base model from another, as the backend `local` has it: names, shapes and a few values of its
    weights, hashed."""
    digest = hashlib.sha256(type(model).__name__.encode())
    for name, value in sorted(model.state_dict().items()):
        flat = value.detach().flatten()
        # bfloat16, so that it does not matter which precision the model is loaded in
        some = flat[:: max(1, len(flat) // 8)][:8].bfloat16().float().cpu()
        digest.update(f"{name} {tuple(value.shape)}".encode())
        digest.update(some.numpy().tobytes())
    return digest.hexdigest()


def _write_policy(order: Order) -> None:
    import safetensors.torch
    import torch

    adapter = Path(order.merged) / ADAPTER
    config = {
        "base_model": order.base_model,
        "base_fingerprint": fingerprint(_load(order.base_model)),
        **order.training,
    }
    trained: dict[str, Any] = {}
    matrices: dict[str, Any] = {}
    if adapter.is_dir():
        config["adapter_config"] = _adapter_config(adapter)
        matrices = safetensors.torch.load_file(adapter / "adapter_model.safetensors")
    else:
        trained = dict(_load(order.merged).state_dict())
    torch.save(
        {
            "model_state_dict": trained,
            "adapter_state_dict": matrices,
            "training_config": config,
        },
        Path(order.output) / FILE,
    )


def _write_merged(order: Order) -> None:
    from peft import PeftModel
    from transformers import AutoTokenizer

    adapter = Path(order.merged) / ADAPTER
    _adapter_config(adapter)
    model: Any = PeftModel.from_pretrained(_load(order.merged), str(adapter))
    model.merge_and_unload().save_pretrained(order.output)
    tokenizer: Any = AutoTokenizer.from_pretrained(order.merged)
    tokenizer.save_pretrained(order.output)


def _adapter_config(adapter: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((adapter / "adapter_config.json").read_bytes())
    if not config.get("lora_alpha"):
        # verl's merger goes on with 0 where the checkpoint does not say it, and the adapter would do nothing.
        raise UsageError(
            f"adapter {str(adapter)!r}: its `lora_alpha` is {config.get('lora_alpha')!r}; the checkpoint lacks verl's"
            " `lora_train_meta.json`, so the adapter's scale is not known"
        )
    return config


def _load(model: str) -> Any:
    from transformers import AutoModelForCausalLM

    auto_model: Any = AutoModelForCausalLM  # typed only in part
    try:
        return auto_model.from_pretrained(model, dtype="auto")
    except Exception as error:  # each file format has errors of its own
        raise UsageError(
            f"model {model!r} cannot be loaded: {type(error).__name__}: {error}"
        ) from error


if __name__ == "__main__":
    sys.exit(main())
