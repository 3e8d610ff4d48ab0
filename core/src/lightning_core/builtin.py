"""What ships with core, registered through the same hooks as everything else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from lightning_core import trackers
from lightning_core.adapter import Adapter
from lightning_core.engine import EngineFactory
from lightning_core.executor import Executor
from lightning_core.folder import RunFolder
from lightning_core.grading import RewardFunction
from lightning_core.learn import credit, draws
from lightning_core.learn.credit import CreditRuleFactory
from lightning_core.learn.samplers import SamplerFactory
from lightning_core.litellm_engine import LiteLLMEngineFactory
from lightning_core.openai_engine import OpenAIEngineFactory
from lightning_core.plugins import hookimpl
from lightning_core.records import Json
from lightning_core.rewards import contains, exact_match, numeric, token_f1
from lightning_core.running.processes import ProcessExecutor
from lightning_core.running.progress import Line
from lightning_core.trace import Trace
from lightning_core.worker.callable import CallableAdapter


@hookimpl
def lightning_register_adapters() -> list[Adapter]:
    """Plain functions."""
    return [CallableAdapter()]


@hookimpl
def lightning_register_engines() -> list[EngineFactory]:
    """Models that somebody else serves."""
    return [OpenAIEngineFactory(), LiteLLMEngineFactory()]


@hookimpl
def lightning_register_executors() -> list[Executor]:
    """Child processes of the run."""
    return [ProcessExecutor()]


@hookimpl
def lightning_register_rewards() -> dict[str, RewardFunction]:
    """Comparisons with `expected`."""
    return {
        "exact_match": exact_match,
        "contains": contains,
        "numeric": numeric,
        "token_f1": token_f1,
    }


@hookimpl
def lightning_register_credit() -> dict[str, CreditRuleFactory]:
    """The final reward, discounted, by agent, by call."""
    return dict(credit.BUILT_IN)


@hookimpl
def lightning_register_samplers() -> dict[str, SamplerFactory]:
    """In random order, by difficulty, by success."""
    return dict(draws.BUILT_IN)


@hookimpl
def lightning_rollout_finished(folder: Path, trace: Trace) -> None:
    """Append a line to `metrics.jsonl`."""
    RunFolder(folder).append_metrics(msgspec.to_builtins(Line.of(trace)))


@hookimpl
def lightning_step_finished(folder: Path, step: int, metrics: Mapping[str, Json]) -> None:
    """Pass the numbers on to the trackers that `LIGHTNING_CORE_TRACK` names."""
    trackers.track(folder, step, metrics)
