"""A live line for a run on a terminal: how many have ended, the mean reward, what failed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, cast

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from lightning_core.rollout import Cause
from lightning_core.running.progress import Progress as Counts
from lightning_core.running.sparkline import sparkline
from lightning_core.running.steps import step_line, val_line


class _Bar(Progress):
    """The line, below what a backend shows."""

    panel: Callable[[], object] | None = None

    def get_renderables(self) -> Iterable[RenderableType]:
        if self.panel is not None:
            yield cast(RenderableType, self.panel())
        yield from super().get_renderables()


class LiveProgress:
    """Shows counts as they come, and on a stop how to go on. Elsewhere than on a terminal it shows no counts."""

    def __init__(self, run: str, steps: int | None = None) -> None:
        """Args:
        run: the run's name, for the hint how to go on with it.
        steps: how many steps a backend is to make; None for an evaluation.
        """
        self._run = run
        self._steps = steps
        self._told: dict[int, set[str]] = {}
        self._console = console = Console(stderr=True, highlight=False)
        self._counts: Counts | None = None
        self._progress = _Bar(
            SpinnerColumn(),
            TextColumn("{task.fields[count]}"),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TextColumn("{task.fields[state]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=None, count="", state="starting")

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
        self._progress.panel = counts.panel
        for step, metrics in counts.steps.items():
            self._tell_step(step, metrics)
        if counts.phase is not None:
            self._show_phase(counts)
            return
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
        self._show((counts.ended, counts.total), parts)

    def _show_phase(self, counts: Counts) -> None:
        """What a backend does, and how the reward has gone."""
        parts = [] if counts.note is None else [f"[yellow]{escape(counts.note)}[/yellow]"]
        parts.append(escape(counts.phase or ""))
        if counts.running:
            parts.append(f"{counts.running} running")
        rewards = [m["reward"] for m in counts.steps.values() if m.get("reward") is not None]
        if rewards:
            parts.append(f"reward {sparkline(rewards)} [bold]{rewards[-1]:.3f}[/bold]")
        lost = {c: n for c, n in counts.causes.items() if c is not Cause.SUCCESS}
        parts += [f"[red]{count} {cause}[/red]" for cause, count in lost.items()]
        if counts.reward_errors:
            parts.append(f"[red]{counts.reward_errors} not scored[/red]")
        self._show(counts.batch, parts)

    def _show(self, count: tuple[int, int] | None, parts: Iterable[str]) -> None:
        """The line; the bar moves without an end where nothing is counted."""
        ended, total = count or (0, None)
        # `update` takes no total for "leave it": the bar would stand at the last one.
        self._progress.tasks[0].total = total
        self._progress.update(
            self._task,
            completed=ended,
            count="" if total is None else f"{ended}/{total}",
            state="  ".join(parts),
        )

    def _tell_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """A line for a step, and one for its validation, each once; also where there is no terminal."""
        told = self._told.setdefault(step, set())
        for kind, line in (("time/step", step_line), ("val/reward", val_line)):
            if metrics.get(kind) is not None and kind not in told:
                told.add(kind)
                self._console.print(line(step, self._steps, metrics), soft_wrap=True)
