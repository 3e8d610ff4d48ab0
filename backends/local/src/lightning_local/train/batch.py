"""Batch: the samples of a step as a trainer needs them, checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_core.errors import UsageError
from lightning_core.learn.sample import NO_VERSION, Sample
from lightning_local.train.rows import Source


class Item(NamedTuple):
    """One sample's trained tokens; lists have the length N of `source.targets`."""

    sample: Sample
    """Where it is from."""
    source: Source
    """Its tokens, and which are trained."""
    recorded: list[float]
    """Log-probabilities that the engine gave."""
    advantages: list[float]
    """How much better than expected; 0.0 where a value network will say."""
    rewards: list[float]
    """Rewards at the tokens, for a value network."""
    weight: float
    """Of each token in the loss."""


def read(
    samples: Sequence[Sample], *, vocabulary: int, supervised: bool = False, by_value: bool = False
) -> list[Item]:
    """Check samples, and leave out those with nothing to learn from.

    Args:
        samples: what a step gives.
        vocabulary: how many tokens the model knows.
        supervised: advantages and weights do not matter; each token weighs 1.
        by_value: advantages are not known yet.

    Raises:
        UsageError: a sample is not consistent; the message names its rollout.
    """
    items = []
    for sample in samples:
        where = f"sample of rollout `{sample.rollout_id}`"
        length = len(sample.token_ids)
        for name in ("mask", "logprobs", "versions"):
            if len(getattr(sample, name)) != length:
                raise UsageError(
                    f"{where}: `{name}` has length {len(getattr(sample, name))}, expected {length} as `token_ids`"
                )
        targets = [place for place, one in enumerate(sample.mask) if one]
        if not targets:
            continue
        if targets[0] == 0:
            raise UsageError(f"{where}: its first token is trained, but nothing comes before it")
        odd = next((t for t in sample.token_ids if not 0 <= t < vocabulary), None)
        if odd is not None:
            raise UsageError(
                f"{where}: token {odd} is not among the model's {vocabulary}; was it sampled from another model?"
            )
        advantages = rewards = [0.0] * length
        if by_value:
            rewards = _rewards(sample, where)
        elif not supervised:
            try:
                advantages = sample.advantages()
            except ValueError as error:
                raise UsageError(f"{where}: {error}") from error
        weight = 1.0 if supervised else sample.weight
        if not (math.isfinite(weight) and weight >= 0):
            raise UsageError(f"{where}: weight {weight!r}, expected a finite number of at least 0")
        if not supervised and any(not math.isfinite(sample.logprobs[t]) for t in targets):
            raise UsageError(f"{where}: a recorded log-probability is not finite")
        items.append(
            Item(
                sample,
                Source(sample.token_ids, targets),
                [sample.logprobs[t] for t in targets],
                [advantages[t] for t in targets],
                [rewards[t] for t in targets],
                weight,
            )
        )
    if items and not any(item.weight for item in items):
        raise UsageError(
            "every sample has weight 0, so that nothing would be learnt; weigh the step first"
        )
    return items


def _rewards(sample: Sample, where: str) -> list[float]:
    for segment in sample.segments:
        if segment.trainable and segment.credit is None:
            raise UsageError(
                f"{where}: call `{segment.call_id}` has no credit, so a value network cannot learn from it"
            )
    rewards = sample.token_rewards()
    lost = next((t for t, one in enumerate(sample.mask) if rewards[t] and not one), None)
    if lost is not None:
        raise UsageError(f"{where}: token {lost} has a reward, but is not trained")
    return rewards


def total_weight(items: Sequence[Item]) -> float:
    """Sum of the weights of all trained tokens."""
    return math.fsum(item.weight * len(item.source.targets) for item in items)


def staleness(items: Sequence[Item], version: int) -> tuple[float, int]:
    """By how many versions the tokens' policies are older than `version`: mean and most."""
    ages = [
        version - item.sample.versions[t]
        for item in items
        for t in item.source.targets
        if item.sample.versions[t] != NO_VERSION
    ]
    return (sum(ages) / len(ages), max(ages)) if ages else (0.0, 0)


def padded(rows: Sequence[Sequence[float] | Tensor], like: Tensor) -> Tensor:
    """Rows of different lengths as one tensor of `like`'s shape and device, 0 beyond their ends."""
    out = torch.zeros(like.shape, dtype=torch.float32)
    for index, row in enumerate(rows):
        out[index, : len(row)] = torch.as_tensor(row, dtype=torch.float32)
    return out.to(like.device)
