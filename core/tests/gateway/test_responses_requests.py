"""Requests of OpenAI Responses in the terms of chat completions, and turns that come back as they were."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.gateway.dialects.responses_items import items_of
from lightning_core.gateway.dialects.responses_translation import ResponsesTranslator

TRANSLATOR = ResponsesTranslator()


def request_of(**fields: Any) -> dict[str, Any]:
    return TRANSLATOR.begin({"model": "m", "input": "hi", **fields}, "c0ffee").request


def prompt(*items: Any, earlier: Any = (), **fields: Any) -> list[dict[str, Any]]:
    return TRANSLATOR.prompt({"input": list(items), **fields}, earlier)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any = None, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **fields}


def call(id_: str, name: str = "f", arguments: str = "{}") -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def called(call_id: str, item_id: str | None = None) -> dict[str, Any]:
    item = {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"}
    return item if item_id is None else {**item, "id": item_id}


def output(call_id: str, value: Any = "1") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": value}


def tool(call_id: str, content: Any = "1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def thought(text: str, **fields: Any) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}]
    return {"type": "reasoning", "id": "rs_1", "summary": [], "content": content, **fields}


FUNCTION = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}}
CHAT_FUNCTION = {
    "type": "function",
    "function": {"name": "f", "description": "d", "parameters": {"type": "object"}},
}


# Fields ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"temperature": 0.5, "top_p": 0.9}, {"temperature": 0.5, "top_p": 0.9}),
        ({"temperature": None}, {}),
        ({"max_output_tokens": 7}, {"max_completion_tokens": 7}),
        ({"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}),
        ({"reasoning": None, "text": None, "tools": None, "include": None, "metadata": None}, {}),
        ({"text": {"verbosity": "low"}}, {"verbosity": "low"}),
        ({"text": {"format": {"type": "text"}}}, {}),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {}, "strict": True}}},
            {"response_format": {
                "type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": True}}},
        ),
        ({"include": ["reasoning.encrypted_content"], "top_logprobs": 3}, {}),
        ({"include": ["message.output_text.logprobs"]}, {"logprobs": True}),
        (
            {"include": ["message.output_text.logprobs"], "top_logprobs": 3},
            {"logprobs": True, "top_logprobs": 3},
        ),
        ({"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}),
        (
            {"stream": True, "stream_options": {"include_obfuscation": False}},
            {"stream": True, "stream_options": {"include_usage": True}},
        ),
        ({"stream": False}, {}),
        ({"tools": [FUNCTION]}, {"tools": [CHAT_FUNCTION]}),
        (
            {"tools": [{"type": "function", "name": "f", "strict": True, "parameters": None}]},
            {"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]},
        ),
        ({"tools": [], "tool_choice": "auto", "parallel_tool_calls": True}, {}),
        (
            {"tools": [FUNCTION], "tool_choice": "required", "parallel_tool_calls": False},
            {"tools": [CHAT_FUNCTION], "tool_choice": "required", "parallel_tool_calls": False},
        ),
        (
            {"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "f"}},
            {"tools": [CHAT_FUNCTION], "tool_choice": {"type": "function", "function": {"name": "f"}}},
        ),
        (
            {"tools": [{**FUNCTION, "name": "g"}, FUNCTION], "tool_choice": {
                "type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]}},
            {"tools": [CHAT_FUNCTION], "tool_choice": "required"},
        ),
        (
            {"metadata": {"k": "v"}, "user": "u", "safety_identifier": "s", "prompt_cache_key": "p",
             "service_tier": "flex"},
            {"metadata": {"k": "v"}, "user": "u", "safety_identifier": "s", "prompt_cache_key": "p",
             "service_tier": "flex"},
        ),
        ({"top_k": 20, "chat_template_kwargs": {"x": 1}}, {"top_k": 20, "chat_template_kwargs": {"x": 1}}),
        ({"store": True, "truncation": "auto", "background": False, "max_tool_calls": 3}, {}),
        ({"previous_response_id": "resp_1"}, {}),
    ],
)  # fmt: skip
def test_each_field_has_its_counterpart(fields, expected):
    assert request_of(**fields) == {"model": "m", "messages": [user("hi")], **expected}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"conversation": "conv_1"}, "`conversation`: the upstream speaks only chat completions"),
        ({"prompt": {"id": "pmpt_1"}}, "`prompt`: the upstream speaks only"),
        ({"context_management": [{"type": "compaction"}]}, "`context_management`: the upstream"),
        ({"messages": []}, "`messages`: the upstream speaks only"),
        ({"tools": [FUNCTION, {"type": "web_search"}]}, r"`tools\[1\]`: .* but got 'web_search'"),
        ({"tools": [{"type": "custom", "name": "f"}]}, r"`tools\[0\]`: .* but got 'custom'"),
        ({"tools": [{"type": "mcp", "server_label": "s"}]}, "'mcp', which chat completions have not"),
        ({"tools": ["f"]}, r"`tools\[0\]`: expected a tool of type `function` but got 'f'"),
        ({"tools": {"f": 1}}, "`tools`: expected a list but got"),
        ({"tools": [CHAT_FUNCTION]}, r"`tools\[0\].name`: expected a string but got None"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "file_search"}}, "`tool_choice`: .* 'file_search'"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "allowed_tools"}}, "`tool_choice.tools`: expected"),
        (
            {"tools": [FUNCTION], "tool_choice": {"type": "allowed_tools", "tools": [{"type": "mcp"}]}},
            r"`tool_choice.tools`: .* but got 'mcp'",
        ),
        ({"text": 3}, "`text`: expected an object but got 3"),
        ({"text": {"format": "json"}}, "`text.format`: expected an object but got 'json'"),
        ({"reasoning": "low"}, "`reasoning`: expected an object but got 'low'"),
        ({"include": "all"}, "`include`: expected a list but got 'all'"),
        ({"instructions": ["be brief"]}, "`instructions`: expected a string"),
        ({"input": 3}, "`input`: expected a list but got 3"),
    ],
)  # fmt: skip
def test_what_cannot_be_said_is_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=message):
        request_of(**fields)


# Input -------------------------------------------------------------------------------------------------------------


def test_instructions_come_first_also_before_an_earlier_conversation():
    earlier = [user("one"), assistant("1")]
    messages = TRANSLATOR.prompt({"input": "two", "instructions": "Count."}, earlier)
    assert messages == [{"role": "system", "content": "Count."}, *earlier, user("two")]
    assert earlier == [user("one"), assistant("1")]


def test_no_input_leaves_the_earlier_conversation():
    assert TRANSLATOR.prompt({}, [user("one")]) == [user("one")]


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (user("hi"), user("hi")),
        ({"type": "message", **user("hi")}, user("hi")),
        ({"role": "developer", "content": "be"}, {"role": "system", "content": "be"}),
        ({"role": "system", "content": "be"}, {"role": "system", "content": "be"}),
        (user([{"type": "input_text", "text": "hi"}]), user("hi")),
        (user([]), user("")),
        (
            user([{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]),
            user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
        ),
        (
            user([{"type": "input_image", "image_url": "data:x", "detail": "low"}]),
            user([{"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}}]),
        ),
        (
            user([{"type": "input_image", "image_url": "data:x", "detail": None, "file_id": None}]),
            user([{"type": "image_url", "image_url": {"url": "data:x"}}]),
        ),
        (
            user([{"type": "input_file", "file_data": "data:y", "filename": "a.pdf"}]),
            user([{"type": "file", "file": {"file_data": "data:y", "filename": "a.pdf"}}]),
        ),
        (
            user([{"type": "input_file", "file_id": "file-1"}]),
            user([{"type": "file", "file": {"file_id": "file-1"}}]),
        ),
        (
            user([{"type": "input_audio", "input_audio": {"data": "z", "format": "wav"}}]),
            user([{"type": "input_audio", "input_audio": {"data": "z", "format": "wav"}}]),
        ),
        (assistant("hi"), assistant("hi")),
        (assistant([{"type": "output_text", "text": "a", "annotations": []}]), assistant("a")),
        (
            assistant([{"type": "output_text", "text": "a"}, {"type": "output_text", "text": "b"}]),
            assistant("ab"),
        ),
        (assistant([{"type": "refusal", "refusal": "no"}]), assistant(refusal="no")),
        (called("c1"), assistant(tool_calls=[call("c1")])),
        (output("c1", "3"), tool("c1", "3")),
        (output("c1", [{"type": "input_text", "text": "3"}]), tool("c1", "3")),
        (
            output("c1", [{"type": "input_text", "text": "3"}, {"type": "input_image", "image_url": "u"}]),
            tool("c1", [{"type": "text", "text": "3"}, {"type": "image_url", "image_url": {"url": "u"}}]),
        ),
        (thought("Hm"), assistant(reasoning_content="Hm")),
        (
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": t} for t in ("a", "b")]},
            assistant(reasoning_content="a\n\nb"),
        ),
        (thought("Hm", id="rt_1"), assistant(reasoning="Hm")),
    ],
)  # fmt: skip
def test_an_item_becomes_a_message(item, expected):
    assert prompt(item) == [expected]


def test_reasoning_that_is_encrypted_says_nothing():
    hidden = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
    assert prompt(user("hi"), hidden, assistant("hey")) == [user("hi"), assistant("hey")]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (3, r"`input\[1\]`: expected an object but got 3"),
        ({"type": "item_reference", "id": "msg_1"}, r"`input\[1\]`: expected the item itself"),
        ({"id": "msg_1"}, r"`input\[1\]`: expected the item itself"),
        (
            {"type": "web_search_call", "id": "ws_1"},
            r"`input\[1\]`: .* 'web_search_call', which chat",
        ),
        (
            {"type": "custom_tool_call_output", "call_id": "c"},
            "'custom_tool_call_output', which chat",
        ),
        ({"type": ["message"]}, r"`input\[1\].type`: expected a string but got \['message'\]"),
        ({"role": "tool", "content": "3"}, r"`input\[1\].role`: .* but got 'tool'"),
        ({"role": ["user"], "content": "3"}, r"`input\[1\].role`: expected `user`"),
        (user(None), r"`input\[1\].content`: expected a list but got None"),
        (user(["hi"]), r"`input\[1\].content\[0\]`: expected an object but got 'hi'"),
        (
            user([{"type": "video"}]),
            r"`input\[1\].content\[0\]`: expected a part .* but got 'video'",
        ),
        (user([{"type": "input_text"}]), r"`input\[1\].content\[0\].text`: expected a string"),
        (user([{"type": "input_image", "file_id": "f"}]), "by `image_url` but got `file_id`"),
        (user([{"type": "input_file", "file_url": "u"}]), "by `file_data` but got `file_url`"),
        (
            assistant([{"type": "input_image"}]),
            "in a message of the assistant's but got 'input_image'",
        ),
        (assistant([3]), r"`input\[1\].content\[0\]`: expected an object but got 3"),
        (output("c", 3), r"`input\[1\].output`: expected a list but got 3"),
        ({**output("c"), "call_id": None}, r"`input\[1\].call_id`: expected a string but got None"),
        ({**called("c"), "arguments": {}}, r"`input\[1\].arguments`: expected a string but got {}"),
        (thought("Hm", content=3), r"`input\[1\].content`: expected a list but got 3"),
        (thought("Hm", content=[3]), r"`input\[1\].content`: expected an object but got 3"),
    ],
)
def test_an_item_that_is_none_is_named(item, message):
    with pytest.raises(ValueError, match=message):
        prompt(user("hi"), item)


# Turns -------------------------------------------------------------------------------------------------------------


def test_the_items_of_a_turn_become_one_message():
    items = (thought("Hm"), assistant("Let me see."), called("c1"), called("c2"))
    said = assistant(
        "Let me see.", reasoning_content="Hm", tool_calls=[call("c1"), call("c2")]
    )  # fmt: skip
    after = (output("c1"), output("c2"), assistant("Done."))
    assert prompt(user("hi"), *items, *after) == [
        user("hi"), said, tool("c1"), tool("c2"), assistant("Done."),
    ]  # fmt: skip


def test_turns_of_the_assistant_in_a_row_stay_apart():
    first = (thought("a"), assistant("A"))
    second = (thought("b", id="rs_2"), assistant("B"))
    assert prompt(*first, *second) == [
        assistant("A", reasoning_content="a"), assistant("B", reasoning_content="b"),
    ]  # fmt: skip
    assert prompt(assistant("A"), assistant("B")) == [assistant("A"), assistant("B")]


def test_calls_of_one_reply_that_alternate_with_their_outputs_stay_together():
    items = (called("c1", "fc_x_0"), output("c1"), called("c2", "fc_x_1"), output("c2"))
    together = assistant(tool_calls=[call("c1"), call("c2")])
    assert prompt(*items) == [together, tool("c1"), tool("c2")]
    # Of two replies, or of ones that nothing is known of, each is a turn.
    for ids in (("fc_x_0", "fc_y_0"), ("fc_x_0", "fc_x_0"), (None, None)):
        apart = (called("c1", ids[0]), output("c1"), called("c2", ids[1]), output("c2"))
        assert prompt(*apart) == [
            assistant(tool_calls=[call("c1")]), tool("c1"),
            assistant(tool_calls=[call("c2")]), tool("c2"),
        ]  # fmt: skip


def test_the_earlier_reply_is_not_added_to():
    earlier = [user("hi"), assistant("hey")]
    assert prompt(called("c1"), output("c1"), earlier=earlier)[:2] == earlier
    assert earlier == [user("hi"), assistant("hey")]


texts = st.text(st.characters(codec="utf-8"), max_size=20)
calls = st.builds(call, st.text(min_size=1, max_size=8), st.text(min_size=1, max_size=8), texts)


@st.composite
def replies(draw: st.DrawFn) -> dict[str, Any]:
    """An assistant's message as servers send it."""
    message = assistant(draw(st.none() | texts))
    for name, values in (
        (draw(st.sampled_from(["reasoning_content", "reasoning"])), texts.filter(bool)),
        ("refusal", texts.filter(bool)),
        ("tool_calls", st.lists(calls, min_size=1, max_size=3)),
    ):
        if draw(st.booleans()):
            message[name] = draw(values)
    return message


def lasting(message: dict[str, Any]) -> dict[str, Any]:
    """The message as it comes back: beside a refusal or calls an empty text is as good as none."""
    empty = not message["content"] and (message.get("refusal") or message.get("tool_calls"))
    return {**message, "content": None if empty else message["content"]}


@given(replies())
def test_a_reply_that_comes_back_is_the_same_message(message):
    body = json.dumps({"choices": [{"message": message}]}).encode()
    reply = json.loads(TRANSLATOR.begin({"input": "hi"}, "c0ffee").reply(body))
    assert TRANSLATOR.message(reply) == lasting(message)
    assert prompt(user("hi"), *reply["output"], user("more")) == [
        user("hi"), lasting(message), user("more"),
    ]  # fmt: skip


@given(st.lists(st.tuples(replies(), st.booleans()), max_size=5))
def test_a_conversation_that_comes_back_begins_as_it_went_on(turns):
    """Each prompt begins with the prompt before it and its reply, so that its tokens do too."""
    items: list[Any] = [user("hi")]
    expected: list[Any] = [user("hi")]
    for number, (message, alternating) in enumerate(turns):
        made = items_of(message, f"{number:032x}")
        called = [item for item in made if item["type"] == "function_call"]
        outputs = [output(item["call_id"]) for item in called]
        if alternating and outputs:
            pairs = [item for pair in zip(called, outputs, strict=True) for item in pair]
            items += [item for item in made if item not in called] + pairs
        else:
            items += [*made, *outputs, *([] if outputs else [user("more")])]
        expected.append(lasting(message))
        expected += [tool(item["call_id"]) for item in called] or [user("more")]
        assert prompt(*items) == expected


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
names = st.sampled_from(["type", "role", "content", "id", "call_id", "name", "arguments", "output", "summary", "text"])  # fmt: skip
kinds = st.sampled_from(["message", "reasoning", "function_call", "function_call_output", "input_text", "user", "assistant"])  # fmt: skip
items_of_strangers = st.dictionaries(
    names, kinds | json_values | st.lists(st.dictionaries(names, kinds | json_values)), max_size=6
)


@given(st.lists(items_of_strangers | json_values, max_size=3))
def test_whatever_comes_is_translated_or_refused(items):
    try:
        messages, refused = prompt(*items), ""
    except ValueError as error:
        messages, refused = [], str(error)
    assert "input[" in refused or len(messages) <= len(items)
    assert all(message["role"] in ("system", "user", "assistant", "tool") for message in messages)
