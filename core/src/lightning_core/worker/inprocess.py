"""Running the agent within the worker's process: async agents in one loop, synchronous ones in threads."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from lightning_core.adapter import Adapter
from lightning_core.instrument import ListSink, Scope, attempt, instrument
from lightning_core.instrument.declaring import telling
from lightning_core.rollout import Cause
from lightning_core.slots import using
from lightning_core.strategy import Strategy
from lightning_core.worker.adapters import child_adapters
from lightning_core.worker.execution import (
    END_SECONDS,
    QUICK_SECONDS,
    Execution,
    Executor,
    Job,
    Leftover,
)
from lightning_core.worker.outcome import Outcome, bounded, raised
from lightning_core.worker.outputs import OUTPUT_LIMIT, OutputError, to_json
from lightning_core.worker.process import end_marked
from lightning_core.worker.threads import TRACKER, DaemonPool, Tracker

_POOL_THREADS: Final = 64
_PING_SECONDS: Final = 1.0
_THREAD_SECONDS: Final = 0.5
_CLOSE_SECONDS: Final = 0.5

_log = logging.getLogger("lightning_core.worker")


class AgentLoop:
    """An event loop in a thread of its own.

    There is one for all attempts, since the clients that frameworks cache belong to the loop that first used them. It is
    not the worker's own, so that an agent which blocks it stops neither heart-beats nor deadlines.
    """

    def __init__(self) -> None:
        self.loop: Final = asyncio.new_event_loop()
        self.loop.set_default_executor(DaemonPool(_POOL_THREADS))
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="agents", daemon=True)
        self._thread.start()

    @property
    def thread_id(self) -> int:
        """The thread's identifier."""
        return self._thread.ident or 0

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._closing:
            try:
                self.loop.run_forever()
            except (
                BaseException
            ):  # SystemExit in a task of an agent's leaves the loop; its siblings go on.
                _log.exception("an agent's background task left the event loop")
        try:
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self.loop.run_until_complete(asyncio.wait(tasks, timeout=_CLOSE_SECONDS))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            if not asyncio.all_tasks(self.loop):
                self.loop.close()
        except (
            Exception
        ):  # The worker is ending; what a loop full of stuck tasks does is not to stop it.
            _log.exception("the agents' loop could not be closed")

    async def close(self) -> bool:
        """Cancel what runs and end the thread; whether it has ended."""
        self._closing = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        until = time.monotonic() + 2 * _CLOSE_SECONDS
        while self._thread.is_alive() and time.monotonic() < until:
            await asyncio.sleep(0.01)
        return not self._thread.is_alive() and self.loop.is_closed()


class InProcess(Executor):
    """Runs a live agent object through its adapter.

    Args:
        agent: the object.
        adapter: the adapter that accepts it.
        adapters: all adapters whose frameworks are to be instrumented.
        own_loop: run agents in a loop in a thread of its own; False runs them in the loop that calls `open`, which suits
            live objects that belong to it.
        output_limit: bytes of JSON that an output may take.
    """

    def __init__(
        self,
        agent: object,
        adapter: Adapter,
        *,
        adapters: tuple[Adapter, ...] = (),
        own_loop: bool = True,
        output_limit: int = OUTPUT_LIMIT,
    ) -> None:
        self.agent: Final = agent
        self.adapter: Final = adapter
        self.output_limit: Final = output_limit
        self.triggers: Final = child_adapters(adapters or (adapter,))
        self._adapters = adapters or (adapter,)
        self._own_loop = own_loop
        self._agents: AgentLoop | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stack = ExitStack()
        self._given_up: list[_InProcessExecution] = []
        self.running: Final[set[_InProcessExecution]] = set()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The agents' loop."""
        if self._loop is None:
            raise RuntimeError("the executor is not open")
        return self._loop

    async def open(self) -> None:
        """Instrument the frameworks and start the agents' loop."""
        self._stack.enter_context(instrument(self._adapters))
        if self._own_loop:
            self._agents = AgentLoop()
            self._loop = self._agents.loop
        else:
            self._loop = asyncio.get_running_loop()

    async def start(self, job: Job) -> Execution:
        """Begin an attempt."""
        return _InProcessExecution(self, job)

    def stuck(self) -> list[str]:
        """The attempts that were given up and whose task or thread still runs."""
        self._given_up = [e for e in self._given_up if e.alive]
        return [e.job.name for e in self._given_up]

    async def ready(self) -> bool:
        """Whether the agents' loop answers."""
        if self._agents is None:
            return True
        answered = asyncio.Event()
        home = asyncio.get_running_loop()
        self.loop.call_soon_threadsafe(home.call_soon_threadsafe, answered.set)
        try:
            async with asyncio.timeout(_PING_SECONDS):
                await answered.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> bool:
        """Stop the agents' loop and take the instrumentation off; whether nothing of an agent runs any more."""
        ended = await self._agents.close() if self._agents else True
        self._stack.close()
        return ended and not self.stuck()

    def give_up(self, execution: _InProcessExecution) -> None:
        """Note an attempt that has been ended and may still run."""
        self._given_up.append(execution)

    def blocked_at(self) -> str | None:
        """Where the code stands that blocks the agents' loop, as a traceback."""
        frame = sys._current_frames().get(self._agents.thread_id) if self._agents else None
        return "".join(traceback.format_stack(frame)[-6:]) if frame else None


class _InProcessExecution(Execution):
    def __init__(self, owner: InProcess, job: Job) -> None:
        self.job: Final = job
        self._owner = owner
        self._home = asyncio.get_running_loop()
        self._result: asyncio.Future[Outcome] = self._home.create_future()
        self._tracker = Tracker()
        self._sink = ListSink()
        self._told_of_spans = False
        self._ending = False
        self.task: asyncio.Task[Outcome] | None = None
        owner.running.add(self)
        owner.loop.call_soon_threadsafe(self._begin)

    @property
    def alive(self) -> bool:
        """Whether its task or a thread of it still runs."""
        return not self._result.done() or self._tracker.running > 0

    async def wait(self) -> Outcome:
        return await asyncio.shield(self._result)

    async def end(self, *, quickly: bool = False) -> Leftover | None:
        self._ending = True
        self._owner.loop.call_soon_threadsafe(self._cancel)
        await asyncio.wait([self._result], timeout=QUICK_SECONDS if quickly else END_SECONDS)
        # A thread that waits for a process which the agent started comes back when that is gone.
        await asyncio.to_thread(end_marked, self.job.lease.session)
        until = time.monotonic() + _THREAD_SECONDS
        while self._tracker.running and time.monotonic() < until:
            await asyncio.sleep(0.02)
        if not self.alive:
            return None
        self._owner.give_up(self)
        return await self._leftover()

    def take_spans(self) -> list[dict[str, Any]]:
        spans = self._sink.take()
        if self._sink.dropped and not self._told_of_spans:
            self._told_of_spans = True
            _log.warning(
                "%s: makes spans faster than they are posted; the newest are dropped, %d so far",
                self.job.name,
                self._sink.dropped,
            )
        return spans

    async def _leftover(self) -> Leftover:
        advice = "run with `--isolate` to have such agents killed"
        if self._result.done():
            return Leftover(
                f"{self.job.name}: its thread cannot be ended and was left behind; {advice}"
            )
        if await self._owner.ready():
            return Leftover(
                f"{self.job.name}: the agent ignores its cancellation and was left behind; {advice}"
            )
        running = asyncio.current_task(self._owner.loop)
        others = (e for e in self._owner.running if e.task is not None and e.task is running)
        culprit = next(others, None)
        where = self._owner.blocked_at()
        who = culprit.job.name if culprit else "an agent"
        return Leftover(
            f"{self.job.name}: {who} blocks the event loop of all agents (a blocking call in async code?);"
            f" {advice}, or move the call to a thread\n{where or ''}",
            innocent=culprit is not None and culprit is not self,
        )

    # In the agents' loop -------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self.task = self._owner.loop.create_task(self._run(), name=self.job.name)
        self.task.add_done_callback(self._ended)

    def _cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def _ended(self, task: asyncio.Task[Outcome]) -> None:
        if task.cancelled():
            outcome = Outcome(cause=Cause.CANCELLED)
        else:
            error = task.exception()
            outcome = task.result() if error is None else raised(error, Cause.WORKER_ERROR)
        with suppress(RuntimeError):  # The worker's loop is closed: nobody waits any more.
            self._home.call_soon_threadsafe(self._deliver, outcome)

    def _deliver(self, outcome: Outcome) -> None:
        self._owner.running.discard(self)
        self._result.set_result(outcome)

    async def _run(self) -> Outcome:
        owner, lease = self._owner, self.job.lease
        TRACKER.set(self._tracker)
        try:
            with self._entered():
                output = await owner.adapter.run(owner.agent, lease.task, self.job.context())
            return Outcome(cause=Cause.SUCCESS, output=to_json(output, limit=owner.output_limit))
        except OutputError as error:
            return Outcome(cause=Cause.AGENT_ERROR, error=bounded(str(error)))
        except asyncio.CancelledError as error:
            if self._ending:
                return Outcome(cause=Cause.CANCELLED)
            return raised(error)
        except BaseException as error:  # An agent may raise anything, SystemExit included.
            return raised(error)

    @contextmanager
    def _entered(self) -> Iterator[None]:
        """The attempt and its strategy around what is inside."""
        lease = self.job.lease
        strategy = lease.strategy or Strategy()
        with ExitStack() as stack:
            file = None
            if not strategy.is_empty:
                # For child processes; one that outlives the attempt keeps nothing alive.
                folder = TemporaryDirectory(prefix="lightning-core-", ignore_cleanup_errors=True)
                file = self.job.write_strategy(Path(stack.enter_context(folder)))
            scope = Scope(
                gateway=self.job.gateway,
                session=lease.session,
                attempt=lease.attempt.id,
                sink=self._sink,
                adapters=self._owner.triggers,
                set_key=self.job.own_model,
                strategy=file,
            )
            stack.enter_context(attempt(scope))
            stack.enter_context(using(strategy, telling(strategy)))
            yield
