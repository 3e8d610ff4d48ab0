"""Space: what of an agent can be tuned, as its own traffic shows, and how a point in it becomes a strategy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from lightning_core.prompts import Prompt, Prompts
from lightning_core.slots import SlotDeclaration, SlotKind
from lightning_core.strategy import Message, PromptTemplate, Strategy
from lightning_core.template import Template
from lightning_prompt.demonstrations import Demonstration


class Space(msgspec.Struct, frozen=True, kw_only=True):
    """What can be tuned."""

    prompts: tuple[Prompt, ...] = ()
    """The prompts found in the agent's traffic, of the labels that are asked for."""
    every: tuple[Prompt, ...] = ()
    """All prompts that were found."""
    declared: tuple[SlotDeclaration, ...] = ()
    """The prompts that the agent's code reads by name."""
    fingerprint: str = ""
    """The agent's, by its prompts."""

    @property
    def seeds(self) -> dict[str, str]:
        """The texts of the prompts that may be replaced, by slot, with their holes."""
        read = [self.sent_of(each) for each in self.declared]
        found = {
            slot.name: slot.template
            for slot in self.prompts
            if not slot.is_input and slot not in read
        }
        return found | {each.name: str(each.default) for each in self.declared}

    def sent_of(self, declared: SlotDeclaration) -> Prompt | None:
        """The prompt in the agent's traffic that is made of one which its code reads by name; None where there is none."""
        pieces = Template(str(declared.default)).pieces
        return next((slot for slot in self.prompts if slot.parsed.pieces == pieces), None)

    def seen(self, name: str) -> Prompt | None:
        """The prompt of a slot, as it was seen in the agent's traffic; None for one that only its code knows."""
        for slot in self.prompts:
            if slot.name == name:
                return slot
        return next((self.sent_of(each) for each in self.declared if each.name == name), None)

    def demonstrated(self) -> tuple[Prompt, ...]:
        """Of each label the slot that demonstrations are put down to: that of the system's message, else the first."""
        first: dict[str, Prompt] = {}
        for slot in self.prompts:
            kept = first.get(slot.label)
            if kept is None or (slot.role == "system" and kept.role != "system"):
                first[slot.label] = slot
        return tuple(first.values())

    def strategy(
        self,
        texts: Mapping[str, str],
        demonstrations: Mapping[str, Sequence[Demonstration]],
        base: Strategy,
    ) -> Strategy:
        """The strategy with these prompts and demonstrations, and what else `base` has.

        Args:
            texts: by slot what replaces its prompt; one that is the agent's own text changes nothing.
            demonstrations: by slot, as the agent sends them today; a user's message that is made of a slot's template is
                made of the new one.
            base: rules, patterns and models are taken from it.
        """
        made: dict[str, PromptTemplate] = {}
        now: dict[str, str] = {}
        for each in self.declared:
            text = texts.get(each.name, str(each.default))
            if text != each.default:
                made[each.name] = PromptTemplate(template=text)
                if (sent := self.sent_of(each)) is not None:
                    now[sent.name] = text
        for slot in self.prompts:
            # What the agent's code reads by name, it sends itself.
            original = now.get(slot.name, slot.template)
            text = texts.get(slot.name, original)
            shown = demonstrations.get(slot.name, ())
            if text == original and not shown:
                continue
            made[slot.name] = PromptTemplate(
                template=text,
                original=original,
                role=slot.role,
                label=slot.label,
                demonstrations=tuple(self._as_sent(slot.label, pair, texts) for pair in shown),
            )
        return msgspec.structs.replace(base, prompt_templates=made)

    def completed(self, strategy: Strategy) -> Strategy:
        """The strategy with all prompts of the agent, those that stay as they are too: the whole of what it says, for a person
        to edit and for `TrainedAgent`. Applied, it does the same."""
        own = {
            slot.name: PromptTemplate(
                template=slot.template, original=slot.template, role=slot.role, label=slot.label
            )
            for slot in self.every
            if not slot.is_input
        }
        return msgspec.structs.replace(
            strategy, prompt_templates={**own, **strategy.prompt_templates}
        )

    def _as_sent(self, label: str, pair: Demonstration, texts: Mapping[str, str]) -> Demonstration:
        asked, answer = pair
        for slot in self.prompts:
            if slot.label == label and slot.role == "user" and slot.name in texts:
                values = slot.parsed.match(asked.content)
                if isinstance(values, dict):
                    content = Template(texts[slot.name]).fill(values)
                    return Message(role="user", content=content), answer
        return pair


def space_of(prompts: Prompts, declared: Sequence[SlotDeclaration], agents: str | None) -> Space:
    """The space that an agent's prompts span.

    Args:
        prompts: what was found.
        declared: what the agent's code reads by name; its prompts count.
        agents: a regular expression over whole labels; None is all.
    """
    wanted = re.compile(agents) if agents is not None else None
    chosen = tuple(
        slot for slot in prompts.prompts if wanted is None or wanted.fullmatch(slot.label)
    )
    read = tuple(each for each in declared if each.kind is SlotKind.PROMPT)
    return Space(
        prompts=chosen, every=prompts.prompts, declared=read, fingerprint=prompts.fingerprint
    )


def texts_of(strategy: Strategy) -> dict[str, str]:
    """The prompts of a strategy, by slot."""
    return {name: each.template for name, each in strategy.prompt_templates.items()}
