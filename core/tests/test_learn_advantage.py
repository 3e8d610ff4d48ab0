"""Advantage estimators and GAE: numbers worked by hand, and plain formulas written otherwise."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.errors import UsageError
from lightning_core.learn import gae
from lightning_core.learn.advantage import (
    ESTIMATORS,
    dr_grpo,
    grpo,
    has_signal,
    reinforce_pp_baseline,
    rloo,
    to_float32,
    whiten,
)
from lightning_core.learn.spread import spread, t_quantile

GROUP_RELATIVE = sorted(name for name, estimator in ESTIMATORS.items() if estimator is not None)
REWARDS = st.one_of(
    st.sampled_from([0.0, 1.0]), st.floats(-100, 100, allow_nan=False).map(lambda x: round(x, 3))
)
GROUPS = st.lists(REWARDS, min_size=1, max_size=12)


def advantages(estimator, values):
    return [standing.advantage(v) for v, standing in zip(values, estimator(values), strict=True)]


def test_grpo_by_hand():
    # Mean 0.25, deviations .75, -.25, -.25, -.25; variance of the sample .75/3 = .25, deviation .5.
    got = advantages(grpo, [1.0, 0.0, 0.0, 0.0])
    assert got == pytest.approx([1.5, -0.5, -0.5, -0.5], rel=1e-5)


def test_dr_grpo_by_hand():
    assert advantages(dr_grpo, [1.0, 0.0, 0.0, 0.0]) == [0.75, -0.25, -0.25, -0.25]


def test_rloo_by_hand():
    # The others of the first are 0, 0, 0; those of each other one 1, 0, 0.
    assert advantages(rloo, [1.0, 0.0, 0.0, 0.0]) == pytest.approx([1.0, -1 / 3, -1 / 3, -1 / 3])


def test_whitening_by_hand():
    # 3 tokens of 1 and 1 of -1: mean .5, squares 3*.25 + 2.25 = 3, over 4-1 is 1.
    assert whiten([1.0, -1.0], [3, 1]) == pytest.approx([0.5, -1.5], rel=1e-6)


@given(GROUPS)
def test_grpo_is_its_formula(values):
    if has_signal(values):
        mean, deviation = statistics.fmean(values), statistics.stdev(values)
        expected = [(v - mean) / (deviation + 1e-6) for v in values]
        assert advantages(grpo, values) == pytest.approx(expected, rel=1e-6, abs=1e-6)


@given(GROUPS)
def test_dr_grpo_is_its_formula(values):
    if has_signal(values):
        expected = [v - statistics.fmean(values) for v in values]
        assert advantages(dr_grpo, values) == pytest.approx(expected, abs=1e-9)
        assert advantages(reinforce_pp_baseline, values) == pytest.approx(expected, abs=1e-9)


@given(GROUPS)
def test_rloo_is_its_formula(values):
    if has_signal(values):
        expected = [
            v - statistics.fmean(values[:i] + values[i + 1 :]) for i, v in enumerate(values)
        ]
        assert advantages(rloo, values) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", GROUP_RELATIVE)
@given(values=GROUPS)
def test_the_advantages_of_a_group_add_up_to_nothing(name, values):
    got = advantages(ESTIMATORS[name], values)
    assert all(map(math.isfinite, got))
    assert math.fsum(got) == pytest.approx(0.0, abs=1e-6 * max(1.0, *map(abs, got)) * len(got))


@pytest.mark.parametrize("name", GROUP_RELATIVE)
@given(data=st.data(), values=GROUPS)
def test_the_order_of_the_rollouts_means_nothing(name, data, values):
    order = data.draw(st.permutations(range(len(values))))
    straight = advantages(ESTIMATORS[name], values)
    permuted = advantages(ESTIMATORS[name], [values[i] for i in order])
    assert permuted == pytest.approx([straight[i] for i in order], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", GROUP_RELATIVE)
@pytest.mark.parametrize("values", [[0.0] * 4, [0.1] * 3, [0.1 + 0.2, 0.3], [7.0], [-1e300] * 2])
def test_equal_rewards_and_a_group_of_one_give_exactly_nothing(name, values):
    assert advantages(ESTIMATORS[name], values) == [0.0] * len(values)
    # Nor do credits that differ within a rollout get a direction out of a group that has none.
    assert ESTIMATORS[name](values)[0].advantage(values[0] + 0.5) == 0.0
    assert not has_signal(values)


def test_a_small_difference_is_a_signal_where_the_numbers_are_small():
    assert has_signal([1e-6, 2e-6])
    assert not has_signal([])


@given(st.lists(st.tuples(st.floats(-10, 10), st.integers(1, 50)), min_size=2, max_size=20))
def test_whitened_values_have_mean_0_and_variance_1_over_the_tokens(pairs):
    values, counts = zip(*pairs, strict=True)
    tokens = [v for v, n in zip(whiten(values, counts), counts, strict=True) for _ in range(n)]
    assert statistics.fmean(tokens) == pytest.approx(0.0, abs=1e-6)
    if max(values) - min(values) > 0.1:
        assert statistics.variance(tokens) == pytest.approx(1.0, abs=1e-3)


def test_there_is_nothing_to_whiten_in_one_token():
    assert whiten([3.0], [1]) == [0.0]
    assert whiten([], []) == []


def test_gae_by_hand():
    # Two trainable tokens around one observation; gamma .5, lambda .5, values 1 and 2, reward 4 at the end.
    # Second: 4 - 2 = 2. First: 0 + .5*2 - 1 + .25*2 = .5.
    got = gae([0.0, 0.0, 4.0], [1.0, 9.0, 2.0], [1, 0, 1], 0.5, 0.5)
    assert got.advantages == [0.5, 0.0, 2.0]
    assert got.returns == [1.5, 0.0, 4.0]


SEQUENCES = st.lists(
    st.tuples(st.floats(-5, 5), st.floats(-5, 5), st.integers(0, 1)), min_size=1, max_size=12
).map(lambda rows: [(reward if m else 0.0, value, m) for reward, value, m in rows])
SHARE = st.floats(0, 1)


@given(SEQUENCES, SHARE, SHARE)
def test_gae_is_the_sum_of_discounted_surprises(rows, gamma, lam):
    rewards, values, mask = zip(*rows, strict=True)
    at = [i for i, m in enumerate(mask) if m]
    surprises = [
        rewards[i] + (gamma * values[at[k + 1]] if k + 1 < len(at) else 0.0) - values[i]
        for k, i in enumerate(at)
    ]
    got = gae(rewards, values, mask, gamma, lam)
    for k, i in enumerate(at):
        expected = sum((gamma * lam) ** (j - k) * surprises[j] for j in range(k, len(at)))
        assert got.advantages[i] == pytest.approx(expected, rel=1e-6, abs=1e-6)
        assert got.returns[i] == pytest.approx(expected + values[i], rel=1e-6, abs=1e-6)
    assert all(got.advantages[i] == got.returns[i] == 0.0 for i, m in enumerate(mask) if not m)


@given(SEQUENCES)
def test_with_nothing_discounted_gae_is_the_reward_to_come_less_the_value(rows):
    rewards, values, mask = zip(*rows, strict=True)
    got = gae(rewards, values, mask, 1.0, 1.0)
    for i, m in enumerate(mask):
        if m:
            assert got.returns[i] == pytest.approx(sum(rewards[i:]), abs=1e-6)


@given(SEQUENCES, SHARE, SHARE)
def test_observations_make_no_difference_to_gae(rows, gamma, lam):
    learnt = [row for row in rows if row[2]]
    whole = gae(*zip(*rows, strict=True), gamma, lam)
    alone = gae(*(zip(*learnt, strict=True) if learnt else ((), (), ())), gamma, lam)
    assert [a for a, row in zip(whole.advantages, rows, strict=True) if row[2]] == alone.advantages


def test_gae_refuses_what_does_not_fit():
    with pytest.raises(UsageError, match="of one length but got 1, 2 and 2"):
        gae([0.0], [0.0, 0.0], [1, 1])
    with pytest.raises(UsageError, match=r"token 0: a reward of 1\.0 where the mask is 0"):
        gae([1.0, 0.0], [0.0, 0.0], [0, 1])


@pytest.mark.parametrize(
    ("degrees", "expected"),
    # Printed tables.
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (30, 2.042), (120, 1.980), (10**6, 1.960)],
)  # fmt: skip
def test_students_t(degrees, expected):
    assert t_quantile(degrees) == pytest.approx(expected, abs=6e-4)


def test_students_t_has_no_jump_where_the_series_ends():
    assert t_quantile(1000) == pytest.approx(t_quantile(1001), abs=2e-5)


def test_the_interval_of_a_mean():
    # Mean 2, deviation 1, standard error 1/sqrt(3), t(2) = 4.303.
    got = spread([1.0, 2.0, 3.0])
    assert (got.count, got.mean, got.std) == (3, 2.0, 1.0)
    assert got.low == pytest.approx(2 - 4.3027 / math.sqrt(3), abs=1e-3)
    assert got.high == pytest.approx(2 + 4.3027 / math.sqrt(3), abs=1e-3)
    assert spread([5.0]).std is spread([5.0]).low is None
    assert spread([]) is None


@given(st.floats(-1e30, 1e30))
def test_single_precision_holds_what_a_trainer_gets(value):
    once = to_float32(value)
    assert to_float32(once) == once
    assert once == pytest.approx(value, rel=1e-6, abs=1e-37)
