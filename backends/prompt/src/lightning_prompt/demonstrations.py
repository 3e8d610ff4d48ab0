"""Demonstrations: examples of what the agent should say, from its own best traces or from the tasks' expected answers.

Bootstrapping from traces is that of BootstrapFewShot (Khattab et al. 2023, "DSPy", arXiv:2310.03714); that of a random search
over the sets, "BootstrapFewShotWithRandomSearch" there.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from lightning_core.strategy import Message
from lightning_core.task import Task
from lightning_core.trace import Call, Trace

Demonstration = tuple[Message, ...]
"""What a user says, and what the agent answers."""
Pools = Mapping[str, Sequence[Demonstration]]
"""By slot."""


class Slot(msgspec.Struct, frozen=True):
    """Where demonstrations may go: a prompt of a label's."""

    name: str
    """The slot's name in the strategy."""
    label: str
    """The node or agent whose calls have it."""


def best_traces(traces: Iterable[Trace]) -> list[Trace]:
    """Of each task the trace with the highest reward, where that is the highest of all and higher than the lowest.

    Half of what lies between is let in too where nothing reaches the highest twice: a few good examples are better than one.
    """
    scored = [trace for trace in traces if trace.reward is not None]
    if not scored:
        return []
    values = sorted(_reward(trace) for trace in scored)
    low, high = values[0], values[-1]
    if low == high == 0.0:
        return []
    least = high if values.count(high) > 1 or low == high else (low + high) / 2
    best: dict[str, Trace] = {}
    for trace in scored:
        kept = best.get(trace.task.id)
        if _reward(trace) >= least and (kept is None or _reward(trace) > _reward(kept)):
            best[trace.task.id] = trace
    return [best[task] for task in sorted(best)]


def pools_from_traces(
    traces: Iterable[Trace], slots: Sequence[Slot]
) -> dict[str, list[Demonstration]]:
    """What the best traces show for each slot: the first call of its label, what it was asked last and what it said."""
    found: dict[str, list[Demonstration]] = {slot.name: [] for slot in slots}
    for trace in best_traces(traces):
        for slot in slots:
            call = next((c for c in trace.calls if c.label == slot.label and c.complete), None)
            if call is not None and not call.tool_calls and call.text.strip():
                asked = asked_of(call)
                if asked:
                    found[slot.name].append(_pair(asked, call.text.strip()))
    return {name: _distinct(pool) for name, pool in found.items()}


def pools_from_expected(
    traces: Iterable[Trace], tasks: Mapping[str, Task], slots: Sequence[Slot], field: str | None
) -> dict[str, list[Demonstration]]:
    """What the tasks expect, for an agent that makes one call to each task: what it was asked, and the right answer.

    Args:
        traces: rollouts of the tasks, whatever their reward.
        tasks: the tasks by id, with `expected`.
        slots: where demonstrations may go; nothing comes out for more than one label.
        field: the field of `expected` that is the answer, where it is an object; None where it is text itself.
    """
    labels = {slot.label for slot in slots}
    if len(labels) != 1:
        return {}
    (label,) = labels
    found: dict[str, Demonstration] = {}
    for trace in traces:
        calls = [call for call in trace.calls if call.label == label]
        answer = _answer(tasks[trace.task.id].expected, field)
        if len(calls) == 1 and len(trace.calls) == 1 and answer and (asked := asked_of(calls[0])):
            found.setdefault(trace.task.id, _pair(asked, answer))
    pool = _distinct([found[task] for task in sorted(found)])
    return {slot.name: pool for slot in slots} if pool else {}


def draws(
    pools: Pools, sizes: Sequence[int], repeats: int, seed: int
) -> list[dict[str, list[Demonstration]]]:
    """Random sets of demonstrations: for each size as many as asked, each of one size for all slots; no two the same.

    A set has each kind of answer as often as any other, as far as it can be (stratified sampling, Cochran 1977, ch. 5).
    """
    rng = random.Random(f"demonstrations {seed}")
    made: list[dict[str, list[Demonstration]]] = []
    for size in sizes:
        for _ in range(repeats):
            chosen = {name: _mixed(pool, size, rng) for name, pool in sorted(pools.items()) if pool}
            if chosen and chosen not in made:
                made.append(chosen)
    return made


def asked_of(call: Call) -> str:
    """The text of the last user's message of a call; empty where it has none, or is no text."""
    for message in reversed(call.messages):
        if message.get("role") == "user":
            content = message.get("content")
            return content if isinstance(content, str) else ""
    return ""


def _mixed(pool: Sequence[Demonstration], size: int, rng: random.Random) -> list[Demonstration]:
    """A random set, of the kinds in turn, in a random order.

    The kind of an answer is what it says in words that are not always its question's: a tool's name, but not its argument.
    """
    kinds: dict[tuple[str, ...], list[Demonstration]] = {}
    own = {word for pair in pool for word in _words(pair[1]) if word not in _words(pair[0])}
    for pair in rng.sample(list(pool), len(pool)):
        kind = tuple(word for word in _words(pair[1]) if word in own)
        kinds.setdefault(kind, []).append(pair)
    turns = itertools.zip_longest(*rng.sample(list(kinds.values()), len(kinds)))
    chosen = [pair for turn in turns for pair in turn if pair is not None][:size]
    return rng.sample(chosen, len(chosen))


def _words(message: Message) -> list[str]:
    return re.findall(r"\w+", message.content.casefold())


def _answer(expected: object, field: str | None) -> str:
    if field is not None:
        expected = expected.get(field) if isinstance(expected, dict) else None
    return expected.strip() if isinstance(expected, str) else ""


def _pair(asked: str, answer: str) -> Demonstration:
    return Message(role="user", content=asked), Message(role="assistant", content=answer)


def _distinct(pool: Sequence[Demonstration]) -> list[Demonstration]:
    return list(dict.fromkeys(pool))


def _reward(trace: Trace) -> float:
    assert trace.reward is not None  # only scored traces come here
    return trace.reward
