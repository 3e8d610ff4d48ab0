"""Executor: where the workers of a run run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import ClassVar, Protocol

import msgspec

from lightning_core.errors import WireError
from lightning_core.runs import RunConfig


class WorkerOrder(msgspec.Struct, frozen=True, kw_only=True):
    """One worker that a run wants."""

    what: str
    """Its name in messages, such as `worker 0`."""
    arguments: tuple[str, ...]
    """What follows `python -m lightning_core.worker`."""
    token: str
    """The worker's token, its first line of standard input as JSON. Never in an environment, a command line or a log."""
    log: Path
    """The file in the run's folder to which all that it says is appended."""
    hidden: frozenset[str] = frozenset()
    """Environment variables of this process whose values it must not get; where one is set, it gets a placeholder."""


class WorkerHandle(Protocol):
    """One worker, from before its start until after its end."""

    async def start(self) -> object:
        """Start it and wait until it is ready; where this fails or is cancelled, nothing of it is left.

        Raises:
            WireError: it did not become ready.
        """

    async def stop(self) -> None:
        """Let it end in order, and end it where it does not. May be called more than once, and before `start`."""

    async def died(self) -> WireError:
        """Wait until it ends by itself; why it did, as `WHAT: REASON`. May be cancelled and called again."""

    @property
    def exit_status(self) -> int | None:
        """The status with which its process ended by itself, negative for a signal's number; None where that is not
        known, or something else than the worker's process has ended, such as its machine."""


MakeWorker = Callable[[WorkerOrder], WorkerHandle]
"""Makes a worker that has not started. The same order may be given again once its worker has ended."""


class Executor(ABC):
    """Knows one kind of place where workers can run. Stateless; what a plugin registers."""

    name: ClassVar[str]
    """The executor's name, as in `--executor NAME`."""

    def check(self, address: str | None, config: RunConfig) -> None:  # noqa: B027 - some have nothing to check
        """Refuse what cannot work, before anything is started or written.

        Args:
            address: what the user gave after the name, as in `--executor NAME:ADDRESS`; None where nothing was.
            config: what was asked of the run.

        Raises:
            UsageError: the message says what may be given.
        """

    @abstractmethod
    def opened(
        self, address: str | None, *, server: str | None, logs: Path
    ) -> AbstractAsyncContextManager[MakeWorker]:
        """What workers need around them, started on entry and ended on exit, where it is ours.

        Args:
            address: see `check`.
            server: the address of the run's server; None where it is one of the run's own, on this machine's loopback.
            logs: the folder of the run's logs, for a log of the executor's own.

        Raises:
            UsageError: workers there could not reach the server.
            WireError: it did not start, or cannot be reached.
        """


def split_executor(spec: str) -> tuple[str, str | None]:
    """Name and address of `NAME` or `NAME:ADDRESS`; the address may hold colons itself."""
    name, colon, address = spec.partition(":")
    return name, address if colon else None
