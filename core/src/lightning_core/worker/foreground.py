"""A program on this terminal, under the supervisor: it keeps the terminal, and ends when this process is killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Final, Self

import msgspec

from lightning_core.instrument import variables
from lightning_core.worker import supervisor
from lightning_core.worker.process import Exit, Pipe, end_marked

GRACE: Final = 10.0
"""Seconds that a program has to end once it is told to."""


class ForegroundProcess:
    """A program with this process's standard streams, terminal and process group. Made by `start`; await `wait`."""

    def __init__(
        self, process: asyncio.subprocess.Process, marker: str, lifeline: int, status: Pipe
    ) -> None:
        self._process = process
        self._marker = marker
        self._lifeline: int | None = lifeline
        self._status = status
        self._report = b""

    @classmethod
    async def start(
        cls, argv: Sequence[str], *, env: Mapping[str, str], marker: str, grace: float = GRACE
    ) -> Self:
        """Start `argv`.

        Args:
            argv: the program and its arguments.
            env: its whole environment.
            marker: a text of its own, put into the environment as `LIGHTNING_CORE_PROCESS`.
            grace: seconds between SIGTERM and SIGKILL when it is ended.

        Raises:
            OSError: the supervisor could not be started.
        """
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            lifeline, status = os.pipe(), os.pipe()
            for fd in (lifeline[1], status[0]):
                ours.callback(os.close, fd)
            for fd in (lifeline[0], status[1]):
                theirs.callback(os.close, fd)
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", supervisor.__file__, "--terminal"),
                *(str(status[1]), str(grace), str(lifeline[0]), "--", *argv),
                env={**env, variables.PROCESS: marker},
                pass_fds=(status[1], lifeline[0]),
            )
            ours.pop_all()
        return cls(process, marker, lifeline[1], await Pipe.open(status[0]))

    async def wait(self) -> Exit:
        """How it ended. May be cancelled and awaited again."""
        while data := await self._status.reader.read(65536):
            self._report += data
        await self._process.wait()
        self._close()
        self._status.transport.close()
        if not self._report:
            await asyncio.to_thread(end_marked, self._marker)
            return Exit(returncode=-signal.SIGKILL)
        told = msgspec.json.decode(self._report)
        return Exit(returncode=told.get("returncode", 126), failed=told.get("failed"))

    def terminate(self) -> None:
        """Send it SIGTERM; all of it is ended if it has not ended after `grace`."""
        self._tell(b"t")

    def end(self) -> None:
        """End it and all that it started: SIGTERM, and SIGKILL after `grace`."""
        self._close()

    def _tell(self, word: bytes) -> None:
        if self._lifeline is not None:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._lifeline, word)

    def _close(self) -> None:
        self._tell(b"e")
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
