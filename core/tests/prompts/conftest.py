"""Traces of agents that never ran, made of their messages."""

import pytest

from lightning_core.rollout import Attempt, Cause, Rollout, RolloutStatus
from lightning_core.task import Task
from lightning_core.trace import Call, Choice, Trace


def make_trace(task, calls, value=None, run="demo", output=None, spans=()):
    """A trace: each call a tuple of node, messages and other fields; a message `role: text` or a dict; the field `reply` is
    what the model says."""
    rollout = Rollout(id=f"{run}:{task}", task_id=task, run=run, status=RolloutStatus.SUCCEEDED)
    attempt = Attempt(
        id=f"{rollout.id}.1", rollout_id=rollout.id, number=1, fence=1, worker="w", started_at=0,
        deadline=9, lease_until=9, ended_at=1, cause=Cause.SUCCESS, output=output,
    )  # fmt: skip
    made = []
    for index, (node, messages, *fields) in enumerate(calls):
        options = {"dialect": "chat", "request": {"messages": [said(m) for m in messages]}}
        options |= fields[0] if fields else {}
        if "reply" in options:
            options["choices"] = (Choice(message={"content": options.pop("reply")}),)
        call = Call(
            id=f"{rollout.id}-{index}", attempt_id=attempt.id, rollout_id=rollout.id, index=index,
            node=node, complete=True, **options,
        )  # fmt: skip
        made.append(call)
    return Trace(
        rollout=rollout,
        task=Task(id=task, input=value),
        attempt=attempt,
        calls=tuple(made),
        spans=spans,
    )


def said(message):
    if isinstance(message, dict):
        return message
    role, _, text = message.partition(": ")
    return {"role": role, "content": text}


@pytest.fixture
def trace():
    return make_trace
