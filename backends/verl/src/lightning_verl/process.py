"""The trainer process: started in the verl environment, heard, and ended whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from lightning_core.children import end_by_lifeline, log_tail, start_child
from lightning_core.errors import EngineError
from lightning_verl.job import Job, Report

GRACE: Final = 20.0
"""Seconds that the trainer has to end Ray before it is ended."""
TAIL: Final = 20
"""Lines of the log that an error carries."""
_LINE: Final = 1 << 20


class TrainerProcess:
    """One trainer. Its standard input is its lifeline: it ends when this process does, however that comes.

    It leads a session of its own, so that whatever it starts, Ray's processes too, can be found and ended.
    """

    def __init__(
        self, python: Path, job: Job, *, folder: Path, log: Path, env: Mapping[str, str]
    ) -> None:
        """
        Args:
            python: the Python of the verl environment.
            job: what it is to do.
            folder: where it runs.
            log: the file to which all that it and Ray say is appended.
            env: its environment.
        """
        self.log = log
        self._python = python
        self._folder = folder
        self._job = job
        self._env = env
        self._process: asyncio.subprocess.Process | None = None
        self._log_start = 0

    async def __aenter__(self) -> TrainerProcess:
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        # A module of the user's that is named like one of verl's must not take its place, here or in Ray's processes.
        command = [str(self._python), "-P", "-m", "lightning_verl.trainer"]
        self._process = await start_child(
            command, log=self.log, env=self._env, cwd=self._folder, opening=self._job, limit=_LINE
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(asyncio.ensure_future(self._stop()))

    async def reports(self) -> AsyncIterator[Report]:
        """What it reports, until it ends.

        Raises:
            EngineError: it ended with an error that it did not report; the message has the end of its log.
        """
        assert self._process is not None
        assert self._process.stdout is not None
        decode = msgspec.json.Decoder(Report).decode
        while line := await self._process.stdout.readline():
            try:
                report: Report = decode(line)
            except msgspec.MsgspecError:
                # A library that writes to the descriptor itself; the log is where it should have gone.
                with self.log.open("ab") as file:
                    file.write(line)
                continue
            yield report
        code = await self._process.wait()
        if code:
            how = f"signal {-code}" if code < 0 else f"status {code}"
            raise EngineError(
                f"backend `verl`: the trainer ended with {how}; the end of {str(self.log)!r}:\n{self.tail()}"
            )

    def tail(self, lines: int = TAIL) -> str:
        """The last lines that it logged."""
        return log_tail(self.log, lines, since=self._log_start)

    async def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        await end_by_lifeline(process, GRACE)
