"""Grading: what a reward function may return, and what becomes of one that misbehaves."""

import asyncio
import contextvars
import functools
import threading
import time

import msgspec
import numpy
import pytest

from lightning_core.errors import RewardError
from lightning_core.grading import grade, reward_name
from lightning_core.reward import Reward, RewardScope, RewardStatus
from lightning_core.rollout import Attempt, Cause, Rollout
from lightning_core.task import Task
from lightning_core.trace import Call, Trace

TASK = Task(id="t", input="?", expected="gold")


def trace_of(cause=Cause.SUCCESS, output="out"):
    attempt = Attempt(
        id="r.1", rollout_id="r", number=1, fence=1, worker="w", started_at=0.0, deadline=1.0,
        lease_until=1.0, ended_at=1.0, cause=cause, output=output,
    )  # fmt: skip
    return Trace(
        rollout=Rollout(id="r", task_id="t"), task=TASK.without_expected(), attempt=attempt
    )


def graded(function, **options):
    return asyncio.run(grade(function, TASK, trace_of(), **options))


def assert_fault(rewards, says):
    (reward,) = rewards
    assert (reward.status, reward.value, reward.name) == (RewardStatus.UNSCORED, None, "reward")
    assert says in reward.details["error"]
    assert f"`{reward.source}`" in reward.details["error"]
    assert Reward.from_json(reward.to_json()) == reward
    return reward


@pytest.mark.parametrize(
    "value", [0.5, 1, True, numpy.float32(0.5), numpy.int64(2), numpy.bool_(True), numpy.array(0.5)]
)
def test_a_number_is_the_reward(value):
    def judge(task, trace):
        return value

    (reward,) = graded(judge)
    assert reward == Reward(value=float(value), source="judge")
    assert type(reward.value) is float


def test_the_function_gets_the_task_with_expected_and_the_trace():
    def judge(task, trace):
        return float((task.expected, trace.output) == ("gold", "out"))

    assert graded(judge)[0].value == 1.0


def test_async_functions_run_in_the_loop_and_others_in_a_thread_with_the_context():
    where = contextvars.ContextVar("where")
    seen = []

    async def judge(task, trace):
        seen.append(threading.current_thread())
        return 1.0

    def sync_judge(task, trace):
        seen.append((threading.current_thread(), where.get()))
        return 1.0

    async def main():
        where.set("here")
        await grade(judge, TASK, trace_of())
        await grade(sync_judge, TASK, trace_of())

    asyncio.run(main())
    assert seen[0] is threading.main_thread()
    assert seen[1][0] is not threading.main_thread()
    assert seen[1][1] == "here"


def test_whatever_gives_an_awaitable_is_awaited():
    async def judge(weight, task, trace):
        return weight

    class Judge:
        async def __call__(self, task, trace):
            return 0.25

    assert graded(functools.partial(judge, 0.75))[0] == Reward(value=0.75, source="judge")
    assert graded(Judge())[0] == Reward(value=0.25, source="Judge")
    assert graded(lambda task, trace: judge(0.5, task, trace))[0].value == 0.5


def test_a_reward_is_taken_as_it_is():
    given = Reward(
        value=1,
        name="style",
        scope=RewardScope.AGENT,
        target="writer",
        feedback="good",
        source="me",
    )
    assert graded(lambda task, trace: given) == (given,)


def test_several_numbers_by_name():
    rewards = graded(lambda task, trace: {"reward": 1, "length": numpy.float64(0.5)})
    assert [(r.name, r.value, r.source) for r in rewards] == [
        ("reward", 1.0, "<lambda>"),
        ("length", 0.5, "<lambda>"),
    ]


class Strange:
    def __float__(self):
        raise KeyError("no float")

    def __repr__(self):
        raise ValueError("no repr")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (None, "got None of type `NoneType`; is a `return` missing?"),
        ("1.0", "got '1.0' of type `str`"),
        (float("nan"), "expected a finite number but got nan"),
        (numpy.float32("inf"), "expected a finite number but got inf"),
        (10**400, "OverflowError"),
        (1j, "of type `complex`"),
        (numpy.ones(1), "of type `ndarray`"),
        ([1.0], "expected `Reward`s only"),
        (Strange(), "KeyError: 'no float'"),
        ({}, "without `reward`, which is what is optimised; got none"),
        ({"score": 1.0}, "without `reward`, which is what is optimised; got `score`"),
        ({"reward": 1.0, "length": float("nan")}, "`length`: expected a finite number"),
        ({"reward": 1.0, 3: 1.0}, "a name that is no string: 3"),
        ({"reward": Reward(value=1.0)}, "`reward`: expected a number"),
        (Reward(value=1.0, details={"x": object()}), "a `Reward` that JSON cannot hold"),
        (Reward(value=1.0, name=3), "a `Reward` that JSON cannot hold"),
    ],
)
def test_what_is_no_reward_is_unscored(value, says):
    assert_fault(graded(lambda task, trace: value), says)


def raising(error):
    def judge(task, trace):
        raise error

    async def async_judge(task, trace):
        raise error

    return [judge, async_judge]


@pytest.mark.parametrize(
    "error",
    [
        KeyError("expected"), RewardError("no gold"), SystemExit(3), StopIteration(1),
        TimeoutError("theirs"), asyncio.CancelledError(), RecursionError(), ValueError("\ud800"),
        ExceptionGroup("many", [ValueError("one")]),
    ],
)  # fmt: skip
def test_a_function_that_raises_is_unscored_with_its_traceback(error):
    for function in raising(error):
        if isinstance(error, StopIteration) and reward_name(function) == "async_judge":
            continue  # Python itself makes a RuntimeError of it
        reward = assert_fault(graded(function), "")
        assert type(error).__name__ in reward.details["traceback"]
        assert reward_name(function) in reward.details["traceback"]


def test_a_long_error_and_traceback_are_cut():
    def judge(task, trace):
        raise ValueError("x" * 1_000_000)

    (reward,) = graded(judge)
    assert len(reward.to_json()) < 20_000


@pytest.mark.parametrize("cause", [cause for cause in Cause if cause is not Cause.SUCCESS])
async def test_no_grader_sees_an_attempt_that_failed(cause):
    called = []
    rewards = await grade(lambda *given: called.append(given), TASK, trace_of(cause))
    assert not called
    assert rewards == (
        Reward(status=cause.reward_status, source="worker", details={"cause": cause.value}),
    )


async def test_an_attempt_that_runs_cannot_be_graded():
    with pytest.raises(RewardError, match=r"attempt `r\.1` has not ended"):
        await grade(lambda task, trace: 1.0, TASK, trace_of(None))


def test_a_function_that_hangs_is_unscored_and_does_not_keep_the_loop():
    release = threading.Event()
    begun = time.monotonic()
    try:
        rewards = graded(lambda task, trace: release.wait(60), timeout=0.05)
        elapsed = time.monotonic() - begun
    finally:
        release.set()
    assert_fault(rewards, "gave no answer within 0.05 s")
    assert elapsed < 30


def test_functions_that_hang_do_not_block_those_that_do_not():
    release = threading.Event()

    async def main():
        hanging = [
            asyncio.create_task(grade(lambda task, trace: release.wait(60), TASK, trace_of()))
            for _ in range(64)
        ]
        try:
            return await grade(lambda task, trace: 1.0, TASK, trace_of(), timeout=30)
        finally:
            release.set()
            await asyncio.gather(*hanging)

    assert asyncio.run(main())[0].value == 1.0


async def test_an_async_function_that_hangs_is_cancelled():
    ended = asyncio.Event()

    async def judge(task, trace):
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    assert_fault(await grade(judge, TASK, trace_of(), timeout=0.05), "within 0.05 s")
    assert ended.is_set()


async def test_an_answer_that_comes_too_late_is_dropped():
    release, done = threading.Event(), threading.Event()

    def judge(task, trace):
        async def late():
            return 1.0

        release.wait(60)
        done.set()
        return late()

    assert_fault(await grade(judge, TASK, trace_of(), timeout=0.05), "within 0.05 s")
    release.set()
    await asyncio.to_thread(done.wait, 60)
    for thread in threading.enumerate():
        if thread.name == "grade-judge":
            await asyncio.to_thread(thread.join)


async def test_being_cancelled_passes_through():
    started = asyncio.Event()

    async def judge(task, trace):
        started.set()
        await asyncio.Event().wait()

    grading = asyncio.create_task(grade(judge, TASK, trace_of()))
    await started.wait()
    grading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await grading


CALLED = msgspec.structs.replace(
    trace_of(), calls=(Call(id="c1", attempt_id="r.1", rollout_id="r", index=0, dialect="chat"),)
)
WHOLE = Reward(value=1.0)
OF_A_CALL = Reward(value=0.5, scope=RewardScope.CALL, target="c1")
OF_AN_AGENT = Reward(value=0.25, scope=RewardScope.AGENT, target="writer")


def test_several_rewards_for_the_rollout_its_agents_and_its_calls():
    given = [WHOLE, OF_A_CALL, OF_AN_AGENT, Reward(value=2.0, name="length")]
    found = asyncio.run(grade(lambda task, trace: given, TASK, CALLED))
    assert found == tuple(given)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([], "without one named `reward` for the whole rollout"),
        ([OF_A_CALL], "without one named `reward` for the whole rollout"),
        ([WHOLE, WHOLE], "two rewards named `reward` for the same rollout"),
        ([WHOLE, OF_A_CALL, OF_A_CALL], "for the same call 'c1'"),
        (
            [WHOLE, Reward(value=1.0, scope=RewardScope.CALL, target="c9")],
            "call 'c9', which is no call",
        ),
        ([WHOLE, 0.5], "expected `Reward`s only"),
    ],
)
def test_several_rewards_that_do_not_go_together_are_one_fault(given, says):
    assert_fault(asyncio.run(grade(lambda task, trace: given, TASK, CALLED)), says)
