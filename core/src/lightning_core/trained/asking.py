"""StepPrompts: what the model is asked with in a step, from a strategy's slots, and what fills their holes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from lightning_core.errors import UsageError
from lightning_core.strategy import Message, Step, Strategy
from lightning_core.template import Template

_NAMES: Final = {
    "task": ("task", "question", "input", "request"),
    "solution": ("solution", "query", "sql", "code", "answer"),
    "result": ("result", "rows", "output"),
    "problem": ("error", "feedback", "problem", "review"),
    "attempt": ("attempt",),
}
"""The usual names of holes, by what the flow knows."""
_LONGEST: Final = 4_000
"""Characters of a result that the model sees."""
_ORDER: Final = {"system": 0, "developer": 0, "user": 1}


class Known(NamedTuple):
    """What the flow knows when it asks; None is not known."""

    task: str
    attempt: str
    solution: str | None = None
    result: str | None = None
    problem: str | None = None

    def values(self) -> dict[str, str]:
        """Values by each usual name of a hole."""
        known = {what: text for what, text in self._asdict().items() if text is not None}
        return {name: text for what, text in known.items() for name in _NAMES[what]}

    def told(self) -> str:
        """All of it as a user's message, for a step without one of its own; the bare task where that is all."""
        if self.solution is None:
            return self.task
        parts = {
            "Task": self.task,
            "Solution": self.solution,
            "Result": self.result,
            "What is wrong": self.problem,
        }
        return "\n\n".join(f"{title}:\n{text}" for title, text in parts.items() if text)


class _Slot(NamedTuple):
    name: str
    role: str
    template: Template
    demonstrations: tuple[tuple[Message, ...], ...]


class StepPrompts(msgspec.Struct, frozen=True):
    """The prompts of a step."""

    label: str
    """The node, or else the agent, whose prompts they are; the step's name where the strategy says none."""
    slots: tuple[_Slot, ...]
    """The slots, in the order of their messages."""

    @classmethod
    def of(cls, strategy: Strategy, step: Step) -> StepPrompts | None:
        """The slots whose name or label begins with the step's name; None where there are none.

        Raises:
            UsageError: they are of several nodes.
        """
        found = {
            name: prompt
            for name, prompt in strategy.prompt_templates.items()
            if any(text.casefold().startswith(step) for text in (name, prompt.label))
        }
        labels = list(dict.fromkeys(prompt.label for prompt in found.values() if prompt.label))
        if len(labels) > 1:
            raise UsageError(
                f"step `{step}`: the strategy has prompts of several nodes for it, {_named(labels)}; keep those of one"
            )
        slots = [
            _Slot(name, prompt.role, Template(prompt.template), prompt.demonstrations)
            for name, prompt in found.items()
        ]
        if not slots:
            return None
        return cls(labels[0] if labels else str(step), tuple(sorted(slots, key=_place)))

    @property
    def holes(self) -> set[str]:
        """The names of all holes."""
        return {hole for slot in self.slots for hole in slot.template.holes}

    def lacks(self, names: Iterable[str]) -> list[str]:
        """The holes that none of `names` fills, and where they are, in words."""
        known = set(names)
        return [
            f"`{{{hole}}}` of `{slot.name}`"
            for slot in self.slots
            for hole in slot.template.holes
            if hole not in known
        ]

    def messages(self, context: Mapping[str, str], known: Known) -> list[dict[str, str]]:
        """The messages: system's first, demonstrations before the first user's, which is `known.told()` where there is none.

        What the context has under a hole's name goes before what the flow knows.
        """
        values = {**known.values(), **context}
        asked = [_message(slot.role, slot.template.fill(values)) for slot in self.slots]
        if self.slots[-1].role != "user":
            asked.append(_message("user", known.told()))
        examples = dict.fromkeys(pair for slot in self.slots for pair in slot.demonstrations)
        shown = [_message(each.role, each.content) for pair in examples for each in pair]
        first = next(at for at, message in enumerate(asked) if message["role"] == "user")
        return [*asked[:first], *shown, *asked[first:]]


def fillable(step: Step, *, results: bool) -> list[str]:
    """The usual names of holes that the flow fills in a step; `results` says whether solutions are executed."""
    known = {"task", "attempt"} if step is Step.WRITE else set(_NAMES)
    if not results:
        known.discard("result")
    return [name for what, names in _NAMES.items() if what in known for name in names]


def text_of(value: Any) -> str:
    """A value as the model sees it: text as it is, what JSON can hold as JSON, all else by `str`."""
    text = value if isinstance(value, str) else str(value)
    if value is None or isinstance(value, (bool, dict, list, tuple)):
        # What JSON cannot hold stays as Python writes it.
        with contextlib.suppress(TypeError, ValueError, OverflowError, RecursionError):
            text = msgspec.json.encode(value).decode()
    # Half a surrogate pair, which no request can hold.
    return text.encode(errors="replace").decode()


def shortened(text: str) -> str:
    """A result's text, cut short where it is long."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _place(slot: _Slot) -> int:
    return _ORDER[slot.role]


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _named(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
