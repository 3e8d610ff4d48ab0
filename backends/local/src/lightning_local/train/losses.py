"""Losses on tensors: pure functions, each named after its paper.

Shapes: `logprobs`, `old`, `advantages`, `mask` and `weights` are [B, T], one row for each sample, natural logarithms.
A loss is the sum over all tokens of weight times the token's loss: no mean is taken here, so that the sum over
micro-batches is the loss of the step. Where `mask` is 0, nothing counts, whatever stands there.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

LOG_RATIO_BOUND = 20.0
"""A logarithm of a ratio is kept within ± this, so that its exponential is finite."""


class PolicyLoss(NamedTuple):
    """A policy's loss, and what is worth knowing of it. All but `loss` carry no gradient; means are over masked tokens."""

    loss: Tensor
    """Weighted sum, shape []."""
    clip_share: Tensor
    """Share of tokens whose gradient the clip took away or bounded."""
    approx_kl: Tensor
    """Mean of old less new log-probability: how far the policy has moved in the step (nats)."""
    ratio_mean: Tensor
    """Mean ratio of new to old probability."""
    ratio_max: Tensor
    """Greatest ratio."""


def clip(
    logprobs: Tensor,
    old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    weights: Tensor,
    *,
    low: float = 0.2,
    high: float = 0.2,
    dual: float = 0.0,
) -> PolicyLoss:
    """The clipped surrogate of PPO (arXiv 1707.06347), which GRPO (2402.03300) uses too.

    Args:
        low: lower bound of the ratio, as 1 - `low`.
        high: upper bound, as 1 + `high`; above `low` it is the clip-higher of DAPO (2503.14476).
        dual: bound of the loss, in advantages, for negative ones (dual clip, 1912.09729); 0 leaves it out.
    """
    logratio = _masked(logprobs - old, mask)
    ratio = _exp(logratio)
    free = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - low, 1 + high)
    losses = torch.maximum(free, clipped)
    bound = clipped > free
    if dual:
        most = -advantages * dual
        over = (advantages < 0) & (losses > most)
        losses = torch.where(over, most, losses)
        bound = bound | over
    return _policy_loss(losses, bound, logratio, ratio, mask, weights)


def gspo(
    logprobs: Tensor,
    old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    weights: Tensor,
    *,
    low: float = 3e-4,
    high: float = 4e-4,
) -> PolicyLoss:
    """GSPO (arXiv 2507.18071): the ratio is the sequence's, the geometric mean of its tokens' ratios.

    The sequence is the row. Each token carries the sequence's ratio in value and its own log-probability's gradient
    (the token form of the paper), so that advantages may differ within a row.
    """
    logratio = _masked(logprobs - old, mask)
    mean = logratio.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
    new = _masked(logprobs, mask)
    ratio = _exp(new - new.detach() + mean.detach())
    free = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - low, 1 + high)
    return _policy_loss(
        torch.maximum(free, clipped), clipped > free, logratio, ratio, mask, weights
    )


def cispo(
    logprobs: Tensor,
    old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    weights: Tensor,
    *,
    low: float = 1.0,
    high: float = 5.0,
) -> PolicyLoss:
    """CISPO of MiniMax-M1 (arXiv 2506.13585): REINFORCE, weighted with the clipped ratio, which has no gradient.

    No token loses its gradient. The paper bounds the ratio only above; `low` = 1 does so.
    """
    logratio = _masked(logprobs - old, mask)
    ratio = _exp(logratio).detach()
    held = ratio.clamp(1 - low, 1 + high)
    losses = -advantages * held * _masked(logprobs, mask)
    return _policy_loss(losses, held != ratio, logratio, ratio, mask, weights)


def reinforce(
    logprobs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, weights: Tensor
) -> PolicyLoss:
    """REINFORCE (Williams 1992), as RLOO (arXiv 2402.14740) uses it: no ratio; `old` is only reported against."""
    logratio = _masked(logprobs - old, mask)
    ratio = _exp(logratio)
    losses = -advantages * _masked(logprobs, mask)
    return _policy_loss(
        losses, torch.zeros_like(mask, dtype=torch.bool), logratio, ratio, mask, weights
    )


def nll(logprobs: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
    """Negative log-likelihood, weighted sum, shape []: supervised fine-tuning."""
    return total(-logprobs, mask, weights)


def kl(logprobs: Tensor, reference: Tensor, kind: str) -> Tensor:
    """Estimate of KL(policy ‖ reference) at each token that the policy sampled (Schulman 2020), shape as given.

    Args:
        kind: `k1` is the log-ratio, unbiased; `k2` half its square; `k3` is unbiased and never negative.
    """
    difference = logprobs - reference
    if kind == "k1":
        return difference
    if kind == "k2":
        return 0.5 * difference.square()
    if kind == "k3":
        back = (-difference).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
        return back.exp() - 1 - back
    raise ValueError(f"kind of KL estimate {kind!r}, expected k1, k2 or k3")


def entropy(logits: Tensor) -> Tensor:
    """Entropy of the distributions that the last axis's logits give (nats); shape [...] from [..., V]."""
    logs = torch.log_softmax(logits.float(), dim=-1)
    return -(logs.exp() * logs).sum(-1)


def importance(old: Tensor, recorded: Tensor, mask: Tensor, cap: float) -> Tensor:
    """Truncated importance weights, min(π_trainer / π_recorded, `cap`), without gradient; 1 where `mask` is 0.

    They correct for an engine whose probabilities differ from the trainer's, or for older weights there (truncation:
    Ionides 2008; between engine and trainer: Yao et al. 2025, "Your efficient RL framework secretly brings you
    off-policy RL training").
    """
    return _exp(_masked(old - recorded, mask)).clamp(max=cap).detach()


def value(
    values: Tensor,
    old: Tensor,
    returns: Tensor,
    mask: Tensor,
    weights: Tensor,
    *,
    clip: float = 0.0,
) -> Tensor:
    """Half the squared error of a value network, weighted sum, shape [] (PPO, arXiv 1707.06347).

    Args:
        values: what the network says now.
        old: what it said before the step.
        returns: what it should say.
        clip: how far from `old` a value may gain by going; 0 does not clip.
    """
    errors = (values - returns).square()
    if clip:
        near = torch.minimum(torch.maximum(values, old - clip), old + clip)
        errors = torch.maximum(errors, (near - returns).square())
    return 0.5 * total(errors, mask, weights)


def mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the masked tokens, shape []; 0 where there are none."""
    return _masked(values, mask).sum() / mask.sum().clamp(min=1)


def _masked(values: Tensor, mask: Tensor) -> Tensor:
    # `where`, not a product: what stands at a masked token may be NaN.
    return torch.where(mask.bool(), values, torch.zeros_like(values))


def total(losses: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
    """Sum of weighted values over the masked tokens, shape []."""
    return _masked(losses * weights, mask).sum()


def _exp(logratio: Tensor) -> Tensor:
    return logratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


def _policy_loss(
    losses: Tensor, bound: Tensor, logratio: Tensor, ratio: Tensor, mask: Tensor, weights: Tensor
) -> PolicyLoss:
    ratio = ratio.detach()
    return PolicyLoss(
        loss=total(losses, mask, weights),
        clip_share=mean(bound.to(ratio.dtype), mask),
        approx_kl=-mean(logratio.detach(), mask),
        ratio_mean=mean(ratio, mask),
        ratio_max=_masked(ratio, mask).max(),
    )
