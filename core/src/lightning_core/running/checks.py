"""Checks of what a run is asked to do, made before anything is started or written."""

from __future__ import annotations

import hashlib
import importlib.util
import math
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from lightning_core.errors import AgentError, UsageError
from lightning_core.rollout import Budget
from lightning_core.runs import RunConfig
from lightning_core.task import Task

_SAME: Final = ("agent", "reward", "model", "engine", "mode")


def check_numbers(counts: Mapping[str, int], *, timeout: float, budget: Budget) -> None:
    """Refuse counts below 1 (`workers`: below 0), and a time-out that is none.

    Raises:
        UsageError: the message names the number.
    """
    bounded = {"budget.calls": budget.calls, "budget.tokens": budget.tokens}
    every: dict[str, Any] = {**counts, **{k: v for k, v in bounded.items() if v is not None}}
    for name, value in every.items():
        least = 0 if name == "workers" else 1
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UsageError(
                f"{name}: expected a whole number of {least} or more but got {value!r}"
            )
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not number or not math.isfinite(timeout) or timeout <= 0:
        raise UsageError(f"timeout: expected a positive number of seconds but got {timeout!r}")


def check_agent(spec: str | None, command: tuple[str, ...]) -> None:
    """Refuse a file, module or program that is not there, without importing or running anything.

    Raises:
        AgentError: the message says what is missing.
    """
    if command and shutil.which(command[0]) is None:
        raise AgentError(
            f"agent: there is no program {command[0]!r} (on PATH, or from {Path.cwd()}); check its name"
        )
    if spec is None:
        return
    place, colon, attribute = spec.rpartition(":")
    if not colon or not place or not attribute:
        raise AgentError(
            f"agent {spec!r}: expected `path.py:NAME` or `module:NAME`, or a command line after `--`"
        )
    if place.endswith(".py"):
        if not Path(place).is_file():
            raise AgentError(
                f"agent {spec!r}: there is no file `{place}` (current folder: {Path.cwd()})"
            )
    elif not _module_exists(place):
        as_file = Path(place.replace(".", "/") + ".py")
        hint = f"; did you mean `{as_file}:{attribute}`?" if as_file.exists() else ""
        hint = "; a file must end in `.py`" if Path(place).exists() else hint
        raise AgentError(
            f"agent {spec!r}: there is no module `{place}` (current folder: {Path.cwd()}){hint}"
        )


def _module_exists(name: str) -> bool:
    """Whether the outermost package is there: to look further would import it."""
    first = name.partition(".")[0]
    if first in sys.modules:
        return True
    if any(Path(first + end).exists() for end in (".py", "/__init__.py")) or Path(first).is_dir():
        return True
    try:
        return importlib.util.find_spec(first) is not None
    except (ImportError, ValueError):
        return False


def tasks_digest(tasks: Iterable[Task]) -> str:
    """SHA-256 of tasks in order, in hexadecimal."""
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(msgspec.json.encode(msgspec.to_builtins(task), order="sorted") + b"\n")
    return digest.hexdigest()


def check_resumable(before: RunConfig, now: RunConfig) -> None:
    """Refuse to go on with a run under another agent, reward, model or other tasks.

    Raises:
        UsageError: the message names the first difference.
    """
    for name in _SAME:
        was, given = getattr(before, name), getattr(now, name)
        if was != given:
            raise UsageError(
                f"resume: run `{before.name}` has {name} {_shown(was)} and not {_shown(given)};"
                " give what it was started with, or start another run"
            )
    if before.tasks_digest and before.tasks_digest != now.tasks_digest:
        counts = f"{before.tasks} tasks"
        other = "others of the same number" if before.tasks == now.tasks else f"{now.tasks}"
        raise UsageError(
            f"resume: run `{before.name}` has {counts} and not {other}: the tasks' ids or contents differ;"
            " give the same source, `--field`, `--split` and `--limit`, or start another run"
        )


def _shown(value: object) -> str:
    return "none" if value is None else f"`{value}`"
