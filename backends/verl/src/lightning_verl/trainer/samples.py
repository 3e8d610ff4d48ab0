"""From the graded traces of a group to the rows that verl learns from. Imports neither verl nor torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from lightning_core.learn import NO_VERSION, LearningRules, Sample, make_step
from lightning_core.learn.scoring import Key, by_key, key_of, score, signals
from lightning_core.trace import Trace

NOTE: Final = "lightning_core"
"""The key of a row's note among verl's extra fields."""


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """One reply that is learnt from, within a row."""

    start: int
    """Where it begins in the response, in tokens."""
    stop: int
    """Where it ends, exclusive."""
    advantage: float | None
    """How much better than expected it was; None where the trainer's value network says."""
    compared: bool
    """Whether what it is compared with tells better from worse."""


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """What goes with a row to the trainer, past verl."""

    rollout: str
    """The rollout's id."""
    group: str
    """The id of its group."""
    signal: bool
    """Whether the group tells better from worse."""
    pieces: tuple[Piece, ...] = ()
    """The replies that are learnt from."""
    rewards: tuple[tuple[int, float], ...] = ()
    """Position in the response and reward there, for a value network: the sum from a reply's last token to the end is
    the reply's credit."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A sample, cut where the first sampled token is: what comes before is verl's prompt, the rest its response."""

    prompt_ids: list[int]
    """Token ids before the first that is learnt from, shape [P], P ≥ 1."""
    response_ids: list[int]
    """Token ids from there on, shape [R], R ≥ 1."""
    response_mask: list[int]
    """1 for a token that is learnt from, else 0; shape [R]."""
    response_logprobs: list[float]
    """Natural log-probability under the policy that sampled it; 0.0 where the mask is 0; shape [R]."""
    oldest: int
    """The oldest policy version that sampled one of its tokens."""
    newest: int
    """The newest."""
    note: Note
    """What the trainer is told of it."""


def rows_of(traces: Sequence[Trace], rules: LearningRules, *, group: str) -> dict[str, list[Row]]:
    """The rows of a group by rollout. Rollouts without a number, and those with nothing to learn from, have none.

    Args:
        traces: the group's graded traces.
        rules: how advantages are made.
        group: the group's id.
    """
    scored = [
        score(each, 0, credit=rules.credit, samples=rules.samples, group_by=rules.group_by)
        for each in traces
    ]
    compared = signals(by_key(scored))
    found: dict[str, list[Row]] = {}
    for sample in make_step([traces], rules).samples:
        first = sample.mask.index(1)
        if first == 0:
            continue  # Without a prompt the first token's probability is not defined.
        row = _row(sample, first, rules, compared, group)
        found.setdefault(sample.rollout_id, []).append(row)
    return found


def filler_row(rollout: str, group: str, *, version: int, filler: int) -> Row:
    """A row that nothing is learnt from.

    Args:
        rollout: the rollout's id.
        group: its group's.
        version: the policy's version.
        filler: the token id that it consists of.
    """
    return Row(
        prompt_ids=[filler],
        response_ids=[filler],
        response_mask=[0],
        response_logprobs=[0.0],
        oldest=version,
        newest=version,
        note=Note(rollout=rollout, group=group, signal=False),
    )


def _row(sample: Sample, first: int, rules: LearningRules, compared: set[Key], group: str) -> Row:
    versions = [each for each in sample.versions if each != NO_VERSION] or [rules.version or 0]
    pieces = tuple(
        Piece(
            segment.start - first,
            segment.stop - first,
            segment.advantage,
            key_of(0, segment.agent, segment.node, rules.group_by) in compared,
        )
        for segment in sample.segments
        if segment.trainable and segment.stop > segment.start
    )
    return Row(
        prompt_ids=list(sample.token_ids[:first]),
        response_ids=list(sample.token_ids[first:]),
        response_mask=list(sample.mask[first:]),
        response_logprobs=list(sample.logprobs[first:]),
        oldest=min(versions),
        newest=max(versions),
        note=Note(
            rollout=sample.rollout_id,
            group=group,
            signal=bool(compared),
            pieces=pieces,
            rewards=tuple(
                (at, value) for at, value in enumerate(sample.token_rewards()[first:]) if value
            ),
        ),
    )
