"""Chat replies in the shapes that servers send, as streams and whole, and what Anthropic Messages says of each."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
COUNTS = {
    "input_tokens": 11,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
    "output_tokens": 7,
}
DONE = b"data: [DONE]\n\n"
TOOLS = [
    {"name": name, "description": "d", "input_schema": {"type": "object", "properties": {}}}
    for name in ("f", "g", "h")
]
ROLE = {"role": "assistant", "content": ""}


def chunk(delta: dict[str, Any] | None, finish: str | None = None, **extra: Any) -> dict[str, Any]:
    """One event; extras beside `choices`, or of the choice where they are vLLM's."""
    of_choice = {
        k: extra.pop(k) for k in ("stop_reason", "matched_stop", "token_ids") if k in extra
    }
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, **of_choice}
    return {
        "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m-1",
        "choices": [] if delta is None else [choice], **extra,
    }  # fmt: skip


def wire(events: Iterable[Any], *, ascii_only: bool = False) -> bytes:
    """Events as they go over the wire; bytes as they are."""
    return b"".join(
        e if isinstance(e, bytes)
        else f"data: {json.dumps(e, ensure_ascii=ascii_only)}\n\n".encode()
        for e in events
    )  # fmt: skip


@dataclass
class Case:
    """One reply, and what the agent gets of it."""

    deltas: list[dict[str, Any]]
    """What the stream says, event by event."""
    message: dict[str, Any]
    """What the whole reply says."""
    content: list[dict[str, Any]]
    """The blocks."""
    finish: str = "stop"
    stop: str = "end_turn"
    sequence: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    """Of the choice that ends it."""
    usage: dict[str, Any] | None = field(default_factory=lambda: dict(USAGE))
    counts: dict[str, Any] = field(default_factory=lambda: dict(COUNTS))
    stops: list[str] = field(default_factory=list)
    raw: bytes | None = None
    """The stream where it is not plain events."""

    @property
    def stream(self) -> bytes:
        """The chat stream."""
        if self.raw is not None:
            return self.raw
        usage = [] if self.usage is None else [chunk(None, usage=self.usage)]
        said = [chunk(delta) for delta in self.deltas]
        return wire([*said, chunk({}, self.finish, **self.extra), *usage]) + DONE

    @property
    def whole(self) -> bytes:
        """The chat reply that is not a stream."""
        choice = {"index": 0, "message": {"role": "assistant", **self.message}, "logprobs": None}
        choice |= {"finish_reason": self.finish, **self.extra}
        body = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m-1"}
        return json.dumps({**body, "choices": [choice], "usage": self.usage}).encode()

    @property
    def request(self) -> dict[str, Any]:
        """A request that it may answer."""
        stops = {"stop_sequences": self.stops} if self.stops else {}
        messages = [{"role": "user", "content": "hi"}]
        return {"model": "m", "max_tokens": 99, "messages": messages, "tools": TOOLS, **stops}


def text(*pieces: str) -> list[dict[str, Any]]:
    return [ROLE, *({"content": piece} for piece in pieces)]


def said(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def thought(value: str, field: str = "reasoning_content") -> dict[str, Any]:
    return {"type": "thinking", "thinking": value, "signature": field}


def use(id_: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id_, "name": name, "input": arguments}


def call(id_: str, name: str, arguments: Any) -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def begun(index: int, id_: str, name: str, arguments: str = "") -> dict[str, Any]:
    return {"tool_calls": [{"index": index, **call(id_, name, arguments)}]}


def more(index: int, arguments: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}


def tools(*deltas: dict[str, Any], calls: list[Any], content: list[Any], **fields: Any) -> Case:
    return Case(
        [ROLE, *deltas], {"content": None, "tool_calls": calls}, content,
        **{"finish": "tool_calls", "stop": "tool_use", **fields},
    )  # fmt: skip


BROKEN = '{"a": "x", "b": oops}'
CUT = '{"path": "a.txt", "text": "once upon'
PLAIN = Case(text("Hel", "lo"), {"content": "Hello"}, [said("Hello")])

CASES: dict[str, Case] = {
    "text": PLAIN,
    "one piece": Case(text("Hello"), {"content": "Hello"}, [said("Hello")]),
    "the role comes with the first text": Case(
        [{"role": "assistant", "content": "Hi"}, {"content": "!"}], {"content": "Hi!"}, [said("Hi!")]
    ),
    "no role": Case([{"content": "Hi"}], {"content": "Hi"}, [said("Hi")]),
    "null content": Case(
        [{"role": "assistant", "content": None}, {"content": "Hi"}], {"content": "Hi"}, [said("Hi")]
    ),
    "empty": Case([ROLE], {"content": ""}, [said("")]),
    "nothing at all": Case([], {"content": None}, [said("")]),
    "only space": Case(text("\n", " "), {"content": "\n "}, [said("\n ")]),
    "many alphabets": Case(
        text("é‿", "日本", "👩‍👩‍👧", "\u2028\x7f"),
        {"content": "é‿日本👩‍👩‍👧\u2028\x7f"},
        [said("é‿日本👩‍👩‍👧\u2028\x7f")],
    ),
    "text that looks like events": Case(
        text("data: [DONE]\n\n", "event: x\r\n\r\ndata:{}"),
        {"content": "data: [DONE]\n\nevent: x\r\n\r\ndata:{}"},
        [said("data: [DONE]\n\nevent: x\r\n\r\ndata:{}")],
    ),
    "content as parts": Case(
        [{"role": "assistant", "content": [{"type": "text", "text": "a"}]}, {"content": "b"}], {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, [said("ab")]
    ),
    "length": Case(text("once upon"), {"content": "once upon"}, [said("once upon")], "length", "max_tokens"),
    "a stop sequence of vLLM's": Case(
        text("a"), {"content": "a"}, [said("a")], "stop", "stop_sequence", "END",
        extra={"stop_reason": "END"}, stops=["###", "END"],
    ),
    "a stop sequence of SGLang's": Case(
        text("a"), {"content": "a"}, [said("a")], "stop", "stop_sequence", "###",
        extra={"matched_stop": "###"}, stops=["###"],
    ),
    "a stop token": Case(
        text("a"), {"content": "a"}, [said("a")], extra={"stop_reason": 128009}, stops=["END"]
    ),
    "a stop of the server's own": Case(
        text("a"), {"content": "a"}, [said("a")], extra={"stop_reason": "</s>"}, stops=["END"]
    ),
    "a filter": Case(text("I"), {"content": "I"}, [said("I")], "content_filter", "refusal"),
    "a refusal": Case(
        [ROLE, {"refusal": "I "}, {"refusal": "can't."}],
        {"content": None, "refusal": "I can't."}, [said("I can't.")], "stop", "refusal",
    ),
    "no refusal": Case(
        [{**ROLE, "refusal": None}, {"content": "ok"}], {"content": "ok", "refusal": None}, [said("ok")]
    ),
    "no usage": Case(
        text("a"), {"content": "a"}, [said("a")], usage=None,
        counts={**COUNTS, "input_tokens": 0, "output_tokens": 0},
    ),
    "cached and reasoning tokens": Case(
        text("a"), {"content": "a"}, [said("a")],
        usage={
            **USAGE, "prompt_tokens_details": {"cached_tokens": 8},
            "completion_tokens_details": {"reasoning_tokens": 5},
        },
        counts={
            **COUNTS, "input_tokens": 3, "cache_read_input_tokens": 8,
            "output_tokens_details": {"thinking_tokens": 5},
        },
    ),
    "null details of usage": Case(
        text("a"), {"content": "a"}, [said("a")], usage={**USAGE, "prompt_tokens_details": None}
    ),
    "thinking": Case(
        [ROLE, {"reasoning_content": "let me "}, {"reasoning_content": "see"}, {"content": "42"}],
        {"content": "42", "reasoning_content": "let me see"}, [thought("let me see"), said("42")],
    ),
    "thinking in vLLM's newer field": Case(
        [ROLE, {"reasoning": "hm"}, {"content": "42"}],
        {"content": "42", "reasoning": "hm"}, [thought("hm", "reasoning"), said("42")],
    ),
    "thinking in both fields": Case(
        [ROLE, {"reasoning": "hm", "reasoning_content": "hm"}, {"content": "42"}],
        {"content": "42", "reasoning": "hm", "reasoning_content": "hm"}, [thought("hm"), said("42")],
    ),
    "thinking and text in one event": Case(
        [{**ROLE, "reasoning_content": "hm", "content": "42"}],
        {"content": "42", "reasoning_content": "hm"}, [thought("hm"), said("42")],
    ),
    "thinking alone": Case(
        [ROLE, {"reasoning_content": "hm"}],
        {"content": None, "reasoning_content": "hm"}, [thought("hm")], "length", "max_tokens",
    ),
    "thinking, text and a call": Case(
        [ROLE, {"reasoning_content": "hm"}, {"content": "I ask."}, begun(0, "c1", "f"), more(0, "{}")],
        {"content": "I ask.", "reasoning_content": "hm", "tool_calls": [call("c1", "f", "{}")]},
        [thought("hm"), said("I ask."), use("c1", "f")], "tool_calls", "tool_use",
    ),
    "a call": tools(
        begun(0, "c1", "f"), more(0, '{"a"'), more(0, ": [1, "), more(0, "2.5]"), more(0, ', "b": "x'),
        more(0, '\\n\\u00e9"'), more(0, "}"),
        calls=[call("c1", "f", '{"a": [1, 2.5], "b": "x\\n\\u00e9"}')],
        content=[use("c1", "f", a=[1, 2.5], b="x\né")],
    ),
    "a call at once": tools(
        begun(0, "c1", "f", '{"a": 1}'),
        calls=[call("c1", "f", '{"a": 1}')], content=[use("c1", "f", a=1)],
    ),
    "a call without arguments": tools(
        begun(0, "c1", "f"), calls=[call("c1", "f", "")], content=[use("c1", "f")]
    ),
    "a call with arguments that are an object": tools(
        {"tool_calls": [{"index": 0, **call("c1", "f", {"a": "é"})}]},
        calls=[call("c1", "f", {"a": "é"})], content=[use("c1", "f", a="é")],
    ),
    "a call that ends with `stop`": tools(
        begun(0, "c1", "f", "{}"), calls=[call("c1", "f", "{}")], content=[use("c1", "f")], finish="stop"
    ),
    "a call whose name comes late": tools(
        {"tool_calls": [{"index": 0, "id": "c1", "type": "function"}]},
        {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]},
        calls=[call("c1", "f", "{}")], content=[use("c1", "f")],
    ),
    "two calls one after the other": tools(
        begun(0, "c1", "f"), more(0, '{"a": '), more(0, "1}"), begun(1, "c2", "g"), more(1, '{"b": "2"}'),
        calls=[call("c1", "f", '{"a": 1}'), call("c2", "g", '{"b": "2"}')],
        content=[use("c1", "f", a=1), use("c2", "g", b="2")],
    ),
    "three calls interleaved": tools(
        begun(0, "c1", "f"), begun(1, "c2", "g", "{"), more(0, '{"x":'), begun(2, "c3", "h"), more(1, '"y":2'),
        more(2, '{"z":3}'), more(0, "1"), more(1, "}"), more(0, "}"),
        calls=[call("c1", "f", '{"x":1}'), call("c2", "g", '{"y":2}'), call("c3", "h", '{"z":3}')],
        content=[use("c1", "f", x=1), use("c2", "g", y=2), use("c3", "h", z=3)],
    ),
    "two whole calls under one index": tools(
        begun(0, "c1", "f", "{}"), begun(0, "c2", "g", "{}"),
        calls=[call("c1", "f", "{}"), call("c2", "g", "{}")], content=[use("c1", "f"), use("c2", "g")],
    ),
    "two calls in one event": tools(
        {"tool_calls": [{"index": i, **call(f"c{i}", "f", "{}")} for i in range(2)]},
        calls=[call("c0", "f", "{}"), call("c1", "f", "{}")], content=[use("c0", "f"), use("c1", "f")],
    ),
    "calls without ids": tools(
        {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]},
        {"tool_calls": [{"index": 1, "function": {"name": "g", "arguments": "{}"}}]},
        calls=[{"function": {"name": name, "arguments": "{}"}} for name in "fg"],
        content=[use("toolu_c0ffee_0", "f"), use("toolu_c0ffee_1", "g")],
    ),
    "a call cut by length": tools(
        begun(0, "c1", "f"), more(0, CUT[:9]), more(0, CUT[9:]),
        calls=[call("c1", "f", CUT)],
        content=[use("c1", "f", path="a.txt", text="once upon", INVALID_JSON=CUT)],
        finish="length", stop="max_tokens",
    ),
    "arguments that are no JSON": tools(
        begun(0, "c1", "f"), more(0, BROKEN[:12]), more(0, BROKEN[12:]),
        calls=[call("c1", "f", BROKEN)], content=[use("c1", "f", a="x", INVALID_JSON=BROKEN)],
    ),
    "arguments that are no object": tools(
        begun(0, "c1", "f", '"ls'), more(0, ' -l"'),
        calls=[call("c1", "f", '"ls -l"')], content=[use("c1", "f", INVALID_JSON='"ls -l"')],
    ),
    "carriage returns": Case(
        [], {"content": "Hello"}, [said("Hello")], raw=PLAIN.stream.replace(b"\n", b"\r\n")
    ),
    "comments": Case(
        [], {"content": "Hello"}, [said("Hello")],
        raw=b": OPENROUTER PROCESSING\n\n" + PLAIN.stream.replace(b"\n\n", b"\n\n: data: keep-alive\n\n", 2),
    ),
    "no space after the colon": Case(
        [], {"content": "Hello"}, [said("Hello")], raw=PLAIN.stream.replace(b"data: ", b"data:")
    ),
    "no blank line at the end": Case(
        [], {"content": "Hello"}, [said("Hello")], raw=PLAIN.stream.removesuffix(b"\n\n")
    ),
    "no end but a reason": Case(
        [], {"content": "Hello"}, [said("Hello")], raw=PLAIN.stream.removesuffix(DONE)
    ),
    "usage in every event": Case(
        [], {"content": "Hello"}, [said("Hello")],
        raw=wire(
            [
                chunk(ROLE, usage={**USAGE, "completion_tokens": 0}), chunk({"content": "Hello"}, usage=USAGE),
                chunk({}, "stop", usage=USAGE), chunk(None, usage=USAGE), DONE,
            ]
        ),
    ),
    "Azure's first event without choices": Case(
        [], {"content": "Hello"}, [said("Hello")],
        raw=wire([chunk(None, prompt_filter_results=[])]) + PLAIN.stream,
    ),
    "an empty finish and a null index all along": Case(
        [],
        {"content": "Hello"},
        [said("Hello")],
        raw=wire(
            [
                {"model": "m-1", "choices": [{"index": None, "delta": {"content": piece}, "finish_reason": ""}]}
                for piece in ("Hel", "lo")
            ]
            + [chunk({}, "stop"), chunk(None, usage=USAGE), DONE]
        ),
    ),
    "escaped surrogates": Case(
        [], {"content": "👩é"}, [said("👩é")],
        raw=wire([chunk({"content": "👩é"}), chunk({}, "stop"), chunk(None, usage=USAGE), DONE], ascii_only=True),
    ),
}  # fmt: skip


@dataclass
class Failing:
    """A stream that does not come to its end."""

    stream: bytes
    shown: str
    """The text that the agent has by then."""
    kind: str = "api_error"
    """The type of the error."""
    message: str = "ended before its reply"


_SOME = [chunk(delta) for delta in text("so ", "far")]
FAILING: dict[str, Failing] = {
    "an error in mid-stream": Failing(
        wire([*_SOME, {"error": {"message": "out of memory", "type": "server_error"}}]),
        "so far", "api_error", "out of memory",
    ),
    "an error with a status": Failing(
        wire([*_SOME, {"error": {"message": "busy", "code": 429}}, DONE]), "so far", "rate_limit_error", "busy"
    ),
    "an error that is a text": Failing(wire([{"error": "no such model"}]), "", "api_error", "no such model"),
    "an error after which more comes": Failing(
        wire([*_SOME, {"error": {"message": "x", "code": 503}}, chunk({"content": "!"}), DONE]),
        "so far", "overloaded_error", "x",
    ),
    "an event that is no JSON": Failing(
        wire([*_SOME, b"data: oops\n\n", DONE]), "so far", "api_error", "no chat event"
    ),
    "an event of another form": Failing(
        wire([*_SOME, {"choices": "oops"}, DONE]), "so far", "api_error", "no chat event"
    ),
    "a call of another form": Failing(
        wire([*_SOME, chunk({"tool_calls": ["oops"]}), DONE]), "so far", "api_error", "is no object"
    ),
    "arguments after their end": Failing(
        wire([chunk(begun(0, "c1", "f", "{}")), chunk(begun(1, "c2", "g", "{")), chunk(more(0, "}")), DONE]),
        "", "api_error", "went on with the tool call",
    ),
    "a cut between events": Failing(wire(_SOME), "so far"),
    "a cut within an event": Failing(wire([*_SOME, chunk({"content": "!"})])[:-30], "so far"),
}  # fmt: skip
