"""The best traces of a step, for supervised learning: rejection sampling, as in RAFT (arXiv 2304.06767)."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_core.learn import Sample


def best(samples: Sequence[Sample], least: float | None) -> list[Sample]:
    """The samples of the traces that are worth repeating.

    Args:
        samples: a step's, with credits.
        least: take every trace whose reward is at least this; None takes, of each group whose rewards differ, those of
            the highest.

    Returns:
        Whole traces, in order. A trace's reward is the credit of its last call.
    """
    rewards: dict[str, float] = {}
    groups: dict[str, list[str]] = {}
    for sample in samples:
        credits = [s.credit for s in sample.segments if s.trainable and s.credit is not None]
        if not credits:
            continue
        rewards[sample.rollout_id] = credits[-1]
        # A rollout without a group is one of its own.
        groups.setdefault(sample.group or sample.rollout_id, []).append(sample.rollout_id)
    if least is not None:
        chosen = {rollout for rollout, reward in rewards.items() if reward >= least}
    else:
        chosen = set()
        for rollouts in groups.values():
            values = [rewards[rollout] for rollout in rollouts]
            if max(values) > min(values):
                chosen |= {rollout for rollout in rollouts if rewards[rollout] == max(values)}
    return [sample for sample in samples if sample.rollout_id in chosen]
