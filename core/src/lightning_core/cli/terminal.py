"""What every command shares: the console, and a loop that Ctrl+C, SIGTERM and SIGHUP end in order."""

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
    """A console as wide as the terminal; wide where there is none, so that a pipe or a file loses nothing.

    Lines of text are never broken, so that a command or a path that is shown can be copied; tables keep to the width.
    """
    made = Console(stderr=stderr, highlight=False, soft_wrap=True)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = _WIDE
    return made


def heeded(*numbers: int) -> tuple[int, ...]:
    """Those of some signals that this process was not started to ignore, as `nohup` does with SIGHUP."""
    return tuple(number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN)


def ending() -> tuple[int, ...]:
    """The signals that end a command in order: a wish for its end, and the end of its terminal."""
    return heeded(signal.SIGTERM, signal.SIGHUP)


class _Terminated(Exception):
    """One of `ending()` came; what was under way has been cleaned up."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def complete(work: Coroutine[Any, Any, _T]) -> _T:
    """Run `work` to its end in a loop of its own. Ctrl+C, SIGTERM and SIGHUP cancel it, so that it ends what it started.

    Raises:
        KeyboardInterrupt: Ctrl+C.
        click.exceptions.Exit: SIGTERM or SIGHUP, with the status that a shell expects.
    """

    async def cancellable() -> _T:
        told = 0
        task = asyncio.current_task()

        def tell(number: int) -> None:
            nonlocal told
            told = number
            if task is not None:
                task.cancel()

        for number in ending():
            asyncio.get_running_loop().add_signal_handler(number, tell, number)
        try:
            return await work
        except asyncio.CancelledError:
            if told:
                raise _Terminated(told) from None
            raise

    try:
        return asyncio.run(cancellable())
    except _Terminated as end:
        raise click.exceptions.Exit(128 + end.number) from None
