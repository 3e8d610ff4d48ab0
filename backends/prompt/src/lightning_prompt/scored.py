"""Scored: a candidate with its score, as it is shown and drawn."""

from __future__ import annotations

from collections.abc import Iterable

from lightning_core.records import Record


class Scored(Record, frozen=True, kw_only=True):
    """A candidate that has been scored."""

    name: str
    """What it is called, in a few words."""
    phase: str
    """What made it, such as `demonstrations`."""
    rollouts: int
    """Rollouts that the whole search had taken once it was scored."""
    mean: float | None = None
    """Mean reward; None where nothing was scored."""
    low: float | None = None
    """Lower end of its 95 % interval; None where there is none."""
    high: float | None = None
    """Its upper end."""
    tasks: int = 0
    """Tasks that it was run on."""
    repeats: int = 1
    """Rollouts of each."""
    worth: tuple[float, ...] | None = None
    """What it is chosen by, the first number before the second; None is its mean reward."""


def best_of(candidates: Iterable[Scored]) -> Scored | None:
    """The one that is worth most, the first of equals; None where none has a reward."""
    known = [candidate for candidate in candidates if candidate.mean is not None]
    return max(known, key=lambda each: each.worth or (each.mean or 0.0,), default=None)
