"""Replies of chat completions as Anthropic Messages, whole and as streams, however the network cuts them."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.gateway.dialects.messages import MessagesDialect
from lightning_core.gateway.dialects.messages_arguments import Arguments, input_of, text_of
from lightning_core.gateway.dialects.messages_blocks import blocks_of, message_of
from lightning_core.gateway.dialects.messages_translation import MessagesTranslator

from .messages_cases import CASES, COUNTS, DONE, FAILING, begun, call, chunk, more, text, wire

ID = "c0ffee"
PLAIN = CASES["text"].request
points = st.lists(st.integers(0, 10_000), max_size=12)


def begin(body=PLAIN, **fields):
    return MessagesTranslator().begin({**body, **fields}, ID)


def cut(data, at):
    edges = sorted({0, len(data), *(point % (len(data) + 1) for point in at)})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def sifted(stream: bytes, at=(), body=PLAIN) -> bytes:
    sieve = begin(body, stream=True).sieve()
    return b"".join([*(sieve.feed(piece) for piece in cut(stream, at)), sieve.close()])


def events(stream: bytes) -> list[dict]:
    found = []
    for event in stream.decode().split("\n\n"):
        lines = [line for line in event.split("\n") if line and not line.startswith(":")]
        if lines:
            name, data = lines
            value = json.loads(data.removeprefix("data: "))
            assert name == f"event: {value['type']}"
            found.append(value)
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_whole_reply_is_a_message(name):
    case = CASES[name]
    message = json.loads(begin(case.request).reply(case.whole))
    assert message == {
        "id": f"msg_{ID}",
        "type": "message",
        "role": "assistant",
        "model": "m-1",
        "content": case.content,
        "stop_reason": case.stop,
        "stop_sequence": case.sequence,
        "usage": case.counts,
    }


@pytest.mark.parametrize("name", CASES)
def test_a_stream_says_what_the_whole_reply_says(name):
    case = CASES[name]
    shown = sifted(case.stream, range(len(case.stream)), case.request)
    reply = MessagesDialect().read_stream(shown)
    whole = MessagesDialect().read(begin(case.request).reply(case.whole))
    assert reply.complete
    assert reply.failure is None
    assert reply.choices == whole.choices
    assert reply.usage == whole.usage
    assert reply.reply == whole.reply


@pytest.mark.parametrize("name", CASES)
def test_a_stream_has_its_events_in_order(name):
    case = CASES[name]
    found = events(sifted(case.stream, (), case.request))
    assert [e["type"] for e in found[:2]] == ["message_start", "ping"]
    assert [e["type"] for e in found[-2:]] == ["message_delta", "message_stop"]
    blocks = found[2:-2]
    assert [e["type"] for e in blocks].count("content_block_start") == len(case.content)
    for index, block in enumerate(case.content):
        begins = [e for e in blocks if e["index"] == index]
        assert begins[0]["type"] == "content_block_start"
        assert begins[0]["content_block"]["type"] == block["type"]
        assert begins[-1]["type"] == "content_block_stop"
    assert [e["index"] for e in blocks] == sorted(e["index"] for e in blocks)
    assert found[0]["message"]["content"] == []
    assert found[0]["message"]["stop_reason"] is None


@given(st.sampled_from([*CASES.values(), *FAILING.values()]), points)
def test_events_are_the_same_wherever_the_stream_is_cut(case, at):
    body = getattr(case, "request", PLAIN)
    assert events(sifted(case.stream, at, body)) == events(sifted(case.stream, (), body))


@pytest.mark.parametrize("name", FAILING)
def test_a_stream_that_fails_has_no_end(name):
    case = FAILING[name]
    found = events(sifted(case.stream))
    shown = [e["delta"]["text"] for e in found if e.get("delta", {}).get("type") == "text_delta"]
    assert "".join(shown) == case.shown
    assert not [e for e in found if e["type"] in ("message_delta", "message_stop")]
    errors = [e for e in found if e["type"] == "error"]
    assert found[-1:] == errors
    assert errors[0]["error"]["type"] == case.kind
    assert case.message in errors[0]["error"]["message"]


def test_comments_pass():
    sieve = begin(stream=True).sieve()
    assert sieve.feed(b": keep-alive\n\n") == b": keep-alive\n\n"
    assert sieve.feed(b": data: x\n\n") == b": data: x\n\n"


def test_each_piece_goes_out_as_it_comes():
    sieve = begin(stream=True).sieve()
    first, *rest = (wire([chunk(delta)]) for delta in text("Hel", "lo"))
    assert [e["type"] for e in events(sieve.feed(first))] == ["message_start", "ping"]
    started, delta = events(sieve.feed(rest[0]))
    assert started["content_block"] == {"type": "text", "text": ""}
    assert delta["delta"] == {"type": "text_delta", "text": "Hel"}
    (delta,) = events(sieve.feed(rest[1]))
    assert delta["delta"] == {"type": "text_delta", "text": "lo"}
    tool = begun(0, "c1", "write", '{"path": "a", "text": "On')
    stopped, started, *deltas = events(sieve.feed(wire([chunk(tool)])))
    assert (stopped["type"], started["index"]) == ("content_block_stop", 1)
    assert "".join(d["delta"]["partial_json"] for d in deltas) == '{"path": "a", "text": "On'
    (delta,) = events(sieve.feed(wire([chunk(more(0, "ce"))])))
    assert delta["delta"] == {"type": "input_json_delta", "partial_json": "ce"}
    # The end of a block does not wait for the usage.
    ended = events(sieve.feed(wire([chunk(more(0, '"}')), chunk({}, "tool_calls")])))
    assert ended[-1] == {"type": "content_block_stop", "index": 1}


def test_a_second_call_goes_out_as_it_comes_once_the_first_is_whole():
    sieve = begin(stream=True).sieve()
    sieve.feed(wire([chunk(begun(0, "c1", "f", '{"a": 1'))]))
    assert sieve.feed(wire([chunk(begun(1, "c2", "g", '{"b": "'))])) == b""
    shown = events(sieve.feed(wire([chunk(more(0, "}"))])))
    assert [e["type"] for e in shown].count("content_block_start") == 1
    assert shown[-1]["delta"]["partial_json"] == '{"b": "'
    (delta,) = events(sieve.feed(wire([chunk(more(1, "2"))])))
    assert delta["delta"]["partial_json"] == "2"


def test_text_after_a_call_is_a_block_of_its_own_and_the_same_message():
    deltas = [*text("I ask."), begun(0, "c1", "f", "{}"), {"content": "And wait."}]
    stream = wire([*map(chunk, deltas), chunk({}, "tool_calls"), DONE])
    blocks = [e["content_block"]["type"] for e in events(sifted(stream)) if "content_block" in e]
    assert blocks == ["text", "tool_use", "text"]
    (choice,) = MessagesDialect().read_stream(sifted(stream)).choices
    assert choice.message["content"] == "I ask.And wait."
    assert choice.message["tool_calls"] == [call("c1", "f", "{}")]


def test_other_choices_are_left_out():
    other = chunk({"content": "no"})
    other["choices"][0]["index"] = 1
    stream = wire([other, *map(chunk, text("yes")), other, chunk({}, "stop"), DONE])
    (choice,) = MessagesDialect().read_stream(sifted(stream)).choices
    assert choice.message["content"] == "yes"


def test_the_model_that_was_asked_for_stands_where_the_upstream_names_none():
    stream = wire([{"choices": [{"index": 0, "delta": {"content": "a"}}]}])
    assert events(sifted(stream))[0]["message"]["model"] == "m"
    body = {"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]}
    message = json.loads(begin().reply(json.dumps(body).encode()))
    assert message["model"] == "m"
    assert message["usage"] == {**COUNTS, "input_tokens": 0, "output_tokens": 0}


def test_an_end_that_the_format_has_no_word_for_is_not_made_up():
    stream = wire([*map(chunk, text("a")), chunk({}, "abort"), DONE])
    assert events(sifted(stream))[-2]["delta"] == {"stop_reason": None, "stop_sequence": None}


@pytest.mark.parametrize(
    "body",
    [b"oops", b"[]", b'{"choices": []}', b'{"choices": [{}]}', b'{"choices": [{"message": 1}]}',
     b'{"choices": [{"message": {"tool_calls": [1]}}]}'],
)  # fmt: skip
def test_what_is_no_chat_reply_is_refused(body):
    with pytest.raises(ValueError, match=r"reply|JSON|malformed|Expecting"):
        begin().reply(body)


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (400, b'{"error": {"message": "too long", "type": "x"}}', "invalid_request_error", "too long"),
        (401, b'{"error": "no key"}', "authentication_error", "no key"),
        (403, b'{"error": {"message": "no"}}', "permission_error", "no"),
        (404, b'{"detail": "Not Found"}', "not_found_error", '{"detail":"Not Found"}'),
        (413, b"<html>", "request_too_large", "<html>"),
        (422, b'{"object": "error", "message": "bad"}', "invalid_request_error", "bad"),
        (429, b'{"error": {"message": "slow"}}', "rate_limit_error", "slow"),
        (500, b'"boom"', "api_error", "boom"),
        (502, b"", "api_error", ""),
        (503, b'{"error": {"message": "busy"}}', "overloaded_error", "busy"),
        (504, b'{"error": {"message": "late"}}', "timeout_error", "late"),
    ],
)  # fmt: skip
def test_a_failure_has_the_formats_shape(status, body, kind, message):
    assert json.loads(begin().failure(status, body)) == {
        "type": "error",
        "error": {"type": kind, "message": message},
        "request_id": f"req_{ID}",
    }


# Round trips ---------------------------------------------------------------------------------------------------------

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
).filter(lambda value: "Infinity" not in json.dumps(value))  # fmt: skip
objects = st.dictionaries(st.text(max_size=5), values, max_size=4)
canonical = objects.map(lambda value: json.dumps(value, ensure_ascii=False))


def is_object(said: str) -> bool:
    try:
        value = json.loads(said, parse_constant=lambda _: pytest.fail("no JSON"))
    except ValueError:
        return False
    return isinstance(value, dict)


@st.composite
def spoilt(draw):
    """Arguments with a part replaced: rarely JSON, and never empty."""
    said = draw(canonical | objects.map(lambda value: json.dumps(value, indent=1)))
    start, size = draw(st.integers(0, len(said))), draw(st.integers(0, 3))
    junk = draw(st.text('{}[]",:\\nu0dDcC \n\x00é', max_size=4))
    return said[:start] + junk + said[start + size :]


wrong = spoilt().filter(lambda said: said.strip() and not is_object(said))
calls = st.lists(
    st.builds(call, st.text(min_size=1, max_size=8), st.text(min_size=1, max_size=8), canonical | wrong),
    min_size=1, max_size=3,
)  # fmt: skip
messages = st.one_of(
    st.fixed_dictionaries({"content": st.text()}),
    st.fixed_dictionaries({"content": st.text(min_size=1) | st.none(), "tool_calls": calls}),
    st.fixed_dictionaries(
        {"content": st.text(min_size=1) | st.none(), "reasoning_content": st.text(min_size=1)},
        optional={"tool_calls": calls},
    ),
    st.fixed_dictionaries({"content": st.text(min_size=1), "reasoning": st.text(min_size=1)}),
)


@given(messages)
def test_a_message_comes_back_as_it_was(message):
    message = {"role": "assistant", **message}
    assert message_of(blocks_of(message, ID)) == message


@given(messages, points)
def test_a_streamed_message_comes_back_as_it_was(message, at):
    message = {"role": "assistant", **message}
    deltas = [{key: message[key]} for key in message if key.startswith("reasoning")]
    deltas += [{"content": message["content"]}] if message["content"] else []
    for index, tool in enumerate(message.get("tool_calls", ())):
        said = tool["function"]["arguments"]
        deltas.append(begun(index, f"{index}{tool['id']}", tool["function"]["name"]))
        tool["id"] = f"{index}{tool['id']}"
        deltas += [more(index, piece) for piece in cut(said, at)]
    stream = wire([*map(chunk, deltas), chunk({}, "stop"), DONE])
    reply = {"content": [], "role": "assistant"}
    (choice,) = MessagesDialect().read_stream(sifted(stream, at)).choices
    assert choice.message == message
    reply["content"] = blocks_of(choice.message, ID)
    assert MessagesTranslator().message(reply) == message


@given(canonical | spoilt(), points)
def test_arguments_can_be_closed_at_any_time_and_lose_nothing(said, at):
    arguments, shown = Arguments(), ""
    for piece in cut(said, at):
        shown += arguments.feed(piece)
    shown += arguments.close()
    assert input_of(said) == (json.loads(shown) if shown else {})
    if is_object(said):
        assert json.loads(text_of(input_of(said))) == json.loads(said)
    elif said.strip():
        assert text_of(input_of(said)) == said


@given(spoilt(), points)
def test_an_sdk_can_read_arguments_as_they_come(said, at):
    from jiter import from_json  # what the SDK reads them with

    arguments, shown = Arguments(), ""
    for piece in cut(said, at):
        shown += arguments.feed(piece)
        if shown:
            from_json(shown.encode(), partial_mode=True)


def piecemeal(said: str) -> str:
    arguments = Arguments()
    return "".join([*map(arguments.feed, said), arguments.close()])


def test_escapes_may_come_in_pieces():
    said = r'{"a": "\n\"\\\/\u00e9\ud83d\ude00x", "b": {"c\\": "}\"]"}}'
    assert piecemeal(said) == said


@pytest.mark.parametrize(
    "text", [r"\ud800", r"\ud800x", r"\ud800\n", r"\udc00", r"\ud800\ud800", r"\x", "\n", r"\u00g0"]
)
def test_what_is_no_escape_is_kept_word_for_word(text):
    said = f'{{"a": "so far{text}"}}'
    assert json.loads(piecemeal(said)) == input_of(said) == {"a": "so far", "INVALID_JSON": said}


@pytest.mark.parametrize("text", ['{"INVALID_JSON": "x"}', '{"a": 1, "INVALID_JSON": {}}'])
def test_a_model_may_say_our_own_key(text):
    assert text_of(input_of(text)) == text


def test_arguments_may_be_nested_deeply():
    said = '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"
    assert text_of(input_of(said)) == said
