"""What an executor does for the worker: begin one attempt, wait for its outcome, end it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from lightning_core.adapter import RolloutContext
from lightning_core.rollout import Mode
from lightning_core.wire import Lease
from lightning_core.worker.outcome import Outcome

END_SECONDS: Final = 5.0
"""Seconds that an agent has to end once it is told to."""
QUICK_SECONDS: Final = 2.0
"""Seconds that it has where the worker is told to stop."""


class Job(msgspec.Struct, frozen=True):
    """One attempt to execute."""

    lease: Lease
    """The lease."""
    deadline: float
    """Unix time in seconds by this machine's clock at which the agent is ended."""

    @property
    def name(self) -> str:
        """What to call it in messages."""
        return f"attempt `{self.lease.attempt.id}`"

    @property
    def gateway(self) -> str:
        """The gateway's origin, `http://HOST:PORT`."""
        parts = urlsplit(self.lease.base_url)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def own_model(self) -> bool:
        """Whether the gateway sends model calls to the run's model, so that a key of the user's is not needed."""
        return self.lease.rollout.mode is not Mode.OBSERVE

    def write_strategy(self, folder: Path) -> str | None:
        """Put the strategy into a file of `folder`, for processes to read; its path. None where there is none."""
        if self.lease.strategy is None:
            return None
        file = folder / "strategy.json"
        file.write_bytes(self.lease.strategy.to_json())
        return str(file)

    def context(self) -> RolloutContext:
        """What the adapter may know."""
        return RolloutContext(
            rollout_id=self.lease.rollout.id,
            attempt_id=self.lease.attempt.id,
            mode=self.lease.rollout.mode,
            base_url=self.lease.base_url,
            deadline=self.deadline,
        )


class Leftover(msgspec.Struct, frozen=True):
    """What could not be ended."""

    note: str
    """What it is and what to do, for a person."""
    innocent: bool = False
    """Whether another attempt is to blame."""


class Execution(ABC):
    """One attempt that has begun."""

    @abstractmethod
    async def wait(self) -> Outcome:
        """How it ended. Never raises; may be cancelled and awaited again."""

    @abstractmethod
    async def end(self, *, quickly: bool = False) -> Leftover | None:
        """End the agent, within `END_SECONDS` and a little; what could not be ended, if anything.

        Args:
            quickly: give an agent in this process `QUICK_SECONDS` only: the worker is ending.
        """

    def take_spans(self) -> list[dict[str, Any]]:
        """Spans since the last time, for the worker to post; processes post their own."""
        return []

    def logs(self) -> str | None:
        """What it has printed so far, where that is captured."""
        return None


class Executor(ABC):
    """Begins attempts of one agent."""

    @abstractmethod
    async def start(self, job: Job) -> Execution:
        """Begin an attempt. Whatever it raises is put down to the worker."""

    def stuck(self) -> list[str]:
        """The attempts that were given up and still run, each of which takes up a place."""
        return []

    async def ready(self) -> bool:
        """Whether more can be begun now."""
        return True

    async def open(self) -> None:
        """Make ready to start attempts.

        Raises:
            AgentError: the agent cannot be used.
        """
        return

    async def close(self) -> bool:
        """Let go of everything; whether nothing runs any more."""
        return True
