"""Rows: what a bench found, held against its goal."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, Literal

Row = dict[str, Any]
"""`name`, `ours`, `reference`, `ratio`, `goal`, `holds`, as in `bench/results.json`."""


def row(
    name: str,
    ours: float,
    reference: float,
    *,
    ratio: float | None = None,
    goal: float | None = None,
    side: Literal["at most", "at least"] = "at most",
) -> Row:
    """A row; without a goal it only informs.

    Args:
        name: the bench, in kebab case.
        ours: our figure.
        reference: the figure it is held against, of the same unit.
        ratio: `ours / reference` where it is better taken round by round. A reference of 0 has none.
        goal: the bound of the ratio.
        side: which way it bounds.
    """
    if ratio is None and reference:
        ratio = ours / reference
    holds = None
    if goal is not None:
        figure, bound = (ours, goal * reference) if ratio is None else (ratio, goal)
        holds = figure <= bound if side == "at most" else figure >= bound
    return {
        "name": name,
        "ours": round(ours, 4),
        "reference": round(reference, 4),
        "ratio": None if ratio is None else round(ratio, 3),
        "goal": goal,
        "holds": holds,
    }


def in_turns(
    name: str,
    ours: Sequence[float],
    reference: Sequence[float],
    *,
    goal: float | None = None,
    side: Literal["at most", "at least"] = "at most",
) -> Row:
    """A row of two series measured in turns: medians, and the median of the ratios of each round."""
    ratio = statistics.median(a / b for a, b in zip(ours, reference, strict=True))
    return row(
        name,
        statistics.median(ours),
        statistics.median(reference),
        ratio=ratio,
        goal=goal,
        side=side,
    )
