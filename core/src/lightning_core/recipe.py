"""Recipe: how the environment in which a backend's trainer runs is made, as commands that anyone can run by hand."""

from __future__ import annotations

from pathlib import Path

import msgspec


class Step(msgspec.Struct, frozen=True):
    """One command."""

    what: str
    """What it does, in a few words."""
    command: tuple[str, ...]
    """The program and its arguments. Run again after it was done, or cut off, it must do no harm."""


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """How to make an environment, or to complete one that is there."""

    python: Path
    """The Python of the environment, once it is made."""
    variant: str
    """Which of the backend's variants it is, such as `cpu`."""
    notes: tuple[str, ...] = ()
    """What the user should know first."""
    steps: tuple[Step, ...]
    """In order; each needs those before it."""
    next: str = ""
    """What to do once it is made."""
