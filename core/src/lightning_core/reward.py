"""Reward: a number with a name, a source and a status."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any

import msgspec

from lightning_core.errors import RewardError
from lightning_core.records import Record


class RewardStatus(StrEnum):
    """Whether the number says something about the agent."""

    SCORED = "scored"
    """The grader looked at the output and gave `value`."""
    UNSCORED = "unscored"
    """There is no number: the agent failed, or the grader did. Never read as 0."""
    INFRA_ERROR = "infra_error"
    """There is no number, through no fault of the agent: the worker, the engine or the network failed."""


class RewardScope(StrEnum):
    """What the reward is for."""

    ROLLOUT = "rollout"
    """The whole rollout."""
    AGENT = "agent"
    """One agent or node of it; `target` is its label."""
    CALL = "call"
    """One model call; `target` is its id."""


class Reward(Record, frozen=True, kw_only=True):
    """A number with a name, a source and a status."""

    value: float | None = None
    """The number (no unit, higher is better); None unless `status` is `scored`."""
    name: str = "reward"
    """`reward` is what is optimised; other names are reported beside it."""
    status: RewardStatus = RewardStatus.SCORED
    """Whether there is a number, and if not, whose fault that is."""
    scope: RewardScope = RewardScope.ROLLOUT
    """What it is for."""
    target: str | None = None
    """The agent's label or the call's id, where `scope` is not `rollout`."""
    source: str = "grader"
    """Who gave it: the reward function's name, or `worker` where the worker could tell."""
    feedback: str | None = None
    """Text for a person or an optimiser that reads: why this number."""
    details: dict[str, Any] = msgspec.field(default_factory=dict)
    """Anything else worth keeping; where the grader failed, `error` and `traceback`."""

    def __post_init__(self) -> None:
        """Take status and scope by name too; refuse a number that is none, and a status that contradicts the value."""
        for field, kind in (("status", RewardStatus), ("scope", RewardScope)):
            given = getattr(self, field)
            if type(given) is not kind:
                if given not in list(kind):
                    known = ", ".join(f"`{each}`" for each in kind)
                    raise RewardError(
                        f"reward `{self.name}`: {field}: expected one of {known} but got {given!r}"
                    )
                msgspec.structs.force_setattr(self, field, kind(given))
        if self.status is RewardStatus.SCORED:
            if self.value is None or not math.isfinite(self.value):
                raise RewardError(
                    f"reward `{self.name}` from `{self.source}`: expected a finite number but got {self.value!r}"
                )
        elif self.value is not None:
            raise RewardError(
                f"reward `{self.name}`: status `{self.status}` has no value, but got {self.value!r}"
            )
        if (self.target is None) != (self.scope is RewardScope.ROLLOUT):
            raise RewardError(
                f"reward `{self.name}`: scope `{self.scope}` and target {self.target!r} do not fit;"
                " a target is given for `agent` and `call`, and only for them"
            )
