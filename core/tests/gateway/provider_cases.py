"""Streams in the shapes that providers send and no translation makes: OpenAI's Responses and Anthropic's Messages."""

from __future__ import annotations

import json
from typing import Any

# OpenAI ----------------------------------------------------------------------------------------------------------------

USAGE = {
    "input_tokens": 9, "output_tokens": 8, "total_tokens": 17, "input_tokens_details": {"cached_tokens": 0},
    "output_tokens_details": {"reasoning_tokens": 4},
}  # fmt: skip


def response(status: str, *output: dict[str, Any], **fields: Any) -> dict[str, Any]:
    kept = {"id": "resp_1", "object": "response", "created_at": 1, "model": "gpt-1", "error": None}
    kept |= {"incomplete_details": None, "parallel_tool_calls": True, "tool_choice": "auto"}
    return {**kept, "tools": [], "status": status, "output": list(output), **fields}


def responses(*events: dict[str, Any]) -> bytes:
    """A stream of OpenAI's, with its numbers."""
    begun = [{"type": f"response.{kind}", "response": response("in_progress")} for kind in ("created", "in_progress")]  # fmt: skip
    return wire({**event, "sequence_number": at} for at, event in enumerate([*begun, *events]))


def wire(events: Any) -> bytes:
    lines = (
        f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}" for event in events
    )
    return "".join(f"{line}\n\n" for line in lines).encode()


def added(at: int, item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.output_item.added", "output_index": at, "item": item}


def done(at: int, item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": at, "item": item}


def part(kind: str, value: dict[str, Any], at: int = 0) -> dict[str, Any]:
    where = {"item_id": "msg_1", "output_index": at, "content_index": 0}
    return {"type": f"response.content_part.{kind}", **where, "part": value}


def of_text(kind: str, at: int = 0, **fields: Any) -> dict[str, Any]:
    where = {"item_id": "msg_1", "output_index": at, "content_index": 0}
    return {"type": f"response.output_text.{kind}", **where, **fields}


def text(value: str, *annotations: dict[str, Any]) -> dict[str, Any]:
    return {"type": "output_text", "text": value, "annotations": list(annotations), "logprobs": []}


def message(status: str, *content: dict[str, Any]) -> dict[str, Any]:
    return {"id": "msg_1", "type": "message", "status": status, "role": "assistant", "content": list(content)}  # fmt: skip


def _summary(kind: str, **fields: Any) -> dict[str, Any]:
    where = {"item_id": "rs_1", "output_index": 0, "summary_index": 0}
    return {"type": f"response.reasoning_summary_{kind}", **where, **fields}


def _custom(kind: str, **fields: Any) -> dict[str, Any]:
    where = {"item_id": "ctc_1", "output_index": 0}
    return {"type": f"response.custom_tool_call_input.{kind}", **where, **fields}


_BEGUN = (
    added(0, message("in_progress")),
    part("added", text("")),
    of_text("delta", delta="Hé", logprobs=[]),
)
_REASONING = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "gA=="}
_THOUGHT = {**_REASONING, "summary": [{"type": "summary_text", "text": "Hm, 数"}]}
_SEARCH = {"id": "ws_1", "type": "web_search_call", "status": "in_progress"}
_SEARCHED = {**_SEARCH, "status": "completed", "action": {"type": "search", "query": "q"}}
_CITED = {"type": "url_citation", "start_index": 0, "end_index": 2, "title": "T", "url": "https://x.example/"}  # fmt: skip
_CUSTOM = {"id": "ctc_1", "type": "custom_tool_call", "status": "in_progress", "call_id": "c1", "name": "sh", "input": ""}  # fmt: skip

_CALL = {"id": "fc_1", "type": "function_call", "status": "in_progress", "call_id": "c1", "name": "add", "arguments": ""}  # fmt: skip
_CALLED = {**_CALL, "status": "completed", "arguments": '{"a":1}'}
_ARGUMENTS = {"item_id": "fc_1", "output_index": 0}

RESPONSES: dict[str, bytes] = {
    "a text": responses(
        *_BEGUN,
        of_text("delta", delta="!", logprobs=[]),
        of_text("done", text="Hé!", logprobs=[]),
        part("done", text("Hé!")),
        done(0, message("completed", text("Hé!"))),
        {"type": "response.completed", "response": response("completed", message("completed", text("Hé!")), usage=USAGE)},
    ),
    "a call": responses(
        added(0, _CALL),
        *({"type": "response.function_call_arguments.delta", **_ARGUMENTS, "delta": delta} for delta in ('{"a"', ":1}")),
        {"type": "response.function_call_arguments.done", **_ARGUMENTS, "arguments": '{"a":1}'},
        done(0, _CALLED),
        {"type": "response.completed", "response": response("completed", _CALLED, usage=USAGE)},
    ),
    "a summary of reasoning": responses(
        added(0, _REASONING),
        _summary("part.added", part={"type": "summary_text", "text": ""}),
        *(_summary("text.delta", delta=delta, obfuscation="x1Yz") for delta in ("Hm", ", 数")),
        _summary("text.done", text="Hm, 数"),
        _summary("part.done", part=_THOUGHT["summary"][0]),
        done(0, _THOUGHT),
        added(1, message("in_progress")),
        part("added", text(""), 1),
        of_text("delta", 1, delta="Hi", logprobs=[], obfuscation="aB3"),
        of_text("done", 1, text="Hi", logprobs=[]),
        part("done", text("Hi"), 1),
        done(1, message("completed", text("Hi"))),
        {"type": "response.completed", "response": response("completed", _THOUGHT, message("completed", text("Hi")), usage=USAGE)},
    ),
    "a search and a citation": responses(
        added(0, _SEARCH),
        *({"type": f"response.web_search_call.{kind}", "output_index": 0, "item_id": "ws_1"}
          for kind in ("in_progress", "searching", "completed")),
        done(0, _SEARCHED),
        added(1, message("in_progress")),
        part("added", text(""), 1),
        of_text("delta", 1, delta="Hi", logprobs=[]),
        of_text("annotation.added", 1, annotation_index=0, annotation=_CITED),
        of_text("done", 1, text="Hi", logprobs=[]),
        part("done", text("Hi", _CITED), 1),
        done(1, message("completed", text("Hi", _CITED))),
        {"type": "response.completed", "response": response("completed", _SEARCHED, message("completed", text("Hi", _CITED)), usage=USAGE)},
    ),
    "a call of a tool of free text": responses(
        added(0, _CUSTOM),
        _custom("delta", delta="ls"),
        _custom("delta", delta=" -l\n"),
        _custom("done", input="ls -l\n"),
        done(0, {**_CUSTOM, "status": "completed", "input": "ls -l\n"}),
        {"type": "response.completed", "response": response("completed", {**_CUSTOM, "status": "completed", "input": "ls -l\n"}, usage=USAGE)},
    ),
    "a response that is incomplete": responses(
        *_BEGUN,
        {"type": "response.incomplete", "response": response("incomplete", message("incomplete", text("Hé")), usage=USAGE, incomplete_details={"reason": "max_output_tokens"})},
    ),
    "a response that failed": responses(
        *_BEGUN,
        {"type": "response.failed", "response": response("failed", error={"code": "server_error", "message": "oh"})},
    ),
    "an event of an error": responses(
        *_BEGUN, {"type": "error", "code": "rate_limit_exceeded", "message": "slow down", "param": None}
    ),
    "an event of an error in the form of a refusal": responses(
        *_BEGUN, {"type": "error", "error": {"type": "server_error", "code": "server_error", "message": "oh", "param": None}}
    ),
    "an event of a kind yet unknown": responses(
        *_BEGUN, {"type": "response.hologram.delta", "output_index": 0, "delta": "~"},
        {"type": "response.completed", "response": response("completed", message("completed", text("Hé")), usage=USAGE)},
    ),
}  # fmt: skip

# Anthropic -------------------------------------------------------------------------------------------------------------


def messages(*events: dict[str, Any], stop: str | None = "end_turn") -> bytes:
    """A stream of Anthropic's; without its end where there is no reason for one."""
    begun = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-1",
        "content": [],
    }
    begun |= {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 9, "output_tokens": 1}}  # fmt: skip
    delta = {"stop_reason": stop, "stop_sequence": None}
    end = [{"type": "message_delta", "delta": delta, "usage": {"output_tokens": 8}}, {"type": "message_stop"}]  # fmt: skip
    start = [{"type": "message_start", "message": begun}, {"type": "ping"}]
    return wire([*start, *events, *(end if stop else [])])


def block(at: int, begun: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": at, "content_block": begun},
        *({"type": "content_block_delta", "index": at, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": at},
    ]


def error(kind: str, what: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": what}, "request_id": "req_1"}


_TEXT = {"type": "text", "text": ""}
_SAID = [{"type": "text_delta", "text": piece} for piece in ("Hé", "llo 数")]
_USE = {"id": "srvtoolu_1", "name": "web_search", "input": {}}
_PLACE = {"type": "web_search_result_location", "url": "https://x.example/", "title": "T", "encrypted_index": "E", "cited_text": "c"}  # fmt: skip
_FOUND = {"type": "web_search_result", "url": "https://x.example/", "title": "T", "encrypted_content": "E", "page_age": None}  # fmt: skip

MESSAGES: dict[str, bytes] = {
    "a text": messages(*block(0, _TEXT, *_SAID)),
    "a call": messages(
        *block(0, {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {}},
               {"type": "input_json_delta", "partial_json": '{"a"'}, {"type": "input_json_delta", "partial_json": ":1}"}),
        stop="tool_use",
    ),
    "thinking with its signature": messages(
        *block(0, {"type": "thinking", "thinking": "", "signature": ""},
               {"type": "thinking_delta", "thinking": "Hm"}, {"type": "thinking_delta", "thinking": ", 数"},
               {"type": "signature_delta", "signature": "EqQB=="}),
        {"type": "ping"},
        *block(1, {"type": "redacted_thinking", "data": "Em=="}),
        *block(2, _TEXT, *_SAID),
    ),
    "a search and its citation": messages(
        *block(0, {"type": "server_tool_use", **_USE}, {"type": "input_json_delta", "partial_json": ""},
               {"type": "input_json_delta", "partial_json": '{"query": "q\\u00e9"}'}),
        *block(1, {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [_FOUND]}),
        *block(2, {**_TEXT, "citations": []}, {"type": "citations_delta", "citation": _PLACE}, *_SAID),
    ),
    "a turn that pauses": messages(*block(0, _TEXT, *_SAID), stop="pause_turn"),
    "a turn that is refused": messages(*block(0, _TEXT, *_SAID), stop="refusal"),
    "an overload in mid-stream": messages(
        *block(0, _TEXT, *_SAID)[:2], error("overloaded_error", "Overloaded"), stop=None
    ),
    "an overload at once": wire([error("overloaded_error", "Overloaded")]),
    "a stream that ends early": messages(*block(0, _TEXT, *_SAID)[:2], stop=None),
    "an event and a block of kinds yet unknown": messages(
        {"type": "hologram"}, *block(0, {"type": "hologram", "data": "~"}), *block(1, _TEXT, *_SAID)
    ),
}  # fmt: skip
