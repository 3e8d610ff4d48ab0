"""The parent's side of a bench process: starts it, gives it orders, ends it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).resolve().parent.parent


class Child:
    """A process of `python -m bench.MODULE`. Ended on exit by its own id."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._name = f"bench.{module}"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        self._process = subprocess.Popen(
            [sys.executable, "-m", self._name, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=ROOT,
        )
        try:
            self.ready = self._read()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def port(self) -> int:
        """Where it listens on loopback."""
        port = self.ready["port"]
        assert isinstance(port, int)
        return port

    def order(self, name: str, **values: Any) -> dict[str, Any]:
        """Have it do something and return its answer.

        Raises:
            RuntimeError: it could not, or is dead.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": name, **values}).encode() + b"\n")
        self._process.stdin.flush()
        answer = self._read()
        if "error" in answer:
            raise RuntimeError(f"`{self._name}` could not {name}: {answer['error']}")
        return answer

    def cpu(self) -> float:
        """User and system time so far in seconds, all threads; work that it had put off included."""
        value = self.order("cpu")["cpu"]
        assert isinstance(value, float)
        return value

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            tail = self._log.read()[-4000:].decode(errors="replace")
            raise RuntimeError(f"`{self._name}` ended without an answer; its last words:\n{tail}")
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer


def tree_cpu(pid: int) -> float:
    """User and system time so far of a process and all its descendants, in seconds. Linux only.

    Children that have ended are counted with the parent that waited for them.
    """
    tick = os.sysconf("SC_CLK_TCK")
    total, wanted = 0, _descendants(pid)
    for each in wanted:
        fields = _stat(each)
        if fields is not None:
            total += sum(int(value) for value in fields[11:15])
    return total / tick


def _descendants(pid: int) -> Sequence[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))) is not None:
            parents[int(entry.name)] = int(fields[1])
    found, edge = [pid], {pid}
    while edge := {child for child, parent in parents.items() if parent in edge}:
        found.extend(edge)
    return found


def _stat(pid: int) -> list[str] | None:
    """The fields of `/proc/PID/stat` behind the name; None where the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return text.rsplit(")", 1)[1].split()
