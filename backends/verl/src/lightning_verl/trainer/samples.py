"""From a graded trace to the rows that verl learns from. Imports neither verl nor torch."""

from __future__ import annotations

import msgspec

from lightning_core.learn import NO_VERSION, SampleRules, build_samples
from lightning_core.trace import Trace


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


def rows_of(trace: Trace, rules: SampleRules, *, version: int, filler: int) -> list[Row]:
    """The rows of a scored rollout.

    One that has no token to learn from gives a row without any, mask 0 throughout: verl takes a group's statistics over
    the rollouts that have rows, and its reward counts there.

    Args:
        trace: the graded trace.
        rules: which calls are learnt from.
        version: the policy's version, for tokens that have none.
        filler: a token id for rows without any.
    """
    rows = []
    for sample in build_samples(trace, rules).samples:
        first = sample.mask.index(1)
        if first == 0:
            continue  # Without a prompt the first token's probability is not defined.
        versions = [each for each in sample.versions if each != NO_VERSION] or [version]
        rows.append(
            Row(
                prompt_ids=list(sample.token_ids[:first]),
                response_ids=list(sample.token_ids[first:]),
                response_mask=list(sample.mask[first:]),
                response_logprobs=list(sample.logprobs[first:]),
                oldest=min(versions),
                newest=max(versions),
            )
        )
    if not rows:
        rows.append(
            Row(
                prompt_ids=[filler],
                response_ids=[filler],
                response_mask=[0],
                response_logprobs=[0.0],
                oldest=version,
                newest=version,
            )
        )
    return rows
