"""LoRA adapters in the layout of PEFT, read without it: what they add to which linear layer."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from lightning_core.errors import EngineError

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
KEY = re.compile(
    r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<part>[AB])(?:\.default)?\.weight"
)
"""A tensor's name. In a file it has no adapter's name; in a live model's state it has, and PEFT's is `default`."""
UNSUPPORTED = (
    "alora_invocation_tokens", "arrow_config", "kasa_config", "layer_replication", "lora_bias", "modules_to_save",
    "monteclora_config", "target_parameters", "trainable_token_indices", "use_bdlora", "use_dora", "use_qalora",
    "velora_config",
)  # fmt: skip
"""Settings with which more than `scale * B @ A` is added."""
KEEPS_BASE = (True, False, "gaussian", "eva", "orthogonal")
"""Values of `init_lora_weights` that leave the base weights as they are; the others change them before training."""


T = TypeVar("T")


class LowRank(msgspec.Struct, frozen=True):
    """What an adapter adds to one layer: `scale * b @ a`."""

    module: str
    """The layer's name in the base model."""
    a: Any
    """Tensor of shape (rank, inputs)."""
    b: Any
    """Tensor of shape (outputs, rank)."""
    scale: float
    """The factor."""


class Adapter(msgspec.Struct, frozen=True):
    """A LoRA adapter."""

    base: str | None
    """The model that it was made for, as it names it; None where it does not."""
    updates: tuple[LowRank, ...]
    """What it adds, by layer."""


class _Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What counts in `adapter_config.json`."""

    r: int
    lora_alpha: float
    peft_type: str = "LORA"
    base_model_name_or_path: str | None = None
    use_rslora: bool = False
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, float] | None = None
    bias: str = "none"
    init_lora_weights: bool | str = True

    def scale(self, module: str, rank: int, where: str) -> float:
        """The factor of one layer, whose rank must be the one that the settings name."""
        expected = _by_pattern(self.rank_pattern, module, self.r)
        if rank != expected:
            raise EngineError(
                f"{where} has rank {rank} for `{module}`, but its settings say {expected}"
            )
        alpha = _by_pattern(self.alpha_pattern, module, self.lora_alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)


def is_adapter(folder: Path) -> bool:
    """Whether the folder holds an adapter."""
    return (folder / CONFIG).is_file()


def read_settings(folder: Path) -> dict[str, Any]:
    """The adapter's settings.

    Raises:
        EngineError: they cannot be read.
    """
    try:
        settings = json.loads((folder / CONFIG).read_bytes())
        if not isinstance(settings, dict):
            raise ValueError(f"`{CONFIG}` is not an object")
    except (OSError, ValueError) as error:
        raise EngineError(f"adapter in {str(folder)!r} cannot be read: {error}") from error
    return settings


def read_adapter(folder: Path) -> Adapter:
    """Read an adapter's folder: `adapter_config.json` and `adapter_model.safetensors`.

    Raises:
        EngineError: it cannot be read, or is not plain LoRA.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    where = f"adapter in {str(folder)!r}"
    settings = read_settings(folder)
    file = folder / WEIGHTS
    if not file.is_file():
        raise EngineError(f"{where} has no `{WEIGHTS}`; save it with `save_pretrained`")
    try:
        state = load_file(file)
    except (OSError, SafetensorError) as error:
        raise EngineError(f"{where} cannot be read: {error}") from error
    return make_adapter(settings, state, where)


def make_adapter(settings: Mapping[str, Any], state: Mapping[str, Any], where: str) -> Adapter:
    """An adapter from its settings, as in `adapter_config.json`, and its tensors.

    Args:
        settings: PEFT's fields.
        state: tensors named `base_model.model.LAYER.lora_A.weight` and `….lora_B.weight`.
        where: what error messages call it.

    Raises:
        EngineError: it is not plain LoRA, is incomplete, or is not finite.
    """
    import torch

    try:
        known = msgspec.convert(settings, _Settings, strict=False)
    except msgspec.ValidationError as error:
        raise EngineError(f"{where} has settings that cannot be used: {error}") from error
    odd = next((name for name in UNSUPPORTED if settings.get(name)), None)
    if known.peft_type != "LORA":
        odd = f"peft_type={known.peft_type}"
    elif known.bias != "none":
        odd = f"bias={known.bias}"
    elif known.init_lora_weights not in KEEPS_BASE:
        odd = f"init_lora_weights={known.init_lora_weights}"
    if odd is not None:
        raise EngineError(
            f"{where} uses `{odd}`, but engine `local` takes plain LoRA only;"
            " merge it and load the whole model's folder"
        )
    parts: dict[str, dict[str, Any]] = {}
    for key, value in state.items():
        match = KEY.fullmatch(key)
        if match is None:
            raise EngineError(
                f"{where} holds `{key}`, which is not the A or B of a linear layer;"
                " merge it and load the whole model's folder"
            )
        if not bool(torch.isfinite(value).all()):
            raise EngineError(f"{where} is not finite: `{key}` holds NaN or infinity")
        parts.setdefault(match["module"], {})[match["part"]] = value
    if not parts:
        raise EngineError(f"{where} holds no weights")
    return Adapter(
        known.base_model_name_or_path or None,
        tuple(_low_rank(module, pair, known, where) for module, pair in sorted(parts.items())),
    )


def _low_rank(module: str, pair: Mapping[str, Any], settings: _Settings, where: str) -> LowRank:
    a, b = pair.get("A"), pair.get("B")
    if a is None or b is None:
        raise EngineError(f"{where} has only one of A and B for `{module}`")
    if a.ndim != 2 or b.ndim != 2 or a.shape[0] != b.shape[1]:
        raise EngineError(
            f"{where} has A of shape {tuple(a.shape)} and B of shape {tuple(b.shape)} for `{module}`,"
            " expected (rank, inputs) and (outputs, rank)"
        )
    return LowRank(module, a, b, settings.scale(module, int(a.shape[0]), where))


def _by_pattern(pattern: Mapping[str, T] | None, module: str, default: T) -> T:
    """PEFT's rule: the first pattern that matches the module's name, or the end of it from a dot on."""
    for key, value in (pattern or {}).items():
        if re.match(rf"(.*\.)?({key})$", module):
            return value
    return default
