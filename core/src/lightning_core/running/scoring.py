"""Scoring: what becomes of a rollout that has ended: its trace is read, graded and reported, and plugins are told.

A fault in any of these is that rollout's own; only a server that stays away ends the run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from lightning_core.client import Client
from lightning_core.errors import WireError
from lightning_core.folder import RunFolder
from lightning_core.grading import RewardFunction, grade, reward_name
from lightning_core.plugins import Plugins
from lightning_core.records import Json
from lightning_core.reward import Reward, RewardScope, RewardStatus
from lightning_core.rollout import Attempt, Cause, Rollout, RolloutStatus
from lightning_core.running.patience import Patience
from lightning_core.task import Task
from lightning_core.trace import Trace

log = logging.getLogger("lightning_core.run")


class Scoring:
    """Settles rollouts of one run.

    Args:
        client: open, with an admin's token.
        patience: asks the server again while it is away.
        plugins: who is told.
        folder: the run's folder, for them.
        reward: what scores; None leaves rollouts unscored.
    """

    def __init__(
        self,
        client: Client,
        patience: Patience,
        plugins: Plugins,
        folder: Path,
        reward: RewardFunction | None,
    ) -> None:
        self._client = client
        self._patience = patience
        self._plugins = plugins
        self._folder = folder
        self._reward = reward
        self._blamed: set[tuple[str, str]] = set()
        # A run that goes on must not tell again what it told before it was stopped.
        self._told = RunFolder(folder).told()

    async def settle(self, rollout: Rollout, task: Task) -> Trace:
        """The graded trace of a rollout that has ended; a failed one where it cannot be read.

        Raises:
            LightningError: the server stays away.
        """
        return await self.grade(await self._read(rollout, task))

    async def grade(self, trace: Trace) -> Trace:
        """The trace of a rollout that has ended, as read and with its task, once it is graded.

        Raises:
            LightningError: the server stays away.
        """
        trace = await self._scored(trace)
        self._tell_plugins(trace)
        return trace

    def has_told(self, rollout_id: str) -> bool:
        """Whether an earlier start of the run has told plugins of a rollout."""
        return rollout_id in self._told

    async def reread(self, trace: Trace) -> Trace:
        """The trace as the store has it now; as it was where it cannot be read.

        Raises:
            LightningError: the server stays away.
        """
        again = await self._read(trace.rollout, trace.task)
        return again if again.rewards else trace

    async def attempt(self, trace: Trace, number: int) -> Trace:
        """Another attempt at a trace's rollout; one without calls where it cannot be read, which is logged.

        Raises:
            LightningError: the server stays away.
        """
        return await self._read(trace.rollout, trace.task, number)

    def tell_step(self, step: int, metrics: Mapping[str, Json]) -> None:
        """Tell each plugin of a step; one that raises is named once, and the others are told all the same."""
        for plugin, error in self._plugins.tell_step(
            folder=self._folder, step=step, metrics=metrics
        ):
            self._blame(plugin, "lightning_step_finished", error, f"step {step}")

    async def _read(self, rollout: Rollout, task: Task, attempt: int | None = None) -> Trace:
        try:
            trace = await self._patience.ask(lambda: self._client.trace(rollout.id, attempt))
        except Exception as error:
            if self._is_away(error):
                raise
            log.warning("rollout `%s`: its trace cannot be read: %s", rollout.id, error)
            return _unreadable(rollout, task, error)
        return msgspec.structs.replace(trace, task=task)

    async def _scored(self, trace: Trace) -> Trace:
        graded = any(reward.scope is RewardScope.ROLLOUT for reward in trace.rewards)
        if graded or self._reward is None:
            return trace
        try:
            rewards = await grade(self._reward, trace.task, trace)
        except Exception as error:
            details = {"error": f"{type(error).__name__}: {error}"}
            source = reward_name(self._reward)
            rewards = (Reward(status=RewardStatus.UNSCORED, source=source, details=details),)
        trace = msgspec.structs.replace(trace, rewards=(*trace.rewards, *rewards))
        try:
            await self._patience.ask(lambda: self._client.reward(trace.rollout.id, rewards))
        except Exception as error:
            if self._is_away(error):
                raise
            log.warning(
                "rollout `%s`: the server does not keep its reward: %s", trace.rollout.id, error
            )
        return trace

    def _tell_plugins(self, trace: Trace) -> None:
        """Tell each plugin of a rollout; one that raises is named once, and the others are told all the same."""
        if trace.rollout.id in self._told:
            return
        for plugin, error in self._plugins.tell_finished(folder=self._folder, trace=trace):
            self._blame(
                plugin, "lightning_rollout_finished", error, f"rollout `{trace.rollout.id}`"
            )

    def _blame(self, plugin: str, hook: str, error: Exception, where: str) -> None:
        if (plugin, hook) in self._blamed:
            return
        self._blamed.add((plugin, hook))
        log.warning(
            "plugin `%s`: hook `%s` raised %s: %s (%s; not said again)",
            plugin, hook, type(error).__name__, error, where,
        )  # fmt: skip
        log.debug("the hook's traceback", exc_info=error)

    def _is_away(self, error: Exception) -> bool:
        """Whether nothing more can come of the server."""
        unreachable = isinstance(error, WireError) and error.status is None
        return unreachable or error is self._patience.ended


def _unreadable(rollout: Rollout, task: Task, error: Exception) -> Trace:
    """What stands for a trace that the store has and nobody can read."""
    text = f"its trace cannot be read: {type(error).__name__}: {error}"
    now = time.time()
    attempt = Attempt(
        id=f"{rollout.id}.?",
        rollout_id=rollout.id,
        number=rollout.max_attempts,
        fence=0,
        worker="",
        started_at=now,
        deadline=now,
        lease_until=now,
        ended_at=now,
        cause=Cause.WORKER_ERROR,
        error=text,
    )
    reward = Reward(status=RewardStatus.INFRA_ERROR, source="run", details={"error": text})
    return Trace(
        rollout=msgspec.structs.replace(rollout, status=RolloutStatus.FAILED, ended_at=now),
        task=task,
        attempt=attempt,
        rewards=(reward,),
    )
