"""What may have been filled into a text: parts of the task's input, and what the model said earlier in the rollout."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from lightning_core.prompts.clock import moments
from lightning_core.records import Json
from lightning_core.strategy import Step
from lightning_core.trace import Call, SpanKind, Trace

Hints = Mapping[str, str]
"""What may have been filled into a text, and the name of where it comes from; what was known first comes first."""

NOW: Final = "now"
"""The name of a date that is the call's own: it is filled in even where all calls have the same."""
_SHORTEST: Final = 2
"""Characters below which a value may stand in a text by accident."""
_RESULT: Final = "gen_ai.tool.call.result"
_FENCE: Final = "```"
_LANGUAGE: Final = re.compile(r"\A[\w+#.-]*[ \t]*(?:\n|\Z)")
_DEPTH: Final = 8
"""How deep in a value a text may lie."""
_FLOW: Final = {Step.REWRITE: "solution", Step.WRITE: "solution", Step.CHECK: "feedback"}
"""How `TrainedAgent` calls what a step says."""


def hints(trace: Trace, call: Call, text: str) -> dict[str, str]:
    """What may have been filled into a text of a call, with names.

    - The task's input, by field.
    - The replies of calls, and the results of tools, that had ended before it began. A reply is whole or as agents clean
      it: what stands in its code fences, its first and its last line, each also behind a colon, and the texts of
      its JSON, or of its tool calls' arguments, by field. Its name is its call's label, else `reply`; where that begins with
      a step of flows, it is what `TrainedAgent` calls it: `solution` for `write` and `rewrite`, `feedback` for `check`.
      A tool's result has the tool's name.
    - What the agent returned, by field: often it is what its nodes shared.
    - The date of the call, with the time beside it: `now`.

    Space around each is left out.
    """
    found = dict.fromkeys(moments(text, call.started_at), NOW)
    for name, value in _known(trace, call):
        found.setdefault(value.strip(), name)
    return {value: name for value, name in found.items() if len(value) >= _SHORTEST}


def fields(value: Json, name: str, depth: int = _DEPTH) -> Iterator[tuple[str, str]]:
    """The texts in a value, each with the name of the field that it stands in, or else `name`."""
    if isinstance(value, str):
        yield name, value
    elif depth and isinstance(value, list):
        for inner in value:
            yield from fields(inner, name, depth - 1)
    elif depth and isinstance(value, dict):
        for key, inner in value.items():
            yield from fields(inner, str(key), depth - 1)


def _known(trace: Trace, call: Call) -> Iterator[tuple[str, str]]:
    yield from fields(trace.task.input, "input")
    for earlier in trace.calls:
        if earlier.index < call.index and earlier.ended_at <= call.started_at:
            name = _named(earlier.label)
            for reply in _replies(earlier):
                yield from ((field or name, text) for field, text in _said(reply))
    for span in trace.spans:
        ended = span.ended_at
        if span.kind is SpanKind.TOOL and ended is not None and ended <= call.started_at:
            yield from fields(span.attributes.get(_RESULT), span.name)
    yield from fields(trace.output, "output")


def _replies(call: Call) -> Iterator[str]:
    for choice in call.choices:
        content = choice.message.get("content", choice.message.get("text"))
        if isinstance(content, str):
            yield content
    for tool in call.tool_calls:
        function = tool.get("function") if isinstance(tool, dict) else None
        arguments = function.get("arguments") if isinstance(function, dict) else None
        if isinstance(arguments, str):
            yield arguments


def _said(reply: str) -> Iterator[tuple[str, str]]:
    """What an agent may take of a reply, and the field of JSON that it stands in; empty where in none."""
    text = reply.strip()
    fenced = [_LANGUAGE.sub("", inside).strip() for inside in text.split(_FENCE)[1::2]]
    # An agent that writes a fence as the model does would look like one that leaves the model's.
    if not text.startswith(_FENCE):
        yield "", text
    if not any(fenced):
        yield "", text.replace(_FENCE, "")
    for inside in fenced:
        yield "", inside
        yield "", inside.partition(" ")[2]  # a language in one line with the code
    for part in (text, *fenced):
        if part.startswith(("{", "[")):
            # What is no JSON has no fields.
            with contextlib.suppress(msgspec.DecodeError, RecursionError):
                yield from fields(msgspec.json.decode(part), "")
    lines = text.splitlines()
    for line in (*lines[:1], *lines[-1:]):
        yield "", line
        yield "", line.partition(":")[2]


def _named(label: str) -> str:
    steps = (name for step, name in _FLOW.items() if label.casefold().startswith(step))
    return next(steps, label or "reply")
