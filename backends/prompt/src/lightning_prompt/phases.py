"""Phases: the parts of a search. Each begins with the best so far, and tells the leader of what it tries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from lightning_core.errors import UsageError
from lightning_core.prompts import Prompts
from lightning_core.strategy import ModelChoice, Strategy
from lightning_core.trace import Trace
from lightning_prompt.demonstrations import (
    Slot,
    draws,
    pools_from_expected,
    pools_from_traces,
)
from lightning_prompt.evaluation import Evaluator, RefusedError, Scores
from lightning_prompt.halving import halve
from lightning_prompt.leader import Leader
from lightning_prompt.plan import Plan, Source
from lightning_prompt.rules import RuleSearch, RuleSpace, declared_in, searchable
from lightning_prompt.share import Share
from lightning_prompt.space import Space, texts_of
from lightning_prompt.split import Split

Reflect = Callable[[str], str]
"""Asks the reflection model; blocks."""
Phase = Callable[[Share], Awaitable[None]]
"""A part of the search, within its share of the budget."""


class Phases:
    """What can be searched for an agent."""

    def __init__(
        self,
        plan: Plan,
        evaluator: Evaluator,
        leader: Leader,
        split: Split,
        space: Space,
        reflect: Reflect | None,
    ) -> None:
        self._plan = plan
        self._evaluator = evaluator
        self._leader = leader
        self._split = split
        self._space = space
        self._reflect = reflect

    def possible(self, prompts: Prompts, traces: Sequence[Trace]) -> list[Phase]:
        """The phases that there is something for, in order.

        Args:
            prompts: what was found in the agent's traffic.
            traces: the agent's, as it is.

        Raises:
            UsageError: there is none; the message says what each lacks.
        """
        found: list[Phase] = []
        lacking: list[str] = []
        labels = sorted({call.label for trace in traces for call in trace.calls})
        if self._plan.asked.models:
            found.append(lambda share: self._models(labels, share))
        if pools := self._pools(traces):
            found.append(lambda share: self._demonstrations(pools, share))
        elif self._plan.source is not Source.NONE:
            lacking.append(
                "no demonstrations: no trace was better than the others, and the tasks expect no text (`--set expected_field`)"
            )
        if not self._space.seeds:
            lacking.append("no prompts: " + ("; ".join(prompts.notes) or "none has constant text"))
        elif self._reflect is None:
            lacking.append("no new prompts: no reflection model is given (`--reflection-model`)")
        else:
            found.append(self._prompts)
        rules = RuleSpace(
            declared=tuple(slot for slot in declared_in(traces) if searchable(slot)),
            sampling=self._plan.sampling,
        )
        if rules.empty:
            lacking.append(
                "no rules: the agent's code reads none with a range by `lightning_core.strategy`"
            )
        else:
            found.append(lambda share: self._rules(rules, share))
        if not found:
            raise UsageError("nothing can be tuned: " + "; ".join(lacking))
        return found

    async def _models(self, labels: Sequence[str], share: Share) -> None:
        targets = labels if len(labels) > 1 else ["*"]
        left = list(self._plan.asked.models)
        for number, label in enumerate(targets):
            self._leader.begin(f"models for {'all calls' if label == '*' else f'`{label}`'}")
            base = self._leader.strategy
            candidates = [
                msgspec.structs.replace(
                    base, models={**base.models, label: ModelChoice(model=model)}
                )
                for model in left
            ]
            refused = await self._halve([base, *candidates], share, parts=len(targets) - number)
            left = [m for m, each in zip(left, candidates, strict=True) if each not in refused]

    async def _demonstrations(self, pools: Mapping[str, Sequence[Any]], share: Share) -> None:
        self._leader.begin("demonstrations")
        base, plan = self._leader.strategy, self._plan
        candidates = [
            self._space.strategy(texts_of(base), chosen, base)
            for chosen in draws(pools, plan.sizes, plan.draws, plan.asked.seed)
        ]
        await self._halve(candidates, share, on_round=self._leader.round)

    async def _halve(
        self,
        candidates: Sequence[Strategy],
        share: Share,
        *,
        parts: int = 1,
        on_round: Callable[[list[Scores]], None] = lambda _: None,
    ) -> list[Strategy]:
        rollouts = share.rollouts
        return await halve(
            self._evaluator,
            candidates,
            self._split.choose,
            rollouts=None if rollouts is None else rollouts // parts,
            worth=self._leader.worth,
            on_scores=self._leader.told,
            on_round=on_round,
            on_refused=self._leader.refused,
            on_ahead=self._leader.ahead,
            stop=share,
        )

    async def _prompts(self, share: Share) -> None:
        from lightning_prompt.evolution import Evolution

        assert self._reflect is not None  # else this phase is not possible
        self._leader.begin("prompts")
        base, space = self._leader.strategy, self._space
        shown = {name: each.demonstrations for name, each in base.prompt_templates.items()}
        evolution = Evolution(
            self._evaluator,
            space,
            self._reflect,
            compose=lambda texts: space.strategy(texts, shown, base),
            on_scores=self._leader.told,
            on_refused=self._leader.refused,
            seed=self._plan.asked.seed,
        )
        seeds = space.seeds | {k: v for k, v in texts_of(base).items() if k in space.seeds}
        try:
            await evolution.run(seeds, self._split.learn, self._split.choose, share)
        except RefusedError as error:
            self._leader.note(f"prompts are left as they are by now: {error.why}")

    async def _rules(self, rules: RuleSpace, share: Share) -> None:
        self._leader.begin("rules")
        search = RuleSearch(
            self._evaluator,
            rules,
            self._leader.strategy,
            on_scores=self._leader.told,
            seed=self._plan.asked.seed,
        )
        try:
            await search.run(self._split.choose, share, trials=self._plan.trials)
        except RefusedError as error:
            self._leader.note(f"rules are left as they are by now: {error.why}")

    def _pools(self, traces: Sequence[Trace]) -> dict[str, list[Any]]:
        source = self._plan.source
        slots = [Slot(each.name, each.label) for each in self._space.demonstrated()]
        learn = {task.id: task for task in self._split.learn}
        seen = [trace for trace in traces if trace.task.id in learn]
        pools: dict[str, list[Any]] = {}
        if source in (Source.TRACES, Source.BOTH):
            pools = pools_from_traces(seen, slots)
        if source is Source.EXPECTED or (source is Source.BOTH and not any(pools.values())):
            pools = pools_from_expected(seen, learn, slots, self._plan.expected_field)
        return {name: pool for name, pool in pools.items() if pool}
