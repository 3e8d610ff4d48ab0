"""Scoring a rollout for a step: whether there is a number, what its calls are credited, and what it is compared by."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from lightning_core.learn.advantage import Estimator, Standing, has_signal, to_float32
from lightning_core.learn.credit import CreditRule
from lightning_core.learn.rules import SampleRules
from lightning_core.reward import Reward, RewardScope, RewardStatus
from lightning_core.rollout import Cause
from lightning_core.trace import Trace


class GroupBy(StrEnum):
    """What a baseline is taken over."""

    TASK = "task"
    """The rollouts of a task."""
    TASK_AGENT = "task_agent"
    """What one agent did in them; within a graph, what one node did."""


class Key(msgspec.Struct, frozen=True):
    """What a credit is compared under."""

    group: int
    """Position of the group in the step."""
    agent: str | None = None
    """The agent's label, with `GroupBy.TASK_AGENT`."""
    node: str | None = None
    """The node's label, with `GroupBy.TASK_AGENT`."""


class Scored(msgspec.Struct, frozen=True):
    """A rollout as the statistics see it."""

    trace: Trace
    """The rollout."""
    group: int
    """Position of its group in the step."""
    status: RewardStatus
    """Whether it has a part in the statistics."""
    credits: Mapping[str, float]
    """Credit by call id, of the calls that are learnt from; empty unless `scored`."""
    values: Mapping[Key, float]
    """Mean of those credits, by what they are compared under."""
    failure: str | None = None
    """Why it is not scored: the cause of its end, `not_graded` or `bad_credit`."""
    note: str | None = None
    """More about that, in words."""


def key_of(group: int, agent: str | None, node: str | None, group_by: GroupBy) -> Key:
    """What the credit of a call is compared under."""
    return Key(group, agent, node) if group_by is GroupBy.TASK_AGENT else Key(group)


def score(
    trace: Trace, group: int, *, credit: CreditRule, samples: SampleRules, group_by: GroupBy
) -> Scored:
    """Credit a rollout's calls. A rollout without a number is left out of everything; it is never read as 0.

    The status of the reward for the whole rollout holds. Without one, an attempt that ended in success is scored
    where the rule credits a call, as with rewards of calls alone.

    Args:
        trace: the rollout.
        group: position of its group.
        credit: the rule. What it raises, or a number that is not finite, leaves this rollout unscored.
        samples: which calls are learnt from.
        group_by: what credits are compared under.
    """
    reward = _own_reward(trace)
    cause = trace.attempt.cause
    status, failure = RewardStatus.SCORED, None
    if reward is not None:
        status = reward.status
    elif cause is not Cause.SUCCESS:
        status = RewardStatus.INFRA_ERROR if cause is None else cause.reward_status
    if status is not RewardStatus.SCORED:
        failure = "unfinished" if cause is None else cause.value
        if cause is Cause.SUCCESS:
            failure = "not_graded"
        return Scored(trace, group, status, {}, {}, failure, _error(trace, reward))
    try:
        credited = {id_: _number(id_, value) for id_, value in credit(trace).items()}
    except Exception as error:  # A rule's fault with one trace is that rollout's own.
        note = f"rollout `{trace.rollout.id}`: credit: {type(error).__name__}: {error}"
        return Scored(trace, group, RewardStatus.UNSCORED, {}, {}, "bad_credit", note)
    if reward is None and not credited:
        return Scored(trace, group, RewardStatus.UNSCORED, {}, {}, "not_graded")
    credits: dict[str, float] = {}
    by_key: dict[Key, list[float]] = {}
    for call in trace.calls:
        if call.id in credited and samples.selects(call):
            credits[call.id] = value = credited[call.id]
            by_key.setdefault(key_of(group, call.agent, call.node, group_by), []).append(value)
    values = {key: math.fsum(some) / len(some) for key, some in by_key.items()}
    return Scored(trace, group, status, credits, values)


def by_key(rollouts: Sequence[Scored]) -> dict[Key, dict[int, float]]:
    """The values of each group: by position of the rollout, in order."""
    found: dict[Key, dict[int, float]] = {}
    for position, rollout in enumerate(rollouts):
        for key, value in rollout.values.items():
            found.setdefault(key, {})[position] = value
    return found


def standings(
    values: Mapping[Key, Mapping[int, float]], estimator: Estimator
) -> dict[tuple[Key, int], Standing]:
    """What the credits of each rollout are compared with, by group and position of the rollout."""
    return {
        (key, position): standing
        for key, some in values.items()
        for position, standing in zip(some, estimator(list(some.values())), strict=True)
    }


def signals(values: Mapping[Key, Mapping[int, float]]) -> set[Key]:
    """The groups that tell better from worse."""
    return {key for key, some in values.items() if has_signal(list(some.values()))}


def _own_reward(trace: Trace) -> Reward | None:
    """The reward that is optimised, for the whole rollout."""
    for reward in trace.rewards:
        if reward.scope is RewardScope.ROLLOUT and reward.name == "reward":
            return reward
    return None


def _error(trace: Trace, reward: Reward | None) -> str | None:
    """What the grader said of its fault."""
    error = None if reward is None else reward.details.get("error")
    return None if error is None else f"rollout `{trace.rollout.id}`: {error}"


def _number(call_id: str, value: float) -> float:
    number = float(value)
    if not math.isfinite(to_float32(number)):
        raise ValueError(
            f"call `{call_id}`: expected a finite number that single precision holds but got {value!r}"
        )
    return number
