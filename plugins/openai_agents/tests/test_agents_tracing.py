"""The SDK's own tracing: what it posts, whom it tells, and where it is disabled."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from agents import Runner, add_trace_processor, set_trace_processors, set_tracing_disabled, trace
from agents.tracing import TracingProcessor, custom_span, get_trace_provider
from agents.tracing.processors import BackendSpanExporter, BatchTraceProcessor

from lightning_core.instrument import attempt, instrument
from lightning_core.testing import Raw, ScriptedServer
from lightning_openai_agents import OpenAIAgentsAdapter

from .conftest import WAYS, WIDE_CALLS

NOWHERE = "http://127.0.0.1:9/v1"


class Listener(TracingProcessor):
    """A processor of the user's own."""

    def __init__(self):
        self.heard = []

    def on_trace_start(self, trace):
        self.heard.append(("trace", trace.name))

    def on_trace_end(self, trace):
        pass

    def on_span_start(self, span):
        pass

    def on_span_end(self, span):
        data, below = span.span_data, span.parent_id is not None
        self.heard.append((data.type, getattr(data, "name", None), below))

    def shutdown(self):
        pass

    def force_flush(self):
        pass


@pytest.fixture
def processors():
    """A processor that posts to a server, as the SDK's own does, and one of the user's."""
    with ScriptedServer.in_thread() as ingest:
        ingest.respond(lambda request: Raw(b"{}"))
        exporter = BackendSpanExporter(api_key="k", endpoint=f"{ingest.url}/v1/models")
        batch, listener = BatchTraceProcessor(exporter), Listener()
        set_trace_processors([batch])
        add_trace_processor(listener)
        yield ingest, listener
        batch.shutdown()
        exporter.close()


@pytest.mark.parametrize("way", WAYS)
async def test_the_exporter_posts_nothing_of_a_rollout(stage, agents_at, processors, way):
    ingest, listener = processors
    agents, scope = agents_at(NOWHERE), stage.scope()
    agents.in_threads = way == "run_sync"
    with attempt(scope):
        await WAYS[way](agents.wide(), "do mark-a1")
        with trace("of the user's"), custom_span("own"):
            pass
    get_trace_provider().force_flush()
    assert stage.wrong(scope, WIDE_CALLS) == []
    assert ingest.requests == []
    heard = {("agent", "triage", True), ("function", "look_up", True), ("custom", "own", False)}
    assert heard <= set(listener.heard)


async def test_outside_attempts_all_is_posted_and_told_as_without_us(server, agents_at, processors):
    ingest, listener = processors
    agents, posted, heard = agents_at(server.base_url), [], []
    for ours in (False, True):
        with ExitStack() as stack:
            if ours:
                stack.enter_context(instrument([OpenAIAgentsAdapter()]))
            await Runner.run(agents.agent("solo", ""), "do mark-a1")
        get_trace_provider().force_flush()
        posted.append(sum(len(r.json["data"]) for r in ingest.requests))
        heard.append(sorted(map(str, listener.heard)))
        ingest.requests.clear()
        listener.heard.clear()
    assert posted[0] == posted[1] > 3
    assert heard[0] == heard[1]


@pytest.mark.parametrize("how", ["globally", "no processors", "in the run", "environment"])
@pytest.mark.parametrize("way", WAYS)
async def test_labels_need_no_tracing(stage, agents_at, processors, monkeypatch, way, how):
    agents, scope = agents_at(NOWHERE), stage.scope()
    agents.off, agents.in_threads = how == "in the run", way == "run_sync"
    provider = get_trace_provider()
    monkeypatch.setattr(provider, "_env_disabled", None)
    if how == "environment":
        monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")
    if how == "no processors":
        set_trace_processors([])
    if how == "globally":
        monkeypatch.setattr(provider, "_manual_disabled", None)
        set_tracing_disabled(True)
    with attempt(scope):
        await WAYS[way](agents.wide(), "do mark-a1", run_config=agents.config())
    assert stage.wrong(scope, WIDE_CALLS) == []
