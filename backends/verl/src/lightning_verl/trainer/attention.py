"""The attention of verl's critic: the configured one. verl asks for flash-attn, whatever the configuration says."""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

_FLASH = "flash_attention_2"
_OTHER = "sdpa"


def take_configured() -> None:
    """Let `critic.model.override_config.attn_implementation` count; where there is no flash-attn, `sdpa` counts.

    Without flash-attn verl's critic ends in an error that asks for trl, which would not help.
    """
    from transformers import AutoModelForTokenClassification

    inner = AutoModelForTokenClassification.from_pretrained
    flash = importlib.util.find_spec("flash_attn") is not None

    @functools.wraps(inner)
    def from_pretrained(*args: Any, **kwargs: Any) -> Any:
        config = kwargs.get("config")
        if kwargs.get("attn_implementation") == _FLASH and config is not None:
            asked = config._attn_implementation
            kwargs["attn_implementation"] = asked if flash or asked != _FLASH else _OTHER
        return inner(*args, **kwargs)

    AutoModelForTokenClassification.from_pretrained = from_pretrained  # type: ignore[method-assign]  # verl reads it there
