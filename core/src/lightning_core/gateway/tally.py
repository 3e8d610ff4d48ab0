"""Tally: how often a strategy's slots match the calls that they are meant for."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lightning_core.gateway.dialects import DIALECTS
from lightning_core.gateway.strategy import CompiledStrategy
from lightning_core.strategy import Strategy
from lightning_core.trace import Call


class SlotCount(msgspec.Struct):
    """How often one slot matched."""

    matched: int = 0
    """Calls in which its template replaced a text."""
    missed: int = 0
    """Calls of its label in which no text matched."""


class Tally:
    """Counts calls by what a strategy did to them; tries at one call count once."""

    def __init__(self, strategy: CompiledStrategy) -> None:
        self.calls = 0
        """Calls that have a prompt."""
        self.slots = {
            name: SlotCount()
            for name, t in strategy.strategy.prompt_templates.items()
            if t.original
        }
        """By the slot's name."""
        self.agent = strategy.strategy.provenance.agent
        """The agent that the strategy was made for; empty where that is not known."""
        self._strategy = strategy

    def add(self, call: Call) -> None:
        """Count a call that has ended."""
        if call.strategy is None:
            return
        self.calls += 1
        for name in self._strategy.slots(call.label):
            count = self.slots[name]
            if name in call.strategy.applied:
                count.matched += 1
            else:
                count.missed += 1


def tally(strategy: Strategy, calls: Iterable[Call]) -> Tally:
    """What a strategy would match of calls that were recorded.

    Raises:
        UsageError: a template cannot be read.
    """
    compiled = CompiledStrategy(strategy)
    found = Tally(compiled)
    dialects = {dialect.name: dialect for dialect in DIALECTS}
    for call in calls:
        fields = {name: msgspec.Raw(msgspec.json.encode(v)) for name, v in call.request.items()}
        applied = compiled.apply(
            dialects[call.dialect], fields, call.request, call.label, chooses=False
        )
        found.add(msgspec.structs.replace(call, strategy=applied.use, tries=()))
    return found
