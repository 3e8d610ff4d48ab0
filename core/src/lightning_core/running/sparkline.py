"""A sparkline: a row of numbers as a row of bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_BARS: Final = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """The last `width` numbers as bars between the smallest and the largest of all; level where all are equal."""
    if not values:
        return ""
    low, high = min(values), max(values)
    if high <= low:
        return _BARS[len(_BARS) // 2] * min(len(values), width)
    scale = (len(_BARS) - 1) / (high - low)
    return "".join(_BARS[round((value - low) * scale)] for value in values[-width:])
