"""Advantage: how much better than expected a credit was. Small pure functions, each with its paper.

A group-relative estimator sees one value for each rollout of a group and says what each rollout's credits are compared
with. All is computed in double precision; a trainer gets numbers that single precision can hold.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from lightning_core.errors import UsageError

EPSILON: Final = 1e-6
"""Added to a standard deviation before it divides."""
_EQUAL: Final = 1e-9
"""Values that differ by no more than this part of the largest are equal: the rest is rounding."""


class Standing(NamedTuple):
    """What the credits of one rollout are compared with."""

    baseline: float
    """What was to be expected."""
    scale: float = 1.0
    """What the difference is divided by; 0.0 where the group says nothing, and every advantage is 0.0."""

    def advantage(self, credit: float) -> float:
        """(credit - baseline) / scale."""
        return (credit - self.baseline) / self.scale if self.scale else 0.0


Estimator = Callable[[Sequence[float]], list[Standing]]
"""From one value for each rollout of a group, shape [n], to what each is compared with, shape [n].

A value is the mean of the credits of the rollout's calls. The order of the rollouts means nothing.
"""


def has_signal(values: Sequence[float]) -> bool:
    """Whether a group tells better from worse: at least two values, and not all equal."""
    if len(values) < 2:
        return False
    low, high = min(values), max(values)
    return high - low > _EQUAL * max(abs(low), abs(high))


def grpo(values: Sequence[float]) -> list[Standing]:
    """GRPO, arXiv 2402.03300: less the group's mean, divided by its standard deviation.

    The deviation is that of a sample (n-1 below), as in TRL and verl: the group is a sample of what the policy does.
    """
    if not has_signal(values):
        return _silent(values)
    mean, deviation = _moments(values)
    return [Standing(mean, deviation + EPSILON)] * len(values)


def dr_grpo(values: Sequence[float]) -> list[Standing]:
    """Dr. GRPO, arXiv 2503.20783: less the group's mean; nothing divides, since that favours easy and hard tasks."""
    if not has_signal(values):
        return _silent(values)
    return [Standing(_moments(values)[0])] * len(values)


def rloo(values: Sequence[float]) -> list[Standing]:
    """RLOO, arXiv 2402.14740: each rollout less the mean of the others, which its own luck does not move."""
    if not has_signal(values):
        return _silent(values)
    total = math.fsum(values)
    return [Standing((total - value) / (len(values) - 1)) for value in values]


def reinforce_pp_baseline(values: Sequence[float]) -> list[Standing]:
    """REINFORCE++ with baseline, arXiv 2501.03262: less the group's mean; the step's advantages are then whitened.

    `make_step` whitens them, over all trainable tokens of the step that are in a group with a signal.
    """
    return dr_grpo(values)


ESTIMATORS: Final[Mapping[str, Estimator | None]] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "reinforce_pp_baseline": reinforce_pp_baseline,
    "gae": None,
    "none": None,
}
"""The estimators by name; None leaves the advantage to the trainer, which has the credits."""

ALGORITHMS: Final[Mapping[str, str]] = {
    "grpo": "grpo",
    "gspo": "grpo",
    "cispo": "grpo",
    "dr_grpo": "dr_grpo",
    "rloo": "rloo",
    "reinforce_pp": "reinforce_pp_baseline",
    "ppo": "gae",
    "sft": "none",
}
"""The estimator by which each well-known algorithm makes advantages."""


def whiten(values: Sequence[float], counts: Sequence[int]) -> list[float]:
    """Values of mean 0 and variance 1, each counted as often as it has tokens, as in arXiv 2501.03262.

    Args:
        values: shape [n].
        counts: how many tokens have each value, shape [n].

    Returns:
        Shape [n]; 0.0 for all where they are equal, or no token has any.
    """
    total = sum(counts)
    if total < 2:
        return [0.0] * len(values)
    mean = math.fsum(value * count for value, count in zip(values, counts, strict=True)) / total
    squares = math.fsum(
        (value - mean) ** 2 * count for value, count in zip(values, counts, strict=True)
    )
    scale = math.sqrt(squares / (total - 1) + 1e-8)
    return [(value - mean) / scale for value in values]


class Gae(NamedTuple):
    """What `gae` gives."""

    advantages: list[float]
    """Shape [L], 0.0 where the mask is 0."""
    returns: list[float]
    """What the value network is to learn: advantage + value; shape [L], 0.0 where the mask is 0."""


def gae(
    rewards: Sequence[float],
    values: Sequence[float],
    mask: Sequence[int],
    gamma: float = 1.0,
    lam: float = 0.95,
) -> Gae:
    """Generalised advantage estimation, arXiv 1506.02438, over the trainable tokens of one sample.

    The token that follows a trainable one is the next trainable one: what the environment said in between is no step
    of the policy's. Nothing follows the last.

    Args:
        rewards: the reward at each token, as `Sample.token_rewards` gives it; shape [L].
        values: what the value network expected before each token; shape [L], not read where `mask` is 0.
        mask: 1 for a token that the policy chose and learns from; shape [L].
        gamma: discount from one trainable token to the next, 0 to 1.
        lam: λ, 0 to 1: 0 trusts the values, 1 the rewards.

    Raises:
        UsageError: the lengths differ, or there is a reward where the mask is 0, which nothing would learn from.
    """
    if not len(rewards) == len(values) == len(mask):
        raise UsageError(
            f"expected rewards, values and mask of one length but got {len(rewards)}, {len(values)} and {len(mask)}"
        )
    advantages, returns = [0.0] * len(mask), [0.0] * len(mask)
    next_value = next_advantage = 0.0
    for at in range(len(mask) - 1, -1, -1):
        if not mask[at]:
            if rewards[at]:
                raise UsageError(
                    f"token {at}: a reward of {rewards[at]!r} where the mask is 0; credit it to a trainable token"
                )
            continue
        delta = rewards[at] + gamma * next_value - values[at]
        next_advantage = delta + gamma * lam * next_advantage
        next_value = values[at]
        advantages[at], returns[at] = next_advantage, next_advantage + next_value
    return Gae(advantages, returns)


def to_float32(value: float) -> float:
    """The nearest number that single precision holds; infinite where it is too large."""
    return array("f", [value])[0]


def _silent(values: Sequence[float]) -> list[Standing]:
    return [Standing(value, 0.0) for value in values]


def _moments(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation of a sample of at least two."""
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
