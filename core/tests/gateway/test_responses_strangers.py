"""Whatever a server sends, it is translated, or it is an error that says so; nothing else happens."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from lightning_core.gateway.dialects.responses import ResponsesDialect
from lightning_core.gateway.dialects.responses_translation import ResponsesTranslator
from lightning_core.gateway.replies import read_reply

from .test_responses_streams import check, events_of

TRANSLATOR = ResponsesTranslator()
ENDS = {"completed", "incomplete", "failed"}

texts = st.text(max_size=4)
odd = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 2) | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=3,
)


def objects(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Objects with some of the fields, most of them of the right form."""
    return st.fixed_dictionaries({}, optional={name: value | odd for name, value in values.items()})


functions = objects(name=texts, arguments=texts)
calls = st.lists(objects(index=st.integers(0, 1), id=texts, function=functions), max_size=2)
messages = objects(
    content=texts, refusal=texts, reasoning=texts, reasoning_content=texts, tool_calls=calls
)
logprobs = objects(
    content=st.lists(objects(token=texts, logprob=st.floats(-1, 0), top_logprobs=odd), max_size=2)
)
choices = objects(
    index=st.just(0), delta=messages, message=messages, logprobs=logprobs,
    finish_reason=st.sampled_from(["stop", "length", "abort"]),
)  # fmt: skip
chunks = objects(
    choices=st.lists(choices, max_size=2), usage=objects(prompt_tokens=st.integers(0, 9)),
    created=st.integers(0, 9), model=texts, object=texts, service_tier=texts,
)  # fmt: skip


def streamed(values: list[Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(value).encode() + b"\n\n" for value in values)


@given(st.lists(chunks | odd, max_size=5), st.booleans())
@example([{"choices": [{"delta": {"content": [{"type": "text", "text": "a"}]}}]}], True)
@example([{"choices": [{"delta": {"tool_calls": [{"function": {"arguments": {"a": 1}}}]}}]}], True)
@example([{"choices": [{"delta": {"content": "a"}, "finish_reason": []}]}], True)
@example(
    [{"choices": [{"delta": {"tool_calls": [{}]}}]}, {"choices": [{"delta": {"content": "a"}}]}],
    True,
)
def test_a_stream_of_chat_completions(values: list[Any], ended: bool) -> None:
    sieve = TRANSLATOR.begin({"model": "m", "input": "hi", "stream": True}, "c0ffee").sieve()
    stream = streamed(values) + (b"data: [DONE]\n\n" if ended else b"")
    events = events_of(sieve.feed(stream) + sieve.close())
    check(events)
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[-1] in ENDS
    assert sum(kind in ENDS for kind in kinds) == 1


@given(objects(choices=st.lists(choices, max_size=2), usage=odd))
def test_a_whole_reply_of_chat_completions(value: Any) -> None:
    body = json.dumps(value).encode()
    try:
        reply = json.loads(TRANSLATOR.begin({"model": "m", "input": "hi"}, "c0ffee").reply(body))
    except ValueError as error:
        reply = {"status": "failed", "why": str(error)}
    assert reply["status"] in ENDS


parts = st.lists(
    objects(type=st.sampled_from(["output_text", "refusal", "reasoning_text"]), text=texts),
    max_size=2,
)
items = objects(
    type=st.sampled_from(["message", "reasoning", "function_call"]), content=parts, summary=parts,
    id=texts, call_id=texts, name=texts, arguments=texts,
)  # fmt: skip
responses = objects(
    output=st.lists(items, max_size=2), status=st.sampled_from(sorted(ENDS)), usage=odd, error=odd,
    incomplete_details=objects(reason=texts),
)  # fmt: skip
events = objects(
    type=st.sampled_from([
        "response.created", "response.completed", "response.output_item.added", "response.output_text.delta",
        "response.function_call_arguments.delta", "response.output_item.done", "error",
    ]),
    response=responses, item=items, output_index=st.integers(0, 1), content_index=st.integers(0, 1), delta=texts,
)  # fmt: skip


@given(responses | odd, st.lists(events | odd, max_size=5))
def test_a_reply_of_the_format(value: Any, values: list[Any]) -> None:
    for data, stream in ((json.dumps(value).encode(), False), (streamed(values), True)):
        reply, error = read_reply(
            ResponsesDialect(), data, status=200, encoding=None, stream=stream, whole=True
        )
        assert error is not None or reply.complete or not stream
