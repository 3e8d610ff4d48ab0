"""`lightning_core.optimize`: make an agent better, and end in a file that can be applied."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Unpack

import msgspec

from lightning_core import trackers
from lightning_core.capability import Capability, require
from lightning_core.optimization import OptimizeConfig
from lightning_core.plugins import installed
from lightning_core.running.blocking import blocking
from lightning_core.running.launch import launched
from lightning_core.running.prepare import RunOptions, TaskSource, find_backend, prepare
from lightning_core.runs import OptimizeResult
from lightning_core.sampling import DEFAULT_MAX_TOKENS, SamplingPolicy


async def optimize(
    agent: object,
    tasks: TaskSource,
    config: OptimizeConfig,
    *,
    val: TaskSource | None = None,
    temperature: float = 1.0,
    val_temperature: float = 0.0,
    max_tokens: int = DEFAULT_MAX_TOKENS,
    split: str | None = None,
    **options: Unpack[RunOptions],
) -> OptimizeResult:
    """Optimise what answers `agent`, by rollouts on `tasks` that `reward` scores.

    Args:
        agent: see `run`. Its code is not changed, and need not know of any of this.
        tasks: what to learn from; see `run`. Tasks whose split is `val` are kept for validation.
        config: backend, algorithm, steps, and what else says how to learn.
        val: further tasks to validate on, before and after; the backend never learns from them.
        temperature: at which the policy is sampled in rollouts to learn from.
        val_temperature: at which it is sampled in validation; 0 is greedy.
        max_tokens: bound of each reply.
        split: take only the tasks of this split; `val` is not touched by it.
        options: `reward` and `model`, which are needed, and what else `run` takes but `repeats` and `sampling`.
            With `resume`, a run that was stopped or killed goes on; without `name`, the newest one.

    Returns:
        The artifact, and what is known of it.

    Raises:
        UsageError: something given cannot work; nothing was started, and no folder made.
        WireError: the server died or could not be reached for two minutes.
        EngineError: the model could not be served, or took no new weights.
        LightningError: no worker could be kept alive.
    """
    started = time.monotonic()
    backend = find_backend(config.backend, installed())
    validation: SamplingPolicy | None = SamplingPolicy(
        temperature=val_temperature, max_tokens=max_tokens
    )
    if Capability.TUNES_STRATEGY in backend.gives:
        # How replies are sampled is part of the agent, and of what may be tuned.
        asked = SamplingPolicy(as_asked=True, max_tokens=max_tokens)
        validation = None if options.get("model") is None else asked
    plan = await prepare(
        agent,
        tasks,
        val=val,
        optimize=config,
        sampling=SamplingPolicy(temperature=temperature, max_tokens=max_tokens, seed=config.seed),
        validation=validation,
        split=split,
        **options,
    )
    async with launched(plan) as run:
        if run.publishing.engine is not None and not config.allow_retokenized:
            # What an engine gives is exact only once it has started.
            require(
                backend.needs, run.publishing.engine.gives, by=f"backend `{backend.name}`",
                of=f"engine `{run.publishing.engine.name}`",
            )  # fmt: skip
        try:
            artifact = await backend.optimize(run)
        finally:
            await asyncio.to_thread(trackers.close, plan.folder.path)
        steps = dict(run.progress.steps)
    (plan.folder.path / "artifact.json").write_bytes(
        msgspec.json.format(artifact.to_json()) + b"\n"
    )
    return OptimizeResult(
        name=plan.config.name,
        folder=str(plan.folder.path),
        artifact=artifact,
        steps=steps,
        seconds=time.monotonic() - started,
    )


def optimize_sync(
    agent: object, tasks: TaskSource, config: OptimizeConfig, **options: Any
) -> OptimizeResult:
    """`optimize` for code that is not async; takes and raises the same.

    Raises:
        UsageError: an event loop runs already in this thread; use `await optimize(…)` there.
    """
    return blocking(optimize, agent, tasks, config, **options)
