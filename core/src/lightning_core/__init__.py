"""Make any existing LLM agent better without changing its code.

Names are imported when they are first used, so that `import lightning_core` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_core.adapter import (
        Adapter,
        AgentGraph,
        GraphEdge,
        GraphNode,
        NodeKind,
        RolloutContext,
    )
    from lightning_core.agents import Adapted
    from lightning_core.backend import Backend
    from lightning_core.capability import Capability
    from lightning_core.engine import Endpoint, Engine, EngineFactory
    from lightning_core.optimization import OptimizeConfig
    from lightning_core.plugins import hookimpl
    from lightning_core.reward import Reward, RewardScope, RewardStatus
    from lightning_core.rollout import Attempt, Budget, Cause, Mode, Rollout, RolloutStatus
    from lightning_core.running.evaluate import run, run_sync
    from lightning_core.running.optimize import optimize, optimize_sync
    from lightning_core.runs import (
        Artifact,
        OptimizeResult,
        RolloutRequest,
        Run,
        RunConfig,
        RunResult,
    )
    from lightning_core.sampling import SamplingPolicy
    from lightning_core.sources import load_tasks
    from lightning_core.store.base import Store
    from lightning_core.strategy import InteractionPattern, ModelChoice, PromptTemplate, Strategy
    from lightning_core.task import Task
    from lightning_core.template import Template
    from lightning_core.trace import Call, Choice, Span, SpanKind, TokenSource, Trace
    from lightning_core.trained import Attempted, SqliteReader, TrainedAgent, evaluate_expression

__version__ = "1.0.0"

_HOMES = {
    "adapter": ("Adapter", "AgentGraph", "GraphEdge", "GraphNode", "NodeKind", "RolloutContext"),
    "agents": ("Adapted",),
    "backend": ("Backend",),
    "capability": ("Capability",),
    "engine": ("Endpoint", "Engine", "EngineFactory"),
    "optimization": ("OptimizeConfig",),
    "running.evaluate": ("run", "run_sync"),
    "running.optimize": ("optimize", "optimize_sync"),
    "plugins": ("hookimpl",),
    "reward": ("Reward", "RewardScope", "RewardStatus"),
    "rollout": ("Attempt", "Budget", "Cause", "Mode", "Rollout", "RolloutStatus"),
    "runs": ("Artifact", "OptimizeResult", "RolloutRequest", "Run", "RunConfig", "RunResult"),
    "sampling": ("SamplingPolicy",),
    "sources": ("load_tasks",),
    "store.base": ("Store",),
    "strategy": ("InteractionPattern", "ModelChoice", "PromptTemplate", "Strategy"),
    "task": ("Task",),
    "template": ("Template",),
    "trace": ("Call", "Choice", "Span", "SpanKind", "TokenSource", "Trace"),
    "trained": ("Attempted", "SqliteReader", "TrainedAgent", "evaluate_expression"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Adapted",
    "Adapter",
    "AgentGraph",
    "Artifact",
    "Attempt",
    "Attempted",
    "Backend",
    "Budget",
    "Call",
    "Capability",
    "Cause",
    "Choice",
    "Endpoint",
    "Engine",
    "EngineFactory",
    "GraphEdge",
    "GraphNode",
    "InteractionPattern",
    "Mode",
    "ModelChoice",
    "NodeKind",
    "OptimizeConfig",
    "OptimizeResult",
    "PromptTemplate",
    "Reward",
    "RewardScope",
    "RewardStatus",
    "Rollout",
    "RolloutContext",
    "RolloutRequest",
    "RolloutStatus",
    "Run",
    "RunConfig",
    "RunResult",
    "SamplingPolicy",
    "Span",
    "SpanKind",
    "SqliteReader",
    "Store",
    "Strategy",
    "Task",
    "Template",
    "TokenSource",
    "Trace",
    "TrainedAgent",
    "evaluate_expression",
    "hookimpl",
    "load_tasks",
    "optimize",
    "optimize_sync",
    "run",
    "run_sync",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module `lightning_core` has no attribute `{name}`")
    value = getattr(importlib.import_module(f"lightning_core.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
