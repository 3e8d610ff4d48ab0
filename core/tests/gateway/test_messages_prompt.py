"""Requests of Anthropic Messages as requests of chat completions."""

from __future__ import annotations

import copy
import json

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.gateway.dialects.messages_blocks import blocks_of
from lightning_core.gateway.dialects.messages_translation import MessagesTranslator

from .messages_cases import call, said, use

USER = {"role": "user", "content": "hi"}
PNG = {"type": "base64", "media_type": "image/png", "data": "aGk="}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "aGk="}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}


def asked(messages=None, **fields):
    messages = [USER] if messages is None else messages
    body = {"model": "m", "max_tokens": 9, "messages": messages, **fields}
    before = copy.deepcopy(body)
    request = MessagesTranslator().begin(body, "c0ffee").request
    assert body == before
    return request


def user(*blocks):
    return {"role": "user", "content": list(blocks)}


def result(id_="c1", **fields):
    return {"type": "tool_result", "tool_use_id": id_, **fields}


def test_a_plain_request():
    assert asked(system="Be brief.", temperature=0.2, top_p=0.9, top_k=5) == {
        "model": "m",
        "max_tokens": 9,
        "temperature": 0.2,
        "top_p": 0.9,
        "top_k": 5,
        "messages": [{"role": "system", "content": "Be brief."}, USER],
    }


def test_a_stream_asks_for_its_token_counts():
    request = asked(stream=True, stop_sequences=["END"], metadata={"user_id": "u1"})
    assert request["stream"] is True
    assert request["stream_options"] == {"include_usage": True}
    assert request["stop"] == ["END"]
    assert request["user"] == "u1"
    assert "stream" not in asked(stream=False)


def test_system_blocks_are_parts_and_one_is_a_text():
    cached = {**said("a"), "cache_control": {"type": "ephemeral"}}
    assert asked(system=[cached])["messages"][0] == {"role": "system", "content": "a"}
    assert asked(system=[cached, said("b")])["messages"][0]["content"] == [said("a"), said("b")]
    assert asked(system=[])["messages"] == [USER]
    later = [USER, {"role": "system", "content": [said("now")]}, USER]
    assert asked(later)["messages"] == [USER, {"role": "system", "content": "now"}, USER]


def test_a_users_blocks_are_parts():
    url = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}
    text = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "t"}}
    inner = {"type": "content", "content": [said("in"), {"type": "image", "source": PNG}]}
    found = {"type": "search_result", "title": "T", "source": "s", "content": [said("hit")]}
    turn = user(
        said("look"), {"type": "image", "source": PNG}, url, {**text, "title": "A", "context": "B"},
        text, {"type": "document", "source": inner}, {"type": "document", "source": PDF, "title": "p.pdf"}, found,
    )  # fmt: skip
    assert asked([turn])["messages"] == [
        {
            "role": "user",
            "content": [
                said("look"),
                IMAGE,
                {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
                said("A\nB\n"),
                said("t"),
                said("t"),
                said("in"),
                IMAGE,
                {"type": "file", "file": {"filename": "p.pdf", "file_data": "data:application/pdf;base64,aGk="}},
                said("T\ns\n"),
                said("hit"),
            ],
        }
    ]  # fmt: skip


def test_results_come_before_the_rest_of_the_turn():
    turn = user(
        said("and now?"),
        result("c1", content="42"),
        result("c2", content=[said("a"), said("b")]),
        result("c3"),
    )
    assert asked([turn])["messages"] == [
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
        {"role": "tool", "tool_call_id": "c2", "content": [said("a"), said("b")]},
        {"role": "tool", "tool_call_id": "c3", "content": ""},
        {"role": "user", "content": "and now?"},
    ]  # fmt: skip


def test_a_result_that_is_an_error_says_so():
    turn = user(
        result(content="no such file", is_error=True), result(is_error=True),
        result(content=[said("Error: disk full"), said("x")], is_error=True), result(content="e", is_error=False),
    )  # fmt: skip
    contents = [message["content"] for message in asked([turn])["messages"]]
    assert contents == [
        "Error: no such file",
        "Error: ",
        [said("Error: disk full"), said("x")],
        "e",
    ]


def test_images_of_a_result_follow_it():
    turn = user(result(content=[said("shot"), {"type": "image", "source": PNG}]), said("see?"))
    assert asked([turn])["messages"] == [
        {"role": "tool", "tool_call_id": "c1", "content": "shot"},
        {"role": "user", "content": [IMAGE, said("see?")]},
    ]


def test_assistants_blocks_in_a_row_are_one_message():
    sealed = {"type": "redacted_thinking", "data": "xyz"}
    foreign = {"type": "thinking", "thinking": "hm", "signature": "EqQBCg…"}
    turns = [
        USER,
        {"role": "assistant", "content": [foreign, sealed, said("I "), said("ask.")]},
        {"role": "assistant", "content": [use("c1", "f", a=1)]},
        {"role": "assistant", "content": " Wait."},
        user(result(content="ok")),
        {"role": "assistant", "content": "done"},
        USER,
    ]
    assert asked(turns)["messages"] == [
        USER,
        {
            "role": "assistant",
            "content": "I ask. Wait.",
            "reasoning_content": "hm",
            "tool_calls": [call("c1", "f", '{"a": 1}')],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
        {"role": "assistant", "content": "done"},
        USER,
    ]


@given(st.lists(st.tuples(st.text(min_size=1), st.text(min_size=1)), min_size=1, max_size=5))
def test_the_prompt_of_a_turn_begins_with_that_of_the_turn_before(turns):
    """What trainers need: a conversation only grows."""
    history, before = [USER], []
    for number, (thought, told) in enumerate(turns):
        message = {
            "role": "assistant",
            "content": thought,
            "tool_calls": [call(f"c{number}", "f", "{}")],
        }
        prompt = asked(history)["messages"]
        assert prompt[: len(before)] == before
        before = [*prompt, message]
        history += [
            {"role": "assistant", "content": blocks_of(message, "x")},
            user(result(f"c{number}", content=told)),
        ]
    assert asked(history)["messages"][:-1] == before


def test_earlier_messages_go_first():
    made = MessagesTranslator().prompt({"messages": [USER]}, [{"role": "system", "content": "s"}])
    assert made == [{"role": "system", "content": "s"}, USER]


TOOL = {
    "name": "f",
    "description": "does f",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "cache_control": {"type": "ephemeral"},
}


def test_tools_are_functions():
    strict = {"name": "g", "type": "custom", "input_schema": {"type": "object"}, "strict": True}
    strict["input_examples"] = [{"a": 1}]
    request = asked(tools=[TOOL, strict])
    assert request["tools"] == [
        {
            "type": "function",
            "function": {"name": "f", "description": "does f", "parameters": TOOL["input_schema"]},
        },
        {
            "type": "function",
            "function": {
                "name": "g",
                "parameters": {"type": "object", "examples": [{"a": 1}]},
                "strict": True,
            },
        },
    ]
    assert "tool_choice" not in request
    assert "tools" not in asked(tools=[], tool_choice={"type": "auto"})


@pytest.mark.parametrize(
    ("kind", "name", "arguments"),
    [
        ("bash_20250124", "bash", {"command": "ls"}),
        ("text_editor_20250728", "str_replace_based_edit_tool",
         {"command": "view", "path": "a", "view_range": [1, 9]}),
        ("memory_20250818", "memory", {"command": "rename", "old_path": "a", "new_path": "b"}),
    ],
)  # fmt: skip
def test_tools_that_claude_knows_are_described(kind, name, arguments):
    (tool,) = asked(tools=[{"type": kind, "name": name}])["tools"]
    function = tool["function"]
    assert function["name"] == name
    assert function["description"]
    jsonschema.validate(arguments, function["parameters"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"command": 1}, function["parameters"])


@pytest.mark.parametrize(
    ("choice", "fields"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        ({"type": "tool", "name": "f"}, {"tool_choice": {"type": "function", "function": {"name": "f"}}}),
        ({"type": "any", "disable_parallel_tool_use": True},
         {"tool_choice": "required", "parallel_tool_calls": False}),
    ],
)  # fmt: skip
def test_the_choice_of_tools(choice, fields):
    request = asked(tools=[TOOL], tool_choice=choice)
    names = ("tool_choice", "parallel_tool_calls")
    assert {name: request[name] for name in names if name in request} == fields


def test_effort_and_the_form_of_the_output():
    schema = {"type": "object", "properties": {}}
    output = {"effort": "xhigh", "format": {"type": "json_schema", "schema": schema}}
    request = asked(output_config=output, thinking={"type": "enabled", "budget_tokens": 2048})
    assert request["reasoning_effort"] == "high"
    assert request["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "output", "schema": schema, "strict": True},
    }
    assert "thinking" not in request


def bad_block(**block):
    return {"messages": [user(block)]}


def bad_turn(content, role="user"):
    return {"messages": [USER, {"role": role, "content": content}]}


WRONG = {
    "no messages": ({"messages": []}, r"`messages`: expected at least one message"),
    "messages that are no list": ({"messages": "hi"}, r"`messages`: expected a list of messages but got str"),
    "a message that is no object": ({"messages": [1]}, r"`messages\[0\]`: expected object but got int"),
    "a role": (bad_turn("x", "tool"), r"`messages\[1\]\.role`: expected .* but got 'tool'"),
    "no content": (bad_turn(None), r"`messages\[1\]\.content`: expected text or a list of blocks but got NoneType"),
    "prefill": (bad_turn("The answer is (", "assistant"), r"the last one is the assistant's.*speaks Anthropic Messages"),
    "a file": (
        bad_block(type="image", source={"type": "file", "file_id": "f"}),
        r"`messages\[0\]\.content\[0\]`: a block of type 'image' with a source of type 'file' cannot be put",
    ),
    "a PDF by address": (
        bad_block(type="document", source={"type": "url", "url": "u"}), r"'document' with a source of type 'url'"
    ),
    "an upload": (bad_block(type="container_upload", file_id="f"), r"type 'container_upload' cannot be put"),
    "a block in a result": (
        bad_block(type="tool_result", tool_use_id="a", content=[{"type": "tool_reference"}]),
        r"`messages\[0\]\.content\[0\]\.content\[0\]`: a block of type 'tool_reference'",
    ),
    "a result without its call": (bad_block(type="tool_result"), r"tool_use_id`: expected str but got NoneType"),
    "a text without text": (bad_block(type="text"), r"`messages\[0\]\.content\[0\]\.text`: expected str"),
    "a server's tool": (
        bad_turn([{"type": "server_tool_use", "id": "a", "name": "web_search", "input": {}}], "assistant"),
        r"type 'server_tool_use'",
    ),
    "input that is no object": (
        bad_turn([{**use("a", "f"), "input": "x"}], "assistant"), r"content\[0\]\.input`: expected dict but got str"
    ),
    "an image as system": ({"system": [{"type": "image", "source": PNG}]}, r"`system\[0\]`: a block of type 'image'"),
    "a web search": (
        {"tools": [TOOL, {"type": "web_search_20260318", "name": "web_search"}]},
        r"`tools\[1\]`: the tool 'web_search' of type 'web_search_20260318' cannot be given",
    ),
    "a computer": (
        {"tools": [{"type": "computer_toolset_20260801"}]},
        r"`tools\[0\]`: the tool 'computer_toolset_20260801' .* leave it out, or use an upstream",
    ),
    "a tool without a schema": ({"tools": [{"name": "f"}]}, r"`tools\[0\]\.input_schema`: expected an object"),
    "a tool without a name": ({"tools": [{"input_schema": {}}]}, r"`tools\[0\]`: expected an object with a `name`"),
    "tools that are no list": ({"tools": {}, "messages": [USER], "x": 1} | {"tools": "f"}, r"`tools`: expected a list"),
    "a choice": ({"tools": [TOOL], "tool_choice": "auto"}, r"`tool_choice`: expected an object of type"),
    "a choice without a name": ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, r"`tool` with a `name`"),
    "no bound": ({"max_tokens": None}, r"`max_tokens`: expected an integer of at least 1 but got None"),
    "a bound of none": ({"max_tokens": 0}, r"`max_tokens`.* got 0"),
    "stops": ({"stop_sequences": "END"}, r"`stop_sequences`: expected a list of texts but got 'END'"),
    "a container": ({"container": "c"}, r"`container` cannot be put"),
    "servers of tools": ({"mcp_servers": [{}]}, r"`mcp_servers` cannot be put"),
    "metadata": ({"metadata": "u"}, r"`metadata`: expected an object but got 'u'"),
    "an effort": ({"output_config": {"effort": "most"}}, r"`output_config.effort`: expected `low`, .* but got 'most'"),
    "a form": ({"output_config": {"format": {"type": "xml"}}}, r"`output_config.format`: expected an object"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_said_is_one_clear_error(what):
    fields, message = WRONG[what]
    with pytest.raises(ValueError, match=message):
        asked(**fields)


def test_tokens_are_counted_of_the_same_prompt():
    translator = MessagesTranslator()
    body = {
        "model": "m",
        "system": "s",
        "messages": [USER],
        "tools": [TOOL],
        "tool_choice": {"type": "any"},
    }
    asked_of = translator.tokenize(body)
    request = asked(system="s", tools=[TOOL])
    assert asked_of == {key: request[key] for key in ("model", "messages", "tools")}
    assert json.loads(translator.count(b'{"count": 12, "tokens": [1]}')) == {"input_tokens": 12}
    with pytest.raises(ValueError, match="no `count`"):
        translator.count(b'{"object": "error"}')


def test_a_reply_without_content_is_refused():
    with pytest.raises(ValueError, match="no `content`"):
        MessagesTranslator().message({"type": "error"})
