"""Reading an agent's own prompts from its calls: system, developer and user messages, each with its place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from lightning_core.trace import Call, Trace

_ROLES: Final = ("system", "developer", "user")
_DIALECTS: Final = ("chat", "completions", "responses", "messages")


class Place(NamedTuple):
    """Where a text stands."""

    label: str
    """The node, or else the agent, whose calls have it; may be empty."""
    role: str
    """`system`, `developer` or `user`."""
    which: str
    """Which of the role's texts: empty for the first, `last`, or its number."""


class Sighting(NamedTuple):
    """A text in a call."""

    place: Place
    """Where it stands."""
    text: str
    """The text."""
    call: Call
    """The call."""
    trace: Trace
    """Its trace."""


def sightings(traces: Iterable[Trace], unread: Counter[str]) -> Iterator[Sighting]:
    """The system, developer and user texts of every call.

    What an earlier call of the same label and attempt had is at the place that it had there, so that a conversation
    that grows has each of its messages once.

    Args:
        traces: where from.
        unread: counts the calls that have no such text, by why.
    """
    for trace in traces:
        known: dict[tuple[str, str, str], Place] = {}
        for call in trace.calls:
            if call.dialect not in _DIALECTS:
                unread[f"`{call.dialect}` calls are not read"] += 1
                continue
            said = list(_texts(call.messages))
            if not said:
                unread["no system, developer or user text"] += 1
            for role, text, which in _numbered(said):
                place = known.setdefault((call.label, role, text), Place(call.label, role, which))
                yield Sighting(place, text, call, trace)


def _texts(messages: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Role and text; a message of several parts has a text for each."""
    for message in messages:
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            continue
        content = message.get("content")
        for part in content if isinstance(content, list) else [content]:
            text = part.get("text") if isinstance(part, dict) else part
            if isinstance(text, str) and text.strip():
                yield message["role"], text


def _numbered(said: list[tuple[str, str]]) -> Iterator[tuple[str, str, str]]:
    """Role, text and which of the role's."""
    totals = Counter(role for role, _ in said)
    numbers: Counter[str] = Counter()
    for role, text in said:
        numbers[role] += 1
        number = numbers[role]
        last = role == "user" and number == totals[role]
        yield role, text, "" if number == 1 else "last" if last else str(number)
