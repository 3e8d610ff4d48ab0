"""`lightning_core.run`: run an agent on tasks, record every model call, score every rollout.

On a laptop this starts a server, an engine where a model is named, and a worker, and ends what it started.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, TypeVar

from lightning_core.adapter import Adapter
from lightning_core.agents import agent_name, find_adapter
from lightning_core.children import Child
from lightning_core.client import Client
from lightning_core.engines import create_engine
from lightning_core.errors import LightningError, UsageError
from lightning_core.folder import RunFolder
from lightning_core.grading import RewardFunction, reward_name
from lightning_core.instrument.bootstrap import PLACEHOLDER_KEY
from lightning_core.live import LiveProgress
from lightning_core.plugins import Plugins, installed
from lightning_core.progress import ProgressListener
from lightning_core.rollout import Budget, Mode
from lightning_core.runner import ServedRun
from lightning_core.runs import RolloutRequest, RunConfig, RunResult
from lightning_core.sampling import DEFAULT_MAX_TOKENS, SamplingPolicy
from lightning_core.server.process import ServerProcess
from lightning_core.settings import Settings
from lightning_core.sources import load_tasks
from lightning_core.task import Task
from lightning_core.tokens import Scope
from lightning_core.worker.worker import Worker

_T = TypeVar("_T")

TaskSource = str | Path | Sequence[Task | Mapping[str, Any]]
"""A file (`.jsonl`, `.csv`, `.parquet`), or tasks, or dicts with `input` and what else a task has."""
_WORKER_GRACE: Final = 10.0


async def run(
    agent: object,
    tasks: TaskSource,
    *,
    reward: RewardFunction | str | None = None,
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
            runs in this process; or `module:attr` or `path.py:attr`, or a command line as a list of words, which run
            in a worker process.
        tasks: a file or tasks; see `load_tasks`.
        reward: `(task, trace) -> float | Reward | dict`, sync or async, or the name of a registered one
            (`exact_match`, `contains`, `numeric`, `token_f1`). Without it nothing is scored.
        model: what answers the agent's model calls: a name an engine knows (`smollm2`), a folder, or an address
            (`http://HOST/v1`, `NAME@http://HOST/v1`). Without it each call goes where the agent meant it to go.
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
        resume: go on with the run `name`: rollouts that have ended are not run again.
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
        UsageError: something given cannot work; nothing was started.
        WireError: the server or a worker died.
        EngineError: the model could not be served.
    """
    settings = Settings.from_environ()
    plugins = installed()
    spec, command = _agent_spec(agent)
    live = spec is None and not command
    adapter = find_adapter(agent, plugins.adapters()) if live else None
    reward_function = _find_reward(reward, plugins)
    chosen = load_tasks(tasks, fields=fields, split=split, limit=limit)
    served = create_engine(model, engine, plugins)
    shown = spec or " ".join(command) or agent_name(agent)
    folder = _open_folder(Path(runs or settings.runs), name, resume, shown)
    config = RunConfig(
        name=folder.path.name,
        agent=shown,
        created_at=time.time(),
        command=tuple(command_line),
        tasks=len(chosen),
        reward=None if reward_function is None else reward_name(reward_function),
        model=model,
        engine=served.name if served else None,
        mode=Mode.VAL if served else Mode.OBSERVE,
        validation=sampling or SamplingPolicy(temperature=0.0, max_tokens=DEFAULT_MAX_TOKENS),
        timeout=timeout,
        max_attempts=max_attempts,
        repeats=repeats,
    )
    if not resume:
        folder.write_config(config)
    started = time.monotonic()
    async with AsyncExitStack() as stack:
        live_progress = stack.enter_context(LiveProgress())
        fatal: list[Callable[[], Awaitable[LightningError]]] = []
        url, admin, worker_token = (
            server or settings.server,
            token or settings.token,
            token or settings.token,
        )
        if url is None:
            process = await stack.enter_async_context(ServerProcess(folder.path))
            fatal.append(process.died)
            url, admin = process.url, process.token(Scope.ADMIN)
            worker_token = process.token(Scope.WORKER)
        if not admin or not worker_token:
            raise UsageError(
                f"server {url}: a token is needed; set `LIGHTNING_CORE_TOKEN` or give `--token`"
            )
        client = await stack.enter_async_context(Client(url, admin))
        served_run = ServedRun(
            config,
            folder,
            client,
            plugins,
            chosen,
            reward=reward_function,
            budget=budget or Budget(),
            listener=listener or live_progress,
        )
        if served is not None:
            serving = served.create(folder=folder.logs, options=engine_options or {})
            stack.push_async_callback(serving.stop)
            live_progress.say(f"starting {model}")
            await served_run.serve(serving, await serving.start(), version=0)
        await stack.enter_async_context(served_run.following())
        if live:
            assert adapter is not None
            if served is not None:
                stack.enter_context(_some_key())
            working = _work_here(agent, adapter, url, worker_token, plugins, concurrency, isolate)
            fatal.append(await stack.enter_async_context(working))
        for number in range(0 if live else workers):
            child = _worker_child(
                number, spec, command, url, worker_token, folder, concurrency, isolate
            )
            await child.start()
            stack.push_async_callback(child.stop)
            fatal.append(child.died)
        requests = [RolloutRequest(task=task, count=repeats, mode=config.mode) for task in chosen]
        groups = await _unless(served_run.rollouts(requests), fatal)
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


def _open_folder(runs: Path, name: str | None, resume: bool, hint: str) -> RunFolder:
    if not resume:
        return RunFolder.create(runs, name, hint=hint.rpartition("/")[2])
    if name is None:
        raise UsageError("resume: which run? add `--name`")
    return RunFolder.open(runs, name)


@contextlib.contextmanager
def _some_key() -> Iterator[None]:
    """Let an agent build its client in this process though the user has no key: the gateway answers its calls."""
    if os.environ.get("OPENAI_API_KEY"):
        yield
        return
    os.environ["OPENAI_API_KEY"] = PLACEHOLDER_KEY
    try:
        yield
    finally:
        os.environ.pop("OPENAI_API_KEY", None)


@contextlib.asynccontextmanager
async def _work_here(
    agent: object,
    adapter: Adapter,
    url: str,
    token: str,
    plugins: Plugins,
    concurrency: int,
    isolate: bool,
) -> AsyncIterator[Callable[[], Awaitable[LightningError]]]:
    """A worker in this process, for a live object."""
    if isolate:
        raise UsageError(
            "isolate: a live object cannot be run in another process; give `module:attr` or `path.py:attr`"
        )
    stop = asyncio.Event()
    async with Client(url, token) as client:
        worker = Worker(
            client,
            agent,
            adapter,
            adapters=tuple(plugins.adapters().values()),
            concurrency=concurrency,
        )
        working = asyncio.create_task(worker.run(stop), name="lightning-core worker")

        async def died() -> LightningError:
            await asyncio.wait([working])
            error = None if working.cancelled() else working.exception()
            if isinstance(error, LightningError):
                return error
            if error is not None:
                raise error
            return LightningError("worker: ended before the rollouts did")

        try:
            yield died
        finally:
            stop.set()
            await asyncio.wait([working], timeout=_WORKER_GRACE)
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


def _worker_child(
    number: int,
    spec: str | None,
    command: tuple[str, ...],
    url: str,
    token: str,
    folder: RunFolder,
    concurrency: int,
    isolate: bool,
) -> Child:
    arguments = ["--server", url, "--concurrency", str(concurrency)]
    if isolate:
        arguments.append("--isolate")
    if spec is not None:
        arguments += ["--agent", spec]
    if command:
        arguments += ["--", *command]
    return Child(
        f"worker {number}",
        "lightning_core.worker",
        arguments,
        log=folder.logs / f"worker-{number}.log",
        environment={"LIGHTNING_CORE_TOKEN": token},
    )


async def _unless(
    work: Awaitable[_T], fatal: Sequence[Callable[[], Awaitable[LightningError]]]
) -> _T:
    """The result of `work`, unless something that it needs dies first."""
    doing = asyncio.ensure_future(work)
    deaths = [asyncio.ensure_future(died()) for died in fatal]
    try:
        await asyncio.wait([doing, *deaths], return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        raise next(death for death in deaths if death.done()).result()
    finally:
        for task in (doing, *deaths):
            task.cancel()
        await asyncio.gather(doing, *deaths, return_exceptions=True)
