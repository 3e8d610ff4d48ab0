"""The console that every command prints to."""

from __future__ import annotations

import os
from typing import Final

from rich.console import Console

_WIDE: Final = 140


def console(*, stderr: bool = False) -> Console:
    """A console as wide as the terminal; wide where there is none, so that a pipe or a file loses nothing."""
    made = Console(stderr=stderr, highlight=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = _WIDE
    return made
