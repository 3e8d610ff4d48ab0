"""Leader: the best strategy so far, and word of each that was tried."""

from __future__ import annotations

from typing import Final

import msgspec

from lightning_core.runs import Run
from lightning_core.strategy import Strategy
from lightning_prompt.comparison import mean_interval, spread
from lightning_prompt.evaluation import Evaluator, RefusedError, Scores
from lightning_prompt.live import LiveSearch
from lightning_prompt.plan import Plan
from lightning_prompt.scored import Scored

_SAMPLED: Final = {"temperature": "T", "top_p": "top_p", "max_tokens": "max_tokens"}
TRIED = "strategies"
"""The folder in the run's for the strategies that were tried on all tasks to choose by, or were ahead of these when the budget ended."""


class Leader:
    """Keeps the best, and tells of all: on the terminal, in `metrics.jsonl`, as files."""

    def __init__(self, run: Run, plan: Plan, evaluator: Evaluator) -> None:
        self.tried: list[Scored] = []
        """What was tried on all tasks to choose by, in order; the first is the agent as it is."""
        self._run = run
        self._plan = plan
        self._evaluator = evaluator
        self._best: Scores | None = None
        self._known: set[str] = set()
        self._phase = ""
        self._base = Strategy()
        self._live = LiveSearch(plan.budget)
        run.show(self._live.render)

    @property
    def strategy(self) -> Strategy:
        """The best so far."""
        return self._best.strategy if self._best is not None else Strategy()

    def begin(self, phase: str) -> None:
        """A part of the search begins."""
        self._phase = phase
        self._base = self.strategy
        self._run.say(phase)
        self._live.spend(self._evaluator.spent)
        self._live.begin(phase)

    def note(self, text: str) -> None:
        """Something that the user should know."""
        self._live.say(text)

    def refused(self, strategy: Strategy, error: RefusedError) -> None:
        """A strategy is left out, as the provider refuses the calls under it."""
        self.note(f"{named(strategy, self._base)} is left out: {error.why}")

    def worth(self, scores: Scores) -> tuple[float, float] | None:
        """What strategies are chosen by: the mean reward, less what a rollout costs where that is weighed; of equals the
        cheapest. None where nothing is scored."""
        value = scores.mean(self._evaluator.lowest)
        if value is None:
            return None
        costs = [self._evaluator.cost(trace) for trace in scores.all]
        cost = sum(costs) / len(costs)
        return value - self._plan.cost_weight * cost, -cost

    async def told(self, scores: Scores) -> None:
        """A strategy was tried on all tasks to choose by. One that has been before, in another part, is not told of again."""
        digest = scores.strategy.digest
        if digest in self._known:
            return
        self._known.add(digest)
        value = self.worth(scores)
        self._lead(scores)
        spent = self._evaluator.spent
        found = mean_interval(scores.rewards(self._evaluator.lowest), seed=self._plan.asked.seed)
        candidate = Scored(
            name=named(scores.strategy, self._base),
            phase=self._phase,
            rollouts=spent.rollouts,
            mean=found.mean,
            low=found.low,
            high=found.high,
            tasks=found.tasks,
            worth=value,
        )
        self.tried.append(candidate)
        self._live.spend(spent)
        self._live.add(candidate)
        self._live.compare(*_prompts_of(self.strategy))
        leading = self._best.mean(self._evaluator.lowest) if self._best is not None else None
        number = len(self.tried)
        if self._run.logged(number):
            return
        counts = {f"spent/{name}": value for name, value in msgspec.to_builtins(spent).items()}
        await self._run.log(
            {
                "strategy": digest[:12],
                "phase": self._phase,
                "reward/mean": found.mean,
                "reward/low": found.low,
                "reward/high": found.high,
                "reward/best": leading,
                "usd/rollout": None if value is None else -value[1],
                "rollouts/unscored": found.unscored,
                **counts,
            },
            step=number,
        )
        self._keep(scores.strategy)

    def ahead(self, scores: Scores) -> None:
        """A strategy was the best on some of the tasks to choose by, and the budget does not last to try it on all. It is
        taken where it is worth more there than the best so far: held-out tasks tell what it is worth."""
        if scores.strategy.digest not in self._known and self._lead(scores):
            self.note(
                f"{named(scores.strategy, self._base)} leads on {len(scores.traces)} tasks; the budget did not last to try it on all"
            )
            self._keep(scores.strategy)

    def _lead(self, scores: Scores) -> bool:
        """Take a strategy for the best where it is worth more than the best so far, on the tasks that both were tried on."""
        value, best = self.worth(scores), None
        if self._best is not None:
            value = self.worth(scores.of(self._best.traces))
            best = self.worth(self._best.of(scores.traces))
        leads = value is not None and (best is None or value > best)
        if leads:
            self._best = scores
            self._evaluator.reserve.leading = scores.strategy.digest
        return leads

    def _keep(self, strategy: Strategy) -> None:
        folder = self._run.folder / TRIED
        folder.mkdir(exist_ok=True)
        strategy.dump(folder / f"{strategy.digest[:12]}.json")

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


def named(strategy: Strategy, base: Strategy = Strategy()) -> str:  # noqa: B008 - frozen
    """A strategy in a few words: how it differs from the agent as it is, but for what `base` has too."""
    if strategy.is_empty:
        return "the agent as it is"
    parts, known = _parts(strategy), _parts(base)
    told = [part for part in parts if part not in known] or parts
    return f"{', '.join(told)} ({strategy.digest[:6]})"


def _parts(strategy: Strategy) -> list[str]:
    templates = strategy.prompt_templates.values()
    new = sum(each.template != each.original for each in templates)
    parts = [f"{new} prompt{'s' if new > 1 else ''}"] if new else []
    if any(each.demonstrations for each in templates):
        parts.append(_size(strategy))
    parts += [f"{name}={value}" for name, value in strategy.decision_rules.items()]
    parts += [f"{name}={each.chosen}" for name, each in strategy.interaction_patterns.items()]
    for label, each in strategy.models.items():
        where = "" if label == "*" else f" for {label}"
        sampled = [(word, getattr(each, field)) for field, word in _SAMPLED.items()]
        found = [each.model] + [f"{word}={value}" for word, value in sampled if value is not None]
        parts += [f"{part}{where}" for part in found if part]
    return parts


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
