"""How a user's typed code sees the public names. Checked by `make types`; never run."""

from collections.abc import Mapping
from typing import assert_type

import lightning_core as lc
from lightning_core import strategy


def score(task: lc.Task, trace: lc.Trace) -> float:
    """A grader as users write it."""
    return float(trace.output == task.expected)


async def grade_later(task: lc.Task, trace: lc.Trace) -> lc.Reward:
    """A grader that is async and gives a Reward."""
    return lc.Reward(value=score(task, trace), feedback="compared")


async def use() -> None:
    """The calls of the README."""
    result = await lc.run("agent.py:graph", "tasks.jsonl", reward=score, model="smollm2")
    assert_type(result, lc.RunResult)
    assert_type(result.mean_reward, float | None)
    assert_type(result.causes, Mapping[lc.Cause, int])
    assert_type(result.traces[0].calls, tuple[lc.Call, ...])
    assert_type(result.traces[0].calls[0].choices[0].token_ids, tuple[int, ...] | None)
    assert_type(lc.run_sync(print, [{"input": "x"}], reward=grade_later), lc.RunResult)
    assert_type(lc.load_tasks("tasks.jsonl"), list[lc.Task])


def opt_in() -> None:
    """What code that opts in reads."""
    assert_type(strategy.prompt("write", "Write SQL for {question}."), str)
    assert_type(strategy.rule("max_attempts", 3, low=1, high=5), int)
    assert_type(strategy.rule("threshold", 0.5), float)
    assert_type(strategy.rule("careful", False), bool)
    assert_type(strategy.choose("flow", ["quick", "checked"]), str)
    assert_type(strategy.choose("flow", {"quick": 1, "checked": 2}), int)
    assert_type(lc.Strategy.load("strategy.json"), lc.Strategy)
    if isinstance(values := lc.Template("{x}").match("1"), dict):
        assert_type(values, dict[str, str])
