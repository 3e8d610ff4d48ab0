"""Running a Python agent in one process per attempt: what hangs or crashes can be killed, and hurts no sibling."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from lightning_core.agents import Command
from lightning_core.errors import AgentError, FormatError
from lightning_core.instrument import variables
from lightning_core.rollout import Cause
from lightning_core.worker.command import CommandExecutor, failed_process
from lightning_core.worker.execution import Execution, Job
from lightning_core.worker.outcome import Outcome, bounded
from lightning_core.worker.outputs import OUTPUT_LIMIT, OutputError, to_json
from lightning_core.worker.process import Exit, SupervisedProcess

_MODULE: Final = "lightning_core.worker.child"

_BESIDES: Final = 256 * 1024
"""Bytes that an outcome may take beside its output."""

_log = logging.getLogger("lightning_core.worker")


class Isolated(CommandExecutor):
    """Runs `module:attr` or `path.py:attr` in a Python process of its own for each attempt.

    The lease reaches the child by a file that only this user can read, and so does the outcome come back.
    """

    def __init__(
        self,
        spec: str,
        *,
        adapters: Mapping[str, str] | None = None,
        output_limit: int = OUTPUT_LIMIT,
    ) -> None:
        super().__init__(
            Command((sys.executable, "-m", _MODULE)), adapters=adapters, output_limit=output_limit
        )
        self._spec = spec

    async def open(self) -> None:
        """Load the agent once, in a child, to learn of mistakes before the first attempt."""
        await super().open()
        with tempfile.TemporaryDirectory(prefix="lightning-core-") as folder:
            process = await SupervisedProcess.start(
                [*self.command.argv, "--check", self._spec],
                env={k: v for k, v in os.environ.items() if k != variables.TOKEN},
                marker=f"check:{secrets.token_hex(8)}",
                line_limit=0,
                folder=Path(folder),
            )
            end = await process.wait()
        if end.failed is not None or end.returncode != 0:
            raise AgentError(process.logs.text().strip() or f"agent {self._spec!r}: {end.text}")

    async def start(self, job: Job) -> Execution:
        """Begin an attempt."""
        folder = Path(tempfile.mkdtemp(prefix="lightning-core-"))
        try:
            order = Order(spec=self._spec, job=job, output_limit=self.output_limit)
            (folder / "order.json").write_bytes(msgspec.json.encode(order))
            argv = [*self.command.argv, str(folder)]
            return await self._launch(argv, job, folder, {}, self._read_outcome)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def _read_outcome(self, process: SupervisedProcess, end: Exit, folder: Path) -> Outcome:
        logs = process.logs.text()
        file = folder / "outcome.json"
        try:
            if file.exists() and file.stat().st_size > self.output_limit + _BESIDES:
                raise OutputError(
                    f"output: its process left {file.stat().st_size} bytes, over the limit of {self.output_limit}"
                )
            outcome = Outcome.from_json(file.read_bytes())
            output = to_json(outcome.output, limit=self.output_limit)
        except RecursionError:
            text = f"agent {self._spec!r}: the output that its process left is nested too deep"
            return Outcome(cause=Cause.AGENT_ERROR, error=text, logs=logs or None)
        except OutputError as error:
            return Outcome(cause=Cause.AGENT_ERROR, error=bounded(str(error)), logs=logs or None)
        except (OSError, FormatError, UnicodeDecodeError) as error:
            if not isinstance(error, OSError):
                _log.warning(
                    "agent %r: its process left no readable outcome: %s", self._spec, error
                )
            return failed_process(
                f"agent {self._spec!r}: its process gave no outcome and", end, logs
            )
        return msgspec.structs.replace(
            outcome,
            output=output,
            error=None if outcome.error is None else bounded(outcome.error),
            logs=logs or None,
        )


class Order(msgspec.Struct, frozen=True):
    """What a child is to do."""

    spec: str
    """The agent."""
    job: Job
    """The attempt."""
    output_limit: int
    """Bytes of JSON that an output may take."""
