"""Two strategies by rewards of which some are missing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_core.learn.compare import Gain
from lightning_prompt.comparison import Comparison, Interval, Spread, compare, mean_interval, spread


def by_task(values):
    """One rollout for each task."""
    return {f"t{number}": [float(value)] for number, value in enumerate(values)}


def test_pairing_tells_what_the_means_alone_would_not():
    random = np.random.default_rng(2)
    hard = random.normal(size=40)
    before, after = by_task(hard), by_task(hard + 0.1 + 0.02 * random.normal(size=40))
    paired = compare(before, after)
    one, other = mean_interval(before), mean_interval(after)
    assert paired.improved
    assert other.low < one.high  # The two alone overlap by far.
    assert (paired.gain.high - paired.gain.low) * 10 < other.high - other.low


def test_unscored_rollouts_and_unpaired_tasks_leave_the_statistics_and_are_counted():
    before = {"a": [0.0, None], "b": [0.0], "c": [None], "d": [0.5], "only": [1.0]}
    after = {"a": [1.0], "b": [None, 0.5], "c": [1.0], "d": [0.5], "other": [0.0]}
    found = compare(before, after)
    gain = Gain(
        before=pytest.approx(1 / 6), after=pytest.approx(4 / 6), gain=pytest.approx(0.5), tasks=3, clusters=3
    )  # fmt: skip
    assert found == Comparison(gain=gain, left_out=3, unscored=3)
    assert mean_interval(before) == Interval(mean=pytest.approx(0.375), tasks=4, unscored=2)


def test_equal_differences_give_an_interval_of_one_point():
    same = compare(by_task([1] * 9), by_task([1] * 9))
    assert (same.gain.low, same.gain.high, same.improved) == (0.0, 0.0, False)
    assert "no improvement is shown" in str(same)
    level = mean_interval(by_task([0.25] * 9))
    assert (level.mean, level.low, level.high) == (0.25, 0.25, 0.25)


def test_where_nothing_is_scored_nothing_is_compared():
    none = compare({"a": [None]}, {"a": [1.0], "b": []})
    assert none == Comparison(left_out=2, unscored=1)
    assert str(none).startswith("no task has scored rollouts of both")
    assert compare({}, {}) == Comparison()
    assert mean_interval({"a": [None]}) == Interval(unscored=1)


rewards = st.dictionaries(
    st.sampled_from("abcdefghij"), st.lists(st.one_of(st.none(), st.floats(-1, 1)), max_size=3)
)


@settings(deadline=None)
@given(rewards, rewards)
def test_a_comparison_is_consistent_whatever_the_rewards(before, after):
    found = compare(before, after, draws=300)
    gain, tasks = found.gain, 0 if found.gain is None else found.gain.tasks
    assert tasks + found.left_out == len(before.keys() | after.keys())
    assert (gain is None) == (tasks == 0)
    assert (gain is None or gain.low is None) == (tasks < 5)
    if gain is not None and gain.low is not None:
        assert -2.0 <= gain.low <= gain.high <= 2.0
        assert found.improved == (gain.low > 0)
        back = compare(after, before, draws=300)
        assert back.gain.gain == pytest.approx(-gain.gain, abs=1e-12)
    turned = dict(reversed(before.items()))
    assert compare(turned, after, draws=300) == found
    assert Comparison.from_json(found.to_json()) == found


def test_the_spread_of_draws_is_told():
    assert spread([0.3, 0.1, 0.4, 0.2]) == Spread(count=4, min=0.1, median=0.25, max=0.4)
    assert spread([0.5]) == Spread(count=1, min=0.5, median=0.5, max=0.5)
