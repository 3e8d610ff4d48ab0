"""The executor `ray`: the workers of a run as Ray actors, spread over the nodes of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import msgspec

from lightning_core.children import end_by_lifeline, start_child
from lightning_core.errors import UsageError, WireError
from lightning_core.executor import Executor, MakeWorker, WorkerOrder
from lightning_core.runs import RunConfig
from lightning_verl.addresses import only_here, why_unreached
from lightning_verl.ray_driver import STOP_SECONDS
from lightning_verl.ray_messages import (
    Ended,
    Opening,
    Refused,
    Report,
    Start,
    Started,
    Stop,
)

OPEN_SECONDS: Final = 60.0
"""Seconds in which Ray must have started or been joined."""
CLOSE_SECONDS: Final = STOP_SECONDS + 15.0
"""Seconds that the driver has to end what it started before it is ended."""
_REACH_SECONDS: Final = 5.0
_LINE: Final = 1 << 20
_LONGEST_PLACE: Final = 30
"""Characters of a folder beneath which Ray's sockets keep within the 107 that a socket's path may have."""
_INSTALL: Final = '`pip install "lightning-verl[ray]"`'


class RayExecutor(Executor):
    """`ray` starts a Ray of its own on this machine; `ray:HOST:PORT` and `ray:auto` join one, which is never stopped."""

    name = "ray"

    def check(self, address: str | None, config: RunConfig) -> None:
        """Refuse where Ray is not installed, or nothing listens at the address.

        Raises:
            UsageError: the message says which.
        """
        if importlib.util.find_spec("ray") is None:
            raise UsageError(
                f"executor `ray`: Ray is not installed; {_INSTALL} does, here and on every node, or take"
                " `--executor process`"
            )
        if address is not None and address != "auto":
            _reach(address)

    @contextlib.asynccontextmanager
    async def opened(
        self, address: str | None, *, server: str | None, logs: Path
    ) -> AsyncIterator[MakeWorker]:
        """Start Ray or join it, in a process beside this one.

        Raises:
            UsageError: Ray has nodes that could not reach the run's server.
            WireError: Ray did not start, or cannot be joined.
        """
        cluster = _Cluster(address, loopback=server is None or only_here(server), logs=logs)
        try:
            await cluster.driver()
            yield lambda order: _RayWorker(cluster, order)
        finally:
            await asyncio.shield(asyncio.ensure_future(cluster.close()))


class _RayWorker:
    """A worker somewhere on the cluster."""

    def __init__(self, cluster: _Cluster, order: WorkerOrder) -> None:
        self._cluster = cluster
        self._order = order
        self._driver: _Driver | None = None
        self._number = 0
        self._ended: asyncio.Future[Ended] | None = None

    async def start(self) -> None:
        self._driver = driver = await self._cluster.driver()
        self._number, ready, self._ended = driver.begin(self._order)
        either: set[asyncio.Future[Any]] = {ready, self._ended}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            await self.stop()
            raise
        if self._ended.done():
            raise WireError(self._ended.result().message)

    async def stop(self) -> None:
        if self._driver is None or self._ended is None or self._ended.done():
            return
        self._driver.send(Stop(number=self._number))
        await asyncio.wait({self._ended}, timeout=CLOSE_SECONDS)

    async def died(self) -> WireError:
        if self._ended is None:
            return WireError(f"{self._order.what}: not started")
        return WireError((await asyncio.shield(self._ended)).message)

    @property
    def exit_status(self) -> int | None:
        if self._ended is None or not self._ended.done():
            return None
        return self._ended.result().status


class _Cluster:
    """Ray, as long as a run needs it. A driver that has died is replaced when the next worker starts."""

    def __init__(self, address: str | None, *, loopback: bool, logs: Path) -> None:
        self._address = address
        self._loopback = loopback
        self._logs = logs
        self._lock = asyncio.Lock()
        self._driver: _Driver | None = None
        self._scratch: str | None = None

    async def driver(self) -> _Driver:
        """The process that speaks with Ray; started where it does not run.

        Raises:
            UsageError: Ray has nodes that could not reach the run's server.
            WireError: it did not start.
        """
        async with self._lock:
            if self._driver is None or self._driver.over:
                await self._end()
                if self._address is None:
                    self._scratch = tempfile.mkdtemp(prefix="lr-", dir=_short_place())
                self._driver = _Driver(self._logs / "ray.log")
                opening = Opening(
                    address=self._address,
                    scratch=self._scratch,
                    loopback=self._loopback,
                    folder=str(Path.cwd()),
                )
                try:
                    await self._driver.open(opening)
                except BaseException:
                    await self._end()
                    raise
            return self._driver

    async def close(self) -> None:
        """End what was started."""
        async with self._lock:
            await self._end()

    async def _end(self) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            await driver.close()
        scratch, self._scratch = self._scratch, None
        if scratch is not None:
            await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)


class _Driver:
    """The process `lightning_verl.ray_driver`; its standard input is its lifeline."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._hearing: asyncio.Task[None] | None = None
        self._numbers = 0
        self._workers: dict[int, tuple[str, asyncio.Future[None], asyncio.Future[Ended]]] = {}

    @property
    def over(self) -> bool:
        """Whether no worker can be started by it any more."""
        return self._hearing is None or self._hearing.done()

    async def open(self, opening: Opening) -> None:
        self._process = await start_child(
            [sys.executable, "-m", "lightning_verl.ray_driver"],
            log=self._log, opening=opening, limit=_LINE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                report = await self._hear()
        except TimeoutError:
            raise WireError(
                f"executor `ray`: {_where(opening.address)} is not there after {OPEN_SECONDS:.0f} s; see `{self._log}`"
            ) from None
        if isinstance(report, Refused):
            text = f"{report.message}; see `{self._log}`"
            raise UsageError(report.message) if report.usage else WireError(text)
        if report is None:
            raise WireError(f"executor `ray`: its driver did not start; see `{self._log}`")
        self._hearing = asyncio.create_task(self._hear_on(), name="lightning-verl ray driver")

    def send(self, message: msgspec.Struct) -> None:
        """Tell the process; where it has ended, so have its workers, and nobody need be told."""
        assert self._process is not None
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():
            self._process.stdin.write(msgspec.json.encode(message) + b"\n")

    def begin(self, order: WorkerOrder) -> tuple[int, asyncio.Future[None], asyncio.Future[Ended]]:
        """Begin to start a worker: its number, what is done once it is ready, and once it has ended."""
        self._numbers += 1
        loop = asyncio.get_running_loop()
        ready, ended = loop.create_future(), loop.create_future()
        self._workers[self._numbers] = order.what, ready, ended
        start = Start(
            number=self._numbers,
            what=order.what,
            arguments=order.arguments,
            token=order.token,
            log=str(order.log.absolute()),
            hidden=order.hidden,
        )
        self.send(start)
        return self._numbers, ready, ended

    async def close(self) -> None:
        process = self._process
        if process is None:
            return
        await end_by_lifeline(process, CLOSE_SECONDS)
        if self._hearing is not None:
            await self._hearing

    async def _hear(self) -> Report | None:
        assert self._process is not None
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        report: Report | None = msgspec.json.decode(line, type=Report) if line else None
        return report

    async def _hear_on(self) -> None:
        """Hear what becomes of the workers, until the process ends; with it all of them have."""
        while (report := await self._hear()) is not None:
            if isinstance(report, Started):
                self._workers[report.number][1].set_result(None)
            elif isinstance(report, Ended):
                self._workers.pop(report.number)[2].set_result(report)
        for number, (what, _, ended) in self._workers.items():
            text = f"{what}: the process that speaks with Ray ended; see `{self._log}`"
            ended.set_result(Ended(number=number, message=text))
        self._workers.clear()


def _short_place() -> str | None:
    """A folder for Ray's own; None for the usual one. A batch system's may be so long that Ray refuses it."""
    usual = tempfile.gettempdir()
    if len(usual) <= _LONGEST_PLACE or not os.access("/tmp", os.W_OK | os.X_OK):
        return None
    return "/tmp"


def _where(address: str | None) -> str:
    return "a Ray of its own" if address is None else f"the Ray at {address!r}"


def _reach(address: str) -> None:
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or "/" in host:
        raise UsageError(
            f"executor `ray`: expected `ray`, `ray:auto` or `ray:HOST:PORT` but got address {address!r}; the port is the"
            " one that `ray start --head` prints, 6379 by default, and this machine must be a node"
        )
    if (why := why_unreached(address, _REACH_SECONDS)) is not None:
        raise UsageError(
            f"executor `ray`: nothing answers at {address!r}: {why}; `ray status` on a node shows whether Ray runs there,"
            " `--executor ray` starts one of its own"
        )
