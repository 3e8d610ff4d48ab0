"""Running a process under the supervisor: output captured within bounds, the whole tree ended on demand."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

import msgspec

from lightning_core.instrument import variables
from lightning_core.worker import supervisor
from lightning_core.worker.outcome import TEXT_LIMIT

GRACE: Final = 2.0
"""Seconds between SIGTERM and SIGKILL."""

_log = logging.getLogger("lightning_core.worker")


class Tail:
    """The last bytes of a stream that may be endless."""

    def __init__(self, limit: int = TEXT_LIMIT) -> None:
        self._limit = limit
        self._data = bytearray()
        self._cut = False

    def feed(self, data: bytes) -> None:
        """Add what came."""
        self._data += data
        if len(self._data) > 2 * self._limit:
            del self._data[: -self._limit]
            self._cut = True

    def text(self) -> str:
        """The end of the stream as text, whole lines where it was cut."""
        data = bytes(self._data)
        if len(data) > self._limit or self._cut:
            data = data[-self._limit :]
            data = data[data.find(b"\n") + 1 :]
        text = data.decode("utf-8", "replace").encode()  # A byte that is no text takes three.
        return text[-self._limit :].decode("utf-8", "ignore")


class LastLine:
    """The last line with text in a stream that may be endless."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open = bytearray()
        self._last = b""

    def feed(self, data: bytes) -> None:
        """Add what came."""
        *complete, rest = data.split(b"\n")
        for part in complete:
            self._add(part)
            if self._open.strip():
                self._last = bytes(self._open)
            self._open.clear()
        self._add(rest)

    def _add(self, part: bytes) -> None:
        room = self._limit + 1 - len(self._open)
        self._open += part[: max(room, 0)]

    @property
    def too_long(self) -> bool:
        """Whether the line is over the limit, and so incomplete here."""
        return len(self.line()) > self._limit

    def line(self) -> bytes:
        """The line without its end."""
        return (bytes(self._open) if self._open.strip() else self._last).strip(b"\r")


class Exit(msgspec.Struct, frozen=True):
    """How a process ended."""

    returncode: int
    """The exit status; negative: the number of the signal that ended it."""
    failed: str | None = None
    """Why it could not be started; None where it was."""

    @property
    def text(self) -> str:
        """How it ended, for a person."""
        if self.failed is not None:
            return f"could not be started: {self.failed}"
        if self.returncode >= 0:
            return f"exited with status {self.returncode}"
        try:
            name = signal.Signals(-self.returncode).name
        except ValueError:
            name = f"signal {-self.returncode}"
        hint = " (out of memory?)" if name == "SIGKILL" else ""
        return f"was ended by {name}{hint}"


class SupervisedProcess:
    """A command and all that it starts. Made by `start`; always await `wait`."""

    def __init__(
        self, process: asyncio.subprocess.Process, marker: str, line_limit: int, lifeline: int
    ) -> None:
        self._process = process
        self._marker = marker
        self._lifeline: int | None = lifeline
        self._pipes: list[Pipe] = []
        self.logs: Final = Tail()
        """What was printed, standard output and standard error as they came."""
        self.last_line: Final = LastLine(line_limit)
        """The last line of standard output."""

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        marker: str,
        line_limit: int,
        folder: Path,
        grace: float = GRACE,
    ) -> Self:
        """Start `argv` in a session of its own.

        Args:
            argv: the program and its arguments.
            env: its whole environment.
            marker: a text of its own, put into the environment as `LIGHTNING_CORE_PROCESS`.
            line_limit: bytes of the last line of standard output that are kept.
            folder: its files; removed by the supervisor should this process die.
            grace: seconds between SIGTERM and SIGKILL when it is ended.

        Raises:
            OSError: the supervisor could not be started.
        """
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            pipes = [os.pipe() for _ in range(4)]
            lifeline, out, err, status = pipes
            for fd in (lifeline[1], out[0], err[0], status[0]):
                ours.callback(os.close, fd)
            for fd in (lifeline[0], out[1], err[1], status[1]):
                theirs.callback(os.close, fd)
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", supervisor.__file__),
                *(str(status[1]), str(grace), str(folder), "--", *argv),
                env={**env, variables.PROCESS: marker},
                stdin=lifeline[0],
                stdout=out[1],
                stderr=err[1],
                pass_fds=(status[1],),
                start_new_session=True,
            )
            ours.pop_all()
        self = cls(process, marker, line_limit, lifeline[1])
        for fd in (out[0], err[0], status[0]):
            self._pipes.append(await Pipe.open(fd))
        return self

    async def wait(self) -> Exit:
        """Read its output until it and all that it started have ended."""
        out, err, status = self._pipes
        readers = [
            asyncio.create_task(self._read(out.reader, self.last_line)),
            asyncio.create_task(self._read(err.reader, None)),
        ]
        try:
            # The supervisor alone holds the other end of this pipe.
            report = await status.reader.read()
            if not report:
                await asyncio.to_thread(end_marked, self._marker)
            await self._process.wait()
            # With all writers dead the pipes end at once; a process that escaped must not hold us up.
            _, late = await asyncio.wait(readers, timeout=1.0)
            if late:
                _log.warning("process %d: its output is still held open; not waiting", self.pid)
        finally:
            self.end()
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
            for pipe in self._pipes:
                pipe.transport.close()
        if not report:
            return Exit(returncode=self._process.returncode or -signal.SIGKILL)
        told = msgspec.json.decode(report)
        if told.get("ended") is False:
            _log.warning("process %d: some of what it started could not be ended", self.pid)
        return Exit(returncode=told.get("returncode", 127), failed=told.get("failed"))

    def end(self) -> None:
        """Begin to end it and all that it started; `wait` returns when that is done."""
        if self._lifeline is None:
            return
        lifeline, self._lifeline = self._lifeline, None
        with contextlib.suppress(BrokenPipeError):
            # A copy of the pipe in a process that something here forked would keep its end from being seen.
            os.write(lifeline, b"e")
        os.close(lifeline)

    @property
    def pid(self) -> int:
        """The supervisor's process id."""
        return self._process.pid

    async def _read(self, stream: asyncio.StreamReader, lines: LastLine | None) -> None:
        while data := await stream.read(65536):
            self.logs.feed(data)
            if lines is not None:
                lines.feed(data)


class Pipe(msgspec.Struct, frozen=True):
    """The end of a pipe that is read here."""

    reader: asyncio.StreamReader
    transport: asyncio.ReadTransport

    @classmethod
    async def open(cls, fd: int) -> Self:
        """Read what comes from `fd`, which is closed with the transport."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb", buffering=0)
        )
        return cls(reader, transport)


def end_marked(marker: str) -> None:
    """Kill every process whose environment holds `marker`, a text that nothing else has.

    Finds nothing where there is no `/proc`.
    """
    wanted = marker.encode()
    for name in os.listdir("/proc") if Path("/proc/self/environ").exists() else ():
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if wanted in Path("/proc", name, "environ").read_bytes():
                supervisor.send(int(name), signal.SIGKILL)
