"""What a scripted server answers: frozen values that a test writes down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import msgspec

END = 261
"""The token id that ends a message, sampled last unless `finish_reason` is `length`."""

_ROLES = {"system": 256, "user": 257, "assistant": 258, "tool": 259}
_OTHER_ROLE = 260


class Text(msgspec.Struct, frozen=True):
    """One choice with text."""

    text: str
    """The content. A stream sends it word by word."""
    finish_reason: str = "stop"
    """`stop`, `length`, `content_filter`, …"""
    usage: dict[str, Any] | None = None
    """Token counts in place of the true ones."""
    token_ids: Sequence[int] | None = None
    """Sampled ids, shape [T], in place of `tokenize(text)` and `END`."""
    logprobs: Sequence[float] | None = None
    """Log-probability of each sampled id, shape [T], in place of `logprob`."""
    message: dict[str, Any] = msgspec.field(default_factory=dict)
    """Further fields of the assistant message, such as `reasoning_content` or `refusal`."""


class ToolCall(msgspec.Struct, frozen=True):
    """A call of a tool."""

    name: str
    """The tool."""
    arguments: dict[str, Any] | str = msgspec.field(default_factory=dict)
    """Its arguments; a string goes out as it is, even where it is not JSON."""
    id: str | None = None
    """Its id; None makes one, unique within the server."""


class ToolCalls(msgspec.Struct, frozen=True):
    """One choice that calls tools."""

    calls: Sequence[ToolCall]
    """The calls."""
    text: str | None = None
    """Content beside them."""
    finish_reason: str = "tool_calls"
    """The upstream's word for the end."""
    usage: dict[str, Any] | None = None
    """Token counts in place of the true ones."""


class Choices(msgspec.Struct, frozen=True):
    """Several different choices, whatever `n` was. A lone `Text` or `ToolCalls` is repeated `n` times."""

    choices: Sequence[Text | ToolCalls]
    """The choices by index; in a stream they come interleaved."""


class Error(msgspec.Struct, frozen=True):
    """An HTTP status with a body that the test gives."""

    status: int
    """The status."""
    body: dict[str, Any] | str | None = None
    """A dict goes out as JSON, a string as plain text, None as an error of OpenAI's form."""
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    """Further headers, such as `retry-after`."""


class Raw(msgspec.Struct, frozen=True):
    """Bytes as they are, for replies that break the format."""

    body: bytes
    """The body."""
    status: int = 200
    """The status."""
    content_type: str = "application/json"
    """Its type; `text/event-stream` for a hand-made stream."""
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    """Further headers."""


class Delay(msgspec.Struct, frozen=True):
    """A reply that takes its time."""

    seconds: float
    """Wait before the status line."""
    reply: Reply
    """What comes then."""
    chunk_delay: float = 0.0
    """Wait before each event of a stream but the first."""


class Cut(msgspec.Struct, frozen=True):
    """A reply whose connection is closed before its end."""

    after_chunks: int = 1
    """Events of a stream that are sent first; 0 closes before the status line. A reply that is not streamed
    is cut in the middle of its body unless this is 0."""
    reply: Reply | None = None
    """What is cut; None is the echo."""


class Hang(msgspec.Struct, frozen=True):
    """A reply that stops and never ends; it waits until the client has gone."""

    after_chunks: int = 0
    """Events of a stream that are sent first; 0 sends nothing at all, not even the status line. A reply that
    is not streamed hangs in the middle of its body unless this is 0."""
    reply: Reply | None = None
    """What hangs; None is the echo."""


Reply: TypeAlias = Text | ToolCalls | Choices | Error | Raw | Delay | Cut | Hang | str
"""What a server may answer; a string stands for `Text`."""


class Plan(msgspec.Struct, frozen=True):
    """A reply with its wrappers taken off."""

    content: Text | ToolCalls | Choices | Error | Raw | None
    """What to send; None is the echo."""
    delay: float = 0.0
    """Seconds before the status line."""
    chunk_delay: float = 0.0
    """Seconds before each event but the first."""
    end: Literal["whole", "cut", "hang"] = "whole"
    """How it ends."""
    after_chunks: int = 0
    """Events before a cut or hang."""


def plan(reply: Reply | None) -> Plan:
    """Take off the wrappers `Delay`, `Cut` and `Hang`; delays add up and the outermost end holds."""
    if reply is None:
        return Plan(None)
    if isinstance(reply, str):
        return Plan(Text(reply))
    if isinstance(reply, Delay):
        inner = plan(reply.reply)
        return msgspec.structs.replace(
            inner,
            delay=inner.delay + reply.seconds,
            chunk_delay=inner.chunk_delay + reply.chunk_delay,
        )
    if isinstance(reply, Cut | Hang):
        end: Literal["cut", "hang"] = "cut" if isinstance(reply, Cut) else "hang"
        return msgspec.structs.replace(plan(reply.reply), end=end, after_chunks=reply.after_chunks)
    if isinstance(reply, Text | ToolCalls | Choices | Error | Raw):
        return Plan(reply)
    raise TypeError(
        f"scripted reply: expected `Text`, `ToolCalls`, `Choices`, `Error`, `Raw`, `Delay`, `Cut`, `Hang` or a"
        f" string but got {reply!r}"
    )


def tokenize(text: str) -> tuple[int, ...]:
    """The scripted tokenizer: one id for each byte of UTF-8, shape [T]. Special ids begin at 256."""
    return tuple(text.encode())


def prompt_token_ids(messages: Sequence[dict[str, Any]]) -> tuple[int, ...]:
    """The ids of a chat prompt, shape [P]: a role id, the text and `END` for each message, then the assistant's role id.

    So the prompt of a later turn begins with the ids of the earlier prompt and what was sampled after it.
    """
    ids: list[int] = []
    for message in messages:
        ids.append(_ROLES.get(str(message.get("role")), _OTHER_ROLE))
        ids.extend(tokenize(message_text(message)))
        ids.append(END)
    return (*ids, _ROLES["assistant"])


def message_text(message: dict[str, Any]) -> str:
    """A message as the scripted chat template writes it: its text, then its tool calls."""
    text = content_text(message.get("content"))
    for call in message.get("tool_calls") or ():
        text += tool_call_text(call["function"]["name"], call["function"]["arguments"])
    return text


def content_text(content: object) -> str:
    """The text of a message's `content`: a string, a list of parts, or nothing."""
    if isinstance(content, list):
        return "".join(
            str(part.get("text", "")) if isinstance(part, dict) else str(part) for part in content
        )
    return "" if content is None else str(content)


def tool_call_text(name: str, arguments: str) -> str:
    """A tool call as the scripted chat template writes it."""
    return f"<tool_call>{name} {arguments}</tool_call>"


def logprob(token_id: int, position: int) -> float:
    """The scripted log-probability of an id at a position of the reply: below 0, and exact in binary."""
    return -((token_id * 31 + position) % 97 + 1) / 64
