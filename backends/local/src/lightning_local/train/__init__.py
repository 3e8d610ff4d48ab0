"""Training on this machine: samples in, a better policy out. Names load what they need when they are first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_local.train.artifact import export, load_policy
    from lightning_local.train.options import LocalOptions
    from lightning_local.train.report import UpdateReport
    from lightning_local.train.sft import Conversation, read_conversations
    from lightning_local.train.trainer import Trainer

__all__ = [
    "Conversation",
    "LocalOptions",
    "Trainer",
    "UpdateReport",
    "export",
    "load_policy",
    "read_conversations",
]

_HOMES = {
    "Conversation": "sft",
    "LocalOptions": "options",
    "Trainer": "trainer",
    "UpdateReport": "report",
    "export": "artifact",
    "load_policy": "artifact",
    "read_conversations": "sft",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
