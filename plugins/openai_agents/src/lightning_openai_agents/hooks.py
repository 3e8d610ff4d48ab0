"""Puts the wrappers where the SDK's own code is, and takes them away again. Imports nothing of the SDK.

Each module is changed as soon as it has been imported. Outside attempts the wrappers do nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning_core.instrument import Patches
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

PATCHES = Patches("openai-agents", PLACES)
"""Labels while it is entered."""
