"""Reward functions: what they may be, and how one is asked about a trace.

A grader's fault is data: whatever it raises or returns, `grade` answers with rewards, and a number is never made up.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import math
import reprlib
import threading
import traceback
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from lightning_core.errors import RewardError
from lightning_core.reward import Reward, RewardScope, RewardStatus
from lightning_core.rollout import Cause
from lightning_core.task import Task
from lightning_core.trace import Trace

RewardValue = float | Reward | Mapping[str, float] | Sequence[Reward]
"""What a reward function may return: the number, a Reward, several numbers by name (one of them `reward`), or several
Rewards: one for the whole rollout, and others for an agent or a call of it."""
RewardFunction = Callable[[Task, Trace], RewardValue | Awaitable[RewardValue]]
"""A user's grader. It gets the task with `expected`, runs outside the agent's process, and may be async."""

_TRACEBACK_LIMIT: Final = 8 * 1024
_ERROR_LIMIT: Final = 2 * 1024


def reward_name(function: RewardFunction) -> str:
    """The name by which a reward function is reported: its `__name__`, or its class's for a callable object."""
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    name = getattr(inner, "__name__", None)
    return name if isinstance(name, str) else type(inner).__name__


async def grade(
    function: RewardFunction, task: Task, trace: Trace, *, timeout: float = 60.0
) -> tuple[Reward, ...]:
    """Ask a reward function about a trace.

    An async function runs in this loop and must not block it; any other callable runs in a thread of its own, and
    what it returns is awaited here if it can be.
    A thread cannot be ended: a function that is still running after `timeout` is left behind, and what it
    returns later is ignored.

    Args:
        function: the reward function.
        task: the task, with `expected`.
        trace: the trace of an attempt that has ended.
        timeout: seconds that the function may take.

    Returns:
        One reward, or one for each name where the function returns several. Where the attempt did not end in
        success the function is not called, and the one reward has the status that the cause stands for. Where
        the function raises, takes too long or returns what is no reward, the one reward is `unscored` and its
        `details` hold `error` and, where it raised, `traceback`.

    Raises:
        RewardError: the attempt has not ended, so there is nothing to grade.
    """
    cause = trace.attempt.cause
    if cause is None:
        raise RewardError(
            f"attempt `{trace.attempt.id}` has not ended; grade its trace once `cause` is set"
        )
    if cause is not Cause.SUCCESS:
        details = {"cause": cause.value}
        return (Reward(status=cause.reward_status, source="worker", details=details),)
    source = reward_name(function)
    try:
        async with asyncio.timeout(timeout) as deadline:
            value = await _call(function, task, trace)
    except TimeoutError as error:
        if deadline.expired():
            return _fault(source, f"gave no answer within {timeout:g} s")
        return _raised(source, error)
    except asyncio.CancelledError as error:
        current = asyncio.current_task()
        if current is None or current.cancelling():
            raise
        return _raised(source, error)
    except (Exception, SystemExit) as error:
        return _raised(source, error)
    try:
        return _rewards(source, value, trace)
    except Exception as error:
        # A returned object's own `__float__`, `__repr__` or `items` may raise anything.
        return _fault(source, _describe(error))


async def _call(function: RewardFunction, task: Task, trace: Trace) -> object:
    if inspect.iscoroutinefunction(function):
        value: object = function(task, trace)
    else:
        value = await _in_thread(function, task, trace)
    return await value if inspect.isawaitable(value) else value


async def _in_thread(function: RewardFunction, task: Task, trace: Trace) -> object:
    """Call in a daemon thread, since a pool would be used up by functions that hang, and would keep the
    process from ending."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[tuple[object, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: object, error: BaseException | None) -> None:
        if not answer.done():
            answer.set_result((value, error))
        elif inspect.iscoroutine(value):
            value.close()

    def work() -> None:
        value: object = None
        error: BaseException | None = None
        try:
            value = context.run(function, task, trace)
        except BaseException as raised:  # handed to the caller, who judges it
            error = raised
        try:
            loop.call_soon_threadsafe(settle, value, error)
        except RuntimeError:  # the loop has closed: nobody waits for the answer any more
            if inspect.iscoroutine(value):
                value.close()

    threading.Thread(target=work, name=f"grade-{reward_name(function)}", daemon=True).start()
    value, error = await answer
    if error is not None:
        raise error
    return value


def _rewards(source: str, value: object, trace: Trace) -> tuple[Reward, ...]:
    if isinstance(value, Reward):
        return (_checked(value),)
    if isinstance(value, (list, tuple)):
        return _several(value, {call.id for call in trace.calls})
    if isinstance(value, Mapping):
        items = dict(value)
        if "reward" not in items:
            names = ", ".join(f"`{name}`" for name in list(items)[:10]) or "none"
            raise RewardError(
                f"returned numbers without `reward`, which is what is optimised; got {names};"
                ' return `{"reward": …}` among them'
            )
        for name in items:
            if not isinstance(name, str):
                raise RewardError(
                    f"returned a name that is no string: {reprlib.repr(name)}; names are strings"
                )
        return tuple(
            Reward(value=_number(number, name), name=name, source=source)
            for name, number in items.items()
        )
    return (Reward(value=_number(value, "reward"), source=source),)


def _several(values: Sequence[object], calls: Collection[str]) -> tuple[Reward, ...]:
    """Rewards for the whole rollout, its agents and its calls."""
    found: dict[tuple[str, str, str | None], Reward] = {}
    for value in values:
        if not isinstance(value, Reward):
            raise RewardError(
                f"returned a list with {reprlib.repr(value)} in it; expected `Reward`s only"
            )
        reward = _checked(value)
        if reward.scope is RewardScope.CALL and reward.target not in calls:
            raise RewardError(
                f"returned a reward for call {reward.target!r}, which is no call of this attempt; take `call.id` of"
                " `trace.calls`"
            )
        key = (reward.name, reward.scope.value, reward.target)
        if key in found:
            raise RewardError(
                f"returned two rewards named `{reward.name}` for the same {reward.scope.value}"
                + (f" {reward.target!r}" if reward.target else "")
            )
        found[key] = reward
    if ("reward", RewardScope.ROLLOUT.value, None) not in found:
        raise RewardError(
            "returned rewards without one named `reward` for the whole rollout; put it among them, so that rollouts"
            " can be compared"
        )
    return tuple(found.values())


def _number(value: object, name: str) -> float:
    """A finite float of a number of any library's, such as a numpy scalar or a tensor of one element."""
    if isinstance(value, str | bytes) or getattr(value, "ndim", 0) != 0:
        known = False
    else:
        known = hasattr(type(value), "__float__") or hasattr(type(value), "__index__")
    if not known:
        hint = "; is a `return` missing?" if value is None else ""
        raise RewardError(
            f"`{name}`: expected a number, a `Reward` or a dict of numbers but got"
            f" {reprlib.repr(value)} of type `{type(value).__name__}`{hint}"
        )
    number = float(value)  # type: ignore[arg-type]  # the check above is what mypy cannot see
    if not math.isfinite(number):
        raise RewardError(f"`{name}`: expected a finite number but got {number!r}")
    return number


def _checked(reward: Reward) -> Reward:
    """The reward with a plain float, refused where it could not be stored and read again."""
    if reward.value is not None:
        reward = msgspec.structs.replace(reward, value=_number(reward.value, str(reward.name)))
    try:
        Reward.from_json(reward.to_json())
    except Exception as error:
        raise RewardError(
            f"returned a `Reward` that JSON cannot hold: {_describe(error)}; keep plain values in its fields"
        ) from error
    return reward


def _raised(source: str, error: BaseException) -> tuple[Reward, ...]:
    text = "".join(traceback.format_exception(error))
    if len(text) > _TRACEBACK_LIMIT:
        text = "…" + text[-_TRACEBACK_LIMIT:]
    return _fault(source, _describe(error), traceback=text)


def _describe(error: BaseException) -> str:
    if isinstance(error, RewardError):
        return str(error)
    return "".join(traceback.format_exception_only(error)).strip()


def _fault(source: str, message: str, **details: str) -> tuple[Reward, ...]:
    if len(message) > _ERROR_LIMIT:
        message = message[:_ERROR_LIMIT] + "…"
    text = {"error": f"reward function `{source}`: {message}", **details}
    # Text of a stranger's exception may hold lone surrogates, which no store takes.
    safe = {key: value.encode("utf-8", "replace").decode() for key, value in text.items()}
    return (Reward(status=RewardStatus.UNSCORED, source=source, details=safe),)
