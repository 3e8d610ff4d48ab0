"""Job: what the light half tells the trainer process, and what it hears of it."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from lightning_core.rollout import Budget
from lightning_core.sampling import SamplingPolicy
from lightning_verl.learning import Learning

AGENT_LOOP = "lightning_core"
"""The name under which verl knows our agent loop."""
TRAINER = "lightning_core"
"""The name under which verl knows our trainer."""
CPU_PLATFORM = "lightning_cpu"
"""The name under which verl knows our platform, as in `VERL_PLATFORM`."""


SYNC = "sync"
"""verl's trainer that waits for a step's rollouts."""
ASYNC = "colocate_async"
"""verl's trainer that lets the next step's rollouts go on while the weights change."""
SEPARATE = "separate_async"
"""The same with devices for vLLM alone, so that rollouts go on while the trainer learns."""
CPU_WEIGHTS = "lightning_gloo"
"""The name under which verl knows what takes weights to vLLM's own devices on processors."""


class Platform(StrEnum):
    """What the trainer computes on."""

    ACCELERATOR = "accelerator"
    """What verl finds: CUDA, ROCm, NPU."""
    CPU = "cpu"
    """Processors only, with our own platform plugin: for tests and proofs."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What the trainer is to do. Holds a token: sent over a pipe, never written or logged."""

    run: str
    """The run's name."""
    url: str
    """The server's address."""
    token: str
    """An admin's token."""
    overrides: tuple[str, ...]
    """Hydra overrides of verl's `ppo_trainer` configuration, later ones first in rank."""
    train: SamplingPolicy
    """How the policy is sampled in rollouts to learn from."""
    val: SamplingPolicy
    """How it is sampled in validation."""
    timeout: float
    """Seconds that one attempt may take."""
    max_attempts: int
    """How many attempts one rollout may have."""
    budget: Budget = Budget()
    """What each attempt may use of the model."""
    learning: Learning
    """What is learnt from the rollouts, and how."""
    mode: str = SYNC
    """verl's trainer: `SYNC`, `ASYNC` or `SEPARATE`."""
    consumed: str
    """The file to which the trainer writes, line by line, which groups each step learns from."""
    grading_timeout: float = 600.0
    """Seconds for which the reward of a rollout that has ended is waited for."""
    platform: Platform = Platform.ACCELERATOR
    """What is computed on."""


class Consumed(msgspec.Struct, frozen=True, kw_only=True):
    """What a step learns from: a line of `Job.consumed`."""

    step: int
    """The step."""
    groups: tuple[str, ...]
    """The ids of its groups."""


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag="progress", tag_field="kind"):
    """The trainer has come to something new."""

    text: str
    """What is being done now, for a person."""


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed", tag_field="kind"):
    """The trainer cannot go on."""

    message: str
    """Why, and what to do."""


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done", tag_field="kind"):
    """All steps are done."""


Report = Progress | Failed | Done
"""A line that the trainer writes to its standard output, as JSON."""
