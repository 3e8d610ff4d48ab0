"""The worker: leases attempts from the server, runs the user's agent, heart-beats and reports."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_core.worker.entry import work
    from lightning_core.worker.worker import Worker

__all__ = ["Worker", "work"]

_PLACES = {"Worker": "lightning_core.worker.worker", "work": "lightning_core.worker.entry"}


def __getattr__(name: str) -> Any:
    # Loaded late: `lightning_core.agents` imports a module of this package, and they import it.
    if name in _PLACES:
        return getattr(importlib.import_module(_PLACES[name]), name)
    raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
