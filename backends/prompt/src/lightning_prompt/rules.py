"""Rules: decision rules, interaction patterns, models and sampling, searched by Optuna (Akiba et al. 2019, arXiv:1907.10902)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lightning_core.records import Json
from lightning_core.slots import SlotDeclaration, SlotKind
from lightning_core.strategy import InteractionPattern, ModelChoice, Step, Strategy
from lightning_core.task import Task
from lightning_core.trace import Trace
from lightning_prompt.evaluation import Evaluator, Scores

if TYPE_CHECKING:
    import optuna

_STARTUP: Final = 6
"""Trials that are drawn at random before the sampler models what came of them."""
_RUNGS: Final = (0.25, 0.5, 1.0)
"""The shares of the tasks after each of which a trial may be given up."""


class RuleSpace(msgspec.Struct, frozen=True, kw_only=True):
    """What is searched: whatever the agent's code reads by name, and how models are sampled."""

    declared: tuple[SlotDeclaration, ...] = ()
    """The rules and choices that the agent's code reads, and that have a range."""
    sampling: Mapping[str, tuple[float, float]] = {}
    """Bounds of sampling parameters of all models, by their name in `ModelChoice`; those that are not named stay."""

    @property
    def empty(self) -> bool:
        """Whether nothing is searched."""
        return not self.declared and not self.sampling


def declared_in(traces: Sequence[Trace]) -> list[SlotDeclaration]:
    """The slots that the agent's code has read, by name: of each the first declaration."""
    found: dict[tuple[str, str], SlotDeclaration] = {}
    for trace in traces:
        for slot in trace.slots:
            found.setdefault((slot.kind, slot.name), slot)
    return [found[key] for key in sorted(found)]


def searchable(slot: SlotDeclaration) -> bool:
    """Whether a slot is a rule or choice whose values are known: options, or both bounds, or true and false."""
    if slot.kind is SlotKind.PROMPT:
        return False
    bounded = slot.low is not None and slot.high is not None
    return slot.options is not None or slot.type == "bool" or bounded


class RuleSearch:
    """Searches rules from one strategy on. Draws by a seed, so that it draws the same when it is begun anew."""

    def __init__(
        self,
        evaluator: Evaluator,
        space: RuleSpace,
        base: Strategy,
        *,
        on_scores: Callable[[Scores], Coroutine[Any, Any, None]],
        seed: int = 0,
    ) -> None:
        self._evaluator = evaluator
        self._space = space
        self._base = base
        self._on_scores = on_scores
        self._seed = seed

    async def run(self, choose: Sequence[Task], stop: Callable[[], bool], *, trials: int) -> None:
        """Try values until the share of the budget is used up, or so many trials were made.

        Raises:
            BudgetReached: the whole budget is.
            LightningError: rollouts could not be run.
        """
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(
            direction="maximize",
            sampler=optuna.samplers.TPESampler(seed=self._seed, n_startup_trials=_STARTUP),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=_STARTUP),
        )
        if defaults := self._defaults():
            study.enqueue_trial(defaults)
        for _ in range(trials):
            if stop():
                return
            trial = study.ask()
            strategy = applied(self._base, self._space, self._values(trial))
            value = await self._tried(trial, strategy, choose)
            if value is None:
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            else:
                study.tell(trial, value)

    async def _tried(
        self, trial: optuna.Trial, strategy: Strategy, choose: Sequence[Task]
    ) -> float | None:
        """The mean reward; None where the trial was given up."""
        last = 0
        for rung in _RUNGS:
            count = max(1, round(rung * len(choose)))
            if count == last:
                continue
            last = count
            scores = await self._evaluator.evaluate(strategy, choose[:count])
            value = scores.mean(self._evaluator.lowest)
            if value is None:
                return None
            trial.report(value, step=count)
            if count < len(choose) and trial.should_prune():
                return None
        await self._on_scores(scores)
        return value

    def _defaults(self) -> dict[str, Any]:
        return {
            slot.title: slot.default for slot in self._space.declared if slot.accepts(slot.default)
        }

    def _values(self, trial: optuna.Trial) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for slot in self._space.declared:
            values[slot.title] = _suggested(trial, slot)
        for name, (low, high) in self._space.sampling.items():
            if name == "max_tokens":
                values[name] = trial.suggest_int(name, int(low), int(high), log=True)
            else:
                values[name] = round(trial.suggest_float(name, low, high), 3)
        return values


def applied(base: Strategy, space: RuleSpace, values: Mapping[str, Any]) -> Strategy:
    """The strategy with these values in place of its own.

    Args:
        base: the strategy.
        space: what the values are of.
        values: by the slot's title, and by the name of the sampling parameter. A default that the base leaves to the code
            stays there, so that the strategy is the same and is not paid for again.
    """
    rules: dict[str, Json] = dict(base.decision_rules)
    patterns = dict(base.interaction_patterns)
    models = dict(base.models)
    for slot in space.declared:
        value = values[slot.title]
        kept = rules if slot.kind is SlotKind.RULE else patterns
        if value == slot.default and slot.name not in kept:
            continue
        if slot.kind is SlotKind.RULE:
            rules[slot.name] = value
        else:
            options: dict[str, tuple[Step, ...]] = {str(each): () for each in slot.options or ()}
            patterns[slot.name] = InteractionPattern(chosen=str(value), options=options)
    if sampled := {name: values[name] for name in space.sampling}:
        for label in dict.fromkeys((*models, "*")):
            models[label] = msgspec.structs.replace(models.get(label) or ModelChoice(), **sampled)
    return msgspec.structs.replace(
        base, decision_rules=rules, interaction_patterns=patterns, models=models
    )


def _suggested(trial: optuna.Trial, slot: SlotDeclaration) -> Any:
    if slot.options is not None:
        return trial.suggest_categorical(slot.title, list(slot.options))
    if slot.type == "bool":
        return trial.suggest_categorical(slot.title, [False, True])
    low, high = slot.low or 0, slot.high or 0  # both are there: else it is not searchable
    if slot.type == "int":
        return trial.suggest_int(slot.title, int(low), int(high))
    return trial.suggest_float(slot.title, float(low), float(high))
