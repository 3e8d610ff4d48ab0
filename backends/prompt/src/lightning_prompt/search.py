"""Search: what can be tuned, one part after the other, under one budget; then an honest comparison."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable

import msgspec

from lightning_core.errors import LightningError, UsageError
from lightning_core.prompts import find_prompts
from lightning_core.provider import OPENAI
from lightning_core.redaction import without_userinfo
from lightning_core.rollout import Mode
from lightning_core.runs import Artifact, Run
from lightning_core.strategy import Provenance, Strategy
from lightning_prompt.budget import Spent
from lightning_prompt.comparison import Comparison, compare
from lightning_prompt.evaluation import BudgetReached, Evaluator, why_unscored
from lightning_prompt.leader import TRIED, Leader
from lightning_prompt.phases import Phases, Reflect
from lightning_prompt.plan import Plan
from lightning_prompt.plot import draw_scores
from lightning_prompt.rules import declared_in
from lightning_prompt.share import Share
from lightning_prompt.space import Space, space_of
from lightning_prompt.split import Split, split_tasks

STRATEGY = "strategy.json"
"""The file in the run's folder that the search ends in."""


class Search:
    """One search.

    What is random in it is drawn by the seed, and what is paid for is kept: rollouts by the store, replies of the reflection
    model by the journal. So a search that was stopped at any point is begun anew, and comes to where it was at no cost.
    """

    def __init__(
        self,
        run: Run,
        plan: Plan,
        *,
        reflect: Reflect | None = None,
        reflected: Callable[[], Spent] = Spent,
    ) -> None:
        """
        Args:
            run: the run.
            plan: what was asked.
            reflect: the reflection model, called in a thread; None where there is none.
            reflected: what it has taken.
        """
        self._run = run
        self._plan = plan
        self._reflect = reflect
        self._evaluator = Evaluator(
            run,
            plan.budget,
            prices=plan.prices,
            priced=plan.budget.usd is not None or plan.cost_weight > 0,
            spent=reflected,
            patience=plan.patience,
            tell=lambda text: run.say(text or "the agent's model answers again"),
        )
        self._leader = Leader(run, plan, self._evaluator)
        self._space = Space()

    async def run(self) -> Artifact:
        """Search, compare, and write the file.

        Raises:
            UsageError: there is nothing to tune or to choose by.
            LightningError: rollouts could not be run, or the reflection model not be asked.
        """
        run, plan = self._run, self._plan
        split = split_tasks(
            await run.tasks("train"),
            await run.tasks("val"),
            choose=plan.choose,
            held_out=plan.held_out,
            seed=plan.asked.seed,
        )
        for note in split.notes:
            self._leader.note(note)
        self._reserve(split)
        stopped = ""
        try:
            await self._searched(split)
        except BudgetReached as reached:
            stopped = str(reached)
        if fault := self._without_signal():
            self._leader.note(fault)  # What was paid for is compared all the same.
        if not self._leader.tried:
            raise UsageError(
                f"budget: {stopped} were used up by the agent as it is; raise it, or give fewer tasks with `--limit`"
            )
        comparison = await self._compared(split, self._leader.strategy)
        return self._written(comparison, stopped)

    def _reserve(self, split: Split) -> None:
        repeats = self._plan.asked.val_repeats
        count = 2 * len(split.held_out) * repeats
        first = len(split.choose) + len(split.learn)
        bound = self._plan.budget.rollouts
        if bound is not None and count + first >= bound:
            raise UsageError(
                f"budget: {bound} rollouts; the comparison at the end takes {count} of them ({len(split.held_out)} held-out"
                f" tasks, 2 strategies, {repeats} repeats), and the agent as it is {first}, so that nothing is left to search"
                " with; raise it, or give fewer tasks with `--limit`"
            )
        self._evaluator.reserve.rollouts = count

    async def _searched(self, split: Split) -> None:
        original, evaluator, leader = Strategy(), self._evaluator, self._leader
        leader.begin("the agent as it is")
        await self._first(split)
        before = await evaluator.evaluate(original, split.choose)
        await leader.told(before)
        traces = [*before.all, *(await evaluator.evaluate(original, split.learn)).all]
        if all(trace.reward is None for trace in traces):
            raise LightningError(
                f"the agent as it is fails on each of {len(traces)} tasks, the last time by {why_unscored(traces[-1])}; run it with"
                " `lightning-core run` until it does not"
            )
        prompts = find_prompts(traces)
        self._space = space_of(prompts, declared_in(traces), self._plan.asked.train_agents)
        phases = Phases(self._plan, evaluator, leader, split, self._space, self._reflect)
        possible = phases.possible(prompts, traces)
        for number, phase in enumerate(possible):
            await phase(Share(evaluator, len(possible) - number))
            if fault := self._without_signal():
                raise UsageError(fault)

    async def _first(self, split: Split) -> None:
        """Run one rollout: whether there are prices, and whether the budget can be enough, is to be known before more is paid."""
        evaluator, budget = self._evaluator, self._plan.budget
        scores = await evaluator.evaluate(Strategy(), split.choose[:1])
        count = len(split.choose) + len(split.learn)
        needed = evaluator.reserve.held + evaluator.reserve.expected(count, scores.strategy.digest)
        if (reached := budget.reached(needed, reflecting=False)) is not None:
            raise UsageError(
                f"budget: going by the first rollout, the agent as it is takes {reached} for {count} tasks and the comparison at"
                f" the end ({evaluator.reserve.rollouts} rollouts), so that nothing is left to search with; raise it, or give"
                " fewer tasks with `--limit`"
            )

    def _without_signal(self) -> str | None:
        """What is wrong with a reward that is the same for all; None where it is not."""
        values, strategies = self._evaluator.seen
        if len(values) != 1 or strategies <= 2:
            return None
        (value,) = values
        return (
            f"reward `{self._run.config.reward}`: gave {value:g} to every rollout of {strategies} strategies, so that none can be"
            " chosen; give one that tells better from worse, such as with steps below the right answer"
        )

    async def _compared(self, split: Split, strategy: Strategy) -> Comparison:
        self._leader.begin("comparison on held-out tasks")
        asked, evaluator = self._plan.asked, self._evaluator
        before, after = [
            await evaluator.evaluate(each, split.held_out, repeats=asked.val_repeats, reserved=True)
            for each in (Strategy(), strategy)
        ]
        by = asked.val_by
        kinds = {t.id: str(t.metadata[by]) for t in split.held_out if by in t.metadata}
        lowest = evaluator.lowest
        return compare(
            before.rewards(lowest), after.rewards(lowest), seed=asked.seed, kinds=kinds or None
        )

    def _written(self, comparison: Comparison, stopped: str) -> Artifact:
        run, leader, spent = self._run, self._leader, self._evaluator.spent
        best, gain = leader.strategy, comparison.gain
        cost = {
            name: round(getattr(spent, name), 6)
            for name in ("rollouts", "calls", "tokens", "usd", "reflection_usd", "seconds")
        }
        kept = msgspec.structs.replace(
            self._space.completed(best if comparison.improved else Strategy()),
            provenance=Provenance(
                run=run.config.name,
                agent=run.config.agent,
                fingerprint=self._space.fingerprint,
                created_at=time.time(),
                scores={
                    "before": gain and gain.before,
                    "after": gain and gain.after,
                    "difference": gain and gain.gain,
                    "interval": [gain and gain.low, gain and gain.high],
                    "tasks": gain.tasks if gain else 0,
                    "repeats": self._plan.asked.val_repeats,
                },
                cost=cost,
            ),
        )
        path = run.folder / STRATEGY
        kept.dump(path)
        end = (spent.rollouts, stopped or "nothing left to try")
        picture = draw_scores(run.folder, leader.tried[0], leader.tried[1:], end=end)
        return Artifact(
            kind="strategy",
            path=STRATEGY,
            apply=f"lightning-core serve --strategy {shlex.quote(str(path))} {self._answering()}",
            metrics={
                # Without an interval there is nothing to tell as a gain.
                "val": None if gain is None or gain.low is None else msgspec.to_builtins(gain),
                "improved": comparison.improved,
                "verdict": str(comparison),
                "strategies": len(leader.tried),
                "stopped": stopped,
                "used": self._plan.budget.used(spent),
                "cost": cost,
                "picture": None if picture is None else picture.name,
                "best": None if best.is_empty else f"{TRIED}/{best.digest[:12]}.json",
            },
        )

    def _answering(self) -> str:
        """How the served strategy is told what answers."""
        config = self._run.config
        if config.model is not None and config.mode is not Mode.OBSERVE:
            return f"--model {shlex.quote(config.model)}"
        return f"--upstream {without_userinfo(os.environ.get('OPENAI_BASE_URL') or OPENAI)}"
