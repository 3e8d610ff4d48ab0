"""The hooks. They register or observe; data flows through the protocols.

`docs/hooks.md` says of each when it is called and what to return.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pluggy import HookspecMarker

from lightning_core.adapter import Adapter
from lightning_core.backend import Backend
from lightning_core.engine import EngineFactory
from lightning_core.executor import Executor
from lightning_core.grading import RewardFunction
from lightning_core.learn.credit import CreditRuleFactory
from lightning_core.learn.samplers import SamplerFactory
from lightning_core.records import Json
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
def lightning_register_executors() -> list[Executor]:  # type: ignore[empty-body]
    """Return the executors of this plugin."""


@hookspec
def lightning_register_rewards() -> dict[str, RewardFunction]:  # type: ignore[empty-body]
    """Return reward functions by name."""


@hookspec
def lightning_register_credit() -> dict[str, CreditRuleFactory]:  # type: ignore[empty-body]
    """Return factories of credit rules by name."""


@hookspec
def lightning_register_samplers() -> dict[str, SamplerFactory]:  # type: ignore[empty-body]
    """Return factories of task samplers by name."""


@hookspec
def lightning_rollout_finished(folder: Path, trace: Trace) -> None:
    """Observe a rollout that has ended and has been graded."""


@hookspec
def lightning_step_finished(folder: Path, step: int, metrics: Mapping[str, Json]) -> None:
    """Observe a step of an optimisation that has ended."""
