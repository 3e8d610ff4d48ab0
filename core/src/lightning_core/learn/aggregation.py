"""Aggregation: how much each sample's tokens weigh in the loss of a step."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from lightning_core.learn.sample import Sample


class Aggregation(StrEnum):
    """What counts the same in a step's loss."""

    TOKEN = "token"
    """Each trainable token, so that long rollouts weigh more: DAPO, arXiv 2503.14476."""
    SEQUENCE = "sequence"
    """Each chain, as GRPO's mean over sequences, arXiv 2402.03300. A rollout of many chains weighs more."""
    ROLLOUT = "rollout"
    """Each rollout, however long it is and however many chains it has. No paper; for one chain each it is `sequence`."""


def weights(samples: Sequence[Sample], aggregation: Aggregation) -> list[float]:
    """What each trainable token of each sample is multiplied with, shape [n]: the sum over all of them is 1.0.

    Samples without trainable tokens get 0.0. They, and rollouts that have no such token or no sample at all, do not
    count as chains or rollouts: the step's loss is a mean over what there is to learn from.
    """
    tokens = [sample.trainable_tokens for sample in samples]
    of_rollout: dict[str, int] = {}
    for sample, count in zip(samples, tokens, strict=True):
        if count:
            of_rollout[sample.rollout_id] = of_rollout.get(sample.rollout_id, 0) + count
    total, chains = sum(tokens), sum(count > 0 for count in tokens)
    found = []
    for sample, count in zip(samples, tokens, strict=True):
        if not count:
            found.append(0.0)
        elif aggregation is Aggregation.TOKEN:
            found.append(1.0 / total)
        elif aggregation is Aggregation.SEQUENCE:
            found.append(1.0 / (chains * count))
        else:
            found.append(1.0 / (len(of_rollout) * of_rollout[sample.rollout_id]))
    return found
