"""Checks of what a run is asked to do, made before anything is started or written."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import math
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from lightning_core.errors import AgentError, UsageError
from lightning_core.rollout import Budget
from lightning_core.runs import RunConfig
from lightning_core.task import Task

log = logging.getLogger("lightning_core.run")

_SAME: Final = ("agent", "reward", "model", "engine", "mode", "sampling", "validation")
_MAY_CHANGE: Final = ("steps", "val_every", "val_by", "save_every", "quorum", "budget")
"""What of an optimisation may be another when it is resumed."""


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


def check_optimization(config: RunConfig, tasks: Sequence[Task]) -> None:
    """Refuse an optimisation that cannot be.

    Raises:
        UsageError: the message names the setting.
    """
    wanted = config.optimize
    if wanted is None:
        return
    counts = {"steps": wanted.steps, "batch_size": wanted.batch_size, "group_size": wanted.group_size,
              "val_repeats": wanted.val_repeats, "save_every": wanted.save_every}  # fmt: skip
    check_numbers(counts, timeout=config.timeout, budget=config.budget)
    if not 0.0 < wanted.quorum <= 1.0:
        raise UsageError(f"quorum: expected a share above 0, at most 1, but got {wanted.quorum!r}")
    if config.reward is None:
        raise UsageError(
            "reward: an optimisation needs one; give a function or a registered name with `--reward`"
        )
    if wanted.train_agents is not None:
        try:
            re.compile(wanted.train_agents)
        except re.error as error:
            raise UsageError(
                f"train_agents {wanted.train_agents!r}: no regular expression: {error}"
            ) from None
    if config.sampling.temperature <= 0.0:
        raise UsageError(
            "temperature: rollouts to learn from must differ; expected a number above 0, such as 1.0,"
            f" but got {config.sampling.temperature!r}"
        )
    if wanted.asynchronous and wanted.max_staleness < 1:
        raise UsageError(
            "max_staleness: with asynchronous rollouts some calls are a version behind; expected 1 or more"
        )
    train = [task for task in tasks if task.split == "train"]
    inputs = {msgspec.json.encode(task.input) for task in train}
    shared = sum(msgspec.json.encode(task.input) in inputs for task in tasks if task.split == "val")
    if shared:
        log.warning(
            "%d validation task(s) have the input of a training task: what is learnt by heart looks like a gain",
            shared,
        )
    if len(train) < wanted.batch_size:
        log.warning(
            "batch_size: %d tasks a step are wanted but there are %d; each step takes some more than once",
            wanted.batch_size, len(train),
        )  # fmt: skip


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
    was_asked, asked = (
        {}
        if config.optimize is None
        else {k: v for k, v in msgspec.to_builtins(config.optimize).items() if k not in _MAY_CHANGE}
        for config in (before, now)
    )
    for name in sorted({*was_asked, *asked}):
        if was_asked.get(name) != asked.get(name):
            raise UsageError(
                f"resume: run `{before.name}` has {name} {_shown(was_asked.get(name))} and not"
                f" {_shown(asked.get(name))}; give what it was started with, or start another run"
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
