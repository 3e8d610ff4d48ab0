"""Anthropic Messages, for upstreams that speak it themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from lightning_core.capability import Capability
from lightning_core.gateway import jsontext
from lightning_core.gateway.dialects.base import Edits, Fields, Reply, Rewriter
from lightning_core.gateway.dialects.messages_arguments import INVALID
from lightning_core.gateway.dialects.messages_blocks import Block, counted, finish_of, record_of
from lightning_core.gateway.dialects.messages_events import error_body
from lightning_core.gateway.dialects.native import NativeDialect, events
from lightning_core.gateway.dialects.rewriting import content_edits, message_edits
from lightning_core.gateway.dialects.sampled import message_of_error
from lightning_core.gateway.refusal import Refusal
from lightning_core.provider import ANTHROPIC
from lightning_core.sampling import SamplingPolicy
from lightning_core.trace import Choice

_GROWS = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "input_json_delta": "partial_json",
}


class MessagesDialect(NativeDialect):
    """`POST …/messages`. A choice's message is recorded in the form of chat completions. The format has no seed, and gives
    neither token ids nor log-probabilities."""

    name = "messages"
    suffix = "/messages"
    terminator = b"message_stop"
    native = Capability.MESSAGES
    home = ANTHROPIC
    key_header = "x-api-key:"
    max_token_fields = ("max_tokens",)

    def fit(self, changes: dict[str, Any], fields: Fields, sampling: SamplingPolicy) -> None:
        """See `NativeDialect.fit`."""
        changes.pop("seed", None)
        if "seed" in fields and not sampling.as_asked:
            changes["seed"] = None

    def rewrite(self, request: Mapping[str, Any], rewriter: Rewriter) -> Edits:
        """See `Dialect.rewrite`. `system` is a text of its role, or each text in it; results of tools stay."""
        system = content_edits(request.get("system"), "system", rewriter)
        edits = message_edits("messages", request.get("messages"), rewriter)
        return edits if system is None else Edits({"system": system, **edits.fields}, edits.place)

    def read(self, body: bytes) -> Reply:
        """See `Dialect.read`."""
        value = jsontext.decode(body)
        if not isinstance(value, dict) or not isinstance(value.get("content"), list):
            raise ValueError("the reply has no `content`")
        return _reply(value, value["content"])

    def read_stream(self, stream: bytes) -> Reply:
        """See `Dialect.read_stream`."""
        assembly = _Assembly()
        for event in events(stream):
            assembly.add(event)
        return assembly.reply()

    def refusal(self, refusal: Refusal) -> bytes:
        """See `Dialect.refusal`."""
        return msgspec.json.encode(error_body(refusal.status, refusal.message))


class _Assembly:
    """A streamed message, made of its events."""

    def __init__(self) -> None:
        self._message: dict[str, Any] | None = None
        self._blocks: dict[Any, Block] = {}
        self._parts: dict[tuple[Any, str], list[str]] = {}
        self._ended = False
        self._failure: str | None = None

    def add(self, value: dict[str, Any]) -> None:
        """Take one event; those of unknown types say nothing."""
        kind, index = value.get("type"), value.get("index")
        if kind == "content_block_delta" and isinstance(value.get("delta"), dict):
            self._add_delta(index, value["delta"])
        elif kind == "content_block_start" and isinstance(value.get("content_block"), dict):
            self._blocks[index] = value["content_block"]
        elif kind == "message_start" and isinstance(value.get("message"), dict):
            self._message = value["message"]
        elif kind == "message_delta" and self._message is not None:
            usage = value.get("usage")
            told = value.get("delta")
            self._message |= told if isinstance(told, dict) else {}
            if isinstance(usage, dict):
                # Counts are totals; those that do not apply are left out, and the first ones stand.
                known = {name: count for name, count in usage.items() if count is not None}
                self._message["usage"] = {**(self._message.get("usage") or {}), **known}
        elif kind == "message_stop":
            self._ended = True
        elif kind == "error":
            self._failure = message_of_error(value.get("error"))

    def _add_delta(self, index: Any, delta: dict[str, Any]) -> None:
        name = _GROWS.get(delta.get("type", ""))
        block = self._blocks.get(index)
        if block is None:
            raise ValueError(f"a delta of block {index!r}, which has not begun")
        if name is not None:
            self._parts.setdefault((index, name), []).append(str(delta.get(name, "")))
        elif delta.get("type") == "signature_delta":
            block["signature"] = delta.get("signature")
        elif delta.get("type") == "citations_delta":
            block["citations"] = [*(block.get("citations") or ()), delta.get("citation")]

    def reply(self) -> Reply:
        for (index, name), parts in self._parts.items():
            text = "".join(parts)
            if name == "partial_json":
                self._blocks[index]["input"] = _input(text)
            else:
                self._blocks[index][name] = str(self._blocks[index].get(name, "")) + text
        if self._message is None:
            return Reply(complete=False, failure=self._failure)
        reply = _reply(self._message, list(self._blocks.values()))
        reply.failure = self._failure
        reply.complete = self._ended and self._failure is None
        return reply


def _input(text: str) -> dict[str, Any]:
    """What was streamed of a tool's input, cut or not."""
    try:
        value = jsontext.decode(text.encode()) if text.strip() else {}
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {INVALID: text}


def _reply(value: dict[str, Any], blocks: list[Any]) -> Reply:
    model = value.get("model")
    return Reply(
        choices=(
            Choice(message=record_of(blocks), finish_reason=finish_of(value.get("stop_reason"))),
        ),
        reply={name: item for name, item in value.items() if name not in ("content", "usage")},
        usage=counted(value.get("usage")),
        model=model if isinstance(model, str) else None,
    )
