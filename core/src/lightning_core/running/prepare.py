"""Preparing a run: what a user asked for is checked and found before anything is started or written."""

from __future__ import annotations

import secrets
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

import msgspec

from lightning_core import trackers
from lightning_core.adapter import Adapter
from lightning_core.agents import agent_name, find_adapter
from lightning_core.backend import Backend
from lightning_core.capability import Capability, require
from lightning_core.client import Client
from lightning_core.engines import create_engine
from lightning_core.errors import CapabilityError, UsageError
from lightning_core.executor import Executor, split_executor
from lightning_core.folder import RunFolder
from lightning_core.grading import RewardFunction, reward_name
from lightning_core.litellm_engine import GIVES as LITELLM_GIVES
from lightning_core.litellm_engine import LiteLLMEngine, provider_of
from lightning_core.optimization import OptimizeConfig
from lightning_core.plugins import Plugins, installed
from lightning_core.redaction import redacted_options, redacted_words, without_userinfo
from lightning_core.rollout import Budget, Mode
from lightning_core.running.checks import (
    check_agent,
    check_numbers,
    check_optimization,
    check_resumable,
    tasks_digest,
)
from lightning_core.running.launch import LaunchPlan, admin_token
from lightning_core.running.progress import ProgressListener
from lightning_core.runs import RunConfig
from lightning_core.sampling import DEFAULT_MAX_TOKENS, SamplingPolicy
from lightning_core.settings import Settings
from lightning_core.sources import load_tasks
from lightning_core.task import Task

TaskSource = str | Path | Iterable[Task | Mapping[str, Any]]
"""A file (`.jsonl`, `.csv`, `.parquet`), or any iterable of tasks, or of dicts with `input` and what else a task has."""


class RunOptions(TypedDict, total=False):
    """What `run` and `optimize` take alike; `run` says what each is."""

    reward: RewardFunction | str | None
    adapter: Adapter | None
    model: str | None
    engine: str | None
    engine_options: Mapping[str, str] | None
    concurrency: int
    timeout: float
    max_attempts: int
    budget: Budget | None
    isolate: bool
    workers: int
    executor: str
    name: str | None
    runs: str | Path | None
    resume: bool
    fields: Mapping[str, str] | None
    limit: int | None
    server: str | None
    token: str | None
    listener: ProgressListener | None
    command_line: Sequence[str]


async def prepare(
    agent: object,
    tasks: TaskSource,
    *,
    val: TaskSource | None = None,
    optimize: OptimizeConfig | None = None,
    sampling: SamplingPolicy | None = None,
    validation: SamplingPolicy | None = None,
    repeats: int = 1,
    split: str | None = None,
    **options: Unpack[RunOptions],
) -> LaunchPlan:
    """The plan of a run, and its folder. Takes what `run` does, and for an optimisation what `optimize` does.

    Args:
        agent: see `run`.
        tasks: see `run`.
        val: tasks to validate on.
        optimize: what is to be optimised; None for an evaluation.
        sampling: how the policy is sampled in train mode.
        validation: how the policy or model is sampled in val mode.
        repeats: see `run`.
        split: see `run`.
        options: see `run`.

    Raises:
        UsageError: something given cannot work; no folder was made.
        WireError: the server elsewhere cannot be reached.
    """
    settings = Settings.from_environ()
    plugins = installed()
    spec, command = _agent_spec(agent)
    live = spec is None and not command
    server = options.get("server") or settings.server
    token = options.get("token") or settings.token
    config = RunConfig(
        name=options.get("name") or "",
        agent="",
        created_at=time.time(),
        command=redacted_words(options.get("command_line", ())),
        timeout=options.get("timeout", 600.0),
        max_attempts=options.get("max_attempts", 2),
        repeats=repeats,
        owner=secrets.token_hex(16),
        concurrency=options.get("concurrency", 8),
        budget=options.get("budget") or Budget(),
        isolate=options.get("isolate", False),
        workers=options.get("workers", 1),
        executor=options.get("executor", "process"),
        fields=dict(options.get("fields") or {}),
        split=split,
        limit=options.get("limit"),
        engine_options=redacted_options(options.get("engine_options") or {}),
        optimize=optimize,
    )
    adapter = _check_agent(agent, spec, command, config, options.get("adapter"), server, plugins)
    executor = _find_executor(config, live, plugins)
    reward = _find_reward(options.get("reward"), plugins)
    model = options.get("model")
    backend = None if optimize is None else find_backend(optimize.backend, plugins)
    itself = backend is not None and backend.serves
    if backend is not None and itself and options.get("engine") is not None:
        raise UsageError(
            f"engine `{options.get('engine')}`: backend `{backend.name}` serves the policy itself; leave `--engine` out"
        )
    served = None if itself else create_engine(model, options.get("engine"), plugins)
    chosen = load_tasks(
        tasks, fields=options.get("fields"), split=split, limit=options.get("limit")
    )
    if val is not None:
        chosen += _validation(load_tasks(val, fields=options.get("fields")), chosen)
    mode, answering = (Mode.VAL if served or itself else Mode.OBSERVE), model
    if server is not None and served is None and not itself:
        mode, answering = await _served_elsewhere(server, admin_token(server, token))
    if served is None and not itself and validation is not None:
        raise UsageError(f"sampling: needs `model`; {who_samples(server)}")
    bounded = SamplingPolicy(temperature=0.0, max_tokens=DEFAULT_MAX_TOKENS)
    config = msgspec.structs.replace(
        config,
        agent=spec or shlex.join(redacted_words(command)) or agent_name(agent),
        tasks=len(chosen),
        tasks_digest=tasks_digest(chosen),
        reward=None if reward is None else reward_name(reward),
        model=None if answering is None else without_userinfo(answering),
        engine=served.name if served else None,
        mode=mode,
        sampling=sampling or SamplingPolicy(max_tokens=DEFAULT_MAX_TOKENS),
        validation=validation or bounded,
        workers=0 if live else config.workers,
    )
    engine_options = dict(options.get("engine_options") or {})
    if backend is not None and optimize is not None:
        if served is not None:
            _check_engine(backend, served.check(engine_options), served.name, optimize)
        elif itself and provider_of(model or "") is not None:
            # It looks like a model of the hub.
            _check_engine(backend, LITELLM_GIVES, LiteLLMEngine.name, optimize)
        check_optimization(config, chosen)
        if backend.needs_model and (model is None or (served is None and not itself)):
            raise UsageError(
                f"backend `{backend.name}`: needs a model to train or serve; give it with `--model`"
            )
        _check_strategy_options(backend, config)
        backend.check(config)
        trackers.check(settings.track)
        engine_options = {**backend.engine_options(config), **engine_options}
    if served is not None:
        served.check(engine_options)
    folder, config = _open_folder(
        Path(options.get("runs") or settings.runs), options.get("name"),
        options.get("resume", False), config,
    )  # fmt: skip
    return LaunchPlan(
        config=config,
        folder=folder,
        plugins=plugins,
        tasks=chosen,
        agent=agent if live else None,
        adapter=adapter,
        spec=spec,
        command=command,
        executor=executor,
        reward=reward,
        engine=served,
        engine_options=engine_options,
        server=server,
        token=token,
        listener=options.get("listener"),
    )


def find_backend(name: str, plugins: Plugins) -> Backend:
    """The backend of a name.

    Raises:
        UsageError: it is not installed.
    """
    known = plugins.backends()
    if name not in known:
        names = ", ".join(f"`{each}`" for each in known) or "none"
        raise UsageError(
            f"backend `{name}`: not installed; installed are {names}; `pip install lightning-{name}` may have it"
        )
    return known[name]


def who_samples(server: str | None) -> str:
    """Who decides how replies are sampled where the run names no model, for a message."""
    if server is None:
        return "else whoever answers the calls decides how replies are sampled"
    return (
        f"else the policy of the server {without_userinfo(server)} has its own sampling rules, which"
        f" `GET {without_userinfo(server)}/api/v1/status` shows"
    )


def _agent_spec(agent: object) -> tuple[str | None, tuple[str, ...]]:
    """An agent that is named rather than given: its spec, or its command."""
    if isinstance(agent, str):
        return agent, ()
    if isinstance(agent, (list, tuple)) and agent and all(isinstance(word, str) for word in agent):
        return None, tuple(agent)
    return None, ()


def _check_agent(
    agent: object,
    spec: str | None,
    command: tuple[str, ...],
    config: RunConfig,
    adapter: Adapter | None,
    server: str | None,
    plugins: Plugins,
) -> Adapter | None:
    """Refuse what cannot be run as it is wanted; the adapter of a live object."""
    live = spec is None and not command
    counts = {
        "concurrency": config.concurrency, "repeats": config.repeats, "max_attempts": config.max_attempts,
        "workers": config.workers,
    }  # fmt: skip
    check_numbers(counts, timeout=config.timeout, budget=config.budget)
    if live:
        if config.isolate:
            raise UsageError(
                "isolate: a live object cannot be run in another process; give `module:attr` or `path.py:attr`"
            )
        return adapter or find_adapter(agent, plugins.adapters())
    if adapter is not None:
        raise UsageError(
            f"adapter `{adapter.name}`: is for a live object; for an agent that is named the worker finds it"
        )
    if config.workers:
        check_agent(spec, command)
    elif server is None:
        raise UsageError(
            "workers: 0 leaves the work to workers of a server elsewhere, and none is named; add `--server`, or take 1"
        )
    return None


def _check_engine(
    backend: Backend, gives: frozenset[Capability], engine: str, optimize: OptimizeConfig
) -> None:
    """Refuse an engine that does not give what the backend needs."""
    ids = {Capability.TOKEN_IDS, Capability.LOGPROBS}
    needs = backend.needs - ids if optimize.allow_retokenized else backend.needs
    try:
        require(needs, gives, by=f"backend `{backend.name}`", of=f"engine `{engine}`")
    except CapabilityError as error:
        if not ids & (needs - gives):
            raise
        raise CapabilityError(
            f"{error}; where ids made anew from text will do, add `--allow-retokenized`"
        ) from None


def _check_strategy_options(backend: Backend, config: RunConfig) -> None:
    """Refuse what says how a strategy is searched where the backend searches none."""
    asked = config.optimize
    if asked is None or Capability.TUNES_STRATEGY in backend.gives:
        return
    for name in ("reflection_model", "budget", "models"):
        if getattr(asked, name):
            raise UsageError(
                f"{name}: says how prompts and rules are searched, and backend `{backend.name}` searches none; leave it out,"
                " or take `--backend prompt`"
            )


def _find_executor(config: RunConfig, live: bool, plugins: Plugins) -> Executor | None:
    """The executor of the run's workers, checked; None where the run starts none."""
    name, address = split_executor(config.executor)
    known = plugins.executors()
    if name not in known:
        names = ", ".join(f"`{each}`" for each in known)
        raise UsageError(
            f"executor `{name}`: not installed; installed are {names}; `lightning-verl` has `ray`"
        )
    known[name].check(address, config)
    if not live and config.workers:
        return known[name]
    if name != "process":
        why = (
            "a live object runs in this process; give `module:attr` or `path.py:attr`"
            if live
            else "the run starts no worker with `--workers 0`; take 1 or more"
        )
        raise UsageError(f"executor `{name}`: {why}")
    return None


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


def _validation(tasks: Sequence[Task], train: Sequence[Task]) -> list[Task]:
    """Tasks of the split `val`; where an id of theirs is a training task's, all get a prefix."""
    taken = {task.id for task in train}
    prefix = "val-" if any(task.id in taken for task in tasks) else ""
    return [msgspec.structs.replace(task, split="val", id=prefix + task.id) for task in tasks]


async def _served_elsewhere(server: str, token: str) -> tuple[Mode, str | None]:
    """How rollouts without a model of their own run on a server elsewhere, and the model that it serves, if any."""
    async with Client(server, token) as client:
        policy = (await client.status()).policy
    if policy is None:
        return Mode.OBSERVE, None
    return Mode.VAL, policy.model


def _open_folder(
    runs: Path, name: str | None, resume: bool, config: RunConfig
) -> tuple[RunFolder, RunConfig]:
    """The run's folder, and what `run.json` in it says."""
    if not resume:
        folder = RunFolder.create(runs, name, hint=config.agent.rpartition("/")[2])
        config = msgspec.structs.replace(config, name=folder.path.name)
    else:
        # Without a name the newest run; were it another, the check would refuse it.
        folder = RunFolder.open(runs, name or "last")
        before = folder.read_config()
        check_resumable(before, config)
        kept = {"name": before.name, "created_at": before.created_at}
        config = msgspec.structs.replace(config, owner=before.owner or config.owner, **kept)
    folder.write_config(config)
    return folder, config
