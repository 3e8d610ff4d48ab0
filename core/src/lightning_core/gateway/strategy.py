"""Applying a strategy to calls: its templates are read once, and a call is changed only where it matches."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from lightning_core.gateway import jsontext
from lightning_core.gateway.dialects.base import LEADING, Dialect, Fields, Rewritten
from lightning_core.gateway.dialects.rewriting import Examples, rewritten
from lightning_core.strategy import ModelChoice, PromptTemplate, Strategy
from lightning_core.template import Misfit, Template
from lightning_core.trace import StrategyUse

_ALL_OTHERS = "*"


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """What a strategy changes in one call."""

    prompt: Rewritten = Rewritten()
    """The prompt as it goes upstream."""
    choice: ModelChoice | None = None
    """Which model answers, and how it is sampled."""
    use: StrategyUse | None = None
    """What of it the record says."""

    def without_model(self) -> Applied:
        """The same for a path that names the model itself."""
        if self.use is None or self.choice is None or self.choice.model is None:
            return self
        return Applied(
            prompt=self.prompt,
            choice=msgspec.structs.replace(self.choice, model=None),
            use=msgspec.structs.replace(self.use, left_out=(*self.use.left_out, "model")),
        )


class _Slot(msgspec.Struct, frozen=True):
    """A template, ready to be applied."""

    name: str
    original: Template
    template: Template
    examples: Mapping[bytes, Examples]
    """Its demonstrations, by their JSON."""
    messages: Examples
    """Those of all of them."""


class CompiledStrategy:
    """A strategy, ready to be applied to any number of calls. Immutable."""

    def __init__(self, strategy: Strategy) -> None:
        """
        Args:
            strategy: what is applied. Prompts without `original` are the agent's own to read.

        Raises:
            UsageError: a template cannot be read.
        """
        self.strategy = strategy
        """What it was made of."""
        self.digest = strategy.digest
        """The strategy's digest."""
        # Where several templates match, the one with the most constant text is meant; then by name, so that strategies of
        # one digest do the same.
        every = sorted(
            strategy.prompt_templates.items(),
            key=lambda item: (-sum(map(len, Template(item[1].original).pieces)), item[0]),
        )
        found = {name: template for name, template in every if template.original}
        slots = {name: _compiled(name, template) for name, template in found.items()}
        labels = {template.label for template in found.values()} - {""}

        def of(*labels: str) -> dict[str, list[_Slot]]:
            return _by_role(
                [(found[name].role, slots[name]) for own in labels for name in found
                 if found[name].label == own]
            )  # fmt: skip

        self._others = of("")
        # Those of the very label go first. A call without a label, as of a program that no adapter watches, may be anyone's.
        self._by_label = {label: of(label, "") for label in labels} | {"": of("", *sorted(labels))}

    def slots(self, label: str) -> list[str]:
        """The names of the slots that calls of `label` may match."""
        by_role = self._by_label.get(label, self._others)
        return list(dict.fromkeys(slot.name for slots in by_role.values() for slot in slots))

    def apply(
        self,
        dialect: Dialect,
        fields: Fields,
        request: Mapping[str, Any] | None,
        label: str,
        *,
        chooses: bool,
    ) -> Applied:
        """What it changes in a call, which stays as it is; nothing where the format has no prompt.

        Args:
            dialect: the call's format.
            fields: its body.
            request: the same, decoded; None where only leniency decodes it.
            label: its node, else its agent, else an empty string.
            chooses: whether `models` counts; where the run's sampling policy rules, it does not.
        """
        rewriting = _Rewriting(self._by_label.get(label, self._others))
        legible = request
        if legible is None:
            legible = {name: jsontext.legible(bytes(raw)) for name, raw in fields.items()}
        edits = dialect.rewrite(legible, rewriting)
        if edits is None:
            return Applied()
        prompt = rewritten(fields, legible, edits, rewriting.examples())
        if request is None:
            prompt = Rewritten(prompt.sent, _leniently(prompt.sent))
        models = self.strategy.models
        key = label if label in models else _ALL_OTHERS
        choice = models.get(key) if chooses else None
        lost = not dialect.takes_examples and rewriting.has_examples()
        use = StrategyUse(
            digest=self.digest,
            applied=tuple(rewriting.applied),
            ambiguous=tuple(rewriting.ambiguous),
            unmatched=rewriting.unmatched,
            model=None if choice is None else key,
            left_out=("demonstrations",) if lost else (),
        )
        return Applied(prompt=prompt, choice=choice, use=use)


class _Rewriting:
    """One call's prompt on its way through a strategy; see `Rewriter`."""

    __slots__ = ("_slots", "ambiguous", "applied", "roles", "unmatched")

    def __init__(self, slots: Mapping[str, Sequence[_Slot]]) -> None:
        self.roles: Collection[str] = slots
        self._slots = slots
        # In order, each once.
        self.applied: dict[str, _Slot] = {}
        self.ambiguous: dict[str, None] = {}
        self.unmatched = 0

    def text(self, role: str, text: str) -> str | None:
        """See `Rewriter.text`."""
        ambiguous = []
        for slot in self._slots[role]:
            found = slot.original.match(text)
            if isinstance(found, dict):
                self.applied[slot.name] = slot
                filled = slot.template.fill(found)
                return None if filled == text else filled
            if found is Misfit.AMBIGUOUS:
                ambiguous.append(slot.name)
        self.ambiguous.update(dict.fromkeys(ambiguous))
        self.unmatched += role in LEADING
        return None

    def has_examples(self) -> bool:
        """See `Rewriter.has_examples`."""
        return any(slot.messages.sent for slot in self.applied.values())

    def examples(self) -> Examples:
        """The messages of all demonstrations; to be asked for after all texts."""
        slots = self.applied.values()
        if len(slots) == 1:
            (slot,) = slots
            return slot.messages
        every: dict[bytes, Examples] = {}
        for slot in slots:  # They may have some in common.
            every |= slot.examples
        return _joined(every)


def _compiled(name: str, template: PromptTemplate) -> _Slot:
    examples = {}
    for demonstration in template.demonstrations:
        key = msgspec.json.encode(demonstration)
        sent = [msgspec.Raw(msgspec.json.encode(message)) for message in demonstration]
        examples[key] = Examples(sent, msgspec.json.decode(key))
    original, applied = Template(template.original), Template(template.template)
    return _Slot(name, original, applied, examples, _joined(examples))


def _joined(examples: Mapping[bytes, Examples]) -> Examples:
    return Examples(
        [message for example in examples.values() for message in example.sent],
        [message for example in examples.values() for message in example.read],
    )


def _leniently(sent: Mapping[str, Any]) -> dict[str, Any]:
    """A prompt decoded for the record. What is not UTF-8 is left out, as the body with it is."""
    found = {}
    for name, value in sent.items():
        with contextlib.suppress(ValueError):
            found[name] = jsontext.decode(msgspec.json.encode(value))
    return found


def _by_role(slots: Sequence[tuple[str, _Slot]]) -> dict[str, list[_Slot]]:
    """The slots that texts of each role may match, those of the very role first."""
    found: dict[str, list[_Slot]] = {}
    for role, slot in slots:
        found.setdefault(role, []).append(slot)
    # The two are one thing, and what an agent calls `developer` is `system` once it is put into chat completions.
    leading = {role: found.get(role, []) for role in LEADING}
    return found | {
        role: [*own, *(slot for other in leading if other != role for slot in leading[other])]
        for role, own in leading.items()
    }
