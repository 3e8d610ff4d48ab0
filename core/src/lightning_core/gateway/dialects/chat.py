"""Chat completions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from lightning_core.gateway.dialects.base import LEADING, Fields, Rewriter
from lightning_core.gateway.dialects.sampled import SampledDialect

_QUOTE = ord('"')
_NULL = msgspec.Raw(b"null")
_STOPS = ("stop_reason", "matched_stop")
"""Where vLLM and SGLang say which text ended a choice."""
_list = msgspec.json.Decoder(list[Fields])
_string = msgspec.json.Decoder(str)


class ChatDialect(SampledDialect):
    """`POST …/chat/completions`."""

    name = "chat"
    suffix = "/chat/completions"
    object_name = "chat.completion.chunk"
    max_token_fields = ("max_completion_tokens", "max_tokens")
    ask_logprobs = True

    def asked_logprobs(self, value: Any) -> bool:
        """See `SampledDialect.asked_logprobs`."""
        return value is True

    def logprobs_of(self, logprobs: Any) -> list[Any] | None:
        """See `SampledDialect.logprobs_of`."""
        content = logprobs.get("content") if isinstance(logprobs, dict) else None
        if not isinstance(content, list):
            return None
        return [item.get("logprob") if isinstance(item, dict) else None for item in content]

    def message_of(self, choice: dict[str, Any]) -> dict[str, Any]:
        """See `SampledDialect.message_of`."""
        message = choice.get("message")
        if not isinstance(message, dict):
            raise ValueError("a choice of the reply has no `message`")
        return message

    def chunks_of(self, choice: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """See `SampledDialect.chunks_of`."""
        message = dict(self.message_of(choice))
        tools = message.pop("tool_calls", None) or []
        content = message.pop("content", None)
        tokens: dict[str, Any] = {
            key: choice[key] for key in ("logprobs", "token_ids") if key in choice
        }
        first = {"role": message.pop("role", "assistant"), "content": "" if content else content}
        yield {"delta": first}
        # Reasoning comes before the text that it led to, and other extras do no harm there.
        extras = {key: value for key, value in message.items() if value is not None}
        if extras:
            yield {"delta": extras}
        if content:
            yield {"delta": {"content": content}, **tokens}
            tokens = {}
        for number, tool in enumerate(tools):
            yield {"delta": {"tool_calls": [{"index": number, **tool}]}, **tokens}
            tokens = {}
        stops = {key: choice[key] for key in _STOPS if key in choice}
        yield {"delta": {}, **tokens, "finish_reason": choice.get("finish_reason"), **stops}

    def rewrite(self, fields: Fields, rewriter: Rewriter) -> Mapping[str, msgspec.Raw]:
        """See `Dialect.rewrite`. A message's text is its content, or each text among its parts."""
        messages = _objects(fields.get("messages", _NULL))
        changed = False
        first = len(messages)
        for at, message in enumerate(messages):
            role = _text(message.get("role", _NULL))
            if role not in LEADING:
                first = min(first, at)
            if role is not None and rewriter.looks_at(role):
                content = _rewritten(message.get("content", _NULL), role, rewriter)
                if content is not None:
                    message["content"] = content
                    changed = True
        examples = rewriter.examples()
        if examples:
            return {"messages": _encoded([*messages[:first], *examples, *messages[first:]])}
        return {"messages": _encoded(messages)} if changed else {}


def _rewritten(content: msgspec.Raw, role: str, rewriter: Rewriter) -> msgspec.Raw | None:
    """A message's content as it is rewritten; None where it stays."""
    text = _text(content)
    if text is not None:
        text = rewriter.text(role, text)
        return None if text is None else _encoded(text)
    parts = _objects(content)
    changed = False
    for part in parts:
        text = _text(part.get("text", _NULL)) if _text(part.get("type", _NULL)) == "text" else None
        if text is not None and (text := rewriter.text(role, text)) is not None:
            part["text"] = _encoded(text)
            changed = True
    return _encoded(parts) if changed else None


def _objects(raw: msgspec.Raw) -> list[Fields]:
    """The objects of a list; none where it is something else, of which the upstream says what is wrong with it."""
    try:
        return _list.decode(raw)
    except msgspec.MsgspecError:
        return []


def _text(raw: msgspec.Raw) -> str | None:
    """A string; None where it is something else."""
    if memoryview(raw)[0] != _QUOTE:
        return None
    try:
        return _string.decode(raw)
    except msgspec.DecodeError:  # Not UTF-8.
        return None


def _encoded(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
