"""A child process that an engine owns: its own group, its log in a file, ended whole."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from lightning_core.children import log_tail

LOOK = 0.5
"""Seconds between two looks whether a process has ended."""
GRACE = 5.0
"""Seconds between asking a process group to end and ending it."""
TAIL = 20
"""Lines of the log that an error message carries."""


class Child:
    """One process and whatever it starts.

    Its standard input stays open as long as this process lives: a child that reads it sees the end of this
    process, however that came.
    """

    def __init__(self, command: Sequence[str], *, log: Path, env: Mapping[str, str]) -> None:
        """Start `command`, with its errors appended to the file `log`.

        Raises:
            OSError: it cannot be started, or the log cannot be written.
        """
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log_start = log.stat().st_size if log.exists() else 0
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=dict(env),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its group."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.poll()

    async def ended(self) -> int:
        """Wait until it ends; its exit code."""
        while (code := self.exit_code) is None:
            await asyncio.sleep(LOOK)
        return code

    def send(self, line: str) -> None:
        """Write a line to its standard input; nothing happens where it has already ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    async def read_line(self) -> str:
        """The next line of its standard output; empty once it has ended."""
        assert self._process.stdout is not None
        return (await asyncio.to_thread(self._process.stdout.readline)).decode()

    def tail(self, lines: int = TAIL) -> str:
        """The last lines that it logged."""
        return log_tail(self.log, lines, since=self._log_start)

    async def stop(self) -> None:
        """End the process and its group: politely, then not. May be called more than once."""
        await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE)
        # The leader may be gone and others of the group not.
        self._signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)
