"""Spans hold whatever an adapter puts into them, as bounded JSON."""

from __future__ import annotations

import collections
import contextlib
import json
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.instrument import (
    HttpSink,
    ListSink,
    OpenSpan,
    Scope,
    attempt,
    end_span,
    span,
    start_span,
)
from lightning_core.instrument.plain import TEXT_LIMIT, plain
from lightning_core.trace import Span


class Hostile:
    def __repr__(self):
        raise RuntimeError("no")


class BrokenMapping(collections.UserDict):
    def items(self):
        raise RuntimeError("changed meanwhile")


def deep():
    value = []
    for _ in range(5000):
        value = [value]
    return value


def cycle():
    value = {}
    value["self"] = value
    return value


@pytest.fixture
def server():
    """Takes spans; `paths` and `spans` are what it was sent."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            server.paths.append(self.path)
            server.bodies.append(len(body))
            server.spans += [Span.from_value(s) for s in msgspec.json.decode(body)["spans"]]
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.paths, server.bodies, server.spans = [], [], []
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def emitted(name, attributes, *, error=None):
    """The span as the server reads it."""
    sink = ListSink()
    with attempt(Scope(gateway="http://g", session="s", attempt="a", sink=sink)):
        with contextlib.suppress(ValueError), span("tool", name, attributes):
            if error is not None:
                raise ValueError(error)
        (one,) = sink.take()
    return Span.from_value(msgspec.json.decode(msgspec.json.encode(one)))


@pytest.mark.parametrize(
    "value",
    ["\ud800 alone", float("nan"), 10**6000, object(), {1: {"a"}}, b"\xff", Hostile(), deep(), cycle(), BrokenMapping(a=1)],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_a_span_with_any_value_can_be_sent(value):
    assert "value" in emitted("tool", {"value": value}).attributes


def test_what_json_knows_stays_as_it_is():
    attributes = {"text": "é", "list": [1, 2.5, None, True], "dict": {"a": {"b": "c"}}}
    assert emitted("search", attributes).attributes == attributes


def test_surrogates_in_names_keys_and_errors_are_replaced():
    got = emitted("na\udcffme", {"k\udcff": 1}, error="bad \udcff byte")
    assert (got.name, got.attributes) == ("na?me", {"k?": 1})
    assert got.error == "ValueError: bad ? byte"


def test_long_texts_are_cut_and_say_so():
    got = emitted("n" * 5000, {"a": "x" * (TEXT_LIMIT + 7), "b": ["y" * 100] * 5000})
    assert len(got.name) < 1100
    assert got.attributes["a"].startswith("xxx")
    assert got.attributes["a"].endswith("… 9 characters left out")
    assert got.attributes["b"][0] == "y" * 100
    assert "more" in got.attributes["b"][-1]
    assert len(json.dumps(got.attributes["b"])) < 2 * TEXT_LIMIT


def test_names_within_a_value_are_kept_where_the_value_is_cut():
    assert plain({"name": "x" * 100, "b": 1}, 20) == {
        "name": "x" * 12 + "… 88 characters left out",
        "…": "1 more",
    }


def test_a_span_of_many_attributes_is_bounded():
    got = emitted("tool", {str(n): "x" * 50_000 for n in range(100)})
    assert len(json.dumps(got.attributes)) < 300_000
    assert "left out" in got.attributes["…"]


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.binary() | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()) | st.integers(), inner),
)  # fmt: skip


@given(anything, st.integers(0, 60))
def test_plain_is_json_and_bounded(value, limit):
    assert len(json.dumps(plain(value, limit), ensure_ascii=False)) < 40 * (limit + 10)
    msgspec.json.decode(msgspec.json.encode(plain(value, limit)))


@pytest.mark.parametrize("read", [ListSink.spans, ListSink.take])
def test_an_open_span_is_bounded_json_too(read):
    sink = ListSink()
    with attempt(Scope(gateway="http://127.0.0.1:1", session="s", attempt="a", sink=sink)):
        start_span("tool", "n" * 5000, {"value": Hostile()})
    (got,) = read(sink)
    assert len(got["name"]) < 1100
    assert got["attributes"] == {"value": "<Hostile, whose repr raised RuntimeError>"}


def test_a_span_tells_what_it_held_when_it_ended():
    sink = ListSink()
    said = ["before"]
    with attempt(Scope(gateway="http://127.0.0.1:1", session="s", attempt="a", sink=sink)):
        with span("tool", "n", {"said": said}):
            said.append("within")
        said.append("after")
    assert sink.take()[0]["attributes"] == {"said": ["before", "within"]}


def test_what_is_said_of_a_span_after_its_end_is_not_in_it():
    sink = ListSink()
    with attempt(Scope(gateway="http://127.0.0.1:1", session="s", attempt="a", sink=sink)):
        opened = start_span("tool", "n", {"said": "within"})
        end_span(opened)
        opened.attributes["said"] = "after"
        end_span(opened, error="after")
    (got,) = sink.take()
    assert (got["attributes"], got["error"]) == ({"said": "within"}, None)


def test_an_open_span_that_was_taken_comes_again_once_it_has_ended():
    sink = ListSink()
    with attempt(Scope(gateway="http://127.0.0.1:1", session="s", attempt="a", sink=sink)):
        opened = start_span("node", "n")
        (before,) = sink.take()
        end_span(opened, error="no")
    (after,) = sink.take()
    assert before["id"] == after["id"]
    assert (before["ended_at"], before["error"]) == (None, None)
    assert (after["ended_at"] >= before["started_at"], after["error"]) == (True, "no")


def test_a_flood_of_spans_is_bounded_and_counted():
    sink = ListSink(limit=3)
    for number in range(5):
        sink.emit(_span(str(number)))
    for id in ("0", "3", "4"):
        sink.emit(_span(id, ended_at=1.0))
    assert [(s["id"], s["ended_at"]) for s in sink.take()] == [("0", 1.0), ("1", None), ("2", None)]
    assert sink.dropped == 2
    sink.emit(_span("9"))
    assert [s["id"] for s in sink.take()] == ["9"]


@pytest.mark.parametrize("name", ["r/1 .1", "r?#1", "räksmörgås.1", "a%2Fb"])
def test_the_id_of_the_attempt_is_one_part_of_the_address(server, name):
    sink = HttpSink(f"http://127.0.0.1:{server.server_port}", "tok", name)
    sink.emit(_span("1"))
    sink.flush()
    (path,) = server.paths
    *before, given, last = path.split("/")
    assert (before, last) == (["", "api", "v1", "attempts"], "spans")
    assert urllib.parse.unquote(given) == name
    assert [s.id for s in server.spans] == ["1"]


def test_posts_are_bounded_in_bytes(server):
    sink = HttpSink(f"http://127.0.0.1:{server.server_port}", "tok", "a")
    sink._start = lambda: None  # All of them wait together.
    for number in range(60):
        sink.emit(_span(str(number), attributes={str(n): "\x00" * 60_000 for n in range(4)}))
    sink.flush()
    assert len(server.spans) == 60
    assert max(server.bodies) < 8 * 2**20


def test_a_span_that_json_cannot_hold_is_posted_too(server, capsys):
    sink = HttpSink(f"http://127.0.0.1:{server.server_port}", "tok", "a")
    sink.emit(_span("1", attributes={"bad": "\ud800", "worse": Hostile(), "huge": 10**6000}))
    sink.flush()
    assert [s.attributes["bad"] for s in server.spans] == ["?"]
    assert capsys.readouterr().err == ""


def _span(id, *, ended_at=None, attributes=None):
    scope = Scope(gateway="http://g", session="s", attempt="a", sink=ListSink())
    span = OpenSpan(id, scope, "tool", "n", None, 1.0, attributes or {})
    span.ended_at = ended_at
    return span
