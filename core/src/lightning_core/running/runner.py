"""ServedRun: a Run over a server. Enqueues rollouts, waits for their end, grades them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from lightning_core.client import Client
from lightning_core.errors import FormatError, LightningError, WireError
from lightning_core.folder import RunFolder
from lightning_core.grading import RewardFunction
from lightning_core.plugins import Plugins
from lightning_core.records import Json
from lightning_core.rollout import Rollout
from lightning_core.running.attendance import Attendance
from lightning_core.running.listing import listed
from lightning_core.running.patience import PATIENCE, Patience
from lightning_core.running.progress import Progress, ProgressListener
from lightning_core.running.publishing import DRAIN_SECONDS, Publishing
from lightning_core.running.scoring import Scoring
from lightning_core.runs import Access, RolloutRequest, Run, RunConfig
from lightning_core.task import Task
from lightning_core.trace import Trace
from lightning_core.wire import EventKind

log = logging.getLogger("lightning_core.run")

_GRADERS: Final = 8


class ServedRun(Run):
    """One run on one server.

    A server that cannot be reached is waited for, and a fault while one rollout is read, graded or reported is that
    rollout's own: neither ends the run.

    Args:
        config: what was asked.
        folder: the run's folder.
        client: open, with an admin's token.
        plugins: who is told of rollouts that have ended.
        tasks: the run's tasks.
        reward: what scores the rollouts.
        listener: called as counts change.
        patience: seconds for which the server is waited for.
        drain: seconds that calls under way have before new weights are loaded.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        client: Client,
        plugins: Plugins,
        tasks: Sequence[Task],
        *,
        reward: RewardFunction | None,
        listener: ProgressListener | None,
        patience: float = PATIENCE,
        drain: float = DRAIN_SECONDS,
    ) -> None:
        self.config = config
        self.folder = folder.path
        self.progress = Progress(0)
        self._files = folder
        self._client = client
        self._tasks = tuple(tasks)
        self._listener = listener
        self._known = {task.id: task for task in tasks}
        self._counts: dict[str, int] = {}
        self._strategies: set[str] = set()
        self._open: dict[str, tuple[Rollout, asyncio.Future[Trace]]] = {}
        self._taken: set[str] = set()
        self._grading: set[asyncio.Task[None]] = set()
        self._graders = asyncio.Semaphore(_GRADERS)
        self._watching: list[asyncio.Task[None]] = []
        self._settled: Callable[[Trace], None] | None = None
        self._again: Callable[[Rollout], bool] = lambda _: False
        self._failure: LightningError | None = None
        self._over = asyncio.Event()
        self._patience = Patience(patience, self._note)
        self._scoring = Scoring(client, self._patience, plugins, folder.path, reward)
        self.attendance = Attendance(config.name, client, self._patience)
        """Who works on it."""
        self.publishing = Publishing(config, client, self._patience, drain)
        """What answers its model calls."""
        self._logged = folder.logged_steps()

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Follow the server's events while the context is open; what is watched is let go of on leaving."""
        try:
            await self._put_tasks(self._tasks)
            self._watching.append(asyncio.create_task(self._unless_it_fails(self._follow())))
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

    def expect_workers(self) -> None:
        """Say so while the server has no worker; for runs that leave the work to workers elsewhere."""
        looking = self.attendance.look(self._note, lambda: bool(self._open))
        self._watching.append(asyncio.create_task(self._unless_it_fails(looking)))

    # Run -----------------------------------------------------------------------------------------------------

    async def tasks(self, split: str | None = None) -> Sequence[Task]:
        """The run's tasks, with `expected`, in order; of one split where named."""
        return tuple(task for task in self._tasks if split is None or task.split == split)

    async def rollouts(
        self, requests: Sequence[RolloutRequest], *, quorum: float = 1.0
    ) -> list[list[Trace]]:
        """Run and grade; one inner list for each request, in order."""
        groups = [self._as_group(request) for request in requests]
        await self._put_strategies(requests)
        extra = [r.task for r in requests if self._known.get(r.task.id) != r.task]
        if extra:
            await self._put_tasks(extra)
            self._known.update((task.id, task) for task in extra)
        if self._failure is not None:
            raise self._failure
        loop = asyncio.get_running_loop()
        every = [rollout for group in groups for rollout in group]
        futures = {rollout.id: loop.create_future() for rollout in every}
        self._open.update((rollout.id, (rollout, futures[rollout.id])) for rollout in every)
        self.progress.expect(len(every))
        self._tell()
        try:
            new = await self._patience.ask(lambda: self._client.enqueue(every))
            if new < len(every):
                await self._resync()
            if quorum < 1.0:
                await self._cancel_stragglers(futures, math.ceil(quorum * len(every)))
            await asyncio.gather(*futures.values())
        finally:
            for rollout_id, future in futures.items():
                self._open.pop(rollout_id, None)
                self._taken.discard(rollout_id)
                if future.done() and not future.cancelled():
                    future.exception()  # Seen: one error is raised for all.
        return [[futures[rollout.id].result() for rollout in group] for group in groups]

    async def reread(self, traces: Sequence[Trace]) -> list[Trace]:
        """The same traces as the store has them now, with rewards that have come since."""
        return list(await asyncio.gather(*map(self._scoring.reread, traces)))

    async def earlier(self, traces: Sequence[Trace]) -> list[Trace]:
        """The attempts before those of some traces."""
        return list(
            await asyncio.gather(
                *(
                    self._scoring.attempt(trace, number)
                    for trace in traces
                    for number in range(1, trace.attempt.number)
                )
            )
        )

    def delegate(
        self,
        settled: Callable[[Trace], None],
        *,
        again: Callable[[Rollout], bool] = lambda _: False,
    ) -> Access:
        """Settle every rollout of the run that ends, whoever enqueued it; where the server is."""
        self._settled, self._again = settled, again
        self._watching.append(asyncio.create_task(self._unless_it_fails(self._resync())))
        return Access(url=self._client.url, token=self._client.token)

    async def failed(self) -> LightningError:
        """Wait until the run cannot go on; why not."""
        await self._over.wait()
        assert self._failure is not None
        return self._failure

    async def publish(self, folder: Path, *, version: int) -> None:
        """Serve the weights in `folder` as policy `version`; see `Publishing.publish`."""
        await self.publishing.publish(folder, version=version)

    async def log(self, metrics: Mapping[str, Json], *, step: int) -> None:
        """Append a line to `metrics.jsonl`, and tell plugins."""
        self._files.append_metrics({"step": step, **metrics})
        self._logged.add(step)
        self._scoring.tell_step(step, metrics)
        self.progress.steps[step] = {**self.progress.steps.get(step, {}), **metrics}
        self._tell()

    def logged(self, step: int) -> bool:
        """Whether a line of the step's is in `metrics.jsonl`."""
        return step in self._logged

    def say(self, text: str) -> None:
        """Tell the user what is being done now."""
        self.progress.phase = text
        self._tell()

    def show(self, panel: Callable[[], object]) -> None:
        """Show something of the backend's own above the run's line on a terminal."""
        self.progress.panel = panel

    def save(self, state: Mapping[str, Json]) -> None:
        """Replace the run's saved state atomically."""
        self._files.save_state(state)

    def load(self) -> dict[str, Any] | None:
        """The state last saved; None at first."""
        return self._files.load_state()

    # Inside --------------------------------------------------------------------------------------------------

    async def _put_strategies(self, requests: Sequence[RolloutRequest]) -> None:
        for strategy in [r.strategy for r in requests if r.strategy is not None]:
            if strategy.digest not in self._strategies:
                await self._patience.ask(partial(self._client.put_strategy, strategy))
                self._strategies.add(strategy.digest)

    async def _put_tasks(self, tasks: Sequence[Task]) -> None:
        await self._patience.ask(lambda: self._client.put_tasks(self.config.name, tasks))

    async def _cancel_stragglers(
        self, futures: Mapping[str, asyncio.Future[Trace]], enough: int
    ) -> None:
        """Once `enough` rollouts have ended, let go of the others."""
        missing = enough
        reached = asyncio.Event()

        def ended(future: asyncio.Future[Trace]) -> None:
            nonlocal missing
            missing -= 1
            if missing <= 0 or (not future.cancelled() and future.exception() is not None):
                reached.set()

        for future in futures.values():
            future.add_done_callback(ended)
        await reached.wait()
        late = [rollout_id for rollout_id, future in futures.items() if not future.done()]
        if late:
            log.info("%d of %d rollouts are late and are cancelled", len(late), len(futures))
        reason = "enough of the others had ended"
        for rollout_id in late:
            await self._patience.ask(partial(self._client.cancel, rollout_id, reason))

    def _as_group(self, request: RolloutRequest) -> list[Rollout]:
        """The rollouts of a request. Their ids depend only on what was asked before, so that a run that is
        started again asks for the same ones."""
        task, config = request.task, self.config
        if request.key is None:
            first = self._counts.get(task.id, 0)
            self._counts[task.id] = first + request.count
            stem, group = f"{config.name}:{task.id}", f"{config.name}:{task.id}:{first}"
        else:
            first, stem = 0, f"{config.name}:{task.id}:{request.key}"
            group = stem
        return [
            Rollout(
                id=f"{stem}:{number}",
                task_id=task.id,
                run=config.name,
                group=group,
                mode=request.mode,
                timeout=config.timeout,
                max_attempts=config.max_attempts,
                budget=config.budget,
                strategy=None if request.strategy is None else request.strategy.digest,
                metadata=dict(request.metadata),
            )
            for number in range(first, first + request.count)
        ]

    async def _follow(self) -> None:
        after = 0
        while True:
            try:
                events = await self._patience.ask(
                    partial(self._client.events, after, run=self.config.name)
                )
            except WireError as error:
                if error.status != 410:
                    raise
                # The server was started again, or so much happened that it forgot some.
                self.attendance.missed()
                await self._resync()
                after = 0
                continue
            for event in events:
                after = event.number
                self.attendance.add(event)
                if event.kind is EventKind.ROLLOUT_ENDED:
                    self._take(event.rollout_id)
                elif event.kind is EventKind.POLICY_AWAITED:
                    self._watching.append(
                        asyncio.create_task(self._unless_it_fails(self.publishing.serve_again()))
                    )
            if events:
                self.progress.running = self.attendance.running
                self._tell()

    async def _resync(self) -> None:
        """Take what has ended already: known from before, or while events were missed."""
        async for rollout in listed(self._client, self._patience, self.config.name):
            if rollout.status.ended:
                self._take(rollout.id)
                if self._again(rollout):
                    self._tell_again(rollout.id)

    def _take(self, rollout_id: str) -> None:
        if rollout_id in self._taken:
            return
        if rollout_id in self._open:
            work = self._settle(*self._open[rollout_id])
        elif self._settled is not None and not self._scoring.has_told(rollout_id):
            work = self._settle_foreign(rollout_id, self._settled)
        else:
            return
        self._taken.add(rollout_id)
        self._grade(work, rollout_id)

    def _grade(self, work: Coroutine[Any, Any, None], rollout_id: str) -> None:
        grading = asyncio.create_task(self._unless_it_fails(work), name=f"grade {rollout_id}")
        self._grading.add(grading)
        grading.add_done_callback(self._grading.discard)

    def _tell_again(self, rollout_id: str) -> None:
        """Tell the backend of a rollout that an earlier start has settled."""
        settled = self._settled
        if settled is None or rollout_id in self._taken or rollout_id in self._open:
            return

        async def tell() -> None:
            async with self._graders:
                trace = await self._patience.ask(lambda: self._client.trace(rollout_id))
                task = self._known.get(trace.rollout.task_id, trace.task)
                settled(msgspec.structs.replace(trace, task=task))

        self._taken.add(rollout_id)
        self._grade(tell(), rollout_id)

    async def _settle(self, rollout: Rollout, future: asyncio.Future[Trace]) -> None:
        async with self._graders:
            trace = await self._scoring.settle(rollout, self._known[rollout.task_id])
        self.progress.add(trace)
        self._tell()
        if not future.done():
            future.set_result(trace)

    async def _settle_foreign(self, rollout_id: str, settled: Callable[[Trace], None]) -> None:
        """Settle a rollout that another process enqueued; one that never had an attempt is nothing to settle."""
        async with self._graders:
            try:
                trace = await self._patience.ask(lambda: self._client.trace(rollout_id))
                task = self._known[trace.rollout.task_id]
            except (WireError, FormatError, KeyError) as error:
                if isinstance(error, WireError) and error.status is None:
                    raise
                log.warning("rollout `%s`: cannot be graded: %s", rollout_id, error)
                return
            trace = await self._scoring.grade(msgspec.structs.replace(trace, task=task))
        self.progress.total += 1
        self.progress.add(trace)
        settled(trace)
        self._tell()

    async def _unless_it_fails(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            if not isinstance(error, LightningError):
                log.debug("the run failed", exc_info=error)
                fault = LightningError(f"run: {type(error).__name__}: {error}")
                fault.__cause__ = error
                error = fault
            self._fail(error)

    def _fail(self, error: LightningError) -> None:
        """Let every rollout that is waited for, now and later, fail with the first error."""
        self._failure = self._failure or error
        self._over.set()
        self._patience.end(self._failure)
        for _, future in self._open.values():
            if not future.done():
                future.set_exception(self._failure)

    def _note(self, text: str | None) -> None:
        self.progress.note = text
        self._tell()

    def _tell(self) -> None:
        if self._listener is None:
            return
        try:
            self._listener(self.progress)
        except Exception as error:  # The caller's; it only looks on.
            self._listener = None
            log.warning(
                "listener: raised %s: %s; it is not called again", type(error).__name__, error
            )
