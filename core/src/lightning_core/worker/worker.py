"""Worker: leases attempts up to its free places and runs each."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import time
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from lightning_core.adapter import Adapter
from lightning_core.agents import Command, agent_name, find_adapter, unwrapped
from lightning_core.client import Client
from lightning_core.errors import AgentError, WireError
from lightning_core.wire import Lease, Upstreams
from lightning_core.worker.adapters import child_adapters, with_own
from lightning_core.worker.attempt import REPORT_PATIENCE, STOP_SECONDS, AttemptRun
from lightning_core.worker.command import CommandExecutor
from lightning_core.worker.execution import Executor
from lightning_core.worker.inprocess import InProcess
from lightning_core.worker.isolated import Isolated
from lightning_core.worker.keys import provide_key
from lightning_core.worker.outputs import OUTPUT_LIMIT

_POLL_SECONDS: Final = 30.0
_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 10.0

_log = logging.getLogger("lightning_core.worker")


def default_name() -> str:
    """`HOST-PID`."""
    return f"{socket.gethostname()}-{os.getpid()}"


class Worker:
    """Leases attempts from the server, runs the agent, heart-beats and reports.

    Args:
        client: open, in the loop that calls `run`; with a worker's token.
        agent: a live object, or one `Adapted`; a `Command`; or, with `isolate`, `module:attr` or `path.py:attr`.
        adapter: the adapter of a live object; found among `adapters` where it is not given.
        adapters: the adapters whose frameworks are instrumented.
        name: what the server calls it; `HOST-PID` by default.
        for_run: the run whose rollouts alone it takes; None takes any.
        concurrency: attempts at once.
        isolate: run each attempt in a process of its own, which can be killed.
        own_loop: run a live object in a loop in a thread of its own. It cannot stop the heart-beats then, but it must not
            hold what belongs to the caller's loop.
        output_limit: bytes of JSON that an output may take.
        stuck_patience: seconds after which a worker whose places are all taken by attempts that cannot be ended gives up.
        report_patience: seconds beyond a lease for which a report is tried again while the server cannot be reached.

    Raises:
        AgentError: the agent does not fit what is asked.
    """

    def __init__(
        self,
        client: Client,
        agent: object,
        adapter: Adapter | None = None,
        *,
        adapters: Sequence[Adapter] = (),
        name: str | None = None,
        for_run: str | None = None,
        concurrency: int = 8,
        isolate: bool = False,
        own_loop: bool = False,
        output_limit: int = OUTPUT_LIMIT,
        stuck_patience: float = 30.0,
        report_patience: float = REPORT_PATIENCE,
    ) -> None:
        if concurrency < 1:
            raise AgentError(f"worker: expected a concurrency of 1 or more but got {concurrency!r}")
        self.name: Final = name or default_name()
        self._client = client
        self._for_run = for_run
        self._concurrency = concurrency
        self._stuck_patience = stuck_patience
        self._report_patience = report_patience
        self._executor = _executor(agent, adapter, adapters, isolate, own_loop, output_limit)
        self._agent_name = str(agent) if isinstance(agent, str) else agent_name(agent)
        self._running: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()

    async def run(
        self, until: asyncio.Event | None = None, *, ready: asyncio.Event | None = None
    ) -> bool:
        """Work until `until` is set, this is cancelled, or nothing can be done any more.

        Then no more is leased, what runs is ended and reported as cancelled, within some 10 seconds.

        Args:
            until: tells it to stop; None works until it is cancelled.
            ready: set once the agent is loaded and the worker begins to lease.

        Returns:
            Whether all that it started has ended. False: a thread or a task of an agent's still runs in this process.

        Raises:
            AgentError: the agent cannot be used, or all places are taken by attempts that cannot be ended.
            WireError: the server refuses this worker.
        """
        stop = asyncio.Event()
        opened = False
        try:
            await self._executor.open()
            opened = True
            if ready is not None:
                ready.set()
            _log.info(
                "worker `%s`: runs `%s`, %d at once", self.name, self._agent_name, self._concurrency
            )
            await self._unless_told(until, self._lease_for_ever(stop))
        finally:
            stop.set()
            await self._finish_running()
            clean = await self._executor.close() if opened else True
        return clean

    async def _unless_told(
        self, until: asyncio.Event | None, leasing: Coroutine[Any, Any, None]
    ) -> None:
        work = asyncio.ensure_future(leasing)
        told = asyncio.ensure_future((until or asyncio.Event()).wait())
        try:
            await asyncio.wait({work, told}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            work.cancel()
            told.cancel()
            await asyncio.gather(work, told, return_exceptions=True)

    async def _finish_running(self) -> None:
        if self._running:
            _log.info("worker `%s`: ends %d attempts", self.name, len(self._running))
            # An agent has 5 s to end and a report as many.
            await asyncio.wait(self._running, timeout=3 * STOP_SECONDS)
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    # Leasing -------------------------------------------------------------------------------------------------

    async def _lease_for_ever(self, stop: asyncio.Event) -> None:
        pause = _PAUSE
        while True:
            free = await self._free_places()
            own = Upstreams.own(os.environ)
            try:
                leases = await self._client.lease(
                    self.name,
                    capacity=free,
                    wait=_POLL_SECONDS,
                    upstream=own.default,
                    upstreams=own.by_format,
                    run=self._for_run,
                )
            except WireError as error:
                if error.status is not None and error.status < 500 and error.status != 429:
                    raise
                _log.warning("worker `%s`: cannot lease, trying again: %s", self.name, error)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(pause * 2, _LONGEST_PAUSE)
                continue
            pause = _PAUSE
            for lease in leases:
                self._begin(lease, stop)

    def _begin(self, lease: Lease, stop: asyncio.Event) -> None:
        provide_key(lease.rollout.mode)
        attempt = AttemptRun(
            self._client, self._executor, lease, stop, patience=self._report_patience
        )
        task = asyncio.create_task(attempt.run(), name=f"attempt {lease.attempt.id}")
        self._running.add(task)
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._ended.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("worker `%s`: %s failed", self.name, task.get_name(), exc_info=error)

    async def _free_places(self) -> int:
        """How many attempts may be leased; waits until it is one or more."""
        stuck_since: float | None = None
        said: list[str] = []
        while True:
            self._ended.clear()
            stuck = self._executor.stuck()
            if stuck != said:
                said = stuck
                self._say_stuck(stuck)
            free = self._concurrency - len(self._running) - len(stuck)
            ready = await self._executor.ready()
            if free > 0 and ready:
                return free
            if self._running or (ready and not stuck):
                stuck_since = None
            elif stuck_since is None:
                stuck_since = time.monotonic()
            elif time.monotonic() - stuck_since > self._stuck_patience:
                raise AgentError(self._stuck_message(stuck))
            try:
                async with asyncio.timeout(1.0 if stuck or not ready else None):
                    await self._ended.wait()
            except TimeoutError:
                continue

    def _say_stuck(self, stuck: list[str]) -> None:
        if stuck:
            _log.warning(
                "worker `%s`: %d of %d places are taken by attempts that were given up and still run",
                self.name,
                len(stuck),
                self._concurrency,
            )

    def _stuck_message(self, stuck: list[str]) -> str:
        names = ", ".join(stuck[:5]) + (" and others" if len(stuck) > 5 else "")
        return (
            f"worker `{self.name}`: agent `{self._agent_name}` hangs in {names or 'its event loop'} and cannot be ended,"
            " so no more attempts can be run; use `--isolate`, which runs each attempt in a process that can be killed"
        )


def _executor(
    agent: object,
    adapter: Adapter | None,
    adapters: Sequence[Adapter],
    isolate: bool,
    own_loop: bool,
    output_limit: int,
) -> Executor:
    children = child_adapters(with_own(adapters, adapter) if adapter else adapters)
    if isinstance(agent, Command):
        return CommandExecutor(agent, adapters=children, output_limit=output_limit)
    if isolate:
        if not isinstance(agent, str):
            raise AgentError(
                f"worker: with `isolate` an agent is named, not given: expected `module:attr` or `path.py:attr` but got"
                f" an object of type `{type(agent).__qualname__}`"
            )
        return Isolated(agent, adapters=children, output_limit=output_limit)
    if adapter is None:
        adapter = find_adapter(agent, {a.name: a for a in adapters})
    return InProcess(
        unwrapped(agent),
        adapter,
        adapters=with_own(adapters, adapter),
        own_loop=own_loop,
        output_limit=output_limit,
    )
