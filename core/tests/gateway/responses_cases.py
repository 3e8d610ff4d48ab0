"""Replies of chat completions as servers give them, whole and streamed, and what they say in the end.

The shapes are those of OpenAI, Azure, vLLM and servers like them; the texts are our own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from .conftest import USAGE, chunk, event

DONE = event("[DONE]")
FUNCTION = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False}
TOOLS = {"tools": [FUNCTION, {**FUNCTION, "name": "sub"}]}
LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
FULL_USAGE = {
    "prompt_tokens": 30,
    "completion_tokens": 20,
    "total_tokens": 50,
    "prompt_tokens_details": {"cached_tokens": 16},
    "completion_tokens_details": {"reasoning_tokens": 12},
}


@dataclass(frozen=True)
class Case:
    """One reply."""

    name: str
    stream: bytes
    """What the upstream sends where a stream is asked for."""
    message: dict[str, Any] = field(default_factory=dict)
    """What it says: the fields of a message beside `role`, those without a value left out."""
    finish_reason: str | None = "stop"
    usage: dict[str, Any] | None = field(default_factory=lambda: USAGE)
    logprobs: list[dict[str, Any]] | None = None
    request: dict[str, Any] = field(default_factory=dict)
    """What the agent asks for beside its input."""
    status: str = "completed"
    """Of the response in the end."""
    error: str | None = None
    """What went wrong."""
    in_order: bool = True
    """Whether what is streamed comes in the order of a whole reply: reasoning, text, calls."""

    @property
    def body(self) -> bytes | None:
        """The same as a whole reply; None where that cannot be."""
        if self.error is not None:
            return None
        choice = {
            "index": 0,
            "message": {"role": "assistant", "refusal": None, "tool_calls": [], **self.message},
            "logprobs": self.logprobs and {"content": self.logprobs},
            "finish_reason": self.finish_reason,
        }
        body = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m-1"}
        return json.dumps({**body, "choices": [choice], "usage": self.usage}).encode()

    @property
    def said(self) -> dict[str, Any]:
        """The message as a later request has it; an empty text beside something else is as good as none."""
        said = {"role": "assistant", "content": None, **self.message}
        if not said["content"] and (said.get("tool_calls") or said.get("refusal")):
            said["content"] = None
        return said


def piece(delta: dict[str, Any] | None = None, finish: str | None = None, **extra: Any) -> bytes:
    return event(chunk(delta, finish=finish, **extra))


def streamed(*deltas: dict[str, Any], finish: str | None = "stop", usage: Any = USAGE) -> bytes:
    """A stream as OpenAI's is: role, pieces, end, token counts."""
    pieces = [piece({"role": "assistant", "content": ""}), *map(piece, deltas), piece({}, finish)]
    if usage is not None:
        pieces.append(piece(None, usage=usage))
    return b"".join([*pieces, DONE])


def words(text: str, name: str = "content") -> list[dict[str, Any]]:
    return [{name: word} for word in text.split("|")]


def tool(number: int | None, arguments: str, id_: str | None = None, name: str | None = None):
    """A piece of a call, as in a delta's `tool_calls`."""
    function = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
    head = {} if id_ is None else {"id": id_, "type": "function"}
    place = {} if number is None else {"index": number}
    return {**place, **head, "function": function}


def tools(*pieces: dict[str, Any]) -> dict[str, Any]:
    return {"tool_calls": list(pieces)}


def call(id_: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def logprob(token: str, value: float) -> dict[str, Any]:
    top = [{"token": token, "bytes": list(token.encode()), "logprob": value}]
    return {"token": token, "logprob": value, "bytes": list(token.encode()), "top_logprobs": top}


TWO = [call("c1", "add", '{"a":1}'), call("c2", "sub", '{"b":2}')]
_HI = {"content": "Hi there"}
_HI_DELTAS = words("Hi| there")
_LOGPROBS = [logprob("Hi", -0.5), logprob(" there", -0.25), logprob("<end>", -0.125)]


def _with_logprobs(number: int, delta: dict[str, Any], finish: str | None = None) -> bytes:
    value = chunk(delta, finish=finish)
    value["choices"][0]["logprobs"] = {"content": [_LOGPROBS[number]]}
    return event(value)


def _called(
    name: str, *deltas: dict[str, Any], calls: Any, content: Any = "", **extra: Any
) -> Case:
    """A case of calls."""
    finish = extra.pop("finish_reason", "tool_calls")
    return Case(
        name,
        streamed(*deltas, finish=finish),
        {"content": content, "tool_calls": calls},
        finish_reason=finish,
        request=TOOLS,
        **extra,
    )


def _text(name: str, stream: bytes, text: str | None = "Hi there", **extra: Any) -> Case:
    return Case(name, stream, {"content": text}, **extra)


_RAW = streamed(*_HI_DELTAS)
_BEGUN = b"".join(map(piece, _HI_DELTAS))

CASES: list[Case] = [
    # Text
    _text("text", _RAW),
    _text("text in one piece", streamed(_HI)),
    _text("a letter at a time", streamed(*words("|".join("Hi there")))),
    _text("no role first", _BEGUN + piece({}, "stop") + piece(None, usage=USAGE) + DONE),
    _text("role with the first text", piece({"role": "assistant", "content": "Hi"})
          + piece({"content": " there"}, "stop") + piece(None, usage=USAGE) + DONE),
    _text("empty", streamed(), ""),
    _text("empty pieces", streamed(*words("|Hi|| there|"))),
    _text("null content", piece({"role": "assistant", "content": None}) + piece({}, "stop") + DONE,
          None, usage=None),
    _text("white space alone", streamed(*words("\n|\n ")), "\n\n "),
    _text("unicode", streamed(*words("né|e 数|学 👩‍👩‍👧|\u200d🇩🇪")), "née 数学 👩‍👩‍👧\u200d🇩🇪"),
    _text("unicode as it is", b"".join(
        event(json.dumps(chunk({"content": text}), ensure_ascii=False)) for text in ("数学", "é👍"))
        + piece({}, "stop") + piece(None, usage=USAGE) + DONE, "数学é👍"),
    _text("what JSON escapes", streamed(*words('"\\|\n\r\t|\u0000\u2028')), '"\\\n\r\t\u0000\u2028'),
    _text("a long text", streamed(*[{"content": f"word{n} "} for n in range(400)]),
          "".join(f"word{n} " for n in range(400))),
    _text("like an event", streamed(*words("data: [DONE]|\n\n|data: {}")), "data: [DONE]\n\ndata: {}"),
    # The frame
    _text("an end with the last text", piece({"content": "Hi"}) + piece({"content": " there"}, "stop")
          + piece(None, usage=USAGE) + DONE),
    _text("no token counts", streamed(*_HI_DELTAS, usage=None), usage=None),
    _text("detailed token counts", streamed(*_HI_DELTAS, usage=FULL_USAGE), usage=FULL_USAGE),
    _text("token counts in each event", piece({"content": "Hi there"}, usage={**USAGE, "completion_tokens": 1})
          + piece({}, "stop", usage=USAGE) + DONE),
    _text("no choices first", piece(None, prompt_filter_results=[]) + _RAW),
    _text("comments", b": processing\n\n" + _RAW.replace(b"\n\n", b"\n\n: keep-alive\n\n")),
    _text("CRLF", _RAW.replace(b"\n", b"\r\n")),
    _text("CR", _RAW.replace(b"\n", b"\r")),
    _text("no space after the colon", _RAW.replace(b"data: ", b"data:")),
    _text("names and ids of events", _RAW.replace(b"data: ", b"event: message\nid: 7\ndata: ")),
    _text("data over several lines", _RAW.replace(b'"choices":', b'\ndata: "choices":')),
    _text("no end but a reason", _RAW.replace(DONE, b"")),
    _text("an end without its blank line", _RAW.removesuffix(b"\n\n")),
    _text("no reason for the end", _BEGUN + DONE, finish_reason=None, usage=None),
    _text("a second choice", _BEGUN + event(chunk({"content": "no"}, index=1)) + piece({}, "stop")
          + piece(None, usage=USAGE) + DONE),
    # Tools
    _called("a call", tools(tool(0, "", "c1", "add")), tools(tool(0, '{"a"')), tools(tool(0, ":1}")),
            calls=TWO[:1]),
    _called("a whole call", tools(tool(0, '{"a":1}', "c1", "add")), calls=TWO[:1]),
    _called("calls in turn", tools(tool(0, "", "c1", "add")), tools(tool(0, '{"a":1}')),
            tools(tool(1, "", "c2", "sub")), tools(tool(1, '{"b":2}')), calls=TWO),
    _called("calls interleaved", tools(tool(0, '{"a"', "c1", "add")), tools(tool(1, "{", "c2", "sub")),
            tools(tool(0, ":1}")), tools(tool(1, '"b":2}')), calls=TWO),
    _called("calls in one piece", tools(tool(0, '{"a":1}', "c1", "add"), tool(1, '{"b":2}', "c2", "sub")),
            calls=TWO),
    _called("whole calls of one index", tools(tool(0, '{"a":1}', "c1", "add")),
            tools(tool(0, '{"b":2}', "c2", "sub")), calls=TWO),
    _called("whole calls of no index", tools(tool(None, '{"a":1}', "c1", "add")),
            tools(tool(None, '{"b":2}', "c2", "sub")), calls=TWO),
    _called("a name that comes late", tools({"index": 0, "id": "c1", "type": "function"}),
            tools(tool(0, '{"a"')), tools(tool(0, "", None, "add")), tools(tool(0, ":1}")), calls=TWO[:1]),
    _called("a call without arguments", tools(tool(0, "", "c1", "add")), calls=[call("c1", "add", "")]),
    _called("arguments that are no JSON", tools(tool(0, "{'a'", "c1", "add")),
            calls=[call("c1", "add", "{'a'")]),
    _called("a call that ends in `stop`", tools(tool(0, '{"a":1}', "c1", "add")), calls=TWO[:1],
            finish_reason="stop"),
    _called("text and a call", *_HI_DELTAS, tools(tool(0, '{"a":1}', "c1", "add")), calls=TWO[:1],
            content="Hi there"),
    _called("text after a call", {"content": "Hi"}, tools(tool(0, '{"a":1}', "c1", "add")),
            {"content": " there"}, calls=TWO[:1], content="Hi there", in_order=False),
    # Refusals and reasoning
    Case("a refusal", streamed(*words("I |will not", "refusal")), {"content": None, "refusal": "I will not"}),
    Case("text and a refusal", streamed(*_HI_DELTAS, {"refusal": "no"}), {**_HI, "refusal": "no"}),
    Case("reasoning", streamed(*words("Hm|, 数", "reasoning_content"), *_HI_DELTAS),
         {**_HI, "reasoning_content": "Hm, 数"}),
    Case("reasoning by its other name", streamed(*words("Hm|, so", "reasoning"), *_HI_DELTAS),
         {**_HI, "reasoning": "Hm, so"}),
    Case("reasoning beside null content",
         b"".join(piece({"reasoning_content": text, "content": None}) for text in ("Hm", ", so"))
         + _BEGUN + piece({}, "stop") + piece(None, usage=USAGE) + DONE,
         {**_HI, "reasoning_content": "Hm, so"}),
    Case("reasoning and text in one piece", streamed({"reasoning_content": "Hm", "content": "Hi there"}),
         {**_HI, "reasoning_content": "Hm"}),
    Case("reasoning and calls", streamed({"reasoning_content": "Hm"}, tools(tool(0, '{"a":1}', "c1", "add")),
         finish="tool_calls"), {"content": None, "reasoning_content": "Hm", "tool_calls": TWO[:1]},
         finish_reason="tool_calls", request=TOOLS),
    Case("reasoning that comes back", streamed({"reasoning_content": "Hm"}, {"content": "Hi"},
         {"reasoning_content": ", so"}, {"content": " there"}), {**_HI, "reasoning_content": "Hm, so"},
         in_order=False),
    # Ends
    _text("length", streamed(*_HI_DELTAS, finish="length"), finish_reason="length", status="incomplete"),
    Case("length within reasoning", streamed({"reasoning_content": "Hm"}, finish="length"),
         {"content": "", "reasoning_content": "Hm"}, finish_reason="length", status="incomplete"),
    _called("length within a call", tools(tool(0, '{"a":1}', "c1", "add")), tools(tool(1, '{"b"', "c2", "sub")),
            calls=[TWO[0], call("c2", "sub", '{"b"')], finish_reason="length", status="incomplete"),
    _text("a content filter", streamed(*_HI_DELTAS, finish="content_filter"),
          finish_reason="content_filter", status="incomplete"),
    _text("a content filter before any text", streamed(finish="content_filter"), "",
          finish_reason="content_filter", status="incomplete"),
    _text("given up by the engine", streamed(*_HI_DELTAS, finish="abort"), finish_reason="abort",
          status="failed"),
    # Log-probabilities
    Case("log-probabilities", _with_logprobs(0, {"role": "assistant", "content": "Hi"})
         + _with_logprobs(1, {"content": " there"}) + _with_logprobs(2, {}, "stop")
         + piece(None, usage=USAGE) + DONE, _HI, logprobs=_LOGPROBS, request=LOGPROBS),
    Case("log-probabilities before the text", _with_logprobs(0, {"role": "assistant", "content": ""})
         + _with_logprobs(1, {"content": "Hi there"}) + _with_logprobs(2, {}, "stop")
         + piece(None, usage=USAGE) + DONE, _HI, logprobs=_LOGPROBS, request=LOGPROBS),
    # What goes wrong
    Case("an error within the stream", _BEGUN + event({"error": {"message": "out of memory", "code": 500}}),
         _HI, status="failed", error="out of memory"),
    Case("an error and the end", _BEGUN + event({"error": {"message": "out of memory"}}) + DONE, _HI,
         status="failed", error="out of memory"),
    Case("an error at once", event({"error": "too many requests"}), status="failed", error="too many requests"),
    Case("an error of another form", _BEGUN + event({"object": "error", "message": "bad grammar", "code": 400}),
         _HI, status="failed", error="bad grammar"),
    Case("an error within a call", piece(tools(tool(0, '{"a"', "c1", "add"))) + event({"error": {"message": "oh"}}),
         {"tool_calls": [call("c1", "add", '{"a"')]}, status="failed", error="oh", request=TOOLS),
    Case("no JSON", _BEGUN + event("oops") + piece({}, "stop") + DONE, _HI, status="failed",
         error="none of chat completions"),
    Case("no event of chat completions", event({"choices": 3}) + DONE, status="failed",
         error="none of chat completions"),
    Case("nothing but an end", DONE, status="failed", error="without a choice"),
    Case("cut between events", _BEGUN, _HI, status="failed", error="ended before its reply"),
    Case("cut within an event", _BEGUN + piece({"content": " lost"})[:-20], _HI, status="failed",
         error="ended before its reply"),
    Case("cut before its first event", b"", status="failed", error="ended before its reply"),
]  # fmt: skip
