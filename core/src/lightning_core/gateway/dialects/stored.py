"""Stored responses: what OpenAI Responses leaves to the server between requests, in the terms of Calls.

A response that was translated is known by its Call's id, so that it is found in the store as long as the Call is.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from lightning_core.gateway.dialects.base import Dialect, Fields
from lightning_core.gateway.dialects.translated import TranslatedDialect
from lightning_core.gateway.dialects.translation import Message
from lightning_core.gateway.refusal import Refusal
from lightning_core.trace import Call, CallErrorKind

ROUTE: Final = "/responses/"
"""What stands before a response's id in a path."""
_FORMAT: Final = "responses"
_PREFIX: Final = "resp_"
_RUNNING: Final = frozenset({"queued", "in_progress"})
_ENDED: Final = frozenset({"completed", "incomplete", "failed", "cancelled"})
CANCELLED: Final = "the agent cancelled it"
"""What the record says of a response that was."""


def response_id(call_id: str) -> str:
    """The id of the response that a translated Call gives."""
    return _PREFIX + call_id


def call_id(response_id: str) -> str:
    """The id of the Call that a translated response came from."""
    return response_id.removeprefix(_PREFIX)


def id_of(call: Call) -> str | None:
    """The id by which a later request may name a Call's response; None where it cannot."""
    if call.dialect != _FORMAT or call.chat_request is None:
        return None
    if is_translated(call):
        return response_id(call.id)
    found = call.reply.get("id")
    return found if isinstance(found, str) else None


def is_translated(call: Call) -> bool:
    """Whether a Call's response is kept here, and not by the upstream."""
    return call.dialect == _FORMAT and not (call.target or "").endswith("/responses")


def previous(dialect: str, body: Mapping[str, Any]) -> str | None:
    """The id of the response that a request of a format goes on from; None where it begins anew."""
    found = body.get("previous_response_id") if dialect == _FORMAT else None
    return found if isinstance(found, str) else None


def asks_background(dialect: Dialect, fields: Fields) -> bool:
    """Whether a request is to be answered before it has run. One that asks for a stream as well is streamed as it runs."""
    if dialect.name != _FORMAT:
        return False
    return bytes(fields.get("background", b"")) == b"true" != bytes(fields.get("stream", b""))


def conversation(call: Call) -> list[Message]:
    """What a request that names a Call's response goes on with: its prompt and its reply. `instructions`, of which the first
    message is made, hold for one request alone."""
    once = int(call.request.get("instructions") is not None)
    return [*call.messages[once:], *(_as_sent(choice.message) for choice in call.choices[:1])]


def _as_sent(message: Message) -> Message:
    """A reply's message as one of a prompt. Servers reply with empty fields that they refuse to be sent."""
    said = {name: value for name, value in message.items() if value is not None}
    if not said.get("tool_calls", True):
        del said["tool_calls"]
    return {"role": "assistant", "content": None, **said}


def unknown(named: str) -> Refusal:
    """The answer to a request that goes on from a response that is not known."""
    return Refusal(
        400,
        "previous_response_not_found",
        f"`previous_response_id`: no response {named!r} is known to this session; send the whole conversation as `input`",
        param="previous_response_id",
    )


def missing(named: str) -> Refusal:
    """The answer to a request for a response that is not known."""
    return Refusal(404, "response_not_found", f"no response {named!r} is known to this session")


def unfinished(reply: Mapping[str, Any]) -> bool:
    """Whether a response of an upstream's is yet to come to its end."""
    return reply.get("status") in _RUNNING


def finished(reply: Mapping[str, Any]) -> bool:
    """Whether a response of an upstream's has come to its end."""
    return reply.get("status") in _ENDED


def cancelled(reply: Mapping[str, Any]) -> bool:
    """Whether the agent had a response of an upstream's cancelled."""
    return reply.get("status") == "cancelled"


class Frame:
    """A response without what it says, for the time in which it says nothing."""

    def __init__(self, dialect: TranslatedDialect) -> None:
        """
        Args:
            dialect: its request.
        """
        model = dialect.request.get("model")
        self._body = _decoded(dialect, _chat_reply(int(time.time()), model, None, None, None))

    def at(self, status: str, message: str | None = None) -> bytes:
        """The response in a status; `message` says what went wrong."""
        error = None if message is None else {"code": "server_error", "message": message}
        return msgspec.json.encode(
            {
                **self._body,
                "status": status,
                "background": True,
                "output": [],
                "usage": None,
                "completed_at": None,
                "incomplete_details": None,
                "error": error,
            }
        )


def reply_of(call: Call, dialect: TranslatedDialect) -> bytes:
    """The response that a Call ended in.

    Args:
        call: the Call, translated.
        dialect: its request.
    """
    if not call.complete or call.error is not None or not call.choices:
        frame = Frame(dialect)
        if call.error is not None and call.error.kind is CallErrorKind.CLIENT_GONE:
            return frame.at("cancelled")
        return frame.at("failed", call.error.message if call.error else "the reply broke off")
    choice = call.choices[0]
    created = call.reply.get("created") or int(call.started_at)
    said = _chat_reply(created, call.model, choice.finish_reason, choice.message, call.usage)
    body = _decoded(dialect, said)
    return msgspec.json.encode({**body, "background": call.request.get("background") is True})


def input_items(request: Mapping[str, Any], call_id: str) -> bytes:
    """The list of what a request put in, oldest first."""
    given = request.get("input")
    items = given if isinstance(given, list) else [{"role": "user", "content": given}]
    data: list[dict[str, Any]] = []
    for number, item in enumerate(items):
        if isinstance(item, dict):
            content = item.get("content")
            if isinstance(content, str):
                item = {**item, "content": [{"type": "input_text", "text": content}]}
            data.append({"id": f"item_{call_id}_{number}", "type": "message", **item})
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {}
    return msgspec.json.encode({"object": "list", "data": data, **ends, "has_more": False})


def deleted(named: str) -> bytes:
    """What is said of a response that is no longer kept."""
    return msgspec.json.encode({"id": named, "object": "response", "deleted": True})


def _chat_reply(
    created: Any,
    model: Any,
    finish_reason: str | None,
    message: Mapping[str, Any] | None,
    usage: Mapping[str, Any] | None,
) -> bytes:
    said = {"role": "assistant", "content": None, **(message or {})}
    choice = {"index": 0, "message": said, "finish_reason": finish_reason or "stop"}
    return msgspec.json.encode(
        {
            "id": "chatcmpl",
            "object": "chat.completion",
            "created": created,
            "model": model,
            "choices": [choice],
            "usage": usage or {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
        }
    )


def _decoded(dialect: TranslatedDialect, reply: bytes) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(dialect.translation.reply(reply))
    return found
