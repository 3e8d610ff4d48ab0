"""Spans and labels: wrappers of what starts and ends the SDK's own spans. Imports nothing of it.

The SDK makes a span of each agent, tool, handoff and guardrail, and where tracing is disabled one that tells nobody. A
trace processor hears neither of those nor of any after `set_trace_processors`, so the methods of both are wrapped. Ours
are set where the SDK sets its own as the current one, and hold for the same code.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any

from lightning_core.instrument import context
from lightning_core.instrument.context import Scope
from lightning_core.instrument.plain import plain
from lightning_core.instrument.spans import OpenSpan

_MAX_VALUE = 16 * 1024
_KINDS = {"agent": "agent", "function": "tool", "guardrail": "node", "handoff": "handoff"}
"""Our kind of span by the SDK's."""
_KEPT = "_lightning_openai_agents"


class _Kept:
    """What a span of the SDK's carries of ours."""

    __slots__ = ("around", "entered", "error", "opened")

    def __init__(
        self, opened: OpenSpan, entered: AbstractContextManager[Scope | None] | None
    ) -> None:
        self.opened = opened
        self.entered = entered
        self.around = sys.exception()
        """What is being handled where the span began: it is no fault of the span's."""
        self.error: str | None = None


def start(original: Any) -> Any:
    """Wrap `Span.start`."""

    @wraps(original)
    def start(self: Any, mark_as_current: bool = False) -> Any:
        result = original(self, mark_as_current)
        kind = _KINDS.get(self.span_data.type)
        if kind is not None and _KEPT not in vars(self):
            _open(self, kind, mark_as_current)
        return result

    return start


def finish(original: Any) -> Any:
    """Wrap `Span.finish`."""

    @wraps(original)
    def finish(self: Any, reset_current: bool = False) -> Any:
        kept = vars(self).pop(_KEPT, None)
        if kept is not None:
            if kept.entered is not None:
                kept.entered.__exit__(None, None, None)
            _tell(kept.opened, self.span_data)
            context.end_span(kept.opened, error=_raised(kept) or kept.error)
        return original(self, reset_current)

    return finish


def set_error(original: Any) -> Any:
    """Wrap `Span.set_error`, which also tells of errors that the model is told of; the first one is nearest to its cause."""

    @wraps(original)
    def set_error(self: Any, error: Any) -> Any:
        kept = vars(self).get(_KEPT)
        if kept is not None and kept.error is None:
            kept.error = _error_text(error)
        return original(self, error)

    return set_error


def _open(span: Any, kind: str, mark_as_current: bool) -> None:
    # A handoff's target is known at its end.
    name = span.span_data.from_agent if kind == "handoff" else span.span_data.name
    opened = context.start_span(kind, str(name))
    if opened is None:
        return
    entered = None
    if mark_as_current:
        entered = context.entered(opened.scope)
        entered.__enter__()
    vars(span)[_KEPT] = _Kept(opened, entered)


def _raised(kept: _Kept) -> str | None:
    """What ends the span, where it is an exception."""
    error = sys.exception()
    if error is None or error is kept.around or isinstance(error, GeneratorExit):
        return None
    return context.describe_error(error)


def _tell(opened: OpenSpan, data: Any) -> None:
    """Fill a span with what is known at its end."""
    if opened.kind == "handoff":
        opened.attributes["lightning.handoff.from"] = data.from_agent
        if data.to_agent is not None:
            opened.name = opened.attributes["lightning.handoff.to"] = data.to_agent
    elif opened.kind == "tool":
        opened.attributes["gen_ai.tool.name"] = data.name
        if data.input is not None:
            opened.attributes["gen_ai.tool.call.arguments"] = plain(_parsed(data.input), _MAX_VALUE)
        if data.output is not None:
            opened.attributes["gen_ai.tool.call.result"] = plain(data.output, _MAX_VALUE)
    elif opened.kind == "node":
        opened.attributes["lightning.guardrail.triggered"] = data.triggered


def _parsed(arguments: object) -> object:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments  # As the model said it.


def _error_text(error: Mapping[str, Any]) -> str:
    """A `SpanError` in one bounded line."""
    data = error.get("data")
    detail = data.get("error", data) if isinstance(data, Mapping) else data
    text = str(error.get("message"))
    return (f"{text}: {detail}" if detail else text)[:4096]
