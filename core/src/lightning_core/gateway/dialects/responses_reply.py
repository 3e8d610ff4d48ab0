"""Replies of chat completions, as replies of OpenAI Responses."""

from __future__ import annotations

import time
from typing import Any, Final

import msgspec

from lightning_core.gateway import jsontext
from lightning_core.gateway.dialects.responses_items import Item, as_object, items_of
from lightning_core.gateway.dialects.sampled import message_of_error

INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""What ends a reply before its time, in the words of chat completions and of Responses."""
_FAILED: Final = frozenset({"abort", "error"})
"""What engines say of a reply that they gave up."""


class Head:
    """What every form of one reply has in common: ids, and the request's own fields once more."""

    def __init__(self, body: dict[str, Any], call_id: str) -> None:
        """
        Args:
            body: the request.
            call_id: of which all ids are made.
        """
        self.call_id = call_id
        self._fields = _echo(body, call_id)

    def of(self, chat: dict[str, Any]) -> dict[str, Any]:
        """The reply before its first item.

        Args:
            chat: a reply of chat completions, or an event of one.
        """
        created = chat.get("created")
        found = {
            "created_at": created if isinstance(created, int) else int(time.time()),
            "model": chat.get("model"),
            "service_tier": chat.get("service_tier"),
        }
        return self._fields | {name: value for name, value in found.items() if value is not None}


def begun(head: dict[str, Any]) -> dict[str, Any]:
    """The reply of which nothing is there yet."""
    return {**head, "status": "in_progress", "output": []}


def ended(
    head: dict[str, Any], output: list[Item], finish_reason: Any, usage: Any
) -> dict[str, Any]:
    """The reply at its end. The last item of one that is not complete is not complete either.

    Args:
        head: see `Head.of`.
        output: its items.
        finish_reason: why it ended, in the words of chat completions.
        usage: its token counts, as chat completions have them.
    """
    ending = finish_reason if isinstance(finish_reason, str) else ""
    if ending in _FAILED:
        message = f"the engine ended the reply before its end (`finish_reason` is `{ending}`)"
        return failed(head, output, message, usage)
    reason = INCOMPLETE.get(ending)
    if reason is not None and output:
        output[-1]["status"] = "incomplete"
    return {
        **head,
        "status": "completed" if reason is None else "incomplete",
        "incomplete_details": None if reason is None else {"reason": reason},
        "output": output,
        "usage": _usage(usage),
    }


def failed(head: dict[str, Any], output: list[Item], message: str, usage: Any) -> dict[str, Any]:
    """The reply that went wrong. See `ended`."""
    error = {"code": "server_error", "message": message}
    return {**head, "status": "failed", "error": error, "output": output, "usage": _usage(usage)}


def whole(head: Head, body: bytes) -> dict[str, Any]:
    """What a whole reply of chat completions says; of several choices the first.

    Raises:
        ValueError: it is none.
    """
    chat = jsontext.decode(body)
    choices = chat.get("choices") if isinstance(chat, dict) else None
    if not isinstance(choices, list) or not choices:
        raise ValueError("the reply has no `choices`")
    choice = as_object(choices[0], "choices[0]")
    message = as_object(choice.get("message"), "choices[0].message")
    output = items_of(message, head.call_id, logprobs_of(choice.get("logprobs")))
    return ended(head.of(chat), output, choice.get("finish_reason"), chat.get("usage"))


def logprobs_of(logprobs: Any) -> list[Any]:
    """The items of a choice's `logprobs`."""
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    return content if isinstance(content, list) else []


def error_body(status: int, body: bytes) -> bytes:
    """A refusal of the upstream's, in the shape of OpenAI's errors, which both formats share."""
    try:
        value = jsontext.decode(body)
    except ValueError:
        value = body.decode("utf-8", "replace").strip()
    error = value.get("error", value) if isinstance(value, dict) else value
    if (
        isinstance(value, dict)
        and isinstance(error, dict)
        and error is not value
        and "message" in error
    ):
        return body
    found = error if isinstance(error, dict) else {}
    kind = "invalid_request_error" if status < 500 else "server_error"
    said = {
        "message": message_of_error(error)
        if error
        else f"the upstream answered with status {status}",
        "type": found.get("type") or kind,
        "param": found.get("param"),
        "code": found.get("code"),
    }
    return msgspec.json.encode({"error": said})


def _echo(body: dict[str, Any], call_id: str) -> dict[str, Any]:
    names = (
        "instructions", "max_output_tokens", "max_tool_calls", "model", "previous_response_id", "prompt_cache_key",
        "safety_identifier", "service_tier", "temperature", "top_p", "user",
    )  # fmt: skip
    parallel = body.get("parallel_tool_calls")
    return {
        "id": f"resp_{call_id}",
        "object": "response",
        "status": "in_progress",
        "background": bool(body.get("background")),
        "error": None,
        "incomplete_details": None,
        **{name: body.get(name) for name in names},
        "metadata": body.get("metadata") or {},
        "output": [],
        "parallel_tool_calls": True if parallel is None else parallel,
        "reasoning": {"effort": None, "summary": None, **(body.get("reasoning") or {})},
        "store": body.get("store") is not False,
        "text": {"format": {"type": "text"}, **(body.get("text") or {})},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "top_logprobs": body.get("top_logprobs") or 0,
        "truncation": "disabled",
        "usage": None,
    }


def _usage(usage: Any) -> dict[str, Any] | None:
    if not isinstance(usage, dict):
        return None
    prompt, completion = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    cached, made = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    return {
        "input_tokens": prompt,
        "input_tokens_details": {
            "cached_tokens": _count(cached, "cached_tokens"),
            "cache_write_tokens": _count(cached, "cache_write_tokens"),
        },
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": _count(made, "reasoning_tokens")},
        "total_tokens": _count(usage, "total_tokens") or prompt + completion,
    }


def _count(counts: Any, name: str) -> int:
    value = counts.get(name) if isinstance(counts, dict) else None
    return value if isinstance(value, int) else 0
