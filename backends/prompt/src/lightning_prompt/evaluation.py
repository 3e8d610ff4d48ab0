"""Evaluator: what strategies are worth on tasks, within a budget; nothing that was run once is run again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from lightning_core.errors import LightningError
from lightning_core.reward import RewardStatus
from lightning_core.rollout import Cause, Mode
from lightning_core.runs import RolloutRequest, Run
from lightning_core.strategy import Strategy
from lightning_core.task import Task
from lightning_core.trace import CallErrorKind, Trace
from lightning_prompt.budget import Budget, Spent
from lightning_prompt.prices import Prices
from lightning_prompt.retrying import Patience, Tell

_OF_THE_AGENT: Final = (Cause.AGENT_ERROR, Cause.TIMEOUT, Cause.BUDGET)
_AGAIN: Final = 3
"""How often, in one start of the run, rollouts that failed through no fault of the agent are asked for anew."""


class BudgetReached(Exception):
    """A bound of the budget is reached; its text says which."""


class Scores(msgspec.Struct, frozen=True):
    """What a strategy is worth on some tasks."""

    strategy: Strategy
    """The strategy."""
    traces: Mapping[str, tuple[Trace, ...]]
    """By task, one for each repeat, in the order that was asked for."""

    def rewards(self, lowest: float | None = None) -> dict[str, list[float | None]]:
        """Rewards by task and repeat.

        Args:
            lowest: what a rollout counts for that the agent failed, such as under a prompt that breaks it; None leaves it
                unscored. One that failed through no fault of the agent is unscored always.
        """
        return {
            task: [_worth(trace, lowest) for trace in traces]
            for task, traces in self.traces.items()
        }

    @property
    def all(self) -> list[Trace]:
        """All traces."""
        return [trace for traces in self.traces.values() for trace in traces]

    def mean(self, lowest: float) -> float | None:
        """The mean over tasks of a task's mean reward; None where nothing is scored."""
        means = [
            sum(scored) / len(scored)
            for values in self.rewards(lowest).values()
            if (scored := [value for value in values if value is not None])
        ]
        return sum(means) / len(means) if means else None


class Evaluator:
    """Runs strategies on tasks.

    A rollout is known by its task, the strategy's digest and the number of the repeat, and is run once: asked for again, also
    after a restart of the run, it is taken from the store. So a search that draws by a seed comes, when it is begun anew,
    to where it was without paying twice.
    """

    def __init__(
        self,
        run: Run,
        budget: Budget,
        *,
        prices: Prices | None = None,
        spent: Callable[[], Spent] = Spent,
        patience: float = 3600.0,
        tell: Tell = lambda text: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """
        Args:
            run: the run.
            budget: its bounds. Rollouts that `reserve` names are kept apart.
            prices: of the agent's models.
            spent: what others have spent of the same budget, such as the reflection model.
            patience: seconds for which the agent's model is waited for while none of its rollouts can be run.
            tell: called with what is waited for, and with None once it goes on.
            clock: Unix time, seconds.
        """
        self.budget = budget
        self.lowest = 0.0
        """The lowest reward seen, and at most 0: what a rollout counts for that the agent failed."""
        self.requested = 0
        """How many rollouts were asked for that were not known."""
        self._run = run
        self._prices = prices or Prices()
        self._others = spent
        self._patience = patience
        self._tell = tell
        self._own = Spent()
        self._known: dict[tuple[str, str, int], Trace] = {}
        self._reserved = 0
        self._started = clock()
        self._clock = clock
        self._before = 0.0

    @property
    def spent(self) -> Spent:
        """What has been spent, by others too."""
        seconds = self._before + self._clock() - self._started
        return self._own + self._others() + Spent(seconds=seconds)

    @property
    def mode(self) -> Mode:
        """How the rollouts run: where the run serves a model, as in validation, as nothing of it is learnt by gradient."""
        return Mode.OBSERVE if self._run.config.mode is Mode.OBSERVE else Mode.VAL

    def proposed(self) -> None:
        """Count a candidate that was proposed."""
        self._own += Spent(proposals=1)

    def began_before(self, seconds: float) -> None:
        """Count the wall time of earlier starts of the run."""
        self._before = seconds

    def reserve(self, rollouts: int) -> None:
        """Keep rollouts of the budget for later: `search` ones may not take them."""
        self._reserved = rollouts

    @property
    def reserved(self) -> int:
        """Rollouts that are kept for later."""
        return self._reserved

    @property
    def seen(self) -> tuple[set[float], int]:
        """Which rewards there were, and how many strategies were run."""
        rewards = {trace.reward for trace in self._known.values() if trace.reward is not None}
        return rewards, len({digest for digest, _, _ in self._known})

    def check(self) -> None:
        """End the search where a bound is reached.

        Raises:
            BudgetReached: with the bound, in words.
        """
        held = Spent(rollouts=self._reserved)
        if (reached := self.budget.reached(self.spent + held, reflecting=False)) is not None:
            if self._reserved and self.budget.reached(self.spent, reflecting=False) is None:
                reached += f" ({self._reserved} of them for the comparison at the end)"
            raise BudgetReached(reached)

    async def evaluate(
        self, strategy: Strategy, tasks: Sequence[Task], *, repeats: int = 1, reserved: bool = False
    ) -> Scores:
        """Run a strategy on tasks, as far as that has not been done.

        Args:
            strategy: what is applied; one that is empty is the agent as it is.
            tasks: the tasks.
            repeats: rollouts of each.
            reserved: whether they are those that `reserve` kept.

        Raises:
            BudgetReached: they do not fit; none was begun.
            LightningError: none of them could be run, through no fault of the agent, for as long as `patience` says.
        """
        digest = strategy.digest
        wanted = [
            (task, number)
            for task in tasks
            for number in range(repeats)
            if (digest, task.id, number) not in self._known
        ]
        if wanted:
            held = Spent(rollouts=0 if reserved else self._reserved)
            if self.budget.fits(self.spent + held, rollouts=len(wanted)) < len(wanted):
                if not reserved:
                    self.check()
                raise BudgetReached(
                    f"{len(wanted)} rollouts more would pass {self.budget.used(self.spent)}"
                )
            self.requested += len(wanted)
            await self._run_all(strategy, digest, wanted)
        return Scores(
            strategy,
            {
                task.id: tuple(self._known[digest, task.id, number] for number in range(repeats))
                for task in tasks
            },
        )

    async def _run_all(
        self, strategy: Strategy, digest: str, wanted: Sequence[tuple[Task, int]]
    ) -> None:
        """Run rollouts, those again that fail through no fault of the agent. What was run before a restart is read again, in
        the same order, and nothing is waited for."""
        left = list(wanted)
        number = tries = 0
        patience = Patience(self._patience, self._tell)
        while left:
            failed, fresh = await self._round(strategy, digest, left, number)
            number += 1
            tries += fresh
            if len(failed) < len(left):
                if tries >= _AGAIN:
                    return  # Those that failed stay unscored, and are counted.
                left = failed
                continue
            while failed:
                # One is enough to see whether the provider is back.
                probe = failed[:1]
                if fresh:
                    await self._wait(patience, self._known[digest, probe[0][0].id, probe[0][1]])
                still, fresh = await self._round(strategy, digest, probe, number)
                number += 1
                if not still:
                    patience.over()
                    left = failed[1:]
                    break

    async def _wait(self, patience: Patience, trace: Trace) -> None:
        cause, why = trace.attempt.cause, _last_line(trace)
        if not _may_pass(trace):
            raise LightningError(
                f"the agent cannot be run: {cause}: {why}; once that is mended, go on with `--resume`"
            )
        await patience.wait(f"the agent's model does not answer: {cause}: {why}")

    async def _round(
        self, strategy: Strategy, digest: str, wanted: Sequence[tuple[Task, int]], number: int
    ) -> tuple[list[tuple[Task, int]], bool]:
        """Which rollouts failed through no fault of the agent, and whether any was run now, not before a restart."""
        traces = await self._run_once(strategy, digest, wanted, number)
        failed = []
        for (task, repeat), trace in zip(wanted, traces, strict=True):
            self._known[digest, task.id, repeat] = trace
            if _by_no_fault_of_the_agent(trace):
                failed.append((task, repeat))
        return failed, any((t.attempt.ended_at or 0.0) >= self._started for t in traces)

    async def _run_once(
        self, strategy: Strategy, digest: str, wanted: Sequence[tuple[Task, int]], number: int
    ) -> list[Trace]:
        again = f"-again-{number}" if number else ""
        requests = [
            RolloutRequest(
                task=task,
                mode=self.mode,
                key=f"{digest[:16]}-{repeat}{again}",
                strategy=None if strategy.is_empty else strategy,
            )
            for task, repeat in wanted
        ]
        found = [traces[0] for traces in await self._run.rollouts(requests)]
        self._count(found)
        return found

    def _count(self, traces: Iterable[Trace]) -> None:
        for trace in traces:
            calls = trace.calls
            usd = sum(self._prices.cost(call.model or "", call.usage) or 0.0 for call in calls)
            self._own += Spent(
                rollouts=0 if _by_no_fault_of_the_agent(trace) else 1,
                calls=len(calls),
                tokens=sum(call.total_tokens for call in calls),
                usd=usd,
            )
            if trace.reward is not None:
                self.lowest = min(self.lowest, trace.reward)


def _worth(trace: Trace, lowest: float | None) -> float | None:
    if trace.reward is None and trace.attempt.cause in _OF_THE_AGENT:
        return lowest
    return trace.reward


def _by_no_fault_of_the_agent(trace: Trace) -> bool:
    cause = trace.attempt.cause
    return cause is None or cause.reward_status is RewardStatus.INFRA_ERROR


def _may_pass(trace: Trace) -> bool:
    """Whether what failed may be well again after a while: a provider that is overloaded, silent or gone; a worker lost."""
    if trace.attempt.cause is Cause.WORKER_ERROR:
        return False
    error = next((call.error for call in reversed(trace.calls) if call.error is not None), None)
    if error is None or error.kind is not CallErrorKind.STATUS:
        return error is None or error.kind is not CallErrorKind.BAD_REQUEST
    return error.status in (408, 425, 429) or (error.status or 0) >= 500


def _last_line(trace: Trace) -> str:
    error = next((call.error for call in reversed(trace.calls) if call.error is not None), None)
    told = error.message if error is not None else trace.attempt.error
    return " ".join((told or "no more is known").split())[:300]
