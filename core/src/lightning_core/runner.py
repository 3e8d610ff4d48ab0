"""ServedRun: a Run over a server. Enqueues rollouts, waits for their end, grades them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from lightning_core.client import Client
from lightning_core.engine import Endpoint, Engine
from lightning_core.errors import CapabilityError, LightningError, WireError
from lightning_core.folder import RunFolder
from lightning_core.grading import RewardFunction, grade
from lightning_core.plugins import Plugins
from lightning_core.progress import Progress, ProgressListener
from lightning_core.records import Json
from lightning_core.rollout import Budget, Rollout
from lightning_core.runs import RolloutRequest, Run, RunConfig
from lightning_core.task import Task
from lightning_core.trace import Trace
from lightning_core.wire import ServedPolicy

log = logging.getLogger(__name__)

_GRADERS: Final = 8
_DRAIN_SECONDS: Final = 120.0
_PAGE: Final = 1000


class ServedRun(Run):
    """One run on one server. Open with `ServedRun.on`."""

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        client: Client,
        plugins: Plugins,
        tasks: Sequence[Task],
        *,
        reward: RewardFunction | None,
        budget: Budget,
        listener: ProgressListener | None,
    ) -> None:
        self.config = config
        self.folder = folder.path
        self.progress = Progress(0)
        self._files = folder
        self._client = client
        self._plugins = plugins
        self._tasks = tuple(tasks)
        self._reward = reward
        self._budget = budget
        self._listener = listener
        self._known = {task.id: task for task in tasks}
        self._counts: dict[str, int] = {}
        self._waiting: dict[str, asyncio.Future[Trace]] = {}
        self._grading: set[asyncio.Task[None]] = set()
        self._graders = asyncio.Semaphore(_GRADERS)
        self._watching: list[asyncio.Task[None]] = []
        self._failure: BaseException | None = None
        self._engine: Engine | None = None
        self._endpoints: tuple[Endpoint, ...] = ()

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Follow the server's events while the context is open."""
        await self._client.put_tasks(self.config.name, self._tasks)
        self._watching.append(asyncio.create_task(self._unless_it_fails(self._follow())))
        try:
            yield
        finally:
            tasks = (*self._watching, *self._grading)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def watch(self, death: Awaitable[LightningError]) -> None:
        """Let rollouts that are waited for fail once `death` tells why they cannot end any more."""

        async def fail() -> None:
            raise await death

        self._watching.append(asyncio.create_task(self._unless_it_fails(fail())))

    # Run -----------------------------------------------------------------------------------------------------

    async def tasks(self, split: str | None = None) -> Sequence[Task]:
        """The run's tasks, with `expected`, in order; of one split where named."""
        return tuple(task for task in self._tasks if split is None or task.split == split)

    async def rollouts(self, requests: Sequence[RolloutRequest]) -> list[list[Trace]]:
        """Run and grade; one inner list for each request, in order."""
        groups = [self._as_group(request) for request in requests]
        extra = [r.task for r in requests if self._known.get(r.task.id) != r.task]
        if extra:
            await self._client.put_tasks(self.config.name, extra)
            self._known.update((task.id, task) for task in extra)
        if self._failure is not None:
            raise self._failure
        loop = asyncio.get_running_loop()
        every = [rollout for group in groups for rollout in group]
        futures = {rollout.id: loop.create_future() for rollout in every}
        self._waiting.update(futures)
        self.progress.total += len(every)
        self._tell()
        try:
            await self._client.enqueue(every)
            await self._resync()
            await asyncio.gather(*futures.values())
        finally:
            for rollout_id, future in futures.items():
                self._waiting.pop(rollout_id, None)
                if future.done() and not future.cancelled():
                    future.exception()  # Seen: one error is raised for all.
        return [[futures[rollout.id].result() for rollout in group] for group in groups]

    async def publish(self, folder: Path, *, version: int) -> None:
        """Serve the weights in `folder` as policy `version`: pause, drain, load, resume."""
        if self._engine is None:
            raise CapabilityError("publish: the run has no engine; start it with `model=`")
        await self._client.pause(_DRAIN_SECONDS)
        try:
            await self._engine.load_weights(folder)
            await self._client.set_policy(self._policy(version))
        finally:
            await self._client.resume()

    async def log(self, metrics: Mapping[str, Json], *, step: int) -> None:
        """Append a line to `metrics.jsonl`."""
        self._files.append_metrics({"step": step, **metrics})

    def save(self, state: Mapping[str, Json]) -> None:
        """Replace the run's saved state atomically."""
        self._files.save_state(state)

    def load(self) -> dict[str, Any] | None:
        """The state last saved; None at first."""
        return self._files.load_state()

    # Setting up ----------------------------------------------------------------------------------------------

    async def serve(self, engine: Engine, endpoints: tuple[Endpoint, ...], *, version: int) -> None:
        """Have train and val calls go to an engine that has started."""
        self._engine, self._endpoints = engine, endpoints
        await self._client.set_policy(self._policy(version))

    def _policy(self, version: int) -> ServedPolicy:
        assert self._engine is not None
        return ServedPolicy(
            version=version,
            endpoints=self._endpoints,
            capabilities=self._engine.gives,
            train=self.config.sampling,
            val=self.config.validation,
        )

    # Inside --------------------------------------------------------------------------------------------------

    def _as_group(self, request: RolloutRequest) -> list[Rollout]:
        """The rollouts of a request. Their ids depend only on what was asked before, so that a run that is
        started again asks for the same ones."""
        task, config = request.task, self.config
        first = self._counts.get(task.id, 0)
        self._counts[task.id] = first + request.count
        group = f"{config.name}:{task.id}:{first}"
        return [
            Rollout(
                id=f"{config.name}:{task.id}:{number}",
                task_id=task.id,
                run=config.name,
                group=group,
                mode=request.mode,
                timeout=config.timeout,
                max_attempts=config.max_attempts,
                budget=self._budget,
                metadata=dict(request.metadata),
            )
            for number in range(first, first + request.count)
        ]

    async def _follow(self) -> None:
        after = 0
        pause = 0.1
        while True:
            try:
                events = await self._client.events(after)
            except WireError as error:
                if error.status == 410:
                    await self._resync()
                    after = 0
                elif error.status is None:
                    # The server restarts, perhaps; whoever started it says when it is gone for good.
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, 5.0)
                else:
                    raise
                continue
            pause = 0.1
            for event in events:
                after = event.number
                if event.kind == "attempt_started":
                    self.progress.running += 1
                elif event.kind == "attempt_ended":
                    self.progress.running = max(0, self.progress.running - 1)
                elif event.kind == "rollout_ended":
                    self._take(event.rollout_id)
            if events:
                self._tell()

    async def _resync(self) -> None:
        """Take what has ended already: known from before, or while events were missed."""
        after: str | None = None
        while page := await self._client.rollouts(run=self.config.name, after=after, limit=_PAGE):
            after = page[-1].id
            for rollout in page:
                if rollout.status.ended:
                    self._take(rollout.id)
            if len(page) < _PAGE:
                return

    def _take(self, rollout_id: str) -> None:
        future = self._waiting.pop(rollout_id, None)
        if future is None or future.done():
            return
        grading = asyncio.create_task(self._grade(rollout_id, future))
        self._grading.add(grading)
        grading.add_done_callback(self._grading.discard)

    async def _grade(self, rollout_id: str, future: asyncio.Future[Trace]) -> None:
        try:
            async with self._graders:
                trace = await self._graded(rollout_id)
        except Exception as error:
            if not future.done():
                future.set_exception(error)
            return
        self.progress.add(trace)
        self._tell()
        if not future.done():
            future.set_result(trace)

    async def _graded(self, rollout_id: str) -> Trace:
        trace = await self._client.trace(rollout_id)
        task = self._known.get(trace.task.id, trace.task)
        trace = msgspec.structs.replace(trace, task=task)
        if not trace.rewards and self._reward is not None:
            rewards = await grade(self._reward, task, trace)
            await self._client.reward(rollout_id, rewards)
            trace = msgspec.structs.replace(trace, rewards=tuple(rewards))
        self._plugins.hook.lightning_rollout_finished(folder=self.folder, trace=trace)
        return trace

    async def _unless_it_fails(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            self._failure = self._failure or error
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(error)

    def _tell(self) -> None:
        if self._listener is not None:
            self._listener(self.progress)
