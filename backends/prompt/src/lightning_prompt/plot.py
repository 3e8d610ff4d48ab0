"""The search as a picture: the score of each candidate against the rollouts that it took to get there."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lightning_prompt.scored import Scored, best_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS: Final = "osD^vP*X"
"""One for each phase, so that they are told apart without colour."""
_COLOURS: Final = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#8c564b", "#e377c2", "#17becf", "#bcbd22")  # fmt: skip


def draw_scores(
    folder: Path, baseline: Scored, candidates: Sequence[Scored], *, end: tuple[int, str] | None
) -> Path | None:
    """Draw `scores.png` in a run's folder.

    Args:
        folder: the run's folder.
        baseline: the agent as it was.
        candidates: what was scored, in order; those that are to be compared, so on the same tasks.
        end: the rollouts at which the search ended, and why in words; None while it goes on.

    Returns:
        The picture; None where nothing was scored, or matplotlib is not installed (`pip install "lightning-core[plot]"`).
    """
    if best_of([baseline, *candidates]) is None or importlib.util.find_spec("matplotlib") is None:
        return None
    path = folder / "scores.png"
    figure_of(folder.name, baseline, candidates, end=end).savefig(path, dpi=120)
    return path


def figure_of(
    title: str, baseline: Scored, candidates: Sequence[Scored], *, end: tuple[int, str] | None
) -> Figure:
    """The picture, not yet written. Takes what `draw_scores` does."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    scored = sorted((c for c in candidates if c.mean is not None), key=lambda c: c.rollouts)
    last = max([end[0] if end else 0, baseline.rollouts, *(c.rollouts for c in scored)])
    _draw_baseline(axes, baseline)
    _draw_candidates(axes, scored)
    _draw_best(axes, [baseline, *scored], last)
    if end is not None:
        axes.axvline(
            end[0], color="black", linestyle="-.", linewidth=1, label=_plain(f"end: {end[1]}")
        )
    axes.set_title(_plain(title))
    axes.set_xlabel("rollouts taken (count)")
    axes.set_ylabel("mean reward (no unit), 95 % interval")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure


def _draw_baseline(axes: Axes, baseline: Scored) -> None:
    if baseline.mean is None:
        return
    axes.axhline(
        baseline.mean,
        color="black",
        linestyle="--",
        linewidth=1,
        label=_plain(f"before: {baseline.name}"),
    )
    if baseline.low is not None and baseline.high is not None:
        axes.axhspan(baseline.low, baseline.high, color="black", alpha=0.08, linewidth=0)


def _draw_candidates(axes: Axes, scored: Sequence[Scored]) -> None:
    by_phase = groupby(sorted(scored, key=lambda c: c.phase), key=lambda c: c.phase)
    for number, (phase, group) in enumerate(by_phase):
        points = [(c, c.mean or 0.0) for c in group]
        look: dict[str, Any] = {
            "color": _COLOURS[number % len(_COLOURS)],
            "marker": _MARKERS[number % len(_MARKERS)],
            "zorder": 3,  # above the line of the best, which would hide intervals
        }
        # Where the rewards of few tasks are one-sided, their mean may lie outside of the interval.
        below = [max(0.0, mean - (mean if c.low is None else c.low)) for c, mean in points]
        above = [max(0.0, (mean if c.high is None else c.high) - mean) for c, mean in points]
        axes.errorbar(
            [c.rollouts for c, _ in points], [mean for _, mean in points], yerr=[below, above], label=_plain(phase), linestyle="none",
            markersize=5, elinewidth=0.8, capsize=2, **look,
        )  # fmt: skip


def _draw_best(axes: Axes, scored: Sequence[Scored], last: int) -> None:
    best = [best_of(scored[: number + 1]) for number in range(len(scored))]
    values = [c.mean for c in best if c is not None and c.mean is not None]
    if values:
        places = [c.rollouts for c in scored[len(scored) - len(values) :]]
        axes.step(
            [*places, last], [*values, values[-1]], where="post", color="black", linewidth=1.8,
            label="best so far",
        )  # fmt: skip


def _plain(text: str) -> str:
    """Text that matplotlib does not read as a formula."""
    return text.replace("$", r"\$")
