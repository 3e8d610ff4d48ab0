"""The report of an attempt comes whatever becomes of its spans."""

import functools
import logging

import pytest

from lightning_core.instrument import current, span
from lightning_core.instrument.sinks import LIMIT
from lightning_core.rollout import Cause
from lightning_core.worker.spans import SpanPoster


async def test_a_span_that_json_cannot_hold_loses_neither_the_attempt_nor_its_siblings(
    server, worker
):
    async def agent(text):
        with span(
            "tool", "read \udcff", {"path": "\ud800", "handle": object(), "nan": float("nan")}
        ):
            pass
        with span("node", "plain"):
            return "done"

    await worker(agent)
    report = await server.report(await server.put("x"))
    assert (report.cause, report.output) == (Cause.SUCCESS, "done")
    assert {s["name"] for s in server.spans} == {"read ?", "plain"}


async def test_a_sink_of_the_agents_own_mischief_is_dropped_and_said(server, worker, caplog):
    async def agent(text):
        scope = current()
        with span("node", "good"):
            pass
        bad = {"id": "bad", "name": object(), "ended_at": 1.0, "attributes": {"a": 1}}
        scope.sink._spans["bad"] = bad
        return "done"

    await worker(agent)
    with caplog.at_level(logging.WARNING, "lightning_core.worker"):
        report = await server.report(await server.put("x"))
    assert report.output == "done"
    assert [s["name"] for s in server.spans] == ["good"]
    assert "a span is lost: it is not JSON" in caplog.text


@pytest.mark.parametrize("status", [400, 403, 500, 503])
async def test_a_server_that_takes_no_spans_gets_the_report(server, worker, caplog, status):
    server.spans_status = status

    async def agent(text):
        with span("node", "n"):
            return "done"

    await worker(agent)
    with caplog.at_level(logging.WARNING, "lightning_core.worker"):
        report = await server.report(await server.put("x"))
    assert report.output == "done"
    assert "no spans" in caplog.text


async def test_a_flood_of_spans_is_bounded_and_said_once(server, worker, caplog):
    def posted(name):
        return server.spans and server.spans[-1]["name"] == name

    async def agent(text):
        for burst in range(2):  # Without a pause within, so that nothing can be posted meanwhile.
            for number in range(LIMIT + 50):
                with span("node", f"{burst}.{number}"):
                    pass
            await server.until(functools.partial(posted, f"{burst}.{LIMIT - 1}"))
        return "done"

    await worker(agent)
    with caplog.at_level(logging.WARNING, "lightning_core.worker"):
        attempt = await server.put("x")
        report = await server.report(attempt)
    assert report.output == "done"
    assert len(server.spans) == 2 * LIMIT
    said = [r for r in caplog.records if "the newest are dropped, 50 so far" in r.getMessage()]
    assert len(said) == 1


class Recording:
    """Takes the calls that a client would make."""

    def __init__(self):
        self.batches = []

    async def spans(self, attempt_id, spans):
        self.batches.append(len(spans))


async def test_batches_are_bounded_in_bytes():
    client = Recording()
    large = [{"id": str(n), "attributes": {"text": "x" * 300_000}} for n in range(100)]
    poster = SpanPoster(client, "a", iter([large, []]).__next__)
    await poster.flush()
    assert sum(client.batches) == 100
    assert max(client.batches) < 20
    assert poster.waiting == 0
