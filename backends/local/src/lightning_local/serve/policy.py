"""A trained policy in one file, `policy.pt`.

The file holds `{"model_state_dict", "adapter_state_dict", "training_config"}`. The first are weights by their names in
the base model, as many as differ from it: all, some or none. The second is a LoRA adapter in PEFT's names, or empty; it
goes on top of the first. `training_config` has the `base_model`, and for an adapter PEFT's settings, under
`adapter_config` or beside: at least `r` and `lora_alpha`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from lightning_core.errors import EngineError, UsageError
from lightning_local.serve.adapter import make_adapter
from lightning_local.serve.weights import Weights, replace

FILE = "policy.pt"


class Policy(msgspec.Struct, frozen=True):
    """What the file holds."""

    model_state_dict: dict[str, Any]
    """Weights in place of the base model's, by name."""
    adapter_state_dict: dict[str, Any]
    """A LoRA adapter's tensors, by name."""
    training_config: dict[str, Any]
    """How it was trained; `base_model` at least."""


def is_policy(folder: Path) -> bool:
    """Whether the folder holds a `policy.pt`."""
    return (folder / FILE).is_file()


def read_policy(file: Path) -> Policy:
    """Read the file without running any code in it; tensors are mapped, not copied, until they are used.

    Raises:
        UsageError: it cannot be read, or has another shape.
    """
    import torch

    try:
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # pickle, zip and torch each have errors of their own
        raise UsageError(
            f"policy {str(file)!r} cannot be read: {type(error).__name__}: {error}"
        ) from error
    parts = {}
    for name in ("model_state_dict", "adapter_state_dict", "training_config"):
        part = content.get(name, {}) if isinstance(content, Mapping) else None
        if not isinstance(part, Mapping):
            raise UsageError(
                f"policy {str(file)!r} is not of the form"
                " {'model_state_dict': …, 'adapter_state_dict': …, 'training_config': …}"
            )
        parts[name] = dict(part)
    return Policy(**parts)


def base_model(folder: Path) -> str:
    """The base model that the policy names.

    Raises:
        UsageError: it names none, or cannot be read.
    """
    base = read_policy(folder / FILE).training_config.get("base_model")
    if not isinstance(base, str) or not base:
        raise UsageError(
            f"policy {str(folder / FILE)!r} does not name its `base_model` in `training_config`"
        )
    return base


def fingerprint(base: Any) -> str:
    """What tells one base model from another: names, shapes and a few values of its weights, hashed. It is the same
    in float32 and bfloat16; float16 rounds otherwise."""
    digest = hashlib.sha256(type(base).__name__.encode())
    for name, value in sorted(base.state_dict().items()):
        flat = value.detach().flatten()
        # bfloat16, so that it does not matter which precision the model is loaded in
        some = flat[:: max(1, len(flat) // 8)][:8].bfloat16().float().cpu()
        digest.update(f"{name} {tuple(value.shape)}".encode())
        digest.update(some.numpy().tobytes())
    return digest.hexdigest()


def check_base(model: Any, folder: Path, *, name: str) -> None:
    """Make sure that the policy was trained on this model, where it says on which; to be asked before `put_on`.

    Args:
        model: the base model as it was loaded.
        folder: the policy's.
        name: the base model's, for a message.

    Raises:
        UsageError: it was trained on another one.
    """
    expected = read_policy(folder / FILE).training_config.get("base_fingerprint")
    found = fingerprint(model)
    if expected not in (None, found):
        raise UsageError(
            f"policy {str(folder / FILE)!r} was trained on another base model than {name!r} is now: expected the fingerprint"
            f" {expected!r} but got {found!r}; put that model there again, or load the policy with"
            " `lightning_local.train.load_policy(path, base=…)`"
        )


def put_on(model: Any, folder: Path) -> None:
    """Put the policy on its base model, for good.

    Raises:
        EngineError: it does not fit.
        UsageError: it cannot be read.
    """
    file = folder / FILE
    policy, where = read_policy(file), f"policy {str(file)!r}"
    if not policy.model_state_dict and not policy.adapter_state_dict:
        raise EngineError(f"{where} holds no weights")
    replace(model, policy.model_state_dict, where)
    if policy.adapter_state_dict:
        settings = policy.training_config.get("adapter_config", policy.training_config)
        adapter = make_adapter(settings, policy.adapter_state_dict, where)
        Weights(model, base=None).prepare(adapter, where)()
