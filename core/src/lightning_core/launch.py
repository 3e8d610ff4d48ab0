"""Launching a run: its server, its engine, its workers; ended in order when the run is over.

On a laptop all of them start together; with `server` they run elsewhere, and the path is the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

import msgspec

from lightning_core.adapter import Adapter
from lightning_core.children import Child
from lightning_core.client import Client
from lightning_core.engines import ChosenEngine
from lightning_core.errors import LightningError, UsageError
from lightning_core.folder import RunFolder
from lightning_core.grading import RewardFunction
from lightning_core.instrument.context import PLACEHOLDER_KEY
from lightning_core.live import LiveProgress
from lightning_core.plugins import Plugins
from lightning_core.progress import ProgressListener
from lightning_core.rollout import Budget
from lightning_core.runner import ServedRun
from lightning_core.runs import RunConfig
from lightning_core.server.process import ServerProcess
from lightning_core.task import Task
from lightning_core.tokens import Scope
from lightning_core.worker.worker import Worker

_WORKER_GRACE: Final = 10.0


class LaunchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run needs around it. Everything in it has been checked."""

    config: RunConfig
    """What was asked."""
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
    reward: RewardFunction | None = None
    """What scores the rollouts."""
    engine: ChosenEngine | None = None
    """What serves the model; None where the agent's own calls are observed."""
    engine_options: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The engine's own options."""
    budget: Budget = Budget()
    """What each attempt may use of the model."""
    concurrency: int = 8
    """Attempts at once for each worker."""
    isolate: bool = False
    """One process for each attempt."""
    workers: int = 1
    """Worker processes, where the agent is named."""
    server: str | None = None
    """A server that runs elsewhere."""
    token: str | None = None
    """That server's admin token."""
    listener: ProgressListener | None = None
    """Called as rollouts end; by default a progress bar on a terminal."""


@contextlib.asynccontextmanager
async def launched(plan: LaunchPlan) -> AsyncIterator[ServedRun]:
    """A run with all that it needs; what was started is ended on leaving, whatever happened.

    Raises:
        UsageError: a token is missing for a server elsewhere.
        WireError: the server or a worker did not start.
        EngineError: the model could not be served.
    """
    async with AsyncExitStack() as stack:
        progress = stack.enter_context(LiveProgress())
        deaths: list[Callable[[], Awaitable[LightningError]]] = []
        if plan.server is None:
            process = await stack.enter_async_context(ServerProcess(plan.folder.path))
            deaths.append(process.died)
            url, admin, worker = (
                process.url,
                process.token(Scope.ADMIN),
                process.token(Scope.WORKER),
            )
        elif plan.token is None:
            raise UsageError(
                f"server {plan.server}: a token is needed; set `LIGHTNING_CORE_TOKEN` to what `serve` printed"
            )
        else:
            url, admin, worker = plan.server, plan.token, plan.token
        client = await stack.enter_async_context(Client(url, admin))
        run = ServedRun(
            plan.config,
            plan.folder,
            client,
            plan.plugins,
            plan.tasks,
            reward=plan.reward,
            budget=plan.budget,
            listener=plan.listener or progress,
        )
        if plan.engine is not None:
            engine = plan.engine.create(folder=plan.folder.logs, options=plan.engine_options)
            stack.push_async_callback(engine.stop)
            progress.say(f"starting {plan.config.model}")
            await run.serve(engine, await engine.start(), version=0)
        await stack.enter_async_context(run.following())
        if plan.agent is not None:
            if plan.engine is not None:
                stack.enter_context(_some_key())
            deaths.append(await stack.enter_async_context(_worker_here(plan, url, worker)))
        else:
            for number in range(plan.workers):
                child = _worker_child(plan, number, url, worker)
                await child.start()
                stack.push_async_callback(child.stop)
                deaths.append(child.died)
        for died in deaths:
            run.watch(died())
        yield run


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
            adapters=tuple(plan.plugins.adapters().values()),
            concurrency=plan.concurrency,
        )
        working = asyncio.create_task(worker.run(stop), name="lightning-core worker")

        async def died() -> LightningError:
            await asyncio.wait([working])
            error = None if working.cancelled() else working.exception()
            if error is None:
                return LightningError("worker: ended before the rollouts did")
            if isinstance(error, LightningError):
                return error
            raise error

        try:
            yield died
        finally:
            stop.set()
            await asyncio.wait([working], timeout=_WORKER_GRACE)
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


def _worker_child(plan: LaunchPlan, number: int, url: str, token: str) -> Child:
    """A worker in a process of its own, for an agent that is named."""
    arguments = ["--server", url, "--concurrency", str(plan.concurrency)]
    if plan.isolate:
        arguments.append("--isolate")
    if plan.spec is not None:
        arguments += ["--agent", plan.spec]
    if plan.command:
        arguments += ["--", *plan.command]
    return Child(
        f"worker {number}",
        "lightning_core.worker",
        arguments,
        log=plan.folder.logs / f"worker-{number}.log",
        environment={"LIGHTNING_CORE_TOKEN": token},
    )
