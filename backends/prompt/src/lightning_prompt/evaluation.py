"""Evaluator: what strategies are worth on tasks, within a budget; nothing that was run once is run again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Final

import msgspec

from lightning_core.errors import EngineError, LightningError
from lightning_core.reward import RewardStatus
from lightning_core.rollout import Cause, Mode
from lightning_core.runs import RolloutRequest, Run
from lightning_core.strategy import Strategy
from lightning_core.task import Task
from lightning_core.trace import CallErrorKind, Trace
from lightning_prompt.budget import Budget, Spent
from lightning_prompt.prices import Prices
from lightning_prompt.reserve import Reserve
from lightning_prompt.retrying import Patience, Tell

_AGAIN: Final = 3
"""How often, in one start of the run, rollouts that failed through no fault of the agent are asked for anew."""


class BudgetReached(Exception):
    """A bound of the budget is reached; its text says which."""


class RefusedError(LightningError):
    """No rollout could be run, and to wait does not help: a refusal of the provider, a worker that cannot start the agent."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"the agent cannot be run: {why}; once that is mended, go on with `--resume`"
        )
        self.why = why
        """Cause and message."""

    def __reduce__(self) -> tuple[type[RefusedError], tuple[str]]:
        return type(self), (self.why,)


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

    def of(self, tasks: Container[str]) -> Scores:
        """The same for those of its tasks that are among these."""
        traces = {task: traces for task, traces in self.traces.items() if task in tasks}
        return Scores(self.strategy, traces)

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
        priced: bool = False,
        spent: Callable[[], Spent] = Spent,
        patience: float = 3600.0,
        tell: Tell = lambda text: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """
        Args:
            run: the run.
            budget: its bounds. What `reserve` holds is kept apart.
            prices: of the agent's models.
            priced: whether a call whose cost is not known is an error, as it is where money counts.
            spent: what others have spent of the same budget, such as the reflection model.
            patience: seconds for which the agent's model is waited for while none of its rollouts can be run.
            tell: called with what is waited for, and with None once it goes on.
            clock: Unix time, seconds.
        """
        self.budget = budget
        self.lowest = 0.0
        """The lowest reward seen, and at most 0: what a rollout counts for that the agent failed."""
        self.reserve = Reserve()
        """What is kept for the comparison at the end."""
        self.requested = 0
        """How many rollouts were asked for that were not known."""
        self._run = run
        self._prices = prices or Prices()
        self._priced = priced
        self._others = spent
        self._patience = patience
        self._tell = tell
        self._own = Spent()
        self._known: dict[tuple[str, str, int], Trace] = {}
        self._started = clock()
        self._clock = clock
        state = run.load() or {}
        self._before = float(state.get("seconds", 0.0))
        self._replayed = int(state.get("rollouts", 0))

    @property
    def spent(self) -> Spent:
        """What has been spent, by others too. Earlier starts took their time once what they did has been read again: until
        then no bound stops what costs nothing."""
        read = self._own.rollouts >= self._replayed
        seconds = self._clock() - self._started + (self._before if read else 0.0)
        return self._own + self._others() + Spent(seconds=seconds)

    @property
    def mode(self) -> Mode:
        """How the rollouts run: where the run serves a model, as in validation, as nothing of it is learnt by gradient."""
        return Mode.OBSERVE if self._run.config.mode is Mode.OBSERVE else Mode.VAL

    def cost(self, trace: Trace) -> float:
        """What a rollout's calls cost in US dollars.

        Raises:
            UsageError: a model has no price, where money counts.
            EngineError: a reply has no token counts, where money counts.
        """
        costs = []
        for call in trace.calls:
            cost = self._prices.cost(call.model or "", call.usage)
            if cost is None and self._priced and call.error is None:
                self._prices.require([call.model or ""])
                raise EngineError(
                    f"model `{call.model}`: its reply has no token counts, so that what it costs is not known; bound `calls`"
                    " instead of money"
                )
            costs.append(cost or 0.0)
        return math.fsum(costs)

    def proposed(self) -> None:
        """Count a candidate that was proposed."""
        self._own += Spent(proposals=1)

    @property
    def seen(self) -> tuple[set[float], int]:
        """Which rewards there were, and of how many strategies."""
        scored = {key: trace.reward for key, trace in self._known.items()}
        found = {key: reward for key, reward in scored.items() if reward is not None}
        return set(found.values()), len({digest for digest, _, _ in found})

    async def evaluate(
        self, strategy: Strategy, tasks: Sequence[Task], *, repeats: int = 1, reserved: bool = False
    ) -> Scores:
        """Run a strategy on tasks, as far as that has not been done.

        Args:
            strategy: what is applied; one that is empty is the agent as it is.
            tasks: the tasks.
            repeats: rollouts of each.
            reserved: whether they are those that are kept for the comparison: what they take was held for them by estimate,
                so that no bound but that of rollouts ends them.

        Raises:
            BudgetReached: they do not fit; none was begun.
            RefusedError: none of them could be run, and to wait does not help.
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
            self._check(len(wanted), reserved)
            self.requested += len(wanted)
            await self._run_all(strategy, digest, wanted)
            spent = self.spent
            if not reserved and spent.rollouts >= self._replayed:
                self._run.save({"seconds": spent.seconds, "rollouts": spent.rollouts})
        return Scores(
            strategy,
            {
                task.id: tuple(self._known[digest, task.id, number] for number in range(repeats))
                for task in tasks
            },
        )

    def _check(self, rollouts: int, reserved: bool) -> None:
        """Refuse rollouts that do not fit, with the bound that is reached."""
        budget, spent, held = self.budget, self.spent, self.reserve.held
        if reserved:
            budget, held = Budget(rollouts=budget.rollouts), Spent()
        if budget.fits(spent + held, rollouts=rollouts) == rollouts:
            return
        if (reached := self.budget.reached(spent, reflecting=False)) is not None:
            raise BudgetReached(reached)
        if (reached := self.budget.reached(spent + held, reflecting=False)) is not None:
            raise BudgetReached(f"{reached}, with the comparison at the end")
        raise BudgetReached(f"{rollouts} rollouts more would pass {self.budget.used(spent)}")

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
        why = why_unscored(trace)
        if not _may_pass(trace):
            raise RefusedError(why)
        await patience.wait(f"the agent's model does not answer: {why}")

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
        for trace in found:
            self._count(digest, trace, rollouts=0 if _by_no_fault_of_the_agent(trace) else 1)
            if trace.reward is not None:
                self.lowest = min(self.lowest, trace.reward)
        for trace in await self._run.earlier(found):
            self._count(digest, trace, rollouts=0)
        return found

    def _count(self, digest: str, trace: Trace, *, rollouts: int) -> None:
        """Count what an attempt took."""
        calls, attempt = trace.calls, trace.attempt
        spent = Spent(
            rollouts=rollouts,
            calls=len(calls),
            tokens=sum(call.total_tokens for call in calls),
            usd=self.cost(trace),
        )
        self._own += spent
        seconds = (attempt.ended_at or attempt.started_at) - attempt.started_at
        at_once = self._run.config.concurrency
        self.reserve.took(digest, spent + Spent(seconds=seconds / at_once))


def _worth(trace: Trace, lowest: float | None) -> float | None:
    if trace.attempt.cause is Cause.SUCCESS or _by_no_fault_of_the_agent(trace):
        return trace.reward
    return lowest if trace.reward is None else trace.reward


def _by_no_fault_of_the_agent(trace: Trace) -> bool:
    cause = trace.attempt.cause
    return cause is None or cause.reward_status is RewardStatus.INFRA_ERROR or _left_waiting(trace)


def _left_waiting(trace: Trace) -> bool:
    """Whether an attempt's time ran out because the provider was silent: its last call had most of that time, and no reply."""
    attempt = trace.attempt
    if attempt.cause is not Cause.TIMEOUT or attempt.ended_at is None or not trace.calls:
        return False
    call = trace.calls[-1]
    most = (attempt.ended_at - attempt.started_at) / 2
    return call.error is not None and call.ended_at - call.started_at > most


def _may_pass(trace: Trace) -> bool:
    """Whether what failed may be well again after a while: a provider that is overloaded, silent or gone; a worker lost."""
    if trace.attempt.cause is Cause.WORKER_ERROR:
        return False
    error = next((call.error for call in reversed(trace.calls) if call.error is not None), None)
    if error is None or error.kind is not CallErrorKind.STATUS:
        return error is None or error.kind is not CallErrorKind.BAD_REQUEST
    return error.status in (408, 425, 429) or (error.status or 0) >= 500


def why_unscored(trace: Trace) -> str:
    """The cause to which a rollout's end is put down, and what is known of it."""
    error = next((call.error for call in reversed(trace.calls) if call.error is not None), None)
    told = error.message if error is not None else trace.attempt.error
    return f"{trace.attempt.cause}: {' '.join((told or 'no more is known').split())[:300]}"
