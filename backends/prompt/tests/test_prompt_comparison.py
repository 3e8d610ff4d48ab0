"""Statistics that do not take luck for a gain."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_core.errors import UsageError
from lightning_core.learn.spread import t_quantile
from lightning_prompt import comparison
from lightning_prompt.comparison import Comparison, Interval, Spread, compare, mean_interval, spread


def by_task(values):
    """One rollout for each task."""
    return {f"t{number}": [float(value)] for number, value in enumerate(values)}


def trials(draw, count, *, tasks, draws=800):
    """Comparisons of rewards drawn again and again."""
    random = np.random.default_rng(1)
    for number in range(count):
        before, after = draw(random, tasks)
        yield compare(by_task(before), by_task(after), draws=draws, seed=number)


def normal(gain):
    def draw(random, tasks):
        hard = random.normal(size=tasks)
        return hard + 0.5 * random.normal(size=tasks), hard + gain + 0.5 * random.normal(size=tasks)

    return draw


def binary(random, tasks):
    """Passed or not, by a chance of each task's own; before and after alike."""
    chance = random.random(tasks)
    return random.random(tasks) < chance, random.random(tasks) < chance


@pytest.mark.parametrize(("tasks", "least"), [(8, 0.90), (30, 0.925)])
def test_the_interval_holds_the_true_difference_about_as_often_as_it_says(tasks, least):
    found = list(trials(normal(0.3), 800, tasks=tasks))
    held = sum(one.low <= 0.3 <= one.high for one in found) / len(found)
    assert least <= held <= 0.98


@pytest.mark.parametrize("draw", [normal(0.0), binary])
@pytest.mark.parametrize("tasks", [6, 25])
def test_where_nothing_has_changed_an_improvement_is_rarely_claimed(draw, tasks):
    claims = sum(one.improved for one in trials(draw, 800, tasks=tasks))
    assert claims / 800 <= 0.045


def test_a_gain_that_is_there_is_found():
    assert sum(one.improved for one in trials(normal(0.6), 100, tasks=30)) >= 90


def test_pairing_tells_what_the_means_alone_would_not():
    random = np.random.default_rng(2)
    hard = random.normal(size=40)
    before, after = by_task(hard), by_task(hard + 0.1 + 0.02 * random.normal(size=40))
    paired = compare(before, after)
    one, other = mean_interval(before), mean_interval(after)
    assert paired.improved
    assert other.low < one.high  # The two alone overlap by far.
    assert (paired.high - paired.low) * 10 < other.high - other.low


def test_repeats_are_averaged_within_their_task_first():
    before = {f"t{n}": [0.0] for n in range(6)}
    often = {"t0": [1.0] * 50} | {f"t{n}": [0.0] for n in range(1, 6)}
    assert compare(before, often) == compare(before, often | {"t0": [1.0]})
    assert compare(before, often).difference == pytest.approx(1 / 6)


def test_unscored_rollouts_and_unpaired_tasks_leave_the_statistics_and_are_counted():
    before = {"a": [0.0, None], "b": [0.0], "c": [None], "d": [0.5], "only": [1.0]}
    after = {"a": [1.0], "b": [None, 0.5], "c": [1.0], "d": [0.5], "other": [0.0]}
    found = compare(before, after)
    assert found == Comparison(
        before=pytest.approx(1 / 6), after=pytest.approx(4 / 6), difference=pytest.approx(0.5),
        tasks=3, clusters=3, left_out=3, unscored=3,
    )  # fmt: skip
    assert mean_interval(before) == Interval(mean=pytest.approx(0.375), tasks=4, unscored=2)


def test_with_fewer_than_five_tasks_no_claim_is_made():
    few = compare(by_task([0] * 4), by_task([1] * 4))
    assert (few.difference, few.low, few.high, few.improved) == (1.0, None, None, False)
    assert "over 4 tasks: too few for a claim, which needs 5" in str(few)
    assert "over 1 task:" in str(compare(by_task([0]), by_task([1])))
    assert compare(by_task([0] * 5), by_task([1] * 5)).improved


def test_equal_differences_give_an_interval_of_one_point():
    same = compare(by_task([1] * 9), by_task([1] * 9))
    assert (same.low, same.high, same.improved) == (0.0, 0.0, False)
    assert "no improvement is shown" in str(same)
    level = mean_interval(by_task([0.25] * 9))
    assert (level.mean, level.low, level.high) == (0.25, 0.25, 0.25)


def test_where_nothing_is_scored_nothing_is_compared():
    none = compare({"a": [None]}, {"a": [1.0], "b": []})
    assert none == Comparison(left_out=2, unscored=1)
    assert str(none).startswith("no task has scored rollouts of both")
    assert compare({}, {}) == Comparison()
    assert mean_interval({"a": [None]}) == Interval(unscored=1)


def test_kinds_are_resampled_whole():
    tasks = [f"t{n}" for n in range(60)]
    before = {task: [0.0] for task in tasks}
    after = {task: [1.0 if n % 6 < 3 else -0.5] for n, task in enumerate(tasks)}
    kinds = {task: str(n % 6) for n, task in enumerate(tasks)}
    alone, whole = compare(before, after), compare(before, after, kinds=kinds)
    assert (whole.tasks, whole.clusters, whole.difference) == (60, 6, 0.25)
    assert alone.improved
    assert not whole.improved
    assert "over 60 tasks of 6 kinds" in str(whole)


rewards = st.dictionaries(
    st.sampled_from("abcdefghij"), st.lists(st.one_of(st.none(), st.floats(-1, 1)), max_size=3)
)


@settings(deadline=None)
@given(rewards, rewards)
def test_a_comparison_is_consistent_whatever_the_rewards(before, after):
    found = compare(before, after, draws=300)
    assert found.tasks + found.left_out == len(before.keys() | after.keys())
    assert (found.difference is None) == (found.tasks == 0)
    assert (found.low is None) == (found.tasks < 5)
    if found.low is not None:
        assert -2.0 <= found.low <= found.high <= 2.0
        assert found.improved == (found.low > 0)
        back = compare(after, before, draws=300)
        assert back.difference == pytest.approx(-found.difference, abs=1e-12)
    turned = dict(reversed(before.items()))
    assert compare(turned, after, draws=300) == found
    assert Comparison.from_json(found.to_json()) == found


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=5, max_size=12), st.floats(-3, 3))
def test_a_shift_of_all_rewards_shifts_the_interval(values, shift):
    one = mean_interval(by_task(values), draws=300)
    moved = mean_interval(by_task([value + shift for value in values]), draws=300)
    assert moved.low == pytest.approx(one.low + shift, abs=1e-9)
    assert moved.high == pytest.approx(one.high + shift, abs=1e-9)
    assert one.low <= one.mean + 1e-12
    assert one.high >= one.mean - 1e-12


def test_the_seed_decides_and_more_confidence_is_wider():
    random = np.random.default_rng(3)
    before, after = by_task(random.random(12)), by_task(random.random(12))
    found = compare(before, after, seed=1)
    assert compare(before, after, seed=1) == found
    assert compare(before, after, seed=2) != found
    narrow = compare(before, after, confidence=0.8)
    assert found.low < narrow.low < narrow.high < found.high
    for wrong in (0.0, 1.0, 95.0, math.nan):
        with pytest.raises(UsageError, match="confidence"):
            compare(before, after, confidence=wrong)


def test_many_tasks_are_resampled_in_parts_of_bounded_size(monkeypatch):
    values = by_task(np.random.default_rng(4).random(100))
    whole = mean_interval(values, seed=5)
    monkeypatch.setattr(comparison, "_CHUNK", 1000)
    parts = mean_interval(values, seed=5)
    assert (parts.low, parts.high) == (whole.low, whole.high)


@pytest.mark.parametrize("degrees", [4, 5, 9, 30, 500])
def test_students_t_is_close_to_its_exact_quantile(degrees):
    assert comparison._t_quantile(0.975, degrees) == pytest.approx(t_quantile(degrees), rel=1e-3)


def test_the_spread_of_draws_is_told():
    assert spread([0.3, 0.1, 0.4, 0.2]) == Spread(count=4, min=0.1, median=0.25, max=0.4)
    assert spread([0.5]) == Spread(count=1, min=0.5, median=0.5, max=0.5)
