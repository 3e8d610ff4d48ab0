"""Run: one optimisation or evaluation, as a backend sees it; and what it ends in.

`lightning_core.run` is the function that makes one, so this module has another name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from lightning_core.errors import LightningError
from lightning_core.optimization import OptimizeConfig
from lightning_core.records import Json, Record
from lightning_core.rollout import Budget, Cause, Mode, Rollout
from lightning_core.sampling import SamplingPolicy
from lightning_core.strategy import Strategy
from lightning_core.task import Task
from lightning_core.trace import Trace


class RunConfig(Record, frozen=True, kw_only=True, omit_defaults=False):
    """What a run was asked to do; `runs/NAME/run.json`. Secrets in it are replaced by `***`."""

    name: str
    """The run's name; the folder's too."""
    agent: str
    """What was run: `module:attr`, `path.py:attr`, a command line, or the object's qualified name."""
    created_at: float
    """Unix time in seconds."""
    command: tuple[str, ...] = ()
    """The command line that made it; empty from Python."""
    tasks: int = 0
    """How many tasks it has."""
    reward: str | None = None
    """The reward function's name; None where nothing is scored."""
    model: str | None = None
    """The model that the run serves or names; None where the agent's own calls are observed."""
    engine: str | None = None
    """The engine that serves it."""
    mode: Mode = Mode.OBSERVE
    """What the gateway does with model calls."""
    sampling: SamplingPolicy = SamplingPolicy()
    """How the policy is sampled in train mode."""
    validation: SamplingPolicy = SamplingPolicy(temperature=0.0)
    """How the policy or model is sampled in val mode."""
    timeout: float = 600.0
    """Seconds that one attempt may take."""
    max_attempts: int = 2
    """How many attempts one rollout may have."""
    repeats: int = 1
    """How many rollouts each task has."""
    owner: str = ""
    """A number in hexadecimal, made for this run; keeps its name on a shared server from other runs."""
    tasks_digest: str = ""
    """SHA-256 of the tasks, ids and contents, in hexadecimal; a run is resumed only with the same."""
    concurrency: int = 8
    """Attempts at once for each worker."""
    budget: Budget = Budget()
    """What each attempt may use of the model."""
    isolate: bool = False
    """Whether each attempt has a process of its own."""
    workers: int = 1
    """Workers that the run starts."""
    executor: str = "process"
    """Where they run: an executor's name, or `NAME:ADDRESS`."""
    fields: dict[str, str] = msgspec.field(default_factory=dict)
    """Where a task's parts lay in the source."""
    split: str | None = None
    """The split that was chosen; None for all."""
    limit: int | None = None
    """The most tasks that were taken; None for all."""
    engine_options: dict[str, str] = msgspec.field(default_factory=dict)
    """The engine's own options, without secrets."""
    optimize: OptimizeConfig | None = None
    """What is to be optimised, and how; None for an evaluation."""


class RunResult(Record, frozen=True, kw_only=True):
    """What `lightning_core.run` returns."""

    name: str
    """The run's name."""
    folder: str
    """The run's folder."""
    traces: tuple[Trace, ...] = ()
    """The last attempt of each rollout, in the order of the tasks."""
    seconds: float = 0.0
    """Wall time of the rollouts and their grading."""

    @property
    def scored(self) -> int:
        """How many rollouts have a scored reward."""
        return sum(trace.reward is not None for trace in self.traces)

    @property
    def mean_reward(self) -> float | None:
        """Mean of the rewards named `reward` over scored rollouts; None where none is scored."""
        values = [trace.reward for trace in self.traces if trace.reward is not None]
        return sum(values) / len(values) if values else None

    @property
    def causes(self) -> Mapping[Cause, int]:
        """How many rollouts ended by each cause."""
        counts: dict[Cause, int] = {}
        for trace in self.traces:
            if trace.attempt.cause is not None:
                counts[trace.attempt.cause] = counts.get(trace.attempt.cause, 0) + 1
        return counts

    def __repr__(self) -> str:
        """The name, how many rollouts ended how, and the mean reward; the traces are too long to be shown."""
        causes = ", ".join(f"{count} {cause}" for cause, count in self.causes.items())
        mean = "none" if self.mean_reward is None else f"{self.mean_reward:.3f}"
        return (
            f"<RunResult {self.name!r}: {len(self.traces)} rollouts ({causes or 'none ended'}),"
            f" {self.scored} scored, mean reward {mean}>"
        )

    __str__ = __repr__


class Artifact(Record, frozen=True, kw_only=True):
    """What an optimisation ends in: a file or folder that a user can apply."""

    kind: str
    """`strategy`, `lora`, `checkpoint`."""
    path: str
    """Where it lies, relative to the run folder."""
    apply: str
    """The command that applies it."""
    metrics: dict[str, Any] = msgspec.field(default_factory=dict)
    """What is known of it, such as validation reward before and after."""


class OptimizeResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `lightning_core.optimize` returns."""

    name: str
    """The run's name."""
    folder: str
    """The run's folder."""
    artifact: Artifact
    """What the optimisation ended in, and what is known of it."""
    steps: Mapping[int, Mapping[str, Json]] = msgspec.field(default_factory=dict)
    """The metrics of each step of this start, by its number; `metrics.jsonl` has all of them."""
    seconds: float = 0.0
    """Wall time of this start."""


class RolloutRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A backend's wish for rollouts of one task."""

    task: Task
    """The task."""
    count: int = 1
    """How many rollouts; they form one group."""
    mode: Mode = Mode.TRAIN
    """What the gateway does with their model calls."""
    metadata: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """The backend's own notes, such as the step."""
    key: str | None = None
    """Names the rollouts, such as `step-3`: asked for again under the same key after a restart, those that have ended
    are not run again. None numbers them in the order of the requests for the task."""
    strategy: Strategy | None = None
    """What they run under. Under one key it must stay the same."""


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """What a trainer in a process of its own needs to speak with the run's server."""

    url: str
    """The server's address."""
    token: str
    """An admin's token. Never stored or logged."""


class Run(ABC):
    """One optimisation or evaluation: what a backend may ask of the core."""

    config: RunConfig
    """What was asked."""
    folder: Path
    """`runs/NAME`."""

    @abstractmethod
    async def tasks(self, split: str | None = None) -> Sequence[Task]:
        """The run's tasks, with `expected`, in order; of one split where named."""

    @abstractmethod
    async def rollouts(
        self, requests: Sequence[RolloutRequest], *, quorum: float = 1.0
    ) -> list[list[Trace]]:
        """Run and grade; one inner list for each request, in order, a failed rollout among them as data.

        Args:
            requests: what is wanted. May be called again while earlier requests run.
            quorum: share of all the rollouts that must have ended; the rest is then cancelled, and is among the
                traces with the cause `cancelled`.
        """

    def delegate(
        self,
        settled: Callable[[Trace], None],
        *,
        again: Callable[[Rollout], bool] = lambda _: False,
    ) -> Access:
        """Let a trainer in another process enqueue rollouts of this run's tasks, and read what became of them.

        From now on every rollout of the run that ends is graded, told to plugins and counted, whoever enqueued it.

        Args:
            settled: called in the run's event loop with each graded trace. Must return at once and not raise.
            again: which of the rollouts that an earlier start of the run has told already are wanted once more. They
                are not graded, told to plugins or counted again.
        """
        raise NotImplementedError("this run cannot be delegated")

    async def failed(self) -> LightningError:
        """Wait until the run cannot go on; why not. For a backend that waits for something else than rollouts."""
        raise NotImplementedError("this run does not tell of its failure")

    @abstractmethod
    async def publish(self, folder: Path, *, version: int) -> None:
        """Serve the weights in `folder` as policy `version` from the next call on: pause, drain, load, resume."""

    @abstractmethod
    async def reread(self, traces: Sequence[Trace]) -> list[Trace]:
        """The same traces as the store has them now, with rewards that have come since."""

    @abstractmethod
    async def earlier(self, traces: Sequence[Trace]) -> list[Trace]:
        """The attempts before those of some traces, in no order: a rollout whose model call failed may have had several, and
        each has cost something."""

    @abstractmethod
    async def log(self, metrics: Mapping[str, Json], *, step: int) -> None:
        """Append a line to `metrics.jsonl`, and tell plugins (`lightning_step_finished`)."""

    @abstractmethod
    def logged(self, step: int) -> bool:
        """Whether a line of the step's has been logged, now or before a restart."""

    @abstractmethod
    def say(self, text: str) -> None:
        """Tell the user what is being done now."""

    def show(self, panel: Callable[[], object]) -> None:  # noqa: B027 - a run without a terminal has nothing to do
        """Show something of the backend's own above the run's line on a terminal.

        Args:
            panel: gives what rich can render; called several times a second, so it must return at once.
        """

    @abstractmethod
    def save(self, state: Mapping[str, Json]) -> None:
        """Replace the run's saved state atomically."""

    @abstractmethod
    def load(self) -> dict[str, Any] | None:
        """The state last saved; None at first."""
