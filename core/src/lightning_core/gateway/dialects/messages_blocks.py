"""An assistant's message in chat completions and as the content blocks of Anthropic Messages, and what is said of its end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lightning_core.gateway.dialects.messages_arguments import input_of, text_of
from lightning_core.gateway.dialects.translation import Message

Block = dict[str, Any]
"""A content block."""
REASONING = ("reasoning_content", "reasoning")
"""Where servers put what the model thought, in a message or a delta."""
_SAID_BY_CHAT = frozenset({"text", "thinking", "tool_use"})
_FINISHES = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_STOPS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
_NO_TOKENS = {
    "input_tokens": 0,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
    "output_tokens": 0,
}


def blocks_of(message: Mapping[str, Any], call_id: str) -> list[Block]:
    """The content blocks that say what an assistant's message says.

    `message_of` makes the same message of them again, but for the spelling of JSON arguments, for refusals, which become
    text, and for empty content beside something else, which becomes None. A thinking block's signature names the field that
    it came from. A message that says nothing is one empty text, as agents that read the first block expect.

    Args:
        message: the message.
        call_id: the Call's id, of which the ids of tool calls are made that have none.
    """
    blocks: list[Block] = []
    thought = reasoning_in(message)
    if thought is not None:
        blocks.append({"type": "thinking", "thinking": thought[1], "signature": thought[0]})
    text = text_in(message.get("content")) + text_in(message.get("refusal"))
    if text:
        blocks.append({"type": "text", "text": text})
    calls = message.get("tool_calls")
    for number, call in enumerate(calls if isinstance(calls, list) else ()):
        function = function_of(call)
        blocks.append(
            {
                "type": "tool_use",
                "id": call.get("id") or made_id(call_id, number),
                "name": function.get("name") or "",
                "input": input_of(arguments_text(function.get("arguments"))),
            }
        )
    return blocks or [{"type": "text", "text": ""}]


def message_of(blocks: Iterable[Mapping[str, Any]]) -> Message:
    """The assistant's message that says what content blocks say; those that chat completions has no word for are left out."""
    thoughts: dict[str, list[str]] = {}
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in blocks:
        kind = block.get("type")
        if kind == "text":
            texts.append(str(block.get("text", "")))
        elif kind == "thinking":
            signature = block.get("signature")
            name = signature if signature in REASONING else REASONING[0]
            thoughts.setdefault(str(name), []).append(str(block.get("thinking", "")))
        elif kind == "tool_use":
            function = {"name": block.get("name"), "arguments": text_of(block.get("input"))}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
    text = "".join(texts)
    message: Message = {"role": "assistant", "content": text}
    message |= {name: "".join(thought) for name, thought in thoughts.items()}
    if calls:
        message["tool_calls"] = calls
    if len(message) > 2 and not text:
        message["content"] = None
    return message


def record_of(blocks: list[Any]) -> Message:
    """The same for the record. Where the message says less than the blocks, as of signatures, of what the server's own tools
    did and of citations, it has them as `blocks` too."""
    known = [block for block in blocks if isinstance(block, dict)]
    message = message_of(known)
    whole = all(
        block.get("type") in _SAID_BY_CHAT
        and not block.get("citations")
        and block.get("signature", REASONING[0]) in REASONING
        for block in known
    )
    return message if whole and len(known) == len(blocks) else {**message, "blocks": blocks}


def reasoning_in(value: Mapping[str, Any]) -> tuple[str, str] | None:
    """The field of a message or a delta that has what the model thought, and the thought; None where there is none."""
    for name in REASONING:
        text = value.get(name)
        if text and isinstance(text, str):
            return name, text
    return None


def function_of(call: Any) -> Mapping[str, Any]:
    """The function of a tool call, or of a piece of one.

    Raises:
        ValueError: the call is no object.
    """
    if not isinstance(call, dict):
        raise ValueError("a tool call of the reply is no object")
    function = call.get("function")
    return function if isinstance(function, dict) else {}


def arguments_text(arguments: Any) -> str:
    """Arguments as a text; some servers send the object."""
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    return json.dumps(arguments, ensure_ascii=False)


def made_id(call_id: str, number: int) -> str:
    """The id of a tool call that the upstream gave none."""
    return f"toolu_{call_id}_{number}"


def finish_of(stop_reason: Any) -> str | None:
    """The `finish_reason` of a `stop_reason`; one that chat completions has no word for stays."""
    return _FINISHES.get(stop_reason, stop_reason) if isinstance(stop_reason, str) else None


def stop_of(
    choice: Mapping[str, Any], stops: Sequence[str], *, called: bool, refused: bool
) -> dict[str, str | None]:
    """`stop_reason` and `stop_sequence` of a choice that has ended.

    Args:
        choice: the choice, or the event of it that has its `finish_reason`. vLLM and SGLang say there which text ended it.
        stops: the request's `stop_sequences`.
        called: whether tools were called: some servers say `stop` then.
        refused: whether there was a refusal.
    """
    finish = choice.get("finish_reason")
    reason = _STOPS.get(finish) if isinstance(finish, str) else None
    sequence = None
    if reason == "end_turn":
        matched = choice.get("stop_reason") or choice.get("matched_stop")
        if called:
            reason = "tool_use"
        elif refused:
            reason = "refusal"
        elif isinstance(matched, str) and matched in stops:
            reason, sequence = "stop_sequence", matched
    return {"stop_reason": reason, "stop_sequence": sequence}


def usage_of(usage: Any) -> dict[str, Any]:
    """The format's token counts of chat completions'. `input_tokens` leaves out what was read from the cache."""
    if not isinstance(usage, dict):
        return dict(_NO_TOKENS)
    details = usage.get("prompt_tokens_details")
    cached = _number(details.get("cached_tokens")) if isinstance(details, dict) else 0
    counts: dict[str, Any] = {
        **_NO_TOKENS,
        "input_tokens": max(_number(usage.get("prompt_tokens")) - cached, 0),
        "cache_read_input_tokens": cached,
        "output_tokens": _number(usage.get("completion_tokens")),
    }
    details = usage.get("completion_tokens_details")
    if isinstance(details, dict) and isinstance(details.get("reasoning_tokens"), int):
        counts["output_tokens_details"] = {"thinking_tokens": details["reasoning_tokens"]}
    return counts


def counted(usage: Any) -> dict[str, Any] | None:
    """The format's token counts with those of chat completions beside them; None where there are none."""
    if not isinstance(usage, dict):
        return None
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    prompt, completion = (
        sum(_number(usage.get(name)) for name in names),
        _number(usage.get("output_tokens")),
    )
    return {
        **usage,
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def text_in(content: Any) -> str:
    """The text of a message's content, or of a delta's; some servers send parts."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0
