"""Validation: its line, and what is said of the first and the last."""

from lightning_core.learn.validation import compared, rewards_by_task, validation_line
from lightning_core.reward import Reward, RewardScope, RewardStatus
from lightning_core.rollout import Attempt, Cause, Rollout
from lightning_core.task import Task
from lightning_core.trace import Trace


def trace_of(task, *rewards):
    attempt = Attempt(
        id=f"{task}.1", rollout_id=task, number=1, fence=1, worker="w", started_at=0.0, deadline=1.0,
        lease_until=1.0, ended_at=1.0, cause=Cause.SUCCESS,
    )  # fmt: skip
    return Trace(
        rollout=Rollout(id=task, task_id=task),
        task=Task(id=task, input="?"),
        attempt=attempt,
        rewards=rewards,
    )


TRACES = [
    trace_of("a", Reward(value=1.0), Reward(value=4.0, name="length")),
    trace_of("a", Reward(value=0.0), Reward(value=9.0, scope=RewardScope.AGENT, target="x")),
    trace_of("b", Reward(status=RewardStatus.UNSCORED)),
    trace_of("c", Reward(value=0.5), Reward(value=2.0, name="length")),
]


def test_a_rollout_that_is_not_scored_is_counted_and_not_read_as_zero():
    assert rewards_by_task(TRACES) == {"a": [1.0, 0.0], "b": [], "c": [0.5]}
    assert validation_line(TRACES) == {
        "val/rollouts": 4,
        "val/scored": 3,
        "val/reward": 0.5,
        "val/reward/length": 3.0,
    }
    assert validation_line(TRACES[2:3]) == {"val/rollouts": 1, "val/scored": 0}


def test_the_first_validation_is_compared_with_the_last_by_number_and_not_by_text():
    vals = {"0": {"a": [0.0]}, "10": {"a": [1.0]}, "9": {"a": [0.5]}}
    found = compared(vals, [Task(id="a", input="?")], None)
    assert (found["val"]["before"], found["val"]["after"]) == (0.0, 1.0)
    assert "kinds" not in found
    assert compared({"0": {"a": [0.0]}}, [], None) == {}


def test_kinds_are_told_apart_and_resampled_whole():
    tasks = [Task(id=f"{n}", input="?", metadata={"kind": "even" if n % 2 == 0 else "odd"}) for n in range(8)]  # fmt: skip
    before = {task.id: [0.0] for task in tasks}
    after = {task.id: [1.0 if task.metadata["kind"] == "even" else 0.0] for task in tasks}
    after["7"] = []
    found = compared({"0": before, "3": after}, tasks, "kind")
    assert found["kinds"] == {"even": (0.0, 1.0, 4), "odd": (0.0, 0.0, 3)}
    assert found["val"]["clusters"] == 2
    assert found["val"]["tasks"] == 7
    # Of other kinds two say nothing.
    assert "low" not in found["val"]
