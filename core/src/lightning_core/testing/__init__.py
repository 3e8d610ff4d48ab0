"""For tests of agents, adapters, backends, stores and engines, our own and third parties'.

A scripted model server and its replies, and a conformance class for each kind of plugin. See `docs/testing.md`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_core.testing.adapter import AdapterConformance
    from lightning_core.testing.backend import BackendConformance
    from lightning_core.testing.engine import EngineConformance
    from lightning_core.testing.received import Received, Signal
    from lightning_core.testing.replies import (
        END,
        Choices,
        Cut,
        Delay,
        Error,
        Hang,
        Raw,
        Reply,
        Text,
        ToolCall,
        ToolCalls,
        prompt_token_ids,
        tokenize,
    )
    from lightning_core.testing.scripted import Responder, ScriptedServer
    from lightning_core.testing.store import StoreConformance

__all__ = [
    "END",
    "AdapterConformance",
    "BackendConformance",
    "Choices",
    "Cut",
    "Delay",
    "EngineConformance",
    "Error",
    "Hang",
    "Raw",
    "Received",
    "Reply",
    "Responder",
    "ScriptedServer",
    "Signal",
    "StoreConformance",
    "Text",
    "ToolCall",
    "ToolCalls",
    "prompt_token_ids",
    "tokenize",
]

_HOMES = {
    "AdapterConformance": "adapter",
    "BackendConformance": "backend",
    "EngineConformance": "engine",
    "Received": "received",
    "Responder": "scripted",
    "ScriptedServer": "scripted",
    "Signal": "received",
    "StoreConformance": "store",
}


def __getattr__(name: str) -> Any:
    # Late: the conformance classes need pytest and more, and `python -m` would load a module twice.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(f"{__name__}.{_HOMES.get(name, 'replies')}")
    return getattr(home, name)
