"""A stream of chat completions becomes one of OpenAI Responses, whatever the network did to it."""

from __future__ import annotations

import functools
import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from lightning_core.gateway.dialects.responses_translation import (
    ResponsesTranslation,
    ResponsesTranslator,
)

from .responses_cases import CASES, DONE, TOOLS, USAGE, Case, call, piece, tool, tools

TRANSLATOR = ResponsesTranslator()
a_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@functools.cache
def event_type() -> TypeAdapter[Any]:
    """What the SDK takes an event for."""
    return TypeAdapter(ResponseStreamEvent)


def begin(case: Case, **fields: Any) -> ResponsesTranslation:
    return TRANSLATOR.begin({"model": "m", "input": "hi", **case.request, **fields}, "c0ffee")


def cut(data: bytes, points: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(point % (len(data) + 1) for point in points)})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def translated(case: Case, points: list[int] | None = None) -> bytes:
    sieve = begin(case, stream=True).sieve()
    pieces = [sieve.feed(data) for data in cut(case.stream, points or [])]
    return b"".join([*pieces, sieve.close()])


def events_of(stream: bytes) -> list[dict[str, Any]]:
    """The events of a stream, each of which has its type as its name."""
    events = []
    for item in stream.decode().split("\n\n")[:-1]:
        name, data = item.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def check(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Check what holds for every stream, and return its items as their own events tell them."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    items: dict[int, dict[str, Any]] = {}
    done: set[int] = set()
    grown: dict[tuple[int, Any], str] = {}
    for event in events:
        kind, at = event["type"], event.get("output_index")
        part = event.get("content_index")
        assert at is None or at not in done
        if kind == "response.output_item.added":
            assert at == len(items)
            assert event["item"]["status"] == "in_progress"
            items[at] = event["item"]
        elif kind == "response.content_part.added":
            assert part == len(items[at]["content"])
            items[at]["content"].append(event["part"])
            grown[at, part] = ""
        elif kind.endswith(".delta"):
            assert event["delta"]
            assert event["item_id"] == items[at]["id"]
            grown[at, part] = grown.get((at, part), "") + event["delta"]
        elif kind == "response.content_part.done":
            said = event["part"]
            assert grown[at, part] == said.get("text", said.get("refusal"))
            items[at]["content"][part] = said
        elif kind == "response.function_call_arguments.done":
            assert grown.get((at, None), "") == event["arguments"]
        elif kind == "response.output_item.done":
            done.add(at)
            assert event["item"]["id"] == items[at]["id"]
            assert event["item"].get("content") == items[at].get("content")
            items[at] = event["item"]
    return [items[at] for at in sorted(items)]


@a_case
def test_events_are_in_order_and_end_in_what_they_said(case: Case) -> None:
    events = events_of(translated(case))
    for event in events:
        event_type().validate_python(event)
    items = check(events)
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    last = events[-1]
    assert last["type"] == f"response.{case.status}"
    response = last["response"]
    assert response["status"] == case.status
    if case.error is None:
        assert response["output"] == items
    else:
        assert case.error in response["error"]["message"]
    if case.message:
        assert TRANSLATOR.message(response) == case.said
        assert TRANSLATOR.prompt({"input": response["output"]}) == [case.said]


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.body is not None], ids=lambda case: case.name
)
def test_a_stream_ends_in_what_the_whole_reply_says(case: Case) -> None:
    body = begin(case).reply(case.body or b"")
    whole = Response.model_validate_json(body).model_dump()
    last = events_of(translated(case))[-1]["response"]
    streamed = Response.model_validate(last).model_dump()
    if not case.in_order:
        assert streamed.pop("output") != whole.pop("output")
        assert TRANSLATOR.message(last) == TRANSLATOR.message(json.loads(body)) == case.said
    # Where no event but the end has a time, it is now.
    assert {**streamed, "created_at": 0} == {**whole, "created_at": 0}
    assert (whole["usage"] or {}).get("total_tokens") == (case.usage or {}).get("total_tokens")


@given(st.sampled_from(CASES), st.lists(st.integers(0, 20_000), max_size=12))
def test_a_stream_says_the_same_wherever_it_is_cut(case: Case, points: list[int]) -> None:
    assert translated(case, points) == translated(case)


def test_every_byte_may_come_by_itself() -> None:
    for case in CASES:
        if len(case.stream) < 5000:
            assert translated(case, list(range(len(case.stream)))) == translated(case)


def test_each_event_goes_out_as_soon_as_it_has_come() -> None:
    sieve = begin(CASES[0], stream=True).sieve()
    assert b"response.in_progress" in sieve.feed(piece({"role": "assistant", "content": ""}))
    assert b'"delta":"Hi"' in sieve.feed(piece({"content": "Hi"}))
    assert sieve.feed(piece({"content": " there"})[:-1]) == b""
    assert b'"delta":" there"' in sieve.feed(b"\n")
    ended = sieve.feed(piece(tools(tool(0, "", "c1", "add"))))
    assert b"response.output_text.done" in ended
    assert b'"name":"add"' in ended
    assert b'"delta":"{"' in sieve.feed(piece(tools(tool(0, "{"))))
    assert b"response.completed" not in sieve.feed(piece({}, "tool_calls"))
    assert b'"total_tokens":5' in sieve.feed(piece(None, usage=USAGE) + DONE)


def test_calls_under_way_at_once_keep_their_indices() -> None:
    (case,) = (case for case in CASES if case.name == "calls interleaved")
    deltas = [e for e in events_of(translated(case)) if e["type"].endswith("arguments.delta")]
    assert [(e["output_index"], e["delta"]) for e in deltas] == [
        (0, '{"a"'), (1, "{"), (0, ":1}"), (1, '"b":2}'),
    ]  # fmt: skip


def test_only_the_last_item_of_a_reply_that_was_too_long_is_incomplete() -> None:
    (case,) = (case for case in CASES if case.name == "length within a call")
    response = events_of(translated(case))[-1]["response"]
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]


def test_nothing_follows_the_end() -> None:
    case = next(case for case in CASES if case.name == "an error and the end")
    sieve = begin(case, stream=True).sieve()
    assert b"response.failed" in sieve.feed(case.stream)
    assert sieve.feed(piece({"content": "more"}) + DONE) == b""
    assert sieve.close() == b""


def test_ids_are_made_of_the_calls() -> None:
    (case,) = (case for case in CASES if case.name == "calls in turn")
    response = events_of(translated(case))[-1]["response"]
    assert response["id"] == "resp_c0ffee"
    assert [item["id"] for item in response["output"]] == ["fc_c0ffee_0", "fc_c0ffee_1"]
    assert [item["call_id"] for item in response["output"]] == ["c1", "c2"]


@pytest.mark.parametrize(("name", "id_"), [("add", ""), ("", "c1")])
def test_a_call_without_a_name_or_an_id_is_the_same_in_both_ways(name: str, id_: str) -> None:
    stream = piece(tools(tool(0, "{}", id_, name))) + piece({}, "tool_calls") + DONE
    case = Case("", stream, {"tool_calls": [call(id_, name, "{}")]}, "tool_calls", request=TOOLS)
    events = events_of(translated(case))
    streamed = events[-1]["response"]["output"]
    assert streamed == check(events) == json.loads(begin(case).reply(case.body or b""))["output"]
    assert streamed[0]["call_id"] == (id_ or "call_c0ffee_0")
    assert streamed[0]["name"] == name


def test_the_reply_repeats_the_request() -> None:
    asked = {
        "instructions": "Be brief.", "temperature": 0.5, "top_p": 0.9, "max_output_tokens": 64, "metadata": {"k": "v"},
        "parallel_tool_calls": False, "previous_response_id": "resp_1", "store": False, "truncation": "auto",
        "text": {"verbosity": "low"}, "reasoning": {"effort": "low"}, "tool_choice": "required", **TOOLS,
    }  # fmt: skip
    response = json.loads(begin(CASES[0], **asked).reply(CASES[0].body or b""))
    # Nothing is cut to fit.
    expected = {**asked, "truncation": "disabled"}
    expected["text"] = {"format": {"type": "text"}, "verbosity": "low"}
    expected["reasoning"] = {"effort": "low", "summary": None}
    assert {name: response[name] for name in expected} == expected
    assert response["model"] == "m-1"


def test_token_counts_are_told_in_detail() -> None:
    (case,) = (case for case in CASES if case.name == "detailed token counts")
    assert events_of(translated(case))[-1]["response"]["usage"] == {
        "input_tokens": 30,
        "input_tokens_details": {"cached_tokens": 16, "cache_write_tokens": 0},
        "output_tokens": 20,
        "output_tokens_details": {"reasoning_tokens": 12},
        "total_tokens": 50,
    }


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"no", "Expecting value"),
        (b"[]", "the reply has no `choices`"),
        (b"{}", "the reply has no `choices`"),
        (b'{"choices":[]}', "the reply has no `choices`"),
        (b'{"choices":[1]}', "`choices\\[0\\]`: expected an object but got 1"),
        (b'{"choices":[{}]}', "`choices\\[0\\].message`: expected an object but got None"),
        (
            b'{"choices":[{"message":{"tool_calls":[1]}}]}',
            "a tool call of the reply has no `function`",
        ),
        (b'{"choices":[{"message":{"tool_calls":5}}]}', "`tool_calls`: expected a list but got 5"),
    ],
)
def test_a_whole_reply_that_is_none_is_an_error(body: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        begin(CASES[0]).reply(body)


@pytest.mark.parametrize(
    ("status", "body", "message", "kind"),
    [
        (400, b'{"error":{"message":"bad","type":"t","code":1}}', "bad", "t"),
        (400, b'{"object":"error","message":"bad","type":"t","code":400}', "bad", "t"),
        (404, b'{"detail":"Not Found"}', '{"detail":"Not Found"}', "invalid_request_error"),
        (500, b'{"error":"oops"}', "oops", "server_error"),
        (502, b"<html>", "<html>", "server_error"),
        (503, b"", "the upstream answered with status 503", "server_error"),
        (500, b"[1]", "[1]", "server_error"),
    ],
)
def test_a_refusal_of_the_upstreams_has_the_form_of_the_formats(status, body, message, kind):
    error = json.loads(begin(CASES[0]).failure(status, body))["error"]
    assert error["message"] == message
    assert error["type"] == kind
