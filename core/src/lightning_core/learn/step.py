"""Step: groups of graded traces become weighted samples with advantages, and a report of what was left out.

The order matters. Credits and group statistics are taken over all scored rollouts before anything is dropped, so that
a rollout that gives no tokens still counts in its group's baseline; the weights come last, over what is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from lightning_core.errors import UsageError
from lightning_core.learn.advantage import ESTIMATORS, to_float32, whiten
from lightning_core.learn.aggregation import Aggregation, weights
from lightning_core.learn.credit import CreditRule, final
from lightning_core.learn.drift import merge_drift
from lightning_core.learn.forest import build_samples
from lightning_core.learn.report import StepReport, report
from lightning_core.learn.rules import SampleRules
from lightning_core.learn.sample import NO_VERSION, Sample, Segment
from lightning_core.learn.scoring import (
    GroupBy,
    Key,
    Scored,
    by_key,
    key_of,
    score,
    signals,
    standings,
)
from lightning_core.reward import RewardStatus
from lightning_core.trace import Trace

WHITENED: Final = frozenset({"reinforce_pp_baseline"})
"""Estimators whose advantages are whitened over the step."""


class LearningRules(msgspec.Struct, frozen=True, kw_only=True):
    """How a step is made.

    Raises:
        UsageError: there is no such estimator, or `min_group` or `max_tokens` is below 1.
    """

    samples: SampleRules = SampleRules()
    """Which calls are learnt from."""
    credit: CreditRule = final
    """Which reward is put down to which call; `parse_credit` makes one of a spec."""
    estimator: str = "grpo"
    """The estimator's name; `none` and `gae` leave the advantage to the trainer."""
    group_by: GroupBy = GroupBy.TASK
    """What a baseline is taken over."""
    aggregation: Aggregation = Aggregation.ROLLOUT
    """What counts the same in the loss."""
    min_group: int = 1
    """Values that a group must have for anything to be learnt from it."""
    drop_equal: bool = False
    """Whether a group without a signal gives no samples, as with DAPO's dynamic sampling (arXiv 2503.14476). Else its
    samples have advantage 0 and their share of the weight, so that a step's size does not depend on its luck. Where
    the trainer makes the advantages, nothing is dropped for it."""
    max_tokens: int | None = None
    """Tokens that the trainer can take in one sample; a longer one is left out whole, and counted. None has no bound."""
    version: int | None = None
    """The version of the policy that is trained, for the report's staleness."""

    def __post_init__(self) -> None:
        if self.estimator not in ESTIMATORS:
            names = ", ".join(f"`{name}`" for name in sorted(ESTIMATORS))
            raise UsageError(f"estimator {self.estimator!r}: expected one of {names}")
        for name, value in (("min_group", self.min_group), ("max_tokens", self.max_tokens)):
            if value is not None and value < 1:
                raise UsageError(f"`{name}`: expected at least 1 but got {value!r}")


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What a trainer learns from at once."""

    samples: tuple[Sample, ...]
    """In the order of the groups and rollouts; each has trainable tokens, and all weights add up to 1 over them."""
    report: StepReport
    """What it was made of."""


def make_step(groups: Sequence[Sequence[Trace]], rules: LearningRules | None = None) -> Step:
    """Make the samples of one step. The same traces and rules give the same step.

    Args:
        groups: graded traces, one inner sequence for each group. Rollouts may be missing or cancelled, and a group
            may be empty.
        rules: how; by default GRPO over final rewards.
    """
    rules = rules or LearningRules()
    rollouts = _scored(groups, rules)
    built = [build_samples(rollout.trace, rules.samples) for rollout in rollouts]
    values = by_key(rollouts)
    compared = signals(values)
    small = {key for key, some in values.items() if len(some) < rules.min_group}
    drops = rules.drop_equal and ESTIMATORS[rules.estimator] is not None
    left_out = small | (values.keys() - compared if drops else set())

    samples: list[Sample] = []
    places: list[int] = []
    missing = dropped = too_long = 0
    for place, (rollout, one) in enumerate(zip(rollouts, built, strict=True)):
        if rollout.status is not RewardStatus.SCORED:
            continue
        for sample in one.samples:
            credited, lost = _credited(sample, rollout, left_out, rules.group_by)
            missing += lost
            if credited is None:
                dropped += 1
            elif rules.max_tokens is not None and len(credited.token_ids) > rules.max_tokens:
                too_long += 1
            else:
                samples.append(credited)
                places.append(place)

    advantages = _advantages(samples, places, rollouts, values, rules)
    loss_weights = weights(samples, rules.aggregation)
    samples = [
        msgspec.structs.replace(
            sample,
            weight=weight,
            segments=tuple(
                msgspec.structs.replace(segment, advantage=advantages.get((number, at)))
                for at, segment in enumerate(sample.segments)
            ),
        )
        for number, (sample, weight) in enumerate(zip(samples, loss_weights, strict=True))
    ]
    return Step(
        samples=tuple(samples),
        report=report(
            rollouts,
            samples,
            groups=len(groups),
            values=values,
            compared=compared,
            small=small,
            credits_missing=missing,
            dropped=dropped,
            too_long=too_long,
            drift=merge_drift(one.drift for one in built),
            rules=rules.samples,
            version=rules.version,
        ),
    )


def tasks_to_refill(
    groups: Sequence[Sequence[Trace]], rules: LearningRules | None = None
) -> list[int]:
    """Positions of the groups that carry no signal: all values equal, or fewer than two; for dynamic sampling.

    With `GroupBy.TASK_AGENT`, a group carries one where any agent's values differ. Nothing is said of the rollouts'
    tokens: it costs next to nothing.

    Args:
        groups: as for `make_step`.
        rules: likewise.
    """
    compared = signals(by_key(_scored(groups, rules or LearningRules())))
    telling = {key.group for key in compared}
    return [number for number in range(len(groups)) if number not in telling]


def _scored(groups: Sequence[Sequence[Trace]], rules: LearningRules) -> list[Scored]:
    return [
        score(trace, number, credit=rules.credit, samples=rules.samples, group_by=rules.group_by)
        for number, group in enumerate(groups)
        for trace in group
    ]


def _credited(
    sample: Sample, rollout: Scored, left_out: set[Key], group_by: GroupBy
) -> tuple[Sample | None, int]:
    """The sample with credits, without what is not learnt from after all; None where nothing is left. And how many
    replies lack a credit."""
    segments: list[Segment] = []
    missing = 0
    for segment in sample.segments:
        credit = rollout.credits.get(segment.call_id)
        trainable = segment.trainable
        if trainable and credit is None:
            missing += 1
            trainable = False
        elif key_of(rollout.group, segment.agent, segment.node, group_by) in left_out:
            trainable = False
        segments.append(msgspec.structs.replace(segment, credit=credit, trainable=trainable))
    end = max((s.stop for s in segments if s.trainable and s.stop > s.start), default=0)
    if not end:
        return None, missing
    lost = [
        new
        for old, new in zip(sample.segments, segments, strict=True)
        if old.trainable and not new.trainable
    ]
    if not lost:
        return msgspec.structs.replace(sample, segments=tuple(segments)), missing
    mask, logprobs, versions = list(sample.mask), list(sample.logprobs), list(sample.versions)
    for segment in lost:
        place = slice(segment.start, segment.stop)
        length = segment.stop - segment.start
        mask[place], logprobs[place], versions[place] = (
            [0] * length, [0.0] * length, [NO_VERSION] * length
        )  # fmt: skip
    return (
        msgspec.structs.replace(
            sample,
            token_ids=sample.token_ids[:end],
            mask=tuple(mask[:end]),
            logprobs=tuple(logprobs[:end]),
            versions=tuple(versions[:end]),
            segments=tuple(segment for segment in segments if segment.stop <= end),
        ),
        missing,
    )


def _advantages(
    samples: Sequence[Sample],
    places: Sequence[int],
    rollouts: Sequence[Scored],
    values: Mapping[Key, Mapping[int, float]],
    rules: LearningRules,
) -> dict[tuple[int, int], float]:
    """The advantage of each trainable reply, by position of the sample and of the segment in it."""
    estimator = ESTIMATORS[rules.estimator]
    if estimator is None:
        return {}
    compared_with = standings(values, estimator)
    found: dict[tuple[int, int], float] = {}
    tokens: dict[tuple[int, int], int] = {}
    for number, (sample, place) in enumerate(zip(samples, places, strict=True)):
        for at, segment in enumerate(sample.segments):
            if segment.trainable and segment.credit is not None:
                key = key_of(rollouts[place].group, segment.agent, segment.node, rules.group_by)
                standing = compared_with[key, place]
                found[number, at] = standing.advantage(segment.credit)
                if standing.scale:
                    tokens[number, at] = segment.stop - segment.start
    if rules.estimator in WHITENED:
        # A group without a signal keeps its zeros: moved by the others' mean, it would be learnt from.
        white = whiten([found[spot] for spot in tokens], list(tokens.values()))
        found |= dict(zip(tokens, white, strict=True))
    return {spot: to_float32(value) for spot, value in found.items()}
