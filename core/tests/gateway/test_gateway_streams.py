"""However the network cuts a stream, the agent gets the same bytes and the record says the same."""

from __future__ import annotations

import itertools
import json
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.gateway.dialects import DIALECTS
from lightning_core.gateway.dialects.base import Prepared
from lightning_core.gateway.sse import StreamFilter

from .conftest import USAGE, chunk, event

CHAT = DIALECTS[0]
DONE = event("[DONE]")


def cut(data: bytes, points: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(point % (len(data) + 1) for point in points)})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def passed(sieve: StreamFilter | None, pieces: list[bytes]) -> bytes:
    assert sieve is not None
    return b"".join([*(sieve.feed(piece) for piece in pieces), sieve.close()])


texts = st.text(max_size=12)
points = st.lists(st.integers(0, 10_000), max_size=12)
line_ends = st.sampled_from([b"\n", b"\r\n", b"\r"])


def a_stream(contents: list[str], line_end: bytes) -> tuple[bytes, bytes]:
    """A stream as the upstream sends it, and as the agent may see it."""
    shown = [b": keep-alive\n\n"]
    shown += [event(json.dumps(chunk({"content": text}), ensure_ascii=False)) for text in contents]
    usage = event(chunk(None, usage=USAGE))
    sent = b"".join([*shown, usage, DONE])
    return sent.replace(b"\n", line_end), b"".join([*shown, DONE]).replace(b"\n", line_end)


@given(st.lists(texts, max_size=6), points, line_ends)
def test_usage_is_hidden_wherever_the_stream_is_cut(contents, at, line_end):
    sent, shown = a_stream(contents, line_end)
    sieve = CHAT.stream_filter(Prepared(body=b"", hide_usage=True))
    assert passed(sieve, cut(sent, at)) == shown
    reply = CHAT.read_stream(sent)
    assert reply.usage == USAGE
    assert reply.complete
    assert "".join(c.message["content"] for c in reply.choices) == "".join(contents)


@given(points)
def test_ids_are_hidden_wherever_the_stream_is_cut(at):
    pieces, shown = [], []
    for number in range(5):
        value = chunk({"content": "é‿"[number % 2]})
        shown.append(json.loads(json.dumps(value)))
        value["choices"][0] |= {"token_ids": [number]}
        pieces.append(event({**value, "prompt_token_ids": [1]} if number == 0 else value))
    sieve = CHAT.stream_filter(Prepared(body=b"", hide_ids=True))
    body = passed(sieve, cut(b"".join([*pieces, DONE]), at))
    *got, done = body.strip().split(b"\n\n")
    assert done == b"data: [DONE]"
    assert [json.loads(item[6:]) for item in got] == shown


def test_text_that_looks_like_a_usage_event_is_left_alone():
    data = event(chunk({"content": '"choices":[] "usage":{}'})) + DONE
    sieve = CHAT.stream_filter(Prepared(body=b"", hide_usage=True))
    assert passed(sieve, [data]) == data


def test_an_event_that_lacks_its_end_passes_at_the_close():
    sieve = CHAT.stream_filter(Prepared(body=b"", hide_usage=True))
    assert sieve.feed(b'data: {"choices":[],"us') == b""
    assert sieve.close() == b'data: {"choices":[],"us'


def cpu_seconds(work):
    """The least CPU time of some runs, in seconds."""
    times = []
    for _ in range(5):
        begun = time.process_time()
        work()
        times.append(time.process_time() - begun)
    return min(times)


def test_the_cost_of_editing_grows_with_the_events_of_a_chunk_and_no_faster():
    def cost(events):
        data = event(chunk({"content": "[]"}, token_ids=[1])) * events
        sieve = StreamFilter(re.compile(rb"\[\]"), bytes)
        return cpu_seconds(lambda: sieve.feed(data))

    assert cost(32_000) < 24 * cost(4_000)


def test_the_cost_of_a_long_event_grows_with_its_length_and_no_faster():
    def cost(chunks):
        pieces = [b"x" * 1024] * chunks

        def work():
            sieve = StreamFilter(re.compile(rb"\[\]"), bytes)
            assert len(passed(sieve, pieces)) == chunks * 1024

        return cpu_seconds(work)

    assert cost(4000) < 24 * cost(500)


def test_tool_calls_are_assembled():
    def tool(index, **fields):
        return event(chunk({"tool_calls": [{"index": index, **fields}]}))

    stream = b"".join(
        [
            event(chunk({"role": "assistant", "content": None})),
            tool(0, id="a", type="function", function={"name": "f", "arguments": ""}),
            tool(0, function={"arguments": '{"x"'}),
            tool(1, id="b", type="function", function={"name": "g", "arguments": "{"}),
            tool(0, function={"arguments": ":1}"}),
            tool(1, function={"arguments": "}"}),
            event(chunk({}, finish="tool_calls")),
            DONE,
        ]
    )
    (choice,) = CHAT.read_stream(stream).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
            {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ],
    }


def test_whole_tool_calls_that_share_an_index_are_two():
    def tool(name):
        return {"index": 0, "id": name, "type": "function", "function": {"name": name}}

    stream = b"".join(event(chunk({"tool_calls": [tool(name)]})) for name in "ab") + DONE
    (choice,) = CHAT.read_stream(stream).choices
    assert [call["id"] for call in choice.message["tool_calls"]] == ["a", "b"]


def test_choices_of_one_stream_are_kept_apart():
    stream = b"".join(
        event(chunk({"content": text}, index=index))
        for text, index in [("a", 1), ("x", 0), ("b", 1), ("y", 0), ("c", 2)]
    )
    stream += event(chunk({}, index=1, finish="length")) + DONE
    choices = CHAT.read_stream(stream).choices
    assert [(c.index, c.message["content"], c.finish_reason) for c in choices] == [
        (0, "xy", None),
        (1, "ab", "length"),
        (2, "c", None),
    ]


def test_fields_beside_the_content_are_kept():
    stream = b"".join(
        [
            event(chunk({"role": "assistant", "reasoning_content": "let "})),
            event(chunk({"reasoning_content": "me"})),
            event(chunk({"refusal": "no", "extra": {"list": [1], "text": "a"}})),
            event(chunk({"extra": {"list": [2], "text": "b"}})),
            DONE,
        ]
    )
    (choice,) = CHAT.read_stream(stream).choices
    assert choice.message == {
        "role": "assistant",
        "reasoning_content": "let me",
        "refusal": "no",
        "extra": {"list": [1, 2], "text": "ab"},
    }


@pytest.mark.parametrize("event_lines", [b"event: message\n", b"id: 7\n", b": comment\n"])
def test_events_with_other_lines_are_read(event_lines):
    stream = event_lines + event(chunk({"content": "x"})) + event_lines + DONE
    reply = CHAT.read_stream(stream)
    assert reply.choices[0].message["content"] == "x"
    assert reply.complete


def test_data_over_several_lines_is_one_event():
    text = json.dumps(chunk({"content": "x"}), indent=1)
    stream = b"".join(b"data: " + line.encode() + b"\n" for line in text.split("\n")) + b"\n"
    assert CHAT.read_stream(stream + DONE).choices[0].message["content"] == "x"


@given(st.lists(texts, min_size=1, max_size=4), st.integers(0, 2000))
def test_a_cut_stream_is_never_complete_and_never_unreadable(contents, end):
    sent, _ = a_stream(contents, b"\n")
    if end < len(sent) - len(b"\n\n"):
        assert not CHAT.read_stream(sent[:end]).complete


def test_an_event_that_is_no_json_makes_the_stream_unreadable():
    with pytest.raises(ValueError, match="Expecting"):
        CHAT.read_stream(b"data: nonsense\n\n" + event(chunk({"content": "x"})) + DONE)
