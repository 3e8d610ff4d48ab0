"""Puts the wrappers where the SDK's own code is, and takes them away again. Imports nothing of the SDK.

Each module is changed as soon as it has been imported. Outside attempts the wrappers do nothing.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lightning_core.instrument import postimport
from lightning_openai_agents import labels, transport

_SPANS = "agents.tracing.spans"
_PROCESSORS = "agents.tracing.processors"

PLACES: tuple[tuple[str, str | None, str, Callable[[Any], Any]], ...] = (
    (_SPANS, "SpanImpl", "start", labels.start),
    (_SPANS, "SpanImpl", "finish", labels.finish),
    (_SPANS, "SpanImpl", "set_error", labels.set_error),
    (_SPANS, "NoOpSpan", "start", labels.start),
    (_SPANS, "NoOpSpan", "finish", labels.finish),
    (_SPANS, "NoOpSpan", "set_error", labels.set_error),
    (_PROCESSORS, "BatchTraceProcessor", "on_trace_start", transport.export),
    (_PROCESSORS, "BatchTraceProcessor", "on_span_end", transport.export),
    (
        "agents.models.openai_responses",
        "OpenAIResponsesWSModel",
        "_fetch_response",
        transport.fetch,
    ),
    ("agents.models.openai_provider", None, "shared_http_client", transport.http_client),
    ("agents.run", "AgentRunner", "_run_sync_impl", transport.run_sync),
)
"""Module, class (None for the module itself), name, and what makes the wrapper of the original."""
_lock = threading.RLock()
_users = 0
_cancels: list[Callable[[], None]] = []
_patched: list[tuple[Any, str, Any, Any]] = []


@contextmanager
def installed() -> Iterator[None]:
    """Label while the context is open; contexts may nest and overlap, and the last one out restores."""
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            for module, owner, name, wrap in PLACES:
                patch = _patcher(module, owner, name, wrap)
                _cancels.append(postimport.on_import(module, patch))
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _restore()


def _patcher(
    module: str, owner: str | None, name: str, wrap: Callable[[Any], Any]
) -> Callable[[], None]:
    def patch() -> None:
        with _lock:
            if _users == 0:
                return
            place = sys.modules[module] if owner is None else getattr(sys.modules[module], owner)
            original = vars(place)[name]
            ours = wrap(original)
            setattr(place, name, ours)
            _patched.append((place, name, original, ours))

    return patch


def _restore() -> None:
    while _cancels:
        _cancels.pop()()
    while _patched:
        place, name, original, ours = _patched.pop()
        # Somebody may have wrapped ours since: then it stays below theirs; outside attempts it does nothing.
        if vars(place).get(name) is ours:
            setattr(place, name, original)
