"""Task samplers: what they draw, in what order, and that a resumed one goes on as an unbroken one would."""

import json
import logging
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core import Task
from lightning_core.errors import FormatError, UsageError
from lightning_core.learn import create_sampler
from lightning_core.learn.draws import BUILT_IN

SPECS = ["shuffled", "difficulty:level", "success", "success:0.5"]


def tasks(count):
    return [Task(id=f"t{i}", input=i, metadata={"level": (i * 7) % 5}) for i in range(count)]


def make(spec, some, seed=0):
    return create_sampler(spec, some, seed, BUILT_IN)


def ids(batch):
    return [task.id for task in batch]


@pytest.mark.parametrize("spec", SPECS)
@given(
    count=st.integers(1, 12),
    sizes=st.lists(st.integers(1, 15), min_size=1, max_size=8),
    seed=st.integers(0, 5),
    stop=st.integers(0, 8),
    data=st.data(),
)
def test_a_resumed_sampler_draws_what_an_unbroken_one_draws(spec, count, sizes, seed, stop, data):
    some = tasks(count)
    unbroken = make(spec, some, seed)
    resumed = make(spec, some, seed)
    for step, size in enumerate(sizes):
        if step == stop:
            state = json.loads(json.dumps(resumed.state()))
            resumed = make(spec, some, seed)
            resumed.restore(state)
        batch = unbroken.draw(size)
        assert resumed.draw(size) == batch
        for task in batch:
            rewards = data.draw(st.lists(st.floats(0, 1), max_size=3))
            unbroken.update(task.id, rewards)
            resumed.update(task.id, rewards)
    assert resumed.state() == unbroken.state()


@pytest.mark.parametrize("spec", SPECS)
@given(count=st.integers(1, 12), sizes=st.lists(st.integers(1, 30), min_size=1, max_size=8))
def test_a_task_comes_twice_in_a_batch_only_where_it_must(spec, count, sizes):
    sampler = make(spec, tasks(count))
    for size in sizes:
        batch = ids(sampler.draw(size))
        assert len(batch) == size
        assert max(Counter(batch).values()) == -(-size // count)


@pytest.mark.parametrize("spec", ["shuffled", "difficulty:level"])
@given(count=st.integers(1, 12), sizes=st.lists(st.integers(1, 15), min_size=1, max_size=12))
def test_every_task_is_drawn_once_before_any_is_drawn_again(spec, count, sizes):
    sampler = make(spec, tasks(count))
    drawn = [id_ for size in sizes for id_ in ids(sampler.draw(size))]
    for start in range(0, len(drawn) - count + 1, count):
        assert len(set(drawn[start : start + count])) == count


def test_the_seed_decides_and_passes_differ():
    some = tasks(20)
    passes = [ids(sampler.draw(20)) for sampler in [make("shuffled", some, 3)] for _ in range(2)]
    assert ids(make("shuffled", some, 3).draw(20)) == passes[0]
    assert ids(make("shuffled", some, 4).draw(20)) != passes[0] != passes[1]


@pytest.mark.parametrize("spec", SPECS)
def test_fewer_tasks_than_a_batch_is_said_once(spec, caplog):
    sampler = make(spec, tasks(3))
    with caplog.at_level(logging.WARNING):
        sampler.draw(3)
        assert not caplog.messages
        sampler.draw(8)
        sampler.draw(8)
    (said,) = caplog.messages
    assert "3 tasks for batches of 8" in said


@pytest.mark.parametrize("levels", [[3, 1, 2.5, 1, -4], ["3", "1", "2.5", "1", "-4"]])
def test_easy_tasks_come_before_hard_ones(levels):
    some = [Task(id=f"t{i}", input=i, metadata={"level": v}) for i, v in enumerate(levels)]
    by_id = {task.id: float(task.metadata["level"]) for task in some}
    orders = set()
    for seed in range(20):
        drawn = ids(make("difficulty:level", some, seed).draw(5))
        assert [by_id[id_] for id_ in drawn] == [-4, 1, 1, 2.5, 3]
        orders.add(tuple(drawn))
    assert len(orders) == 2, "equals come in an order that the seed decides"


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({"size": 3}, "but got nothing; its columns are `size`"),
        ({}, "but got nothing; its columns are none"),
        ({"level": "hard"}, "but got 'hard'"),
        ({"level": True}, "but got True"),
        ({"level": float("nan")}, "but got nan"),
        ({"level": None}, "but got None"),
    ],
)
def test_a_task_without_a_difficulty_is_named(metadata, says):
    some = [*tasks(2), Task(id="odd", input=1, metadata=metadata)]
    with pytest.raises(UsageError) as raised:
        make("difficulty:level", some)
    assert "task `odd`" in str(raised.value)
    assert says in str(raised.value)


def test_new_tasks_come_first():
    sampler = make("success", tasks(10))
    first, second = ids(sampler.draw(6)), ids(sampler.draw(6))
    assert len(set(first)) == 6
    assert set(first) | set(second[:4]) == {f"t{i}" for i in range(10)}


def test_tasks_near_one_half_are_drawn_most_and_none_is_forgotten():
    sampler = make("success", tasks(3))
    counts = Counter()
    rates = {"t0": 0.0, "t1": 0.5, "t2": 1.0}
    sampler.draw(3)
    for id_, rate in rates.items():
        sampler.update(id_, [rate])
    for _ in range(2000):
        (task,) = sampler.draw(1)
        counts[task.id] += 1
    # Weights .02, .27, .02 of .31: 129 are expected of each end, with a deviation of 11.
    assert counts["t1"] > 1600
    assert 80 < counts["t0"] < 180
    assert 80 < counts["t2"] < 180


def test_the_rate_follows_what_the_policy_does_now():
    sampler = make("success", tasks(2))
    sampler.draw(2)
    sampler.update("t0", [0.5, 0.5])
    sampler.update("t1", [0.0])
    for _ in range(20):
        sampler.update("t0", [1.0, 1.0])
        sampler.update("t1", [1.0, 0.0])
    rates = sampler.state()["rates"]
    assert rates["t0"] == pytest.approx(1.0, abs=0.01)
    assert rates["t1"] == pytest.approx(0.5, abs=0.01)


def test_a_reward_of_another_scale_counts_as_far_as_it_is_a_success():
    sampler = make("success", tasks(1))
    sampler.update("t0", [-3.0, 12.0])
    assert sampler.state()["rates"] == {"t0": 0.5}
    by_threshold = make("success:10", tasks(1))
    by_threshold.update("t0", [9.9, 10.0, 12.0, 0.0])
    assert by_threshold.state()["rates"] == {"t0": 0.5}


def test_a_task_whose_rollouts_all_failed_has_no_rate():
    sampler = make("success", tasks(2))
    sampler.draw(2)
    sampler.update("t0", [])
    assert sampler.state()["rates"] == {}


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("shufled", "none is named `shufled`; there are `difficulty`, `shuffled`, `success`"),
        ("shuffled:3", "takes no argument but got '3'"),
        ("shuffled:", "takes no argument but got ''"),
        ("difficulty", "by which metadata column? expected `difficulty:COLUMN`; the tasks' columns are `level`"),
        ("difficulty:", "by which metadata column?"),
        ("success:high", "expected a reward after the colon, as in `success:0.5`, but got 'high'"),
        ("success:nan", "but got 'nan'"),
    ],
)  # fmt: skip
def test_a_spec_that_is_wrong_is_one_clear_error(spec, says):
    with pytest.raises(UsageError) as raised:
        make(spec, tasks(3))
    assert str(raised.value).startswith("sampler ")
    assert says in str(raised.value)


def test_no_tasks_two_of_one_id_and_an_empty_draw_are_refused():
    with pytest.raises(UsageError, match="there are no tasks"):
        make("shuffled", [])
    with pytest.raises(UsageError, match="two tasks have the id `t0`"):
        make("shuffled", [*tasks(2), *tasks(1)])
    for spec in SPECS:
        with pytest.raises(UsageError, match="at least 1 task but got 0"):
            make(spec, tasks(2)).draw(0)


@pytest.mark.parametrize("spec", ["shuffled", "success"])
def test_a_state_of_another_run_is_refused(spec):
    state = make(spec, tasks(3)).state()
    for other in (
        make(spec, tasks(4)),
        make(spec, tasks(3), 1),
        make("difficulty:level", tasks(3)),
    ):
        with pytest.raises(FormatError, match="saved state"):
            other.restore(state)
    for broken in ({}, {**state, "draws" if spec == "success" else "drawn": "x"}):
        with pytest.raises(FormatError, match="cannot be read"):
            make(spec, tasks(3)).restore(broken)


def test_the_state_stays_small_however_long_a_run_is():
    sampler = make("shuffled", tasks(5000))
    for _ in range(300):
        sampler.draw(48)
    assert len(json.dumps(sampler.state())) < 1000
