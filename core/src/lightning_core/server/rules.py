"""Rules: which rollouts are the same, and to what the end of an attempt is put down."""

from __future__ import annotations

import signal
from collections.abc import Collection
from typing import Any, Final

from lightning_core.errors import WireError
from lightning_core.gateway.session import Session
from lightning_core.rollout import Cause, Rollout
from lightning_core.trace import CallErrorKind

_CALLER_SET: Final = (
    "task_id", "run", "group", "mode", "timeout", "max_attempts", "retry_on", "budget", "strategy", "metadata",
)  # fmt: skip
"""The fields of a rollout that its caller gives; two of one id must agree in them."""
_SENT_BY_OTHERS: Final = {signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT}
"""Signals that a person or the system may have sent to a worker."""


def ended_by_agent(exit_status: int, earlier: Collection[Cause | None]) -> bool:
    """Whether an agent that had a worker to itself ended it.

    A signal that others may have sent is put down to the agent once an attempt of the same rollout was lost before.

    Args:
        exit_status: the worker's; negative: a signal's number.
        earlier: how earlier attempts of the rollout ended.
    """
    return -exit_status not in _SENT_BY_OTHERS or Cause.LOST in earlier


def exit_text(exit_status: int) -> str:
    """How a process ended, for a person."""
    if exit_status >= 0:
        return f"status {exit_status}"
    try:
        return f"signal {signal.Signals(-exit_status).name}"
    except ValueError:
        return f"signal {-exit_status}"


def refuse_conflict(known: Rollout, rollout: Rollout) -> None:
    """Raise where a known rollout is asked for with other content (`WireError`, 409)."""
    differing = [name for name in _CALLER_SET if getattr(known, name) != getattr(rollout, name)]
    if differing:
        field = differing[0]
        values: tuple[Any, Any] = (getattr(known, field), getattr(rollout, field))
        raise WireError(
            f"rollout `{rollout.id}`: is known with another `{field}`: {values[0]!r} and not {values[1]!r};"
            " give a new rollout a new id",
            409,
        )


def put_down(reported: Cause, session: Session | None) -> Cause:
    """The one cause: an agent that fails after its model call did, failed because of it."""
    error = session.last_error if session else None
    if reported is not Cause.AGENT_ERROR or error is None:
        return reported
    if error.kind is CallErrorKind.BUDGET:
        return Cause.BUDGET
    if error.kind is CallErrorKind.DEADLINE:
        return Cause.TIMEOUT
    if error.kind in (CallErrorKind.CLIENT_GONE, CallErrorKind.BAD_REQUEST):
        return reported
    return Cause.MODEL_ERROR
