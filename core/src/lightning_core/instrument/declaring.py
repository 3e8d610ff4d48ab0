"""What code that opts in reads of a strategy, told as spans that take no time."""

from __future__ import annotations

import os

from lightning_core.instrument.context import end_span, start_span
from lightning_core.instrument.variables import STRATEGY
from lightning_core.slots import SlotDeclaration, SlotKind, Told
from lightning_core.strategy import Strategy
from lightning_core.trace import SLOT_PREFIX, SpanKind


def telling(strategy: Strategy) -> Told:
    """Tells of the slots that are read of a strategy, within the attempt of the code that reads them."""

    def tell(declared: SlotDeclaration) -> None:
        fields = {name: getattr(declared, name) for name in declared.__struct_fields__}
        fields["value"] = _value(strategy, declared)
        attributes = {f"{SLOT_PREFIX}{name}": value for name, value in fields.items()}
        opened = start_span(SpanKind.SLOT.value, declared.name, attributes)
        if opened is not None:
            end_span(opened)

    return tell


def of_process() -> tuple[Strategy, Told]:
    """The strategy that this process was given by `LIGHTNING_CORE_STRATEGY`, empty where it was given none, and what tells
    of its slots.

    Raises:
        FormatError: the file is no strategy.
        UsageError: the file cannot be read.
    """
    path = os.environ.get(STRATEGY)
    strategy = Strategy.load(path) if path else Strategy()
    return strategy, telling(strategy)


def _value(strategy: Strategy, declared: SlotDeclaration) -> object:
    match declared.kind:
        case SlotKind.PROMPT:
            template = strategy.prompt_templates.get(declared.name)
            return declared.default if template is None else template.template
        case SlotKind.RULE:
            return strategy.decision_rules.get(declared.name, declared.default)
        case SlotKind.CHOICE:
            pattern = strategy.interaction_patterns.get(declared.name)
            return declared.default if pattern is None else pattern.chosen
