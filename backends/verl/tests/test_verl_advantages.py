"""Advantages and weights as verl is given them, against those that core makes for a whole step."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_core import (
    Attempt,
    Call,
    Cause,
    Choice,
    Mode,
    Reward,
    Rollout,
    Task,
    TokenSource,
    Trace,
)
from lightning_core.learn import Aggregation, GroupBy, LearningRules, make_step
from lightning_core.learn.credit import discounted
from lightning_verl.trainer.advantages import advantages, scales, token_rewards
from lightning_verl.trainer.samples import rows_of


def trace_of(group, number, reward, replies):
    """A rollout of calls that each begin a chain of their own, by agents a and b in turn."""
    id_ = f"{group}:{number}"
    calls = tuple(
        Call(
            id=f"{id_}-{at}", attempt_id=f"{id_}.1", rollout_id=id_, index=at, dialect="chat", mode=Mode.TRAIN,
            agent="ab"[at % 2], complete=True, policy_version=0, prompt_token_ids=(1000 + at, 2),
            token_source=TokenSource.ENGINE,
            choices=(Choice(token_ids=tuple(range(length)), logprobs=(-0.5,) * length),),
        )
        for at, length in enumerate(replies)
    )  # fmt: skip
    cause = Cause.AGENT_ERROR if reward is None else Cause.SUCCESS
    own = Reward(status=cause.reward_status) if reward is None else Reward(value=reward)
    return Trace(
        rollout=Rollout(id=id_, task_id=group, group=group),
        task=Task(id=group, input="x"),
        attempt=Attempt(
            id=f"{id_}.1", rollout_id=id_, number=1, fence=1, worker="w", started_at=1.0, deadline=2.0, lease_until=2.0,
            cause=cause,
        ),
        calls=calls,
        rewards=(own,),
    )  # fmt: skip


rollouts = st.tuples(
    st.one_of(st.none(), st.sampled_from([0.0, 0.25, 1.0])),
    st.lists(st.integers(1, 5), min_size=0, max_size=3),
)
steps = st.lists(st.lists(rollouts, min_size=1, max_size=4), min_size=1, max_size=3)


def built(step):
    return [
        [trace_of(f"g{place}", number, *rollout) for number, rollout in enumerate(group)]
        for place, group in enumerate(step)
    ]


def as_verl(groups, rules, whitened=False):
    """All rows of a step, and what each of their tokens counts in verl's mean over tokens."""
    rows = [
        row
        for group in groups
        for some in rows_of(group, rules, group=group[0].rollout.group).values()
        for row in some
    ]
    width = max((len(row.response_ids) for row in rows), default=1)
    padded = [row.response_mask + [0] * (width - len(row.response_mask)) for row in rows]
    mask = torch.tensor(padded, dtype=torch.int64).reshape(len(rows), width)
    notes = [row.note for row in rows]
    found = advantages(notes, tuple(mask.shape), whitened=whitened)
    weight = scales([note.rollout for note in notes], mask, rules.aggregation)
    tokens = max(1, int(mask.sum()))
    return rows, found, weight[:, None] * mask / tokens


@settings(deadline=None)
@given(steps, st.sampled_from(list(Aggregation)), st.sampled_from(["grpo", "dr_grpo", "rloo"]),
       st.sampled_from(list(GroupBy)))  # fmt: skip
def test_group_by_group_they_are_those_of_the_whole_step(step, aggregation, estimator, group_by):
    groups = built(step)
    rules = LearningRules(
        aggregation=aggregation, estimator=estimator, group_by=group_by, credit=discounted(0.9)
    )
    rows, found, weight = as_verl(groups, rules)
    samples = {}
    for sample in make_step(groups, rules).samples:
        samples.setdefault(sample.rollout_id, []).append(sample)
    for at, row in enumerate(rows):
        if not any(row.response_mask):
            assert not found[at].any()
            assert not weight[at].any()
        else:
            sample = samples[row.note.rollout].pop(0)
            first = sample.mask.index(1)
            length = len(row.response_ids)
            assert found[at, :length].tolist() == pytest.approx(
                sample.advantages()[first:], abs=1e-6
            )
            expected = [sample.weight * each for each in sample.mask[first:]]
            assert weight[at, :length].tolist() == pytest.approx(expected, abs=1e-6)
    assert not any(samples.values())
    total = float(weight.sum())
    assert math.isclose(total, 1.0, abs_tol=1e-5) or total == 0.0


@settings(deadline=None)
@given(steps)
def test_whitened_over_the_step_they_are_cores_reinforce_pp(step):
    groups = built(step)
    _, found, _ = as_verl(groups, LearningRules(estimator="dr_grpo"), whitened=True)
    made = make_step(groups, LearningRules(estimator="reinforce_pp_baseline"))
    expected = [
        value for sample in made.samples for value in sample.advantages()[sample.mask.index(1) :]
    ]
    assert sorted(found[found != 0].tolist()) == pytest.approx(
        sorted(value for value in expected if value), abs=1e-5
    )


@given(steps)
def test_a_value_network_is_given_each_rows_credit_at_the_end_of_its_replies(step):
    groups = built(step)
    rules = LearningRules(estimator="gae")
    for group in groups:
        for id_, rows in rows_of(group, rules, group="g").items():
            rewards = {trace.rollout.id: trace.reward for trace in group}
            for row in rows:
                shape = (1, len(row.response_ids))
                given_ = token_rewards([row.note], shape)
                expected = rewards[id_] if any(row.response_mask) else 0.0
                assert float(given_.sum()) == expected
                assert all(
                    mask
                    for mask, value in zip(row.response_mask, given_[0].tolist(), strict=True)
                    if value
                )


def test_a_row_of_padding_counts_nothing():
    mask = torch.tensor([[1, 1, 0], [0, 0, 0]])
    for aggregation in Aggregation:
        assert scales(["a", "a"], mask, aggregation).tolist() == [1.0, 0.0]


def test_a_step_of_nothing_has_no_weights_and_no_division_by_zero():
    mask = torch.zeros((2, 3), dtype=torch.int64)
    for aggregation in Aggregation:
        assert scales(["a", "b"], mask, aggregation).tolist() == [0.0, 0.0]
