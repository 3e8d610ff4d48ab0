"""A live line for a run on a terminal: how many have ended, the mean reward, what failed."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from lightning_core.rollout import Cause
from lightning_core.running.progress import Progress as Counts


class LiveProgress:
    """Shows counts as they come, and on a stop how to go on. Elsewhere than on a terminal it shows no counts."""

    def __init__(self, run: str) -> None:
        """Args:
        run: the run's name, for the hint how to go on with it.
        """
        self._run = run
        self._console = console = Console(stderr=True, highlight=False)
        self._counts: Counts | None = None
        self._progress = Progress(
            SpinnerColumn(),
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TextColumn("{task.fields[state]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=None, state="starting")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()
        if (
            kind is not None
            and issubclass(kind, asyncio.CancelledError)
            and self._counts is not None
        ):
            self._console.print(
                f"stopped with {self._counts.ended} of {self._counts.total} rollouts ended;"
                f" the same command with `--resume --name {self._run}` goes on"
            )

    def say(self, text: str) -> None:
        """Say what is being done before anything can be counted."""
        self._progress.update(self._task, state=text)

    def __call__(self, counts: Counts) -> None:
        """Take new counts."""
        self._counts = counts
        parts = [] if counts.note is None else [f"[yellow]{escape(counts.note)}[/yellow]"]
        parts.append(f"{counts.running} running")
        if counts.mean_reward is not None:
            parts.append(f"reward [bold]{counts.mean_reward:.3f}[/bold]")
        parts.append(f"{counts.calls} calls")
        if counts.tokens:
            parts.append(f"{counts.tokens:,} tokens")
        parts += [
            f"[red]{count} {cause}[/red]"
            for cause, count in counts.causes.items()
            if cause is not Cause.SUCCESS
        ]
        if counts.reward_errors:
            parts.append(f"[red]{counts.reward_errors} not scored[/red]")
        self._progress.update(
            self._task, total=counts.total, completed=counts.ended, state="  ".join(parts)
        )
