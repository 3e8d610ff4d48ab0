"""Leader: the best strategy so far, and word of each that was tried."""

from __future__ import annotations

import msgspec

from lightning_core.runs import Run
from lightning_core.strategy import Strategy
from lightning_prompt.comparison import mean_interval, spread
from lightning_prompt.evaluation import Evaluator, Scores
from lightning_prompt.live import LiveSearch
from lightning_prompt.plan import Plan
from lightning_prompt.scored import Scored

TRIED = "strategies"
"""The folder in the run's for the strategies that were tried on all tasks to choose by."""


class Leader:
    """Keeps the best, and tells of all: on the terminal, in `metrics.jsonl`, as files."""

    def __init__(self, run: Run, plan: Plan, evaluator: Evaluator) -> None:
        self.tried: list[Scored] = []
        """What was tried on all tasks to choose by, in order; the first is the agent as it is."""
        self._run = run
        self._plan = plan
        self._evaluator = evaluator
        self._best: Scores | None = None
        self._phase = ""
        self._live = LiveSearch(plan.budget)
        run.show(self._live.render)

    @property
    def strategy(self) -> Strategy:
        """The best so far."""
        return self._best.strategy if self._best is not None else Strategy()

    def begin(self, phase: str) -> None:
        """A part of the search begins."""
        self._phase = phase
        self._run.say(phase)
        self._live.spend(self._evaluator.spent)
        self._live.begin(phase)

    def note(self, text: str) -> None:
        """Something that the user should know."""
        self._live.say(text)

    def worth(self, scores: Scores) -> float | None:
        """The mean reward, less what a rollout costs where that is weighed; None where nothing is scored."""
        value = scores.mean(self._evaluator.lowest)
        if value is None or not self._plan.cost_weight:
            return value
        prices = self._plan.prices
        costs = [
            sum(prices.cost(call.model or "", call.usage) or 0.0 for call in trace.calls)
            for trace in scores.all
        ]
        return value - self._plan.cost_weight * sum(costs) / len(costs)

    async def told(self, scores: Scores) -> None:
        """A strategy was tried on all tasks to choose by."""
        best = None if self._best is None else self.worth(self._best)
        value = self.worth(scores)
        if value is not None and (best is None or value > best):
            self._best = scores
        spent = self._evaluator.spent
        found = mean_interval(scores.rewards(self._evaluator.lowest), seed=self._plan.asked.seed)
        candidate = Scored(
            name=named(scores.strategy),
            phase=self._phase,
            rollouts=spent.rollouts,
            mean=found.mean,
            low=found.low,
            high=found.high,
            tasks=found.tasks,
        )
        self.tried.append(candidate)
        self._live.spend(spent)
        self._live.add(candidate)
        self._live.compare(*_prompts_of(self.strategy))
        number = len(self.tried)
        if self._run.logged(number):
            return
        counts = {f"spent/{name}": value for name, value in msgspec.to_builtins(spent).items()}
        await self._run.log(
            {
                "strategy": scores.strategy.digest[:12],
                "phase": self._phase,
                "reward/mean": found.mean,
                "reward/low": found.low,
                "reward/high": found.high,
                "reward/best": None if self._best is None else self.worth(self._best),
                "rollouts/unscored": found.unscored,
                **counts,
            },
            step=number,
        )
        folder = self._run.folder / TRIED
        folder.mkdir(exist_ok=True)
        scores.strategy.dump(folder / f"{scores.strategy.digest[:12]}.json")

    def round(self, found: list[Scores]) -> None:
        """Strategies were tried on the same tasks: how far they lie apart, by how many demonstrations they have."""
        sizes: dict[str, list[float]] = {}
        for scores in found:
            value = scores.mean(self._evaluator.lowest)
            if value is not None:
                sizes.setdefault(_size(scores.strategy), []).append(value)
        tasks = len(found[0].traces) if found else 0
        for size, values in sizes.items():
            if len(values) > 1:
                of = spread(values)
                self.note(
                    f"{of.count} with {size} on {tasks} tasks: reward {of.min:.3f} to {of.max:.3f}, median {of.median:.3f}"
                )


def named(strategy: Strategy) -> str:
    """A strategy in a few words: how it differs from the agent as it is."""
    if strategy.is_empty:
        return "the agent as it is"
    templates = strategy.prompt_templates.values()
    new = sum(each.template != each.original for each in templates)
    parts = [f"{new} prompt{'s' if new > 1 else ''}"] if new else []
    if any(each.demonstrations for each in templates):
        parts.append(_size(strategy))
    parts += [f"{name}={value}" for name, value in strategy.decision_rules.items()]
    parts += [f"{name}={each.chosen}" for name, each in strategy.interaction_patterns.items()]
    parts += [str(each.model or f"T={each.temperature}") for each in strategy.models.values()]
    return f"{', '.join(parts)} ({strategy.digest[:6]})"


def _size(strategy: Strategy) -> str:
    shown = sum(len(each.demonstrations) for each in strategy.prompt_templates.values())
    return f"{shown} demonstrations" if shown else "no demonstrations"


def _prompts_of(strategy: Strategy) -> tuple[dict[str, str], dict[str, str]]:
    """The prompts of a strategy by slot: as they were, and as they are."""
    templates = strategy.prompt_templates
    return (
        {name: each.original for name, each in templates.items()},
        {name: each.template for name, each in templates.items()},
    )
