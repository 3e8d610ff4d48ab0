"""Splitting the tasks: those that are learnt from, those that strategies are chosen by, and those that nothing has seen."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

import msgspec

from lightning_core.errors import UsageError
from lightning_core.task import Task

_LEAST: Final = 4


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks by what they are for. Each in a random order."""

    learn: tuple[Task, ...]
    """Whose traces give demonstrations, and are reflected on."""
    choose: tuple[Task, ...]
    """By which strategies are chosen."""
    held_out: tuple[Task, ...]
    """For the comparison at the end alone."""
    notes: tuple[str, ...] = ()
    """What a user should know of it."""


def split_tasks(
    tasks: Sequence[Task], val: Sequence[Task], *, choose: float, held_out: float, seed: int
) -> Split:
    """Split the tasks, the same way each time.

    Args:
        tasks: those of the search.
        val: those of `--val`; where there are none, a share of the others is held out.
        choose: the share of the search's tasks by which strategies are chosen.
        held_out: the share of all tasks that is held out where `val` is empty.
        seed: of the order.

    Raises:
        UsageError: there are too few.
    """
    order = list(tasks)
    random.Random(f"split {seed}").shuffle(order)
    notes = []
    if val:
        last = list(val)
        random.Random(f"held out {seed}").shuffle(last)
    else:
        count = round(held_out * len(order))
        last, order = order[:count], order[count:]
        notes.append(f"no validation tasks are given: {count} of the tasks are held out")
    chosen = max(1, round(choose * len(order)))
    split = Split(
        learn=tuple(order[chosen:]),
        choose=tuple(order[:chosen]),
        held_out=tuple(last),
        notes=tuple(notes),
    )
    if min(len(split.learn), len(split.choose), len(split.held_out)) < _LEAST:
        raise UsageError(
            f"tasks: {len(tasks)} to search with and {len(val)} to validate on leave {len(split.learn)} to learn from,"
            f" {len(split.choose)} to choose by and {len(split.held_out)} held out; each needs {_LEAST} or more"
        )
    return split
