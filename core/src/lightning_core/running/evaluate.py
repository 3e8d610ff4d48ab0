"""`lightning_core.run`: run an agent on tasks, record every model call, score every rollout.

On a laptop this starts a server, an engine where a model is named, and a worker, and ends what it started.
A live object is run in this process, and so is the reward; where the agent is named instead, it runs in another
process, which never sees what the reward is told.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_core.adapter import Adapter
from lightning_core.grading import RewardFunction
from lightning_core.rollout import Budget
from lightning_core.running.blocking import blocking
from lightning_core.running.launch import launched
from lightning_core.running.prepare import TaskSource, prepare
from lightning_core.running.progress import ProgressListener
from lightning_core.runs import RolloutRequest, RunResult
from lightning_core.sampling import SamplingPolicy


async def run(
    agent: object,
    tasks: TaskSource,
    *,
    reward: RewardFunction | str | None = None,
    adapter: Adapter | None = None,
    model: str | None = None,
    engine: str | None = None,
    engine_options: Mapping[str, str] | None = None,
    sampling: SamplingPolicy | None = None,
    concurrency: int = 8,
    repeats: int = 1,
    timeout: float = 600.0,
    max_attempts: int = 2,
    budget: Budget | None = None,
    isolate: bool = False,
    workers: int = 1,
    executor: str = "process",
    name: str | None = None,
    runs: str | Path | None = None,
    resume: bool = False,
    fields: Mapping[str, str] | None = None,
    split: str | None = None,
    limit: int | None = None,
    server: str | None = None,
    token: str | None = None,
    listener: ProgressListener | None = None,
    command_line: Sequence[str] = (),
) -> RunResult:
    """Run `agent` on each task, record its model calls, and score what it gives.

    Args:
        agent: a live object that an adapter accepts (a compiled graph, a Runnable, a sync or async function), which
            runs in this process, where the reward runs too and could be seen; or `module:attr` or `path.py:attr`, or
            a command line as a list of words, which run in a worker process, outside of which the reward runs.
        tasks: a file or tasks; see `load_tasks`.
        reward: `(task, trace) -> float | Reward | dict`, sync or async, or the name of a registered one
            (`exact_match`, `contains`, `numeric`, `token_f1`). It runs in this process. Without it nothing is scored.
        adapter: what runs a live object, where not the one installed adapter that accepts it.
        model: what answers the agent's model calls: a name an engine knows (`smollm2`), a folder, or an address
            (`http://HOST/v1`, `NAME@http://HOST/v1`). Without it each call goes where the agent meant it to go; with
            `server`, to the model that `lightning-core serve --model …` serves there, if it does. With both, this run's
            calls alone go to `model`, which the server must be able to reach.
        engine: which engine serves `model`, where not the one that accepts it.
        engine_options: the engine's own options.
        sampling: how `model` is sampled; by default greedy, and at most 1,024 tokens a reply. Only with `model`.
        concurrency: attempts at once for each worker.
        repeats: rollouts for each task.
        timeout: seconds that one attempt may take.
        max_attempts: attempts for each rollout; another is made after a lost worker, a failed model call, or a
            worker's own failure.
        budget: model calls and tokens that one attempt may use.
        isolate: one process for each attempt, for agents that block, crash or keep global state.
        workers: how many workers; 0 leaves the work to workers elsewhere (with `server`). A live object always runs
            in this process.
        executor: where workers run: `process`, child processes of this one; or another installed one by its name, with
            an address where it takes one, such as `ray` or `ray:HOST:PORT`.
        name: the run's name; made from the agent's name and the time by default.
        runs: the folder that holds run folders; `LIGHTNING_CORE_RUNS`, else `runs`.
        resume: go on with the run `name`: rollouts that have ended are not run again. Agent, reward, model and tasks
            must be the same.
        fields: names of a task's parts in the source, such as `{"input": "question"}`.
        split: run only the tasks of this split.
        limit: run only the first so many tasks.
        server: the address of a server that runs elsewhere, and `token` its admin token.
        token: see `server`.
        listener: called as rollouts end; by default a progress bar on a terminal.
        command_line: kept in `run.json`.

    Returns:
        One trace for each rollout, in the order of the tasks. A rollout that failed is among them, with its cause.

    Raises:
        UsageError: something given cannot work; nothing was started, and no folder made.
        WireError: the server died or could not be reached for two minutes.
        EngineError: the model could not be served, or its server died.
        LightningError: no worker could be kept alive.
    """
    started = time.monotonic()
    plan = await prepare(
        agent,
        tasks,
        reward=reward,
        adapter=adapter,
        model=model,
        engine=engine,
        engine_options=engine_options,
        validation=sampling,
        concurrency=concurrency,
        repeats=repeats,
        timeout=timeout,
        max_attempts=max_attempts,
        budget=budget,
        isolate=isolate,
        workers=workers,
        executor=executor,
        name=name,
        runs=runs,
        resume=resume,
        fields=fields,
        split=split,
        limit=limit,
        server=server,
        token=token,
        listener=listener,
        command_line=command_line,
    )
    async with launched(plan) as served_run:
        groups = await served_run.rollouts(
            [RolloutRequest(task=task, count=repeats, mode=plan.config.mode) for task in plan.tasks]
        )
    return RunResult(
        name=plan.config.name,
        folder=str(plan.folder.path),
        traces=tuple(trace for group in groups for trace in group),
        seconds=time.monotonic() - started,
    )


def run_sync(agent: object, tasks: TaskSource, **options: Any) -> RunResult:
    """`run` for code that is not async; takes and raises the same.

    Raises:
        UsageError: an event loop runs already in this thread; use `await run(…)` there.
    """
    return blocking(run, agent, tasks, **options)
