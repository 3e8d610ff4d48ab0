"""Spread: mean, standard deviation and 95 % interval of a few numbers."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

from lightning_core.records import Record


class Spread(Record, frozen=True, kw_only=True):
    """Mean and spread of some numbers."""

    count: int
    """How many numbers; at least 1."""
    mean: float
    """Their mean."""
    std: float | None = None
    """Standard deviation of a sample (n-1 below); None for one number."""
    low: float | None = None
    """Lower end of the 95 % interval of the mean, by Student's t; None for one number."""
    high: float | None = None
    """Its upper end."""


def spread(values: Sequence[float]) -> Spread | None:
    """Mean and spread of finite numbers; None where there are none."""
    count = len(values)
    if not count:
        return None
    mean = math.fsum(values) / count
    if count == 1:
        return Spread(count=1, mean=mean)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    half = t_quantile(count - 1) * std / math.sqrt(count)
    return Spread(count=count, mean=mean, std=std, low=mean - half, high=mean + half)


def means(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The mean of each, by name in order; names without numbers are left out."""
    return {name: math.fsum(some) / len(some) for name, some in sorted(values.items()) if some}


@functools.lru_cache(maxsize=4096)
def t_quantile(degrees: int) -> float:
    """How many standard errors the 95 % interval of a mean reaches to each side: Student's t, two-sided.

    Args:
        degrees: degrees of freedom, at least 1.
    """
    normal = 1.959963984540054
    if degrees > 1000:
        # The first term of the expansion about the normal distribution leaves less than 1e-5.
        return normal + (normal**3 + normal) / (4 * degrees)
    low, high = 0.0, 13.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, degrees) < 0.95 else (low, middle)
    return (low + high) / 2


def _within(t: float, degrees: int) -> float:
    """The probability that |T| < t, by the finite series for whole degrees (Abramowitz and Stegun 26.7.3-4)."""
    angle = math.atan(t / math.sqrt(degrees))
    cosine = math.cos(angle)
    term = math.sin(angle) * (cosine if degrees % 2 else 1.0)
    total = 0.0
    for k in range(2 + degrees % 2, degrees + 1, 2):
        total += term
        term *= cosine * cosine * (k - 1) / k
    return 2 / math.pi * (angle + total) if degrees % 2 else total
