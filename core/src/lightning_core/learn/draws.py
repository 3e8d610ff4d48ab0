"""The samplers that ship with core: `shuffled`, `difficulty:COLUMN`, `success`."""

from __future__ import annotations

import contextlib
import logging
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from lightning_core.errors import FormatError, UsageError
from lightning_core.learn.samplers import SamplerFactory, TaskSampler
from lightning_core.records import Json
from lightning_core.task import Task

log = logging.getLogger("lightning_core.learn")


class _Epochs(TaskSampler):
    """Passes over all tasks, each in an order of its own.

    A batch that reaches into the next pass takes first what it does not hold yet. The passes' orders are made from
    the seed, so that the state stays small.
    """

    def __init__(self, name: str, tasks: Sequence[Task], seed: int) -> None:
        self._name = name
        self._tasks = tuple(tasks)
        self._seed = seed
        self._told = False
        self._begin(0)

    def _order(self, epoch: int) -> list[int]:
        """Positions of all tasks, in the order in which a pass draws them."""
        raise NotImplementedError

    def _begin(self, epoch: int) -> None:
        self._epoch = epoch
        self._left = self._order(epoch)
        self._picks: list[int] = []

    def draw(self, count: int) -> list[Task]:
        """See `TaskSampler.draw`."""
        _check(count)
        if count > len(self._tasks) and not self._told:
            self._told = True
            _say_few(self._name, len(self._tasks), count)
        times = [0] * len(self._tasks)
        batch = []
        for _ in range(count):
            if not self._left:
                self._begin(self._epoch + 1)
            pick = 0
            if times[self._left[0]]:
                pick = min(range(len(self._left)), key=lambda at: times[self._left[at]])
            self._picks.append(pick)
            position = self._left.pop(pick)
            times[position] += 1
            batch.append(self._tasks[position])
        return batch

    def update(self, task_id: str, rewards: Sequence[float]) -> None:
        """Rewards do not change the order."""

    def state(self) -> dict[str, Json]:
        """See `TaskSampler.state`."""
        # A pick is 0 but at a pass's first batch, so what follows the last other one is only counted.
        picks = list(self._picks)
        while picks and not picks[-1]:
            picks.pop()
        return {
            "sampler": self._name,
            "tasks": len(self._tasks),
            "seed": self._seed,
            "epoch": self._epoch,
            "drawn": len(self._picks),
            "picks": picks,
        }

    def restore(self, state: Mapping[str, Json]) -> None:
        """See `TaskSampler.restore`."""
        saved = _saved(state, _EpochsState, self._name, len(self._tasks), self._seed)
        if not len(saved.picks) <= saved.drawn <= len(self._tasks):
            raise FormatError(
                f"sampler `{self._name}`: its saved state draws {saved.drawn} of {len(self._tasks)} tasks"
            )
        picks = saved.picks + [0] * (saved.drawn - len(saved.picks))
        self._begin(saved.epoch)
        for pick in picks:
            if not 0 <= pick < len(self._left):
                raise FormatError(
                    f"sampler `{self._name}`: its saved state draws what is not there: {pick!r}"
                )
            self._left.pop(pick)
        self._picks = picks


class _EpochsState(msgspec.Struct, kw_only=True):
    sampler: str
    tasks: int
    seed: int
    epoch: int
    drawn: int
    picks: list[int]


class Shuffled(_Epochs):
    """Every task once in a random order, then again in another."""

    def __init__(self, tasks: Sequence[Task], seed: int) -> None:
        super().__init__("shuffled", tasks, seed)

    def _order(self, epoch: int) -> list[int]:
        order = list(range(len(self._tasks)))
        _random(self._seed, epoch).shuffle(order)
        return order


class ByDifficulty(_Epochs):
    """Every task once from easy to hard, equals in random order, then again.

    Raises:
        UsageError: a task has no number in the column.
    """

    def __init__(self, tasks: Sequence[Task], seed: int, column: str) -> None:
        self._difficulty = [_difficulty(task, column) for task in tasks]
        super().__init__("difficulty", tasks, seed)

    def _order(self, epoch: int) -> list[int]:
        order = list(range(len(self._tasks)))
        _random(self._seed, epoch).shuffle(order)
        return sorted(order, key=self._difficulty.__getitem__)


def _difficulty(task: Task, column: str) -> float:
    value = task.metadata.get(column)
    number = math.nan
    # A task from a CSV file has text in every column.
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        with contextlib.suppress(ValueError, OverflowError):
            number = float(value)
    if not math.isfinite(number):
        got = repr(value)[:80] if column in task.metadata else "nothing"
        columns = ", ".join(f"`{name}`" for name in sorted(task.metadata)) or "none"
        raise UsageError(
            f"sampler `difficulty`: task `{task.id}`: expected a number in its metadata column `{column}` but got {got};"
            f" its columns are {columns}"
        )
    return number


class BySuccess(TaskSampler):
    """New tasks first, in random order; then at random, the likelier the nearer a task's success rate is to one half.

    A task weighs p(1-p) + 0.02, where p is an exponential average of the mean success of its draws. A reward is a
    success as far as it lies between 0 and 1, or, with a threshold, wholly where it reaches that. A task that was
    drawn and has no scored rollout yet weighs 0.02.
    """

    _FLOOR: Final = 0.02
    """Keeps tasks that are always or never solved in the draw: a policy changes."""
    _NEWEST: Final = 0.3
    """Share of the newest draw in the average."""

    def __init__(self, tasks: Sequence[Task], seed: int, threshold: float | None = None) -> None:
        self._tasks = tuple(tasks)
        self._seed = seed
        self._threshold = threshold
        self._ids = {task.id for task in tasks}
        self._new = list(range(len(tasks)))
        _random(seed, "new").shuffle(self._new)
        self._news = 0
        self._draws = 0
        self._rates: dict[str, float] = {}
        self._told = False

    def draw(self, count: int) -> list[Task]:
        """See `TaskSampler.draw`."""
        _check(count)
        if count > len(self._tasks) and not self._told:
            self._told = True
            _say_few("success", len(self._tasks), count)
        batch: list[int] = []
        generator = _random(self._seed, self._draws)
        self._draws += 1
        while len(batch) < count:
            # Within one pass of this loop no task comes twice.
            new = self._new[self._news : self._news + count - len(batch)]
            self._news += len(new)
            fresh = set(new)
            seen = [at for at in range(len(self._tasks)) if at not in fresh]
            # Draws without replacement by weight: the largest log(u)/w, Efraimidis and Spirakis 2006.
            keys = {at: math.log(1.0 - generator.random()) / self._weight(at) for at in seen}
            seen.sort(key=keys.__getitem__, reverse=True)
            batch += new + seen[: count - len(batch) - len(new)]
        return [self._tasks[at] for at in batch]

    def _weight(self, at: int) -> float:
        rate = self._rates.get(self._tasks[at].id)
        return self._FLOOR if rate is None else rate * (1.0 - rate) + self._FLOOR

    def update(self, task_id: str, rewards: Sequence[float]) -> None:
        """See `TaskSampler.update`; ignores a task that is not among those drawn from."""
        if task_id not in self._ids or not rewards:
            return
        success = math.fsum(map(self._success, rewards)) / len(rewards)
        old = self._rates.get(task_id, success)
        self._rates[task_id] = (1.0 - self._NEWEST) * old + self._NEWEST * success

    def _success(self, reward: float) -> float:
        if self._threshold is not None:
            return float(reward >= self._threshold)
        return min(max(reward, 0.0), 1.0)

    def state(self) -> dict[str, Json]:
        """See `TaskSampler.state`."""
        return {
            "sampler": "success",
            "tasks": len(self._tasks),
            "seed": self._seed,
            "news": self._news,
            "draws": self._draws,
            "rates": dict(self._rates),
        }

    def restore(self, state: Mapping[str, Json]) -> None:
        """See `TaskSampler.restore`."""
        saved = _saved(state, _SuccessState, "success", len(self._tasks), self._seed)
        self._news, self._draws, self._rates = saved.news, saved.draws, dict(saved.rates)


class _SuccessState(msgspec.Struct, kw_only=True):
    sampler: str
    tasks: int
    seed: int
    news: int
    draws: int
    rates: dict[str, float]


def shuffled(tasks: Sequence[Task], seed: int, argument: str | None) -> TaskSampler:
    """Makes a `Shuffled`; takes no argument."""
    if argument is not None:
        raise UsageError(f"sampler `shuffled`: takes no argument but got {argument!r}")
    return Shuffled(tasks, seed)


def difficulty(tasks: Sequence[Task], seed: int, argument: str | None) -> TaskSampler:
    """Makes a `ByDifficulty`; the argument is the metadata column."""
    if not argument:
        columns = sorted(set().union(*(task.metadata for task in tasks)))
        raise UsageError(
            "sampler `difficulty`: by which metadata column? expected `difficulty:COLUMN`;"
            f" the tasks' columns are {', '.join(f'`{name}`' for name in columns) or 'none'}"
        )
    return ByDifficulty(tasks, seed, argument)


def success(tasks: Sequence[Task], seed: int, argument: str | None) -> TaskSampler:
    """Makes a `BySuccess`; the argument, where there is one, is the reward from which a rollout is a success."""
    if argument is None:
        return BySuccess(tasks, seed)
    try:
        threshold = float(argument)
    except ValueError:
        threshold = math.nan
    if not math.isfinite(threshold):
        raise UsageError(
            f"sampler `success`: expected a reward after the colon, as in `success:0.5`, but got {argument!r}"
        )
    return BySuccess(tasks, seed, threshold)


BUILT_IN: Final[Mapping[str, SamplerFactory]] = {
    "shuffled": shuffled,
    "difficulty": difficulty,
    "success": success,
}
"""The samplers that ship with core, by name."""


def _random(seed: int, part: int | str) -> random.Random:
    """A generator for one part of a sampler's life, so that no generator's state need be kept."""
    return random.Random(f"{seed}/{part}")


def _check(count: int) -> None:
    if count < 1:
        raise UsageError(f"draw: expected at least 1 task but got {count!r}")


def _say_few(name: str, tasks: int, count: int) -> None:
    log.warning(
        "sampler `%s`: %d tasks for batches of %d: each batch has some of them more than once",
        name, tasks, count,
    )  # fmt: skip


def _saved(state: Mapping[str, Any], cls: type[Any], name: str, tasks: int, seed: int) -> Any:
    """The state as a record, if it is this sampler's."""
    try:
        saved = msgspec.convert(dict(state), cls)
    except msgspec.ValidationError as error:
        raise FormatError(f"sampler `{name}`: its saved state cannot be read: {error}") from error
    mine, its = (name, tasks, seed), (saved.sampler, saved.tasks, saved.seed)
    if mine != its:
        raise FormatError(
            f"sampler `{name}` with {tasks} tasks and seed {seed}: the saved state is of sampler `{its[0]}` with"
            f" {its[1]} tasks and seed {its[2]}; resume with what the run was started with"
        )
    return saved
