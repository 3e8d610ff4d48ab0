"""Rollout and Attempt: the wish to run the agent once on one task, and each try at it."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from lightning_core.records import Json, Record
from lightning_core.reward import RewardStatus


class Mode(StrEnum):
    """What the gateway does with the model calls of a session."""

    OBSERVE = "observe"
    """A call goes where the agent meant it to go, with the agent's own key."""
    TRAIN = "train"
    """A call goes to the run's policy, under the run's sampling policy for training."""
    VAL = "val"
    """A call goes to the run's policy or model, under the run's sampling policy for validation."""


class RolloutStatus(StrEnum):
    """Where a rollout stands."""

    QUEUED = "queued"
    """Waits for a worker; so does a rollout whose last attempt failed and which may be tried again."""
    RUNNING = "running"
    """A worker holds an attempt."""
    SUCCEEDED = "succeeded"
    """The agent gave an output. It may still be wrong: that is for the grader to say."""
    FAILED = "failed"
    """No attempt gave an output and none will be made again."""
    CANCELLED = "cancelled"
    """The run no longer wants it."""

    @property
    def ended(self) -> bool:
        """Whether the status can still change."""
        return self in (RolloutStatus.SUCCEEDED, RolloutStatus.FAILED, RolloutStatus.CANCELLED)


class Cause(StrEnum):
    """The one cause to which the end of an attempt is put down."""

    SUCCESS = "success"
    """The agent returned."""
    AGENT_ERROR = "agent_error"
    """The agent raised, exited with a status other than 0, ended its worker where it ran alone, or returned what JSON
    cannot hold."""
    MODEL_ERROR = "model_error"
    """The agent failed after its model call did: upstream status, time-out, refused, cut stream."""
    TIMEOUT = "timeout"
    """The attempt's deadline passed; the agent was ended."""
    BUDGET = "budget"
    """The attempt used up its calls or tokens."""
    LOST = "lost"
    """The worker stopped heart-beating, or ended while it held other attempts too."""
    CANCELLED = "cancelled"
    """The run or the user asked for the end."""
    WORKER_ERROR = "worker_error"
    """The worker could not start the agent, or failed itself."""

    @property
    def reward_status(self) -> RewardStatus:
        """The status of the reward of a rollout that ended so, before any grader saw it."""
        if self in (Cause.AGENT_ERROR, Cause.TIMEOUT, Cause.BUDGET):
            return RewardStatus.UNSCORED
        if self is Cause.SUCCESS:
            return RewardStatus.SCORED
        return RewardStatus.INFRA_ERROR


class Budget(Record, frozen=True, kw_only=True):
    """What one attempt may use of the model; None is no limit."""

    calls: int | None = None
    """Model calls (retries of one call count once)."""
    tokens: int | None = None
    """Prompt and completion tokens together, as the upstream reports them."""


class Rollout(Record, frozen=True, kw_only=True):
    """The wish to run the agent once on one task."""

    id: str
    """Unique within a store; given by the caller, so that enqueueing twice makes one rollout."""
    task_id: str
    """The task."""
    run: str = "default"
    """The run that wants it."""
    group: str | None = None
    """The group whose rollouts a group-relative method compares; None stands for a group of its own."""
    mode: Mode = Mode.OBSERVE
    """What the gateway does with its model calls."""
    status: RolloutStatus = RolloutStatus.QUEUED
    """Where it stands."""
    timeout: float = 600.0
    """Seconds that one attempt may take."""
    max_attempts: int = 1
    """How many attempts may be made in all."""
    retry_on: tuple[Cause, ...] = (Cause.LOST, Cause.MODEL_ERROR, Cause.WORKER_ERROR)
    """The causes after which another attempt is made while `max_attempts` allows."""
    budget: Budget = Budget()
    """What each attempt may use of the model."""
    strategy: str | None = None
    """The digest of the strategy under which it runs; None stands for the server's own, where it has one."""
    created_at: float = 0.0
    """Unix time in seconds at which it was enqueued; set by the server."""
    ended_at: float | None = None
    """Unix time in seconds at which its status became final."""
    cancel: str | None = None
    """Why the run no longer wants it; its worker is told at the next heart-beat."""
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    """The run's own notes, such as `step`; workers do not see them."""


class Attempt(Record, frozen=True, kw_only=True):
    """One try at a rollout, leased to one worker."""

    id: str
    """`ROLLOUT.NUMBER`, unique within a store."""
    rollout_id: str
    """The rollout."""
    number: int
    """1 for the first attempt."""
    fence: int
    """Grows with every lease of the server; a report under an older fence is refused."""
    worker: str
    """The worker that leased it."""
    started_at: float
    """Unix time in seconds of the lease."""
    deadline: float
    """Unix time in seconds at which the agent is ended."""
    lease_until: float
    """Unix time in seconds until which the worker must heart-beat again."""
    upstream: str | None = None
    """In observe mode, where a call goes that names no target: the worker's own `OPENAI_BASE_URL`."""
    upstreams: dict[str, str] = msgspec.field(default_factory=dict)
    """Where one of a format goes instead, by the format's name: of `messages`, the worker's own `ANTHROPIC_BASE_URL`."""
    ended_at: float | None = None
    """Unix time in seconds of the end; None while it runs."""
    cause: Cause | None = None
    """How it ended; None while it runs."""
    error: str | None = None
    """What went wrong, for a person: message and traceback, bounded to 16 KiB."""
    output: Json = None
    """What the agent returned."""
    logs: str | None = None
    """The last 16 KiB of what a command printed to standard error (and to standard output where that is not its output)."""
