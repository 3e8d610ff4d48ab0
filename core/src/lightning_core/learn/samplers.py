"""Task samplers: which tasks a step draws, in what order, and how that goes on after a restart.

Those that ship with core are in `draws.py`; plugins add others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol

from lightning_core.errors import UsageError
from lightning_core.records import Json
from lightning_core.task import Task


class TaskSampler(ABC):
    """Draws the tasks of each step. The same seed and the same updates give the same draws."""

    @abstractmethod
    def draw(self, count: int) -> list[Task]:
        """The next `count` tasks, count ≥ 1; one task twice only where there are fewer tasks than `count`."""

    @abstractmethod
    def update(self, task_id: str, rewards: Sequence[float]) -> None:
        """Take note of what came of a drawn task: the rewards of its scored rollouts, empty where none was."""

    @abstractmethod
    def state(self) -> dict[str, Json]:
        """What `restore` needs to go on as if nothing had happened, as JSON."""

    @abstractmethod
    def restore(self, state: Mapping[str, Json]) -> None:
        """Go on where `state` was taken, with the same tasks and seed.

        Raises:
            FormatError: it is another sampler's state, or one of other tasks.
        """


class SamplerFactory(Protocol):
    """Makes a sampler."""

    def __call__(self, tasks: Sequence[Task], seed: int, argument: str | None, /) -> TaskSampler:
        """A sampler at its beginning.

        Args:
            tasks: the tasks, at least one, with different ids.
            seed: of every draw.
            argument: what stands after the colon of `NAME:ARGUMENT`; None where there is no colon.

        Raises:
            UsageError: the argument is missing, not taken, or does not fit the tasks.
        """
        ...


def create_sampler(
    spec: str, tasks: Sequence[Task], seed: int, registered: Mapping[str, SamplerFactory]
) -> TaskSampler:
    """The sampler that a spec stands for.

    Args:
        spec: `NAME` or `NAME:ARGUMENT`.
        tasks: what is drawn from.
        seed: of every draw.
        registered: samplers by name, as `Plugins.samplers` gives them.

    Raises:
        UsageError: no sampler has the name, it does not take the argument, there are no tasks, or two have one id.
    """
    name, colon, argument = spec.partition(":")
    factory = registered.get(name)
    if factory is None:
        names = ", ".join(f"`{known}`" for known in sorted(registered)) or "none"
        raise UsageError(f"sampler {spec!r}: none is named `{name}`; there are {names}")
    if not tasks:
        raise UsageError(f"sampler `{name}`: there are no tasks to draw from")
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise UsageError(f"sampler `{name}`: two tasks have the id `{task.id}`; ids are unique")
        seen.add(task.id)
    return factory(tasks, seed, argument if colon else None)
