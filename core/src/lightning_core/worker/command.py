"""Running a command line as the agent: the task by file, the output by file or last line, the tree ended whole."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from lightning_core.agents import Command
from lightning_core.errors import AgentError
from lightning_core.instrument import child_environment, variables
from lightning_core.records import Json
from lightning_core.rollout import Cause
from lightning_core.worker.execution import END_SECONDS, Execution, Executor, Job, Leftover
from lightning_core.worker.outcome import TEXT_LIMIT, Outcome, bounded
from lightning_core.worker.outputs import OUTPUT_LIMIT, OutputError, read_json, to_json
from lightning_core.worker.process import GRACE, Exit, SupervisedProcess

_WRITTEN_ANEW: Final = 2
"""How many times as long JSON may be that we write of what a command wrote within the limit."""

OutcomeOf: TypeAlias = Callable[[SupervisedProcess, Exit, Path], Outcome]
"""Reads the outcome from a process that has ended, how it ended, and its folder."""

_log = logging.getLogger("lightning_core.worker")


class CommandExecutor(Executor):
    """Runs a command once for each attempt.

    Args:
        command: the command line.
        adapters: `module:Class` of the adapters that Python children enter, by trigger module.
        output_limit: bytes of JSON that an output may take.
        grace: seconds between SIGTERM and SIGKILL.
    """

    def __init__(
        self,
        command: Command,
        *,
        adapters: Mapping[str, str] | None = None,
        output_limit: int = OUTPUT_LIMIT,
        grace: float = GRACE,
    ) -> None:
        self.command: Final = command
        self.output_limit: Final = output_limit
        self._adapters = dict(adapters or {})
        self._grace = min(grace, END_SECONDS)
        self._running: set[ProcessExecution] = set()

    async def open(self) -> None:
        """Check that the program exists."""
        if sys.platform == "win32":
            raise AgentError(
                "commands and `--isolate` need process groups and pipes as Linux and macOS have them"
            )
        program = self.command.argv[0]
        if shutil.which(program) is None:
            raise AgentError(
                f"command `{self.command}`: there is no program {program!r} on `PATH` (current folder: {Path.cwd()})"
            )

    async def start(self, job: Job) -> Execution:
        """Begin an attempt."""
        folder = Path(tempfile.mkdtemp(prefix="lightning-core-"))
        try:
            task = job.lease.task
            (folder / "task.json").write_bytes(
                msgspec.json.encode({"id": task.id, "input": task.input, "metadata": task.metadata})
            )
            extra = {
                variables.TASK: str(folder / "task.json"),
                variables.OUTPUT: str(folder / "output.json"),
            }
            return await self._launch(self.command.argv, job, folder, extra, self._outcome)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    async def close(self) -> bool:
        """End every process that is left."""
        for execution in list(self._running):
            await execution.end()
        return not self._running

    async def _launch(
        self,
        argv: Sequence[str],
        job: Job,
        folder: Path,
        extra: Mapping[str, str],
        outcome: OutcomeOf,
    ) -> ProcessExecution:
        lease = job.lease
        environment = child_environment(
            {name: value for name, value in os.environ.items() if name != variables.STRATEGY},
            gateway=job.gateway,
            session=lease.session,
            attempt=lease.attempt.id,
            span=None,
            adapters=self._adapters,
            base_url=lease.base_url,
            set_key=job.own_model,
            strategy=job.write_strategy(folder),
        )
        process = await SupervisedProcess.start(
            argv,
            env={**environment, **extra},
            marker=f"{lease.attempt.id}:{secrets.token_hex(8)}",
            line_limit=self.output_limit,
            folder=folder,
            grace=self._grace,
        )
        execution = ProcessExecution(job, process, folder, outcome)
        self._running.add(execution)
        execution.finished.add_done_callback(lambda _: self._running.discard(execution))
        return execution

    def _outcome(self, process: SupervisedProcess, end: Exit, folder: Path) -> Outcome:
        logs = process.logs.text()
        if end.failed is not None:
            return Outcome(cause=Cause.WORKER_ERROR, error=f"command `{self.command}` {end.text}")
        if end.returncode != 0:
            return failed_process(f"command `{self.command}`", end, logs)
        try:
            file = folder / "output.json"
            if file.exists() and file.stat().st_size > 0:
                output = self._read_output(file)
            else:
                output, line = self._read_line(process)
                head, found, tail = logs.rpartition(line) if line else (logs, "", "")
                logs = head if found and not tail.strip() else logs
        except OutputError as error:
            return Outcome(cause=Cause.AGENT_ERROR, error=bounded(str(error)), logs=logs or None)
        return Outcome(cause=Cause.SUCCESS, output=output, logs=logs.rstrip("\n") or None)

    def _read_output(self, file: Path) -> Json:
        size = file.stat().st_size
        if size > self.output_limit:
            raise OutputError(
                f"output: the file `{variables.OUTPUT}` has {size} bytes, over the limit of {self.output_limit}"
            )
        data = file.read_bytes()
        try:
            return read_json(data, limit=_WRITTEN_ANEW * self.output_limit)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise OutputError(
                f"output: the file `{variables.OUTPUT}` is not JSON: {error}; it begins {data[:80]!r}"
            ) from error

    def _read_line(self, process: SupervisedProcess) -> tuple[Json, str]:
        if process.last_line.too_long:
            raise OutputError(
                f"output: the last line of standard output is over the limit of {self.output_limit} bytes; write to"
                f" the file `{variables.OUTPUT}` what is the output, and less"
            )
        data = process.last_line.line()
        if not data:
            return None, ""
        text = data.decode("utf-8", "replace")
        try:
            return read_json(data, limit=_WRITTEN_ANEW * self.output_limit), text
        except (msgspec.DecodeError, UnicodeDecodeError):
            return to_json(text, limit=_WRITTEN_ANEW * self.output_limit), text


class ProcessExecution(Execution):
    """An attempt that runs in processes of its own."""

    def __init__(
        self, job: Job, process: SupervisedProcess, folder: Path, outcome: OutcomeOf
    ) -> None:
        self._job = job
        self._process = process
        self._folder = folder
        self._outcome = outcome
        self.finished: Final = asyncio.create_task(self._finish(), name=job.name)

    async def _finish(self) -> Outcome:
        try:
            end = await self._process.wait()
            return await asyncio.to_thread(self._outcome, self._process, end, self._folder)
        except (
            Exception
        ) as error:  # Whatever fails here is the worker's failure, and must be reported.
            _log.exception("%s: reading its outcome failed", self._job.name)
            return Outcome(
                cause=Cause.WORKER_ERROR, error=bounded(f"{type(error).__name__}: {error}")
            )
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def wait(self) -> Outcome:
        """How it ended."""
        return await asyncio.shield(self.finished)

    async def end(self, *, quickly: bool = False) -> Leftover | None:
        """End its whole tree."""
        self._process.end()
        await asyncio.wait([self.finished], timeout=END_SECONDS + 2.0)
        if self.finished.done():
            return None
        return Leftover(
            f"{self._job.name}: process {self._process.pid} and what it started cannot be ended; see `ps`"
        )

    def logs(self) -> str | None:
        """The end of what it printed."""
        return self._process.logs.text() or None


def failed_process(what: str, end: Exit, logs: str) -> Outcome:
    """The outcome of a process that failed: how it ended, and the end of what it printed."""
    last = logs.strip()
    error = f"{what} {end.text}"
    if last:
        error += f"; the end of what it printed:\n{last}"
    return Outcome(cause=Cause.AGENT_ERROR, error=bounded(error, TEXT_LIMIT), logs=logs or None)
