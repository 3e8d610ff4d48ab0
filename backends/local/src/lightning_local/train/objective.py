"""What a pass adds to the loss: the options' terms, and what is reported of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lightning_local.train import losses
from lightning_local.train.options import LocalOptions
from lightning_local.train.policy import Scored
from lightning_local.train.report import Means


class Known(NamedTuple):
    """What is known of a pass's targets before it is scored, each of shape [S, N]."""

    mask: Tensor
    """1 where there is a target."""
    weights: Tensor
    """What each token's loss is multiplied with."""
    advantages: Tensor
    """How much better than expected."""
    recorded: Tensor
    """Log-probabilities that the engine gave."""
    old: Tensor | None
    """Log-probabilities before the step; None where the pass itself is the first to know them."""
    reference: Tensor | None
    """Log-probabilities under the model before training; None where they are not wanted."""


def supervised(scored: Scored, known: Known, means: Means) -> Tensor:
    """Negative log-likelihood, shape []."""
    mask = known.mask
    loss = losses.nll(scored.logprobs, mask, known.weights)
    means.add(float(mask.sum()), entropy=losses.mean(scored.entropy.detach(), mask))
    means.sum(loss=loss.detach(), policy_loss=loss.detach())
    return loss


def reinforced(
    options: LocalOptions, scored: Scored, known: Known, means: Means, *, moved: bool
) -> Tensor:
    """The policy's loss, with the terms for divergence and entropy, shape [].

    Args:
        options: which terms, and their weights.
        scored: what the policy says now.
        known: what was known before.
        means: takes what is worth reporting.
        moved: whether the policy has been changed since the step began.
    """
    new, mask, recorded = scored.logprobs, known.mask, known.recorded
    count = float(mask.sum())
    uses_recorded = options.old_logprobs == "recorded"
    old = new.detach() if known.old is None else known.old
    if not (uses_recorded and moved):  # else nobody knows what the policy before said
        before = new.detach() if uses_recorded else old
        drift = torch.where(mask.bool(), (before - recorded).abs(), 0.0)
        means.add(count, drift_mean=losses.mean(drift, mask))
        means.most(drift_max=drift.max())
    weights = known.weights
    if options.tis_cap and not uses_recorded:
        factor = losses.importance(old, recorded, mask, options.tis_cap)
        means.add(count, importance_mean=losses.mean(factor, mask))
        weights = weights * factor
    found = policy_loss(options, new, old, known.advantages, mask, weights)
    means.add(
        count,
        entropy=losses.mean(scored.entropy.detach(), mask),
        clip_share=found.clip_share,
        approx_kl=found.approx_kl,
        ratio_mean=found.ratio_mean,
    )
    means.most(ratio_max=found.ratio_max)
    loss = found.loss
    if known.reference is not None:
        apart = losses.kl(new, known.reference, options.kl_kind)
        means.add(count, kl=losses.mean(apart.detach(), mask))
        loss = loss + options.kl_coef * losses.total(apart, mask, known.weights)
    if options.entropy_coef:
        loss = loss - options.entropy_coef * losses.total(scored.entropy, mask, known.weights)
    means.sum(loss=loss.detach(), policy_loss=found.loss.detach())
    return loss


def policy_loss(
    options: LocalOptions,
    new: Tensor,
    old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    weights: Tensor,
) -> losses.PolicyLoss:
    """The loss that the options name."""
    low, high = options.clip_bounds
    kind = options.policy_loss
    if kind == "gspo":
        return losses.gspo(new, old, advantages, mask, weights, low=low, high=high)
    if kind == "cispo":
        return losses.cispo(new, old, advantages, mask, weights, low=low, high=high)
    if kind == "reinforce":
        return losses.reinforce(new, old, advantages, mask, weights)
    return losses.clip(
        new, old, advantages, mask, weights, low=low, high=high, dual=options.dual_clip
    )
