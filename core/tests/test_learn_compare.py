"""A gain on the same tasks, and an interval that holds what it should."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_core.learn.compare import Gain, interval, paired_gain


def by_task(values):
    """One rollout for each task."""
    return {f"t{number}": [float(value)] for number, value in enumerate(values)}


def trials(draw, count, *, tasks):
    """Gains of rewards drawn again and again."""
    for number in range(count):
        rng = random.Random(number)
        before, after = zip(*(draw(rng) for _ in range(tasks)), strict=True)
        yield paired_gain(by_task(before), by_task(after), draws=400, seed=number)


def normal(gain):
    """Rewards of a task that is more or less hard, twice, with noise of each time's own."""

    def draw(rng):
        hard = rng.gauss(0, 1)
        return hard + 0.5 * rng.gauss(0, 1), hard + gain + 0.5 * rng.gauss(0, 1)

    return draw


def passed_or_not(rng):
    """By a chance of each task's own, alike both times."""
    chance = rng.random()
    return rng.random() < chance, rng.random() < chance


@pytest.mark.parametrize(("tasks", "least"), [(5, 0.88), (8, 0.90), (30, 0.92)])
def test_the_interval_holds_the_true_gain_about_as_often_as_it_says(tasks, least):
    found = list(trials(normal(0.3), 600, tasks=tasks))
    held = sum(one.low <= 0.3 <= one.high for one in found) / len(found)
    assert least <= held <= 0.98


@pytest.mark.parametrize("draw", [normal(0.0), passed_or_not])
@pytest.mark.parametrize("tasks", [6, 25])
def test_where_nothing_has_changed_an_improvement_is_rarely_claimed(draw, tasks):
    claims = sum(one.improved for one in trials(draw, 600, tasks=tasks))
    assert claims / 600 <= 0.05


def test_a_gain_that_is_there_is_found():
    assert sum(one.improved for one in trials(normal(0.6), 60, tasks=30)) >= 54


def test_the_interval_is_that_of_paired_differences():
    before = by_task(n % 2 for n in range(40))
    same = paired_gain(before, before)
    assert (same.gain, same.low, same.high, same.improved) == (0.0, 0.0, 0.0, False)
    better = paired_gain(before, {task: [value[0] + 0.25] for task, value in before.items()})
    assert (better.low, better.high) == pytest.approx((0.25, 0.25))
    noisy = paired_gain(before, by_task((n // 2) % 2 for n in range(40)))
    assert noisy.low < 0.0 < noisy.high
    assert paired_gain(before, {}) is None


def test_repeats_are_averaged_within_their_task_first():
    before = by_task([0.0] * 6)
    often = by_task([0.0] * 6) | {"t0": [1.0] * 50}
    assert paired_gain(before, often) == paired_gain(before, often | {"t0": [1.0]})
    assert paired_gain(before, often).gain == pytest.approx(1 / 6)


def test_with_fewer_than_five_tasks_no_claim_is_made():
    few = paired_gain(by_task([0] * 4), by_task([1] * 4))
    assert (few.gain, few.low, few.high, few.improved) == (1.0, None, None, False)
    assert str(few).endswith("over 4 tasks: too few for a claim, which needs 5")
    assert "over 1 task:" in str(paired_gain(by_task([0]), by_task([1])))
    assert paired_gain(by_task([0] * 5), by_task([1] * 5)).improved


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [(0.01, 0.3, ""), (-0.1, 0.3, "; no improvement is shown"), (-0.3, -0.1, "; it got worse")],
)
def test_what_is_said_of_a_gain_is_what_its_interval_allows(low, high, said):
    gain = Gain(before=0.5, after=0.6, gain=0.1, low=low, high=high, tasks=40, clusters=8)
    assert str(gain) == (
        "0.500 before, 0.600 after; gain +0.100, 95 % interval"
        f" [{low:+.3f}, {high:+.3f}] over 40 tasks of 8 kinds{said}"
    )


@given(st.floats(-1, 1), st.integers(5, 60))
def test_where_all_values_are_the_same_the_interval_is_that_point(value, count):
    found = interval([[value]] * count, draws=50, seed=0)
    assert found == (math.fsum([value] * count) / count,) * 2


def test_kinds_are_resampled_whole():
    tasks = [f"t{n}" for n in range(60)]
    before = {task: [0.0] for task in tasks}
    after = {task: [1.0 if n % 6 < 3 else -0.5] for n, task in enumerate(tasks)}
    kinds = {task: str(n % 6) for n, task in enumerate(tasks)}
    alone, whole = paired_gain(before, after), paired_gain(before, after, kinds=kinds)
    assert (whole.tasks, whole.clusters, whole.gain) == (60, 6, 0.25)
    assert alone.improved
    assert not whole.improved


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=5, max_size=12), st.floats(-3, 3))
def test_a_shift_of_all_values_shifts_the_interval(values, shift):
    low, high = interval([[value] for value in values], draws=300, seed=0)
    moved = interval([[value + shift] for value in values], draws=300, seed=0)
    assert moved == pytest.approx((low + shift, high + shift), abs=1e-9)
    mean = sum(values) / len(values)
    assert low - 1e-9 <= mean <= high + 1e-9


@settings(deadline=None)
@given(st.permutations(range(7)), st.integers(0, 3))
def test_the_seed_decides_and_the_order_of_tasks_does_not(order, seed):
    values = [0.1, 0.9, 0.4, 0.4, 0.0, 1.0, 0.7]
    before = by_task([0.5] * 7)
    turned = {f"t{n}": [values[n]] for n in order}
    assert paired_gain(before, turned, draws=200, seed=seed) == paired_gain(
        before, by_task(values), draws=200, seed=seed
    )
