"""Launching a run: its server, its engine, its workers; ended in order when the run is over.

On a laptop all of them start together; with `server` they run elsewhere, and the path is the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from lightning_core.adapter import Adapter
from lightning_core.client import Client
from lightning_core.engine import Endpoint, Engine
from lightning_core.engines import ChosenEngine
from lightning_core.errors import LightningError, UsageError, WireError
from lightning_core.executor import Executor, MakeWorker, WorkerHandle, WorkerOrder, split_executor
from lightning_core.folder import RunFolder
from lightning_core.grading import RewardFunction
from lightning_core.instrument.context import KEYS, PLACEHOLDER_KEY
from lightning_core.plugins import Plugins
from lightning_core.redaction import without_userinfo
from lightning_core.rollout import Mode
from lightning_core.running.live import LiveProgress
from lightning_core.running.patience import PATIENCE
from lightning_core.running.progress import ProgressListener
from lightning_core.running.publishing import DRAIN_SECONDS
from lightning_core.running.runner import ServedRun
from lightning_core.running.workforce import Workforce
from lightning_core.runs import RunConfig
from lightning_core.server.process import ServerProcess
from lightning_core.task import Task
from lightning_core.tokens import Scope
from lightning_core.worker.worker import Worker

log = logging.getLogger("lightning_core.run")

_WORKER_GRACE: Final = 10.0


class LaunchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run needs around it. Everything in it has been checked."""

    config: RunConfig
    """What was asked; `concurrency`, `workers`, `isolate` and `budget` are its."""
    folder: RunFolder
    """The run's folder."""
    plugins: Plugins
    """What is installed."""
    tasks: Sequence[Task]
    """The run's tasks."""
    agent: Any = None
    """A live object, which runs in this process; None where `spec` or `command` names the agent."""
    adapter: Adapter | None = None
    """The live object's adapter."""
    spec: str | None = None
    """`module:attr` or `path.py:attr`."""
    command: tuple[str, ...] = ()
    """A command line."""
    executor: Executor | None = None
    """What runs the workers; None for a live object, and where the run starts none."""
    reward: RewardFunction | None = None
    """What scores the rollouts."""
    engine: ChosenEngine | None = None
    """What serves the model; None where the agent's own calls are observed."""
    engine_options: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The engine's own options."""
    server: str | None = None
    """A server that runs elsewhere."""
    token: str | None = None
    """That server's admin token."""
    listener: ProgressListener | None = None
    """Called as rollouts end; by default a progress bar on a terminal."""
    patience: float = PATIENCE
    """Seconds for which a server that cannot be reached is waited for."""
    drain: float = DRAIN_SECONDS
    """Seconds that model calls under way have before new weights are loaded."""


class Serving(msgspec.Struct, frozen=True):
    """A server that answers, and the engine behind it."""

    url: str
    """Its address."""
    client: Client
    """Open, with an admin's token."""
    engine: Engine | None
    """What serves the model; None where none is named."""
    endpoints: tuple[Endpoint, ...]
    """Where the engine serves."""
    deaths: tuple[Callable[[], Awaitable[LightningError]], ...]
    """What each waits for is the end of a part without which nothing can go on."""


@contextlib.asynccontextmanager
async def serving(
    folder: RunFolder,
    engine: ChosenEngine | None = None,
    engine_options: Mapping[str, str] | None = None,
    *,
    server: str | None = None,
    token: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[Serving]:
    """A server, ours or one elsewhere, and an engine, both ended on leaving where they are ours.

    Args:
        folder: the run's folder.
        engine: what is to serve a model.
        engine_options: the engine's own options.
        server: the address of a server that runs elsewhere.
        token: its admin token.
        say: told what is being done.

    Raises:
        UsageError: a token is missing for a server elsewhere.
        WireError: the server did not start.
        EngineError: the model could not be served.
    """
    async with AsyncExitStack() as stack:
        deaths: list[Callable[[], Awaitable[LightningError]]] = []
        if server is None:
            process = await stack.enter_async_context(ServerProcess(folder.path))
            deaths.append(process.died)
            url, admin = process.url, process.token(Scope.ADMIN)
        else:
            url, admin = server, admin_token(server, token)
        client = await stack.enter_async_context(Client(url, admin))
        started, endpoints = None, tuple[Endpoint, ...]()
        if engine is not None:
            say(f"starting {engine.model}")
            started, endpoints = await stack.enter_async_context(
                engine_started(engine, engine_options or {}, folder.logs)
            )
            deaths.append(started.died)
        yield Serving(url, client, started, endpoints, tuple(deaths))


@contextlib.asynccontextmanager
async def engine_started(
    chosen: ChosenEngine, options: Mapping[str, str], logs: Path
) -> AsyncIterator[tuple[Engine, tuple[Endpoint, ...]]]:
    """An engine that serves, and where; stopped on leaving, also where it is left while it starts."""
    engine = chosen.create(folder=logs, options=options)
    try:
        yield engine, await engine.start()
    finally:
        await engine.stop()


def admin_token(server: str, token: str | None) -> str:
    """The token for a server that runs elsewhere; raises `UsageError` where there is none."""
    if token is None:
        raise UsageError(
            f"server {without_userinfo(server)}: an admin token is needed; set `LIGHTNING_CORE_TOKEN` to what `serve`"
            " printed for runs"
        )
    return token


@contextlib.asynccontextmanager
async def launched(plan: LaunchPlan) -> AsyncIterator[ServedRun]:
    """A run with all that it needs; what was started is ended on leaving, whatever happened.

    Raises:
        UsageError: a token is missing for a server elsewhere, or another run has the name there, or workers could not
            reach the server.
        WireError: the server, the executor or a worker did not start.
        EngineError: the model could not be served.
    """
    async with AsyncExitStack() as stack:
        wanted = plan.config.optimize
        steps = None if wanted is None else wanted.steps
        progress = stack.enter_context(LiveProgress(plan.config.name, steps))
        make = None
        if plan.executor is not None:
            # First: to find out that workers have no place takes less time than to load a model.
            progress.say("starting workers")
            _, address = split_executor(plan.config.executor)
            make = await stack.enter_async_context(
                plan.executor.opened(address, server=plan.server, logs=plan.folder.logs)
            )
        base = await stack.enter_async_context(
            serving(
                plan.folder,
                plan.engine,
                plan.engine_options,
                server=plan.server,
                token=plan.token,
                say=progress.say,
            )
        )
        run = ServedRun(
            plan.config,
            plan.folder,
            base.client,
            plan.plugins,
            plan.tasks,
            reward=plan.reward,
            listener=plan.listener or progress,
            patience=plan.patience,
            drain=plan.drain,
        )
        if plan.server is not None:
            await _claim(plan.config, base.client)
        if base.engine is not None:
            if plan.server is not None:
                stack.push_async_callback(run.publishing.withdraw)
            await run.publishing.serve(base.engine, base.endpoints, version=0)
        for died in base.deaths:
            run.watch(died())
        await stack.enter_async_context(run.following())
        if plan.agent is not None:
            if plan.config.mode is not Mode.OBSERVE:
                stack.enter_context(_some_key())
            token = await base.client.worker_token()
            run.watch((await stack.enter_async_context(_worker_here(plan, base.url, token)))())
        elif make is not None:
            token = await base.client.worker_token()
            names = tuple(_worker_name(plan, number) for number in range(plan.config.workers))
            hidden = frozenset() if base.engine is None else base.engine.secrets
            ordered = partial(_worker, plan, make, base.url, token, hidden)
            force = await stack.enter_async_context(
                Workforce(run.attendance, ordered, names, plan.config.concurrency)
            )
            run.watch(force.died())
        else:
            run.expect_workers()
        yield run


async def _claim(config: RunConfig, client: Client) -> None:
    try:
        await client.claim_run(config.name, config.owner)
    except WireError as error:
        if error.status != 409:
            raise
        raise UsageError(
            f"run `{config.name}`: another run has this name on the server {client.shown}; choose another with `--name`"
        ) from error


def _worker_name(plan: LaunchPlan, number: int) -> str:
    return f"{plan.config.name}-worker-{number}"


@contextlib.contextmanager
def _some_key() -> Iterator[None]:
    """Let an agent build its client in this process though the user has no key: the gateway answers its calls."""
    missing = [name for name in KEYS if not os.environ.get(name)]
    os.environ.update(dict.fromkeys(missing, PLACEHOLDER_KEY))
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)


@contextlib.asynccontextmanager
async def _worker_here(
    plan: LaunchPlan, url: str, token: str
) -> AsyncIterator[Callable[[], Awaitable[LightningError]]]:
    """A worker in this process, for a live object."""
    stop = asyncio.Event()
    async with Client(url, token) as client:
        worker = Worker(
            client,
            plan.agent,
            plan.adapter,
            name=_worker_name(plan, 0),
            for_run=plan.config.name,
            adapters=tuple(plan.plugins.adapters().values()),
            concurrency=plan.config.concurrency,
        )
        working = asyncio.create_task(worker.run(stop), name="lightning-core worker")

        async def died() -> LightningError:
            await asyncio.wait([working])
            error = None if working.cancelled() else working.exception()
            if error is None:
                return LightningError("worker: ended before the rollouts did")
            if isinstance(error, LightningError):
                return error
            log.debug("the worker failed", exc_info=error)
            return LightningError(f"worker: failed: {type(error).__name__}: {error}")

        try:
            yield died
        finally:
            stop.set()
            await asyncio.wait([working], timeout=_WORKER_GRACE)
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


def _worker(
    plan: LaunchPlan,
    make: MakeWorker,
    url: str,
    token: str,
    hidden: frozenset[str],
    number: int,
    name: str,
    concurrency: int,
) -> WorkerHandle:
    """A worker outside this process, for an agent that is named."""
    arguments = ["--server", url, "--name", name, "--run", plan.config.name]
    arguments += ["--concurrency", str(concurrency)]
    if plan.config.isolate:
        arguments.append("--isolate")
    if plan.spec is not None:
        arguments += ["--agent", plan.spec]
    if plan.command:
        arguments += ["--", *plan.command]
    order = WorkerOrder(
        what=f"worker {number}",
        arguments=tuple(arguments),
        token=token,
        log=plan.folder.logs / f"worker-{number}.log",
        hidden=hidden,
    )
    return make(order)
