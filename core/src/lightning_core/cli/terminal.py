"""What every command shares: the console, and a loop that Ctrl+C and SIGTERM end in order."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

import click
from rich.console import Console

_WIDE: Final = 140
_T = TypeVar("_T")


def console(*, stderr: bool = False) -> Console:
    """A console as wide as the terminal; wide where there is none, so that a pipe or a file loses nothing."""
    made = Console(stderr=stderr, highlight=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = _WIDE
    return made


class _Terminated(Exception):
    """SIGTERM came; what was under way has been cleaned up."""


def complete(work: Coroutine[Any, Any, _T]) -> _T:
    """Run `work` to its end in a loop of its own. Ctrl+C and SIGTERM cancel it, so that it ends what it started.

    Raises:
        KeyboardInterrupt: Ctrl+C.
        click.exceptions.Exit: SIGTERM, with the status that a shell expects.
    """

    async def cancellable() -> _T:
        told = False
        task = asyncio.current_task()

        def tell() -> None:
            nonlocal told
            told = True
            if task is not None:
                task.cancel()

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, tell)
        try:
            return await work
        except asyncio.CancelledError:
            if told:
                raise _Terminated from None
            raise

    try:
        return asyncio.run(cancellable())
    except _Terminated:
        raise click.exceptions.Exit(128 + signal.SIGTERM) from None
