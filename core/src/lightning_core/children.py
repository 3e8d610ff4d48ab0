"""Child processes of ours: started with a handshake, ended with their parent, whatever ends the parent.

A child's standard input is its lifeline: it closes when the parent ends, also by `kill -9`. Its first line is the
child's secret, where it has one: what stands in an environment can be read by every process of the same user.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import importlib
import os
import signal
import sys
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import msgspec

from lightning_core.errors import LightningError, WireError
from lightning_core.instrument import variables
from lightning_core.instrument.context import PLACEHOLDER_KEY

_READY_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 15.0
_OF_OUR_PYTHON: Final = {"PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV"}
_TAIL_BYTES: Final = 64 * 1024
_NOT_HANDED_ON: Final = {*variables.OF_AN_ATTEMPT, variables.TOKEN}
_T = TypeVar("_T")


class Child:
    """A `python -m MODULE …` that says when it is ready and lives no longer than this process."""

    def __init__(
        self,
        what: str,
        module: str,
        arguments: Sequence[str],
        *,
        log: Path,
        secret: str | None = None,
        ready_seconds: float = _READY_SECONDS,
        hidden: Collection[str] = (),
    ) -> None:
        """Args:
        what: its name in messages, such as `server`.
        module: the module to run.
        arguments: its command line.
        log: the file to which its standard error is appended.
        secret: what the child gets from `read_secret`, such as a token.
        ready_seconds: seconds that it has to become ready.
        hidden: variables with keys; where they are set, the child gets a placeholder.
        """
        self.what = what
        self.log = log
        self._command = [sys.executable, "-m", module, *arguments]
        self._secret = secret
        self._ready_seconds = ready_seconds
        self._hidden = hidden
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> dict[str, Any]:
        """Start it; what it says when it is ready.

        Raises:
            WireError: it did not become ready; the message is its own where it gave one.
        """
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            self.log.touch()
        except OSError as error:
            raise WireError(
                f"run folder `{self.log.parent.parent}`: cannot be written: {error.strerror};"
                " choose another with `LIGHTNING_CORE_RUNS`"
            ) from error
        self._process = await start_child(
            self._command, log=self.log, opening=self._secret, hidden=self._hidden
        )
        try:
            async with asyncio.timeout(self._ready_seconds):
                line = await self._read_line()
        except BaseException as error:
            await self.stop()
            if isinstance(error, TimeoutError):
                raise WireError(
                    f"{self.what}: not ready after {self._ready_seconds:.0f} s; see `{self.log}`"
                ) from error
            raise
        try:
            answer = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.DecodeError:
            answer = {
                "error": f"{self.what}: did not start: {self._last_words()}; see `{self.log}`"
            }
        if "error" in answer:
            await self.stop()
            raise WireError(answer["error"])
        return answer

    async def _read_line(self) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        return await self._process.stdout.readline()

    async def stop(self) -> None:
        """Close the lifeline and wait for the end; killed after 15 s. May be called more than once."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await process.wait()
        except (TimeoutError, asyncio.CancelledError) as error:
            process.kill()
            await process.wait()
            if isinstance(error, asyncio.CancelledError):
                raise

    @property
    def exit_status(self) -> int | None:
        """The status with which it ended by itself, negative for a signal's number; None while it runs."""
        return None if self._process is None else self._process.returncode

    async def died(self) -> WireError:
        """Wait until it ends by itself; why it did."""
        if self._process is None:
            return WireError(f"{self.what}: not started")
        code = await self._process.wait()
        return WireError(
            f"{self.what}: ended with status {code}: {self._last_words()}; see `{self.log}`"
        )

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


async def start_child(
    command: Sequence[str],
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    opening: object = None,
    hidden: Collection[str] = (),
    limit: int = 1 << 16,
) -> asyncio.subprocess.Process:
    """Start a process with its standard input as its lifeline, and its standard output for us to hear.

    It leads a session of its own: Ctrl+C reaches the parent alone, which ends its children in order.

    Args:
        command: what to start.
        log: the file to which its standard error is appended.
        env: its environment; by default ours, without what is an attempt's and without the user's token.
        cwd: where it runs.
        opening: what it gets from `read_opening`; None is nothing.
        hidden: variables of its environment with keys that are not for it; where they are set, it gets a placeholder.
        limit: bytes of the longest line that it says.

    Raises:
        OSError: it cannot be started, or the log not be written.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    if env is None:
        env = {k: v for k, v in os.environ.items() if k not in _NOT_HANDED_ON}
    env = {k: PLACEHOLDER_KEY if k in hidden else v for k, v in env.items()}
    with log.open("ab") as file:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=file,
            start_new_session=True, env=env, cwd=cwd, limit=limit,
        )  # fmt: skip
    if opening is not None:
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(opening) + b"\n")
    return process


def read_opening(type_: type[_T]) -> _T:
    """In the child, before anything else: what its parent gave it. What follows on standard input stays unread.

    Raises:
        msgspec.DecodeError: the parent gave nothing, or something else.
    """
    line = bytearray()
    while not line.endswith(b"\n") and (byte := os.read(0, 1)):
        line += byte
    return msgspec.json.decode(line, type=type_)


def take_lifeline() -> int:
    """In the child: our standard input, out of the way of what we start, which would hold it; theirs is empty."""
    lifeline = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return lifeline


def take_stdout() -> BinaryIO:
    """In the child: our standard output, out of the way of what libraries print, in Python or C; that goes to the log."""
    own = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    return own


def read_secret() -> str:
    """In the child, before anything else: what its parent gave as `secret`.

    Raises:
        WireError: the parent gave none.
    """
    try:
        return read_opening(str)
    except msgspec.DecodeError as error:
        raise WireError(
            "standard input: expected a secret as a line of JSON; this process is started by another of ours,"
            " a worker of your own by `lightning-core work`"
        ) from error


async def end_by_lifeline(process: asyncio.subprocess.Process, grace: float) -> None:
    """Close the lifeline of a process that leads a session, and end what of the session is left after it.

    Args:
        process: started with its standard input as its lifeline, in a session of its own.
        grace: seconds that it has to end what it started.
    """
    if process.returncode is None:
        assert process.stdin is not None
        process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await process.wait()
    end_session(process.pid)
    await process.wait()


def end_session(leader: int) -> None:
    """End what is left of a session, where some of its processes have groups of their own.

    Args:
        leader: the process that was started with a session of its own.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
    proc = Path("/proc")
    if not proc.is_dir():
        return
    for entry in proc.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(int(entry.name)) == leader:
                os.kill(int(entry.name), signal.SIGKILL)


def environ_for_another_python() -> dict[str, str]:
    """Our environment, without what would make another Python look for packages in ours, and without what is ours."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in _OF_OUR_PYTHON and not name.startswith("LIGHTNING_CORE_")
    }


def log_tail(log: Path, lines: int, *, since: int = 0) -> str:
    """The last lines of a log.

    Args:
        log: the file.
        lines: how many.
        since: the byte from which on they are of interest.
    """
    with log.open("rb") as file:
        file.seek(max(since, log.stat().st_size - _TAIL_BYTES))
        text = file.read().decode(errors="replace")
    return "\n".join(text.replace("\r", "\n").splitlines()[-lines:])


def take_token() -> str | None:
    """The user's `LIGHTNING_CORE_TOKEN`, which no process of this user can read in our environment afterwards.

    Unsetting the variable is not enough: `/proc/PID/environ` shows the environment that a process was started with,
    so the text is blotted out there too.
    """
    token = os.environ.get(variables.TOKEN)
    if token is None:
        return None
    if os.name == "posix":
        getenv = ctypes.CDLL(None).getenv
        getenv.argtypes, getenv.restype = [ctypes.c_char_p], ctypes.c_void_p
        place = getenv(variables.TOKEN.encode())
        if place:
            ctypes.memset(place, 0, len(os.fsencode(token)))
    del os.environ[variables.TOKEN]
    return token or None


def be_child(work: Coroutine[Any, Any, object]) -> int:
    """In the child: run `work` until it ends, the lifeline closes, or SIGTERM comes; the exit status.

    `work` calls `say_ready` once it is ready, and cleans up when it is cancelled.
    """
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_work_until_told(work))


def tune_interpreter() -> None:
    """For a process that serves: seldom collect, and change threads quickly.

    A server makes many objects that die by reference count and few cycles; the default looks at all of them over and
    over, which is a twentieth of what a recorded call costs. So what start-up made is left out of every collection.

    The store's thread lets go of the interpreter for each statement. By default it then waits up to 5 ms to go on while
    the event loop is busy, and falls behind.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    sys.setswitchinterval(0.0005)


def say_ready(**answer: str) -> None:
    """In the child: tell the parent that it is ready, and what it must know."""
    _say(answer)


def say_error(error: LightningError) -> None:
    """In the child: tell the parent why it did not start, and the log."""
    _say({"error": str(error)})
    print(error, file=sys.stderr)


async def _work_until_told(work: Coroutine[Any, Any, object]) -> int:
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    lifeline = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lifeline), sys.stdin
    )
    working = asyncio.ensure_future(work)
    ends = [working, asyncio.ensure_future(told.wait()), asyncio.ensure_future(lifeline.read())]
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finished = working.done()
        for end in ends:
            end.cancel()
        await asyncio.gather(*ends, return_exceptions=True)
        if finished and (error := working.exception()) is not None:
            raise error
        return 0
    except LightningError as error:
        say_error(error)
        return 1
    finally:
        transport.close()


def _say(value: object) -> None:
    # The parent may be gone, and with it the pipe; the lifeline then ends this process.
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
        sys.stdout.buffer.flush()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's loop where it is installed, else asyncio's own."""
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
