"""`lightning_core.run`: run an agent on tasks, record every model call, score every rollout.

On a laptop this starts a server, an engine where a model is named, and a worker, and ends what it started.
A live object is run in this process, and so is the reward; where the agent is named instead, it runs in another
process, which never sees what the reward is told.
"""

from __future__ import annotations

import asyncio
import secrets
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from lightning_core.adapter import Adapter
from lightning_core.agents import agent_name, find_adapter
from lightning_core.client import Client
from lightning_core.engines import ChosenEngine, create_engine
from lightning_core.errors import UsageError
from lightning_core.folder import RunFolder
from lightning_core.grading import RewardFunction, reward_name
from lightning_core.plugins import Plugins, installed
from lightning_core.redaction import redacted, redacted_options, redacted_words, without_userinfo
from lightning_core.rollout import Budget, Mode
from lightning_core.running.checks import check_agent, check_numbers, check_resumable, tasks_digest
from lightning_core.running.launch import LaunchPlan, admin_token, launched
from lightning_core.running.progress import ProgressListener
from lightning_core.runs import RolloutRequest, RunConfig, RunResult
from lightning_core.sampling import DEFAULT_MAX_TOKENS, SamplingPolicy
from lightning_core.settings import Settings
from lightning_core.sources import load_tasks
from lightning_core.task import Task

TaskSource = str | Path | Iterable[Task | Mapping[str, Any]]
"""A file (`.jsonl`, `.csv`, `.parquet`), or any iterable of tasks, or of dicts with `input` and what else a task has."""


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
            `server`, to the model that `lightning-core serve --model …` serves there, if it does.
        engine: which engine serves `model`, where not the one that accepts it.
        engine_options: the engine's own options.
        sampling: how `model` is sampled; by default greedy, and at most 1,024 tokens a reply.
        concurrency: attempts at once for each worker.
        repeats: rollouts for each task.
        timeout: seconds that one attempt may take.
        max_attempts: attempts for each rollout; another is made after a lost worker, a failed model call, or a
            worker's own failure.
        budget: model calls and tokens that one attempt may use.
        isolate: one process for each attempt, for agents that block, crash or keep global state.
        workers: how many worker processes; 0 leaves the work to workers elsewhere (with `server`). A live object
            always runs in this process.
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
    settings = Settings.from_environ()
    plugins = installed()
    spec, command = _agent_spec(agent)
    live = spec is None and not command
    server, token = server or settings.server, token or settings.token
    budget = budget or Budget()
    counts = {
        "concurrency": concurrency, "repeats": repeats, "max_attempts": max_attempts, "workers": workers,
    }  # fmt: skip
    check_numbers(counts, timeout=timeout, budget=budget)
    if live and isolate:
        raise UsageError(
            "isolate: a live object cannot be run in another process; give `module:attr` or `path.py:attr`"
        )
    if adapter is not None and not live:
        raise UsageError(
            f"adapter `{adapter.name}`: is for a live object; for an agent that is named the worker finds it"
        )
    if not live and workers:
        check_agent(spec, command)
    if not live and not workers and server is None:
        raise UsageError(
            "workers: 0 leaves the work to workers of a server elsewhere, and none is named; add `--server`, or take 1"
        )
    if live:
        adapter = adapter or find_adapter(agent, plugins.adapters())
    reward_function = _find_reward(reward, plugins)
    served = _find_engine(model, engine, engine_options or {}, server, plugins)
    chosen = load_tasks(tasks, fields=fields, split=split, limit=limit)
    shown = spec or shlex.join(redacted_words(command)) or agent_name(agent)
    if server is None:
        mode, answering = (Mode.VAL if served else Mode.OBSERVE), model
    else:
        mode, answering = await _served_elsewhere(server, admin_token(server, token))
    config = RunConfig(
        name=name or "",
        agent=shown,
        created_at=time.time(),
        command=redacted_words(command_line),
        tasks=len(chosen),
        reward=None if reward_function is None else reward_name(reward_function),
        model=None if answering is None else without_userinfo(answering),
        engine=served.name if served else None,
        mode=mode,
        validation=sampling or SamplingPolicy(temperature=0.0, max_tokens=DEFAULT_MAX_TOKENS),
        timeout=timeout,
        max_attempts=max_attempts,
        repeats=repeats,
        owner=secrets.token_hex(16),
        tasks_digest=tasks_digest(chosen),
        concurrency=concurrency,
        budget=budget,
        isolate=isolate,
        workers=0 if live else workers,
        fields=dict(fields or {}),
        split=split,
        limit=limit,
        engine_options=redacted_options(engine_options or {}),
    )
    folder, config = _open_folder(Path(runs or settings.runs), name, resume, config)
    started = time.monotonic()
    plan = LaunchPlan(
        config=config,
        folder=folder,
        plugins=plugins,
        tasks=chosen,
        agent=agent if live else None,
        adapter=adapter,
        spec=spec,
        command=command,
        reward=reward_function,
        engine=served,
        engine_options=engine_options or {},
        budget=budget,
        concurrency=concurrency,
        isolate=isolate,
        workers=workers,
        server=server,
        token=token,
        listener=listener,
    )
    async with launched(plan) as served_run:
        groups = await served_run.rollouts(
            [RolloutRequest(task=task, count=repeats, mode=config.mode) for task in chosen]
        )
    return RunResult(
        name=config.name,
        folder=str(folder.path),
        traces=tuple(trace for group in groups for trace in group),
        seconds=time.monotonic() - started,
    )


def run_sync(agent: object, tasks: TaskSource, **options: Any) -> RunResult:
    """`run` for code that is not async; takes and raises the same.

    Raises:
        UsageError: an event loop runs already in this thread; use `await run(…)` there.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(run(agent, tasks, **options))
    raise UsageError(
        "run_sync: an event loop runs in this thread already; use `await lightning_core.run(…)`"
    )


def _agent_spec(agent: object) -> tuple[str | None, tuple[str, ...]]:
    """An agent that is named rather than given: its spec, or its command."""
    if isinstance(agent, str):
        return agent, ()
    if isinstance(agent, (list, tuple)) and agent and all(isinstance(word, str) for word in agent):
        return None, tuple(agent)
    return None, ()


def _find_reward(reward: RewardFunction | str | None, plugins: Plugins) -> RewardFunction | None:
    if not isinstance(reward, str):
        if reward is not None and not callable(reward):
            raise UsageError(f"reward: expected a function or a name but got {reward!r}")
        return reward
    known = plugins.rewards()
    if reward not in known:
        raise UsageError(
            f"reward `{reward}`: not known; known are {', '.join(f'`{name}`' for name in known)}, or give `path.py:function`"
        )
    return known[reward]


def _find_engine(
    model: str | None,
    engine: str | None,
    options: Mapping[str, str],
    server: str | None,
    plugins: Plugins,
) -> ChosenEngine | None:
    """What serves the model, its options checked."""
    if server is not None:
        if model is not None or engine is not None:
            given = f"model {redacted(model)!r}" if model is not None else f"engine `{engine}`"
            raise UsageError(
                f"{given}: the server {without_userinfo(server)} serves the model: start it with"
                " `lightning-core serve --model …`, and leave `--model` and `--engine` out here"
            )
        return None
    chosen = create_engine(model, engine, plugins)
    if chosen is not None:
        chosen.check(options)
    return chosen


async def _served_elsewhere(server: str, token: str) -> tuple[Mode, str | None]:
    """How rollouts run on a server elsewhere, and the model that it serves, if any."""
    async with Client(server, token) as client:
        policy = (await client.status()).policy
    if policy is None:
        return Mode.OBSERVE, None
    return Mode.VAL, str(policy.get("model"))


def _open_folder(
    runs: Path, name: str | None, resume: bool, config: RunConfig
) -> tuple[RunFolder, RunConfig]:
    """The run's folder, and what `run.json` in it says."""
    if not resume:
        folder = RunFolder.create(runs, name, hint=config.agent.rpartition("/")[2])
        config = msgspec.structs.replace(config, name=folder.path.name)
    else:
        if name is None:
            raise UsageError("resume: which run? add `--name`")
        folder = RunFolder.open(runs, name)
        before = folder.read_config()
        check_resumable(before, config)
        kept = {"name": before.name, "created_at": before.created_at}
        config = msgspec.structs.replace(config, owner=before.owner or config.owner, **kept)
    folder.write_config(config)
    return folder, config
