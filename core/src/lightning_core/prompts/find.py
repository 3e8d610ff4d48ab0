"""From traces to slots: which prompts an agent has, and how sure that is."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from lightning_core.prompts.clusters import split
from lightning_core.prompts.hints import Hints, fields, hints
from lightning_core.prompts.infer import SAMPLE, Found, infer, spread
from lightning_core.prompts.naming import hole_names
from lightning_core.prompts.order import shuffled
from lightning_core.prompts.sightings import Place, Sighting, sightings
from lightning_core.records import Record
from lightning_core.strategy import PromptTemplate, Provenance, Strategy
from lightning_core.template import Template
from lightning_core.trace import Trace

_EXAMPLES: Final = 3


class Prompt(Record, frozen=True, kw_only=True):
    """A slot: a prompt of the agent's, as found in its traffic."""

    name: str
    """`LABEL.ROLE`, and a number where there are several; the same for the same prompts."""
    label: str
    """The node, or else the agent, whose calls have it; empty where no adapter said."""
    role: str
    """The role of its messages: `system`, `developer` or `user`; `user` for text completions."""
    template: str
    """Its template, in the form of `strategy.json`."""
    is_input: bool = False
    """Whether it is nothing but what the agent was given, one hole: there is no text to tune. Demonstrations may
    precede it."""
    confidence: float
    """The chance that the prompt of another call fits the template if calls go on to come as these came, 0 to 1, rounded down
    to hundredths; see `infer`."""
    reasons: tuple[str, ...] = ()
    """What the confidence rests on, in words."""
    speakers: tuple[str, ...] = ()
    """The labels of its calls, `agent/node`, sorted."""
    calls: int
    """How many calls have it."""
    tasks: int
    """How many tasks these are of."""
    texts: int
    """How many distinct texts it has been."""
    values: dict[str, int] = msgspec.field(default_factory=dict)
    """How many distinct values fill each hole."""
    examples: tuple[dict[str, str], ...] = ()
    """What fills the holes of some of the texts."""

    @property
    def parsed(self) -> Template:
        """The template."""
        return Template(self.template)


class Prompts(Record, frozen=True, kw_only=True):
    """The prompts of an agent."""

    prompts: tuple[Prompt, ...] = ()
    """The slots, by label and role."""
    calls: int = 0
    """How many calls were read."""
    notes: tuple[str, ...] = ()
    """What is no slot, and why: places whose text changes on each call, texts that fit no prompt of their place."""
    unread: dict[str, int] = msgspec.field(default_factory=dict)
    """Calls without text that could be a prompt, by why."""

    @property
    def fingerprint(self) -> str:
        """A digest of what can be tuned: SHA-256 over label, role and template of each slot, in hexadecimal.

        Runs in which holes are filled alike by chance, or with other values, may differ in it.
        """
        own = sorted([p.label, p.role, p.template] for p in self.prompts if not p.is_input)
        return hashlib.sha256(msgspec.json.encode(own)).hexdigest()

    def strategy(self, run: str = "") -> Strategy:
        """The strategy that leaves each prompt as it is; those that are input are left out.

        Args:
            run: the run in which they were found.
        """
        return Strategy(
            prompt_templates={
                prompt.name: PromptTemplate(
                    template=prompt.template,
                    original=prompt.template,
                    role=prompt.role,
                    label=prompt.label,
                )
                for prompt in self.prompts
                if not prompt.is_input
            },
            provenance=Provenance(run=run, fingerprint=self.fingerprint),
        )


def find_prompts(traces: Iterable[Trace]) -> Prompts:
    """The prompts of an unchanged agent, inferred from what it sent.

    Texts are grouped by the label of their call, by role and by place among the role's messages; what different prompts
    made in one place is told apart. Assistant and tool messages are none, and what a conversation repeats counts once.
    """
    unread: Counter[str] = Counter()
    places: dict[Place, list[Sighting]] = {}
    calls: set[str] = set()
    for each in sightings(traces, unread):
        places.setdefault(each.place, []).append(each)
        calls.add(each.call.id)
    found: list[Prompt] = []
    notes: list[str] = []
    for place, seen in sorted(places.items()):
        here = _Finding(place, seen)
        found += here.prompts()
        notes += here.notes
    return Prompts(
        prompts=tuple(_named(found)), calls=len(calls), notes=tuple(notes), unread=dict(unread)
    )


class _Known(NamedTuple):
    """A text of a task: what counts once, however often it was sent."""

    task: str
    text: str


class _Finding:
    """Finds the prompts of one place."""

    def __init__(self, place: Place, seen: Sequence[Sighting]) -> None:
        self.notes: list[str] = []
        self._place = place
        self._seen = seen
        self._inputs = {s.trace.task.id: dict(fields(s.trace.task.input, "input")) for s in seen}
        self._known = list(dict.fromkeys(_Known(s.trace.task.id, s.text) for s in seen))
        # What was sent before a reply is not made of it: the first call with a text says what may be in it.
        self._first: dict[str, Sighting] = {}
        for sighting in seen:
            self._first.setdefault(sighting.text, sighting)
        self._hints: dict[str, Hints] = {}

    def prompts(self) -> list[Prompt]:
        """The prompts; `notes` then says what is none."""
        if whole := self._whole():
            return [self._input(self._known, whole, f"each text is the task's `{whole}`")]
        owners: dict[str, list[_Known]] = {}
        for known in self._known:
            owners.setdefault(known.text, []).append(known)
        parts = split(list(owners), self._filled_in)
        made: list[Prompt] = []
        rest = [known for text in parts.rest for known in owners[text]]
        for texts in parts.prompts:
            made += self._of([known for text in texts for known in owners[text]], rest)
        made += self._constant(rest)
        if rest:
            self.notes.append(
                f"{self._where()}: {_counted(len(rest), 'text')} fit none of its prompts"
            )
        return sorted(made, key=lambda prompt: prompt.template)

    def _of(self, known: list[_Known], rest: list[_Known]) -> list[Prompt]:
        """The prompt of texts that belong together; none where nothing of them is constant."""
        prompt = self._prompt(known)
        order = self._order(known, prompt)
        if any(map(str.isalnum, "".join(prompt.parsed.pieces))):
            if order:
                self.notes.append(f"{self._where()}: {order}; have the agent keep their order")
            return [prompt]
        several = list(known)
        made = self._constant(several)
        if made and 10 * len(several) <= len(known):
            rest += several
            return made
        if self._place.role == "user":
            return [self._input(known, "text", "nothing of it is constant")]
        self.notes.append(
            f"{self._where()}: no slot, as nothing is constant in its {_counted(prompt.texts, 'distinct text')};"
            f" the agent changes it on each call{order and '; '}{order}"
        )
        return []

    def _order(self, known: Sequence[_Known], prompt: Prompt) -> str:
        """What cannot be tuned as its order changes, in words."""
        texts = spread(list(dict.fromkeys(each.text for each in known)), SAMPLE)
        lines = shuffled(texts, prompt.parsed.pieces)
        return (
            f"{_counted(lines, 'line')} that all texts have come in another order on each call"
            if lines
            else ""
        )

    def _constant(self, known: list[_Known]) -> list[Prompt]:
        """A prompt without holes for each text that several tasks have; the others are left in `known`."""
        tasks = Counter(text for _, text in known)
        made = [
            self._prompt([each for each in known if each.text == text])
            for text, count in sorted(tasks.items())
            if count > 1
        ]
        known[:] = [each for each in known if tasks[each.text] == 1]
        return made

    def _input(self, known: Sequence[_Known], name: str, why: str) -> Prompt:
        """A slot for what the agent was given."""
        pieces = ["", ""]
        names = hole_names(pieces, {0: name})
        found = Found(
            template=Template.of(pieces, names),
            fillings=tuple({names[0]: each.text} for each in known),
            confidence=1.0,
            reasons=(why,),
        )
        return self._made(known, found, is_input=True)

    def _prompt(self, known: Sequence[_Known]) -> Prompt:
        found = infer([each.text for each in known], self._filled_in)
        return self._made(known, found, is_input=False)

    def _filled_in(self, text: str) -> Hints:
        """What may have been filled into a text."""
        if text not in self._hints:
            first = self._first[text]
            self._hints[text] = hints(first.trace, first.call, text)
        return self._hints[text]

    def _made(self, known: Sequence[_Known], found: Found, *, is_input: bool) -> Prompt:
        texts = {each.text for each in known}
        seen = [sighting for sighting in self._seen if sighting.text in texts]
        fillings = [each for each in found.fillings if each]
        distinct = dict.fromkeys(tuple(each.items()) for each in fillings)
        speakers = {"/".join(filter(None, (s.call.agent, s.call.node))) for s in seen}
        return Prompt(
            name="",
            label=self._place.label,
            role=self._place.role,
            template=found.template.source,
            is_input=is_input,
            confidence=math.floor(100 * found.confidence) / 100,
            reasons=found.reasons,
            speakers=tuple(sorted(speakers - {""})),
            calls=len({s.call.id for s in seen}),
            tasks=len({s.trace.task.id for s in seen}),
            texts=len(texts),
            values={name: len({each[name] for each in fillings}) for name in found.template.holes},
            examples=tuple(map(dict, islice(distinct, _EXAMPLES))),
        )

    def _whole(self) -> str:
        """The part of the task's input that every text here is; empty where it is none."""
        first = self._inputs[self._known[0].task]
        for name in first:
            if all(
                self._inputs[task].get(name, "").strip() == text.strip()
                for task, text in self._known
            ):
                return name
        return ""

    def _where(self) -> str:
        label = f"`{self._place.label}`" if self._place.label else "calls without label"
        which = {"": "", "last": "last "}.get(self._place.which, f"number {self._place.which} ")
        return f"{label}, {which}{self._place.role} message"


def _named(prompts: Iterable[Prompt]) -> list[Prompt]:
    """The prompts with a name each, in the order of places and templates."""
    made: list[Prompt] = []
    taken: set[str] = set()
    for prompt in prompts:
        wanted = name = ".".join(filter(None, (prompt.label, prompt.role)))
        number = 1
        while name in taken:
            number += 1
            name = f"{wanted}_{number}"
        taken.add(name)
        made.append(msgspec.structs.replace(prompt, name=name))
    return made


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
