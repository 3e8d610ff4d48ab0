"""The official clients of Node see no difference between an upstream's own streams and what comes through the gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lightning_core.trace import Call

from .npm_asking import FORMATS, SHAPES, Question, ask_by_node, ask_by_python, plain, ways

pytestmark = pytest.mark.slow

PAIRS = [(name, format_) for name, shape in SHAPES.items() for format_ in shape.formats]
TRANSLATED = [
    (name, format_)
    for name, format_ in PAIRS
    if format_ != "chat" and SHAPES[name].formats == FORMATS
]
CHAT = [name for name, format_ in PAIRS if format_ == "chat"]
NOT_OF_THE_FORM = {
    "responses: no reason for the end",
    "messages: content as parts",
    "messages: a call with arguments that are an object",
    "messages: calls without ids",
}
"""Whole replies of which no stream can be made that the client reads."""
WHOLE = [name for name in CHAT if SHAPES[name].whole and name not in NOT_OF_THE_FORM]
CALLS = [name for name in CHAT if SHAPES[name].responses.get("tools")]


@dataclass(frozen=True)
class Seen:
    """What the clients made of the replies, by question."""

    own: dict[Question, Any]
    """Of the upstream's own."""
    observed: dict[Question, Any]
    """Through a gateway, of an upstream that speaks the format."""
    trained: dict[Question, Any]
    """Through a gateway, of a policy that gives token ids and speaks only chat completions."""
    remade: dict[Question, Any]
    """Through a gateway that makes the stream of a whole reply."""
    by_python: dict[Question, Any]
    """Of what `trained` has, by the clients of Python."""
    calls: list[Call]
    """The record of `trained` and `by_python`."""


def asked(format_: str) -> dict[str, list[Question]]:
    """The questions for each way."""
    helpers = [Question(name, each) for name, each in PAIRS if each == format_]
    every = [*helpers, *(replace(each, helper=False) for each in helpers)]
    if format_ == "chat":
        every += [replace(each, usage=False) for each in helpers]
        every += [Question(name, format_, strict=True) for name in CALLS]
        remade = [each for each in helpers if each.name in WHOLE]
        return {
            "own": every,
            "observed": every,
            "trained": every,
            "remade": remade,
            "by_python": [],
        }
    common = [each for each in every if (each.name, format_) in TRANSLATED]
    return {"own": every, "observed": every, "trained": common, "remade": [], "by_python": common}


async def see(format_: str, packages: Path) -> Seen:
    questions = asked(format_)
    by_python = questions.pop("by_python")
    async with ways() as to:
        lines = [(getattr(to, way), each) for way in questions for each in questions[way]]
        told = iter(await ask_by_node(packages.parent, lines))
        seen: Any = {way: {each: next(told) for each in questions[way]} for way in questions}
        of_python = zip(by_python, await ask_by_python(to.trained, by_python), strict=True)
        return Seen(**seen, by_python=dict(of_python), calls=await to.site.calls("t.1"))


@pytest.fixture(scope="module")
def seen(npm_packages: Path) -> Callable[[str], Seen]:
    """What was seen of a format; each is asked for once, by one process of Node."""

    @cache
    def of(format_: str) -> Seen | Exception:
        try:
            return asyncio.run(see(format_, npm_packages))
        except Exception as error:
            return error

    def found(format_: str) -> Seen:
        if isinstance(said := of(format_), Exception):
            raise said
        return said

    return found


def of_name(told: dict[Question, Any], name: str) -> dict[Question, Any]:
    return {each: said for each, said in told.items() if each.name == name}


@pytest.mark.parametrize(("name", "format_"), PAIRS)
def test_a_stream_through_the_gateway_is_the_upstreams_own(name, format_, seen):
    own = of_name(seen(format_).own, name)
    assert of_name(seen(format_).observed, name) == own
    for told in own.values():  # The upstream of the tests did its part.
        expected = SHAPES[name].status
        assert told.get("error", {}).get("class") != "APIConnectionError"
        assert told.get("error", {}).get("status") == (None if expected == 200 else expected)


@pytest.mark.parametrize("name", CHAT)
def test_a_chat_stream_whose_token_ids_are_captured_is_the_upstreams_own(name, seen):
    assert of_name(seen("chat").trained, name) == of_name(seen("chat").own, name)


@pytest.mark.parametrize(
    ("name", "format_"), [pair for pair in TRANSLATED if SHAPES[pair[0]].status == 200]
)
def test_a_translated_stream_is_the_same_with_token_ids_behind_it(name, format_, seen):
    trained, own = seen(format_).trained, seen(format_).own
    assert plain(list(of_name(trained, name).values())) == plain(list(of_name(own, name).values()))


@pytest.mark.parametrize(("name", "format_"), TRANSLATED)
def test_a_translated_reply_says_to_node_what_it_says_to_python(name, format_, seen):
    loop, helper = Question(name, format_, helper=False), Question(name, format_)
    node = {each: plain(seen(format_).trained[each]) for each in (loop, helper)}
    python = {each: plain(seen(format_).by_python[each]) for each in (loop, helper)}
    assert node[loop]["events"] == python[loop]["events"]
    for each in (loop, helper):
        assert body_of(node[each]) == body_of(python[each])
    if SHAPES[name].status != 200:
        assert node[helper]["error"]["class"] == python[helper]["error"]["class"]
    if SHAPES[name].broken_off:
        assert "error" in node[helper]
    if SHAPES[name].whole is not None:
        wanted = json.loads(SHAPES[name].whole)["choices"][0]["message"]
        assert said(node[helper]["final"]) == said(wanted)
    if "final" in python[helper]:
        assert node[helper]["final"] == python[helper]["final"]
    else:
        assert "error" in node[helper]


@pytest.mark.parametrize("format_", FORMATS[1:])
@pytest.mark.parametrize(("name", "shape"), [("a text", "text"), ("a call", "a call")])
def test_a_translated_stream_has_the_events_of_a_providers_own(name, shape, format_, seen):
    """Each with the fields that the provider's have."""
    own = seen(format_).own[Question(f"{format_} themselves: {name}", format_, helper=False)]
    translated = seen(format_).trained[Question(f"responses: {shape}", format_, helper=False)]
    wanted, found = (kinds(told["events"]) for told in (own, translated))
    assert list(found) == list(wanted)
    for kind, fields in wanted.items():
        assert fields <= found[kind], kind


@pytest.mark.parametrize("name", WHOLE)
def test_a_stream_that_is_made_of_a_whole_reply_says_the_same(name, seen):
    final = plain(seen("chat").remade[Question(name, "chat")]["final"])
    wanted = plain(json.loads(SHAPES[name].whole))
    for choice in (final["choices"][0], wanted["choices"][0]):
        choice["message"] = {key: said for key, said in choice["message"].items() if said}
    assert final == wanted


def kinds(events: list[dict[str, Any]]) -> dict[str, set[str]]:
    """The kinds of events in the order in which they come first, with their fields."""
    return {each["type"]: set(each) for each in events if each["type"] != "ping"}


def said(reply: dict[str, Any]) -> tuple[str, list[Any]]:
    """The text of a reply in any of the formats, and its calls: names, and arguments that are an object."""
    text, calls = "", []
    content = reply.get("output") or reply.get("content") or []
    for item in [{"text": content}] if isinstance(content, str) else content:
        kind = item.get("type")
        if kind == "message":
            text += said(item)[0]
        elif kind == "function_call":
            calls.append((item["name"], object_of(item["arguments"])))
        elif kind == "tool_use":
            calls.append((item["name"], object_of(json.dumps(item["input"]))))
        elif kind != "reasoning":
            text += item.get("text") or item.get("refusal") or ""
    for call in reply.get("tool_calls") or ():
        arguments = call["function"]["arguments"]
        text_of = arguments if isinstance(arguments, str) else json.dumps(arguments)
        calls.append((call["function"]["name"], object_of(text_of)))
    return text + (reply.get("refusal") or ""), calls


def object_of(arguments: str) -> Any:
    try:
        value = json.loads(arguments or "{}")
    except ValueError:
        return None
    return value if isinstance(value, dict) and "INVALID_JSON" not in value else None


def body_of(told: dict[str, Any]) -> Any:
    return told.get("error", {}).get("body")


@pytest.mark.parametrize("format_", FORMATS)
def test_token_ids_were_captured_meanwhile(format_, seen):
    calls = [call for call in seen(format_).calls if call.complete and call.choices]
    with_ids = [call for call in calls if call.choices[0].token_ids]
    assert len(calls) > len(CHAT)
    assert len(with_ids) > len(CHAT)
