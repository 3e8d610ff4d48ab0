"""UpdateReport: what a training step did, and the means that it is made of."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import msgspec
import torch
from torch import Tensor

from lightning_core.records import Record


class UpdateReport(Record, frozen=True, kw_only=True):
    """One step of the trainer. Means are over the trained tokens, of all its epochs."""

    samples: int = 0
    """Samples with something to learn from."""
    tokens: int = 0
    """Tokens in them."""
    trained_tokens: int = 0
    """Tokens that were learnt from."""
    computed_tokens: int = 0
    """Tokens that one pass over the samples computed: less than `tokens` where beginnings are shared."""
    tokens_per_second: float = 0.0
    """`tokens` in a second, of the whole step."""
    seconds: float = 0.0
    """How long the step took."""
    optimizer_steps: int = 0
    """Optimiser steps that were taken."""
    skipped: tuple[str, ...] = ()
    """Why an optimiser step was not taken, one reason each; the weights and the optimiser stayed as they were."""
    learning_rate: float = 0.0
    """Of the last optimiser step."""
    loss: float = 0.0
    """What was minimised, of an epoch."""
    policy_loss: float = 0.0
    """Its part that comes from advantages, or the negative log-likelihood."""
    grad_norm: float = 0.0
    """Greatest norm of the policy's gradient, before clipping."""
    kl: float | None = None
    """Divergence from the model before training (nats a token), estimated; None where it is not computed."""
    entropy: float = 0.0
    """Entropy of the policy (nats a token)."""
    clip_share: float = 0.0
    """Share of tokens whose ratio was clipped."""
    approx_kl: float = 0.0
    """How far the policy moved within the step (nats a token)."""
    ratio_mean: float = 1.0
    """Mean ratio of new to old probability."""
    ratio_max: float = 1.0
    """Greatest ratio."""
    drift_mean: float | None = None
    """Mean difference, without sign, of recorded and recomputed log-probability (nats); None without recorded ones."""
    drift_max: float | None = None
    """Greatest such difference."""
    importance_mean: float | None = None
    """Mean truncated importance weight; None where there is none."""
    staleness_mean: float = 0.0
    """By how many versions the sampling policy was older, mean."""
    staleness_max: int = 0
    """By how many it was older at most."""
    value_loss: float | None = None
    """Half the squared error of the value network; None without one."""
    value_grad_norm: float | None = None
    """Greatest norm of the value network's gradient, before clipping; None without one."""
    value_explained: float | None = None
    """Share of the variance of the returns that the value network explained before the step; None without one."""

    def metrics(self) -> dict[str, float]:
        """The numbers by name, those that are None left out."""
        values: dict[str, Any] = msgspec.structs.asdict(self)
        return {
            name: float(value)
            for name, value in values.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        }


class Means:
    """Sums up tensors of many passes."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = defaultdict(float)
        self._counts: dict[str, float] = defaultdict(float)
        self._greatest: dict[str, float] = {}

    def add(self, count: float, **means: Tensor | float) -> None:
        """Means over `count` tokens."""
        for name, value in means.items():
            self._sums[name] += float(value) * count
            self._counts[name] += count

    def sum(self, **parts: Tensor | float) -> None:
        """Parts that passes add to a sum, which counts once however many they are."""
        for name, value in parts.items():
            self._sums[name] += float(value)
            self._counts[name] = 1.0

    def most(self, **values: Tensor | float) -> None:
        """Candidates for a greatest value; NaN counts as greatest."""
        for name, value in values.items():
            number = float(value)
            old = self._greatest.get(name)
            if old is None or not number <= old:
                self._greatest[name] = number

    def join(self, other: Means) -> None:
        """Take over what another one summed up."""
        for name, value in other._sums.items():
            self._sums[name] += value
            self._counts[name] += other._counts[name]
        self.most(**other._greatest)

    def values(self) -> dict[str, float]:
        """Those that are finite, by name."""
        found = {name: self._sums[name] / count for name, count in self._counts.items() if count}
        known = {**found, **self._greatest}
        return {name: value for name, value in known.items() if math.isfinite(value)}


def explained(values: Tensor, returns: Tensor) -> float:
    """1 less the share of the returns' variance that is left; 0.0 where they do not vary."""
    if len(returns) < 2:
        return 0.0
    spread = torch.var(returns)
    return float(1 - torch.var(returns - values) / spread) if spread > 0 else 0.0
