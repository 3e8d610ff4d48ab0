"""Reward functions: what they may be, and how one is asked about a trace."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from lightning_core.reward import Reward
from lightning_core.task import Task
from lightning_core.trace import Trace

RewardValue = float | Reward | Mapping[str, float]
"""What a reward function may return: the number, a Reward, or several numbers by name (one of them `reward`)."""
RewardFunction = Callable[[Task, Trace], RewardValue | Awaitable[RewardValue]]
"""A user's grader. It gets the task with `expected`, runs outside the agent's process, and may be async."""
