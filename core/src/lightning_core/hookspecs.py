"""The hooks. They register or observe; data flows through the protocols.

`docs/hooks.md` says of each when it is called and what to return.
"""

from __future__ import annotations

from pathlib import Path

from pluggy import HookspecMarker

from lightning_core.adapter import Adapter
from lightning_core.backend import Backend
from lightning_core.engine import EngineFactory
from lightning_core.grading import RewardFunction
from lightning_core.trace import Trace

hookspec = HookspecMarker("lightning_core")


@hookspec
def lightning_register_adapters() -> list[Adapter]:  # type: ignore[empty-body]
    """Return the adapters of this plugin."""


@hookspec
def lightning_register_backends() -> list[Backend]:  # type: ignore[empty-body]
    """Return the backends of this plugin."""


@hookspec
def lightning_register_engines() -> list[EngineFactory]:  # type: ignore[empty-body]
    """Return the engine factories of this plugin."""


@hookspec
def lightning_register_rewards() -> dict[str, RewardFunction]:  # type: ignore[empty-body]
    """Return reward functions by name."""


@hookspec
def lightning_rollout_finished(folder: Path, trace: Trace) -> None:
    """Observe a rollout that has ended and has been graded."""
