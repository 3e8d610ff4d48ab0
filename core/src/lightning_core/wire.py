"""What the server and its clients say to one another: the bodies of `docs/wire.md`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Self

import msgspec

from lightning_core.capability import Capability
from lightning_core.engine import Endpoint
from lightning_core.provider import ANTHROPIC
from lightning_core.records import Json, Record
from lightning_core.rollout import Attempt, Cause, Rollout
from lightning_core.sampling import SamplingPolicy
from lightning_core.strategy import Strategy
from lightning_core.task import Task


class Upstreams(Record, frozen=True, kw_only=True):
    """Where observed calls go that name no target."""

    default: str | None = None
    """For all formats that are not in `by_format`; None stands for the format's own provider."""
    by_format: dict[str, str] = msgspec.field(default_factory=dict)
    """For others, by the format's name."""

    @classmethod
    def own(cls, environ: Mapping[str, str]) -> Self:
        """Where the calls of an agent with this environment go by themselves."""
        openai = environ.get("OPENAI_BASE_URL") or environ.get("OPENAI_API_BASE")
        anthropic = environ.get("ANTHROPIC_BASE_URL") or environ.get("ANTHROPIC_API_BASE")
        # Who reads these puts `/v1` behind them.
        messages = f"{anthropic.rstrip('/')}/v1" if anthropic else ANTHROPIC
        return cls(default=openai or None, by_format={"messages": messages})


class Lease(Record, frozen=True, kw_only=True):
    """An attempt in the hands of a worker."""

    attempt: Attempt
    """The attempt, with its fence and deadline."""
    rollout: Rollout
    """Its rollout."""
    task: Task
    """Its task, without `expected`."""
    session: str
    """The session's token. Never stored or logged."""
    base_url: str
    """The session's OpenAI-compatible address, ending in `/v1`; holds the token."""
    heartbeat: float
    """Seconds between heart-beats."""
    strategy: Strategy | None = None
    """What the agent's code may read by name: rules, patterns, and prompts without `original`. None where the rollout
    has no strategy."""


class Heartbeat(Record, frozen=True, kw_only=True):
    """The server's answer to a heart-beat."""

    lease_until: float
    """Unix time in seconds until which the lease now lasts."""
    cancel: bool = False
    """Whether the run no longer wants the attempt."""


class EventKind(StrEnum):
    """What happened."""

    ATTEMPT_STARTED = "attempt_started"
    """A worker has leased an attempt."""
    ATTEMPT_ENDED = "attempt_ended"
    """An attempt has ended; the rollout may be tried again."""
    ROLLOUT_ENDED = "rollout_ended"
    """A rollout's status is final."""
    REWARDED = "rewarded"
    """Rewards of a rollout that has ended are stored."""
    POLICY_AWAITED = "policy_awaited"
    """The server was started again and waits for the run to name its own policy anew."""


class Event(Record, frozen=True, kw_only=True):
    """Something that happened, in the server's order."""

    number: int
    """Grows by 1."""
    kind: EventKind
    """What happened."""
    rollout_id: str
    """The rollout; empty where the event is the run's."""
    run: str
    """The run."""
    attempt_id: str | None = None
    """The attempt; None for a rollout that ended without one."""
    cause: Cause | None = None
    """How it ended."""


class Finish(Record, frozen=True, kw_only=True):
    """A worker's report of the end of an attempt."""

    fence: int
    """The lease's fence."""
    cause: Cause
    """How it ended."""
    output: Json = None
    """What the agent returned."""
    error: str | None = None
    """What went wrong, for a person."""
    logs: str | None = None
    """The end of what a command printed."""


class ServedPolicy(Record, frozen=True, kw_only=True):
    """The policy that train and val calls go to."""

    version: int
    """Grows with each publish."""
    endpoints: tuple[Endpoint, ...]
    """Its replicas."""
    capabilities: frozenset[Capability] = frozenset()
    """What its engine gives."""
    train: SamplingPolicy = SamplingPolicy()
    """How it is sampled in train mode."""
    val: SamplingPolicy = SamplingPolicy()
    """How it is sampled in val mode."""


class PolicyStatus(Record, frozen=True, kw_only=True):
    """How a policy stands: the default one, or a run's own."""

    version: int | None = None
    """Its version; None where the run's own policy is not known."""
    model: str | None = None
    """Its model."""
    replicas: int = 0
    """How many replicas it has."""
    train: SamplingPolicy | None = None
    """How it is sampled in train mode."""
    val: SamplingPolicy | None = None
    """How it is sampled in val mode."""
    paused: bool = False
    """Whether calls wait for `resume`."""
    awaited: bool = False
    """Whether the run's calls and rollouts wait until it names its policy again."""
    in_flight: int = 0
    """Calls let through that have not ended."""


class Status(Record, frozen=True, kw_only=True):
    """How the server is doing."""

    version: str
    """The release."""
    queued: int = 0
    """Rollouts that wait for a worker."""
    running: int = 0
    """Rollouts that a worker holds."""
    ended: int = 0
    """Rollouts that have ended."""
    workers: dict[str, float] = msgspec.field(default_factory=dict)
    """Seconds since each worker was last heard."""
    in_flight: int = 0
    """Model calls under way."""
    paused: bool = False
    """Whether train and val calls of runs without a policy of their own wait."""
    policy: PolicyStatus | None = None
    """The default policy, for runs that have none of their own."""
    policies: dict[str, PolicyStatus] = msgspec.field(default_factory=dict)
    """The policies of runs that have their own, or are paused."""
