"""Scripted replies in OpenAI's wire formats, with token ids in vLLM's form."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from lightning_core.testing.received import Received
from lightning_core.testing.replies import (
    END,
    Choices,
    Text,
    ToolCall,
    ToolCalls,
    content_text,
    logprob,
    message_text,
    prompt_token_ids,
    tokenize,
    tool_call_text,
)


class Piece(msgspec.Struct, frozen=True):
    """A part of a choice as a stream sends it."""

    delta: dict[str, Any]
    """What it adds to the message."""
    start: int
    """Its first sampled token."""
    stop: int
    """One past its last."""


class Choice(msgspec.Struct, frozen=True):
    """A choice, ready for any format."""

    message: dict[str, Any]
    """The assistant message."""
    pieces: tuple[Piece, ...]
    """The same in parts; the tokens behind the last part belong to the finish."""
    token_ids: tuple[int, ...]
    """Sampled ids, shape [T]."""
    logprobs: tuple[float, ...]
    """Their log-probabilities, shape [T]."""
    finish_reason: str
    """How it ended."""


class Rendering:
    """One request's reply."""

    def __init__(
        self,
        received: Received,
        content: Text | ToolCalls | Choices | None,
        *,
        number: int,
        default_model: str,
        token_ids: bool,
    ) -> None:
        self._request: dict[str, Any] = received.json
        self._chat = received.path.endswith("/chat/completions")
        self._number = number
        self._with_ids = token_ids and self._request.get("return_token_ids") is True
        self._prompts: list[Any] = [received.messages] if self._chat else _prompts(self._request)
        given = content.choices if isinstance(content, Choices) else self._repeat(content, received)
        self._choices = tuple(
            _choice(reply, f"call_{number}_{index}") for index, reply in enumerate(given)
        )
        self._prompt_ids = tuple(
            prompt_token_ids(prompt) if self._chat else _ids(prompt) for prompt in self._prompts
        )
        usages = [reply.usage for reply in given if reply.usage is not None]
        self._usage = usages[0] if usages else self._count()
        self._head: dict[str, Any] = {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-scripted-{number}",
            "created": int(received.received_at),
            "model": received.model or default_model,
            "system_fingerprint": "fp_scripted",
        }

    def whole(self) -> dict[str, Any]:
        """The reply as one JSON object."""
        body = {
            **self._head,
            "object": "chat.completion" if self._chat else "text_completion",
            "choices": [self._whole_choice(i, choice) for i, choice in enumerate(self._choices)],
            "usage": self._usage,
        }
        if self._with_ids and self._chat:
            body["prompt_token_ids"] = list(self._prompt_ids[0])
        return body

    def events(self) -> Iterator[str]:
        """The reply as the data of server-sent events, `[DONE]` included."""
        options = self._request.get("stream_options") or {}
        usage = {"usage": None} if options.get("include_usage") else {}
        head = {
            **self._head,
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            **usage,
        }
        first = True
        for choice in self._chunks():
            chunk = {**head, "choices": [choice]}
            if first and self._with_ids and self._chat:
                chunk["prompt_token_ids"] = list(self._prompt_ids[0])
            first = False
            yield _dumps(chunk)
        if usage:
            yield _dumps({**head, "choices": [], "usage": self._usage})
        yield "[DONE]"

    def _repeat(
        self, content: Text | ToolCalls | None, received: Received
    ) -> Sequence[Text | ToolCalls]:
        n = self._request.get("n") or 1
        return [
            content or Text(_echo(prompt, received, self._chat))
            for prompt in self._prompts
            for _ in range(n)
        ]

    def _count(self) -> dict[str, Any]:
        prompt = sum(len(ids) for ids in self._prompt_ids)
        completion = sum(len(choice.token_ids) for choice in self._choices)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }

    def _whole_choice(self, index: int, choice: Choice) -> dict[str, Any]:
        body: dict[str, Any] = {
            "index": index,
            "finish_reason": choice.finish_reason,
            "logprobs": self._logprobs(choice, 0, len(choice.token_ids)),
        }
        if self._chat:
            body["message"] = choice.message
        else:
            body["text"] = message_text(choice.message)
        return self._add_ids(body, index, choice.token_ids, first=True)

    def _chunks(self) -> Iterator[dict[str, Any]]:
        """The choices' parts, interleaved as an engine that samples them side by side sends them."""
        if self._chat:
            for index in range(len(self._choices)):
                yield self._chunk(
                    index, {"role": "assistant", "content": ""}, 0, 0, None, first=True
                )
        for step in range(max((len(c.pieces) for c in self._choices), default=0)):
            for index, choice in enumerate(self._choices):
                if step < len(choice.pieces):
                    piece = choice.pieces[step]
                    first = step == 0 and not self._chat
                    yield self._chunk(
                        index, piece.delta, piece.start, piece.stop, None, first=first
                    )
        for index, choice in enumerate(self._choices):
            start = choice.pieces[-1].stop if choice.pieces else 0
            first = not choice.pieces and not self._chat
            yield self._chunk(
                index, {}, start, len(choice.token_ids), choice.finish_reason, first=first
            )

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        start: int,
        stop: int,
        finish_reason: str | None,
        *,
        first: bool,
    ) -> dict[str, Any]:
        choice = self._choices[index]
        body: dict[str, Any] = {
            "index": index,
            "finish_reason": finish_reason,
            "logprobs": self._logprobs(choice, start, stop) if stop > start else None,
        }
        if self._chat:
            body["delta"] = delta
        else:
            body["text"] = delta.get("content", "")
        return self._add_ids(body, index, choice.token_ids[start:stop], first=first)

    def _add_ids(
        self, body: dict[str, Any], index: int, ids: Sequence[int], *, first: bool
    ) -> dict[str, Any]:
        if self._with_ids:
            body["token_ids"] = list(ids)
            if first and not self._chat:
                prompt = index * len(self._prompts) // len(self._choices)
                body["prompt_token_ids"] = list(self._prompt_ids[prompt])
        return body

    def _logprobs(self, choice: Choice, start: int, stop: int) -> dict[str, Any] | None:
        asked = self._request.get("logprobs")
        if asked is None or asked is False:
            return None
        pairs = list(zip(choice.token_ids, choice.logprobs, strict=True))[start:stop]
        named = [(self._name(token), token, value) for token, value in pairs]
        if self._chat:
            top = 1 if self._request.get("top_logprobs") else 0
            return {
                "content": [
                    {**entry, "top_logprobs": [entry] * top}
                    for entry in (
                        {"token": name, "logprob": value, "bytes": _bytes(token)}
                        for name, token, value in named
                    )
                ],
                "refusal": None,
            }
        return {
            "tokens": [name for name, _, _ in named],
            "token_logprobs": [value for _, _, value in named],
            "top_logprobs": [{name: value} for name, _, value in named] if asked else None,
            "text_offset": list(range(start, start + len(named))),
        }

    def _name(self, token: int) -> str:
        if self._request.get("return_tokens_as_token_ids"):
            return f"token_id:{token}"
        if token < 128:
            return chr(token)
        return f"\\x{token:02x}" if token < 256 else f"<|{token}|>"


def embeddings(received: Received, *, default_model: str) -> dict[str, Any]:
    """The reply to an embeddings request: unit-free vectors that depend on the text alone."""
    request = received.json
    inputs = _split(request.get("input"))
    size = request.get("dimensions") or 8
    count = sum(len(_ids(text)) for text in inputs)
    return {
        "object": "list",
        "model": received.model or default_model,
        "data": [
            {
                "object": "embedding",
                "index": index,
                "embedding": _encode(vector(text, size), request.get("encoding_format")),
            }
            for index, text in enumerate(inputs)
        ],
        "usage": {"prompt_tokens": count, "total_tokens": count},
    }


def vector(text: str | Sequence[int], size: int = 8) -> list[float]:
    """The scripted embedding of a text or of token ids, shape [size], each value in [-1, 1)."""
    data = text.encode() if isinstance(text, str) else repr(list(text)).encode()
    digest = hashlib.shake_256(data).digest(2 * size)
    return [value / 32768 for value in struct.unpack(f"<{size}h", digest)]


def _encode(values: list[float], encoding: str | None) -> list[float] | str:
    if encoding != "base64":
        return values
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()


def _choice(reply: Text | ToolCalls, id_prefix: str) -> Choice:
    content = reply.text or ""
    parts: list[tuple[dict[str, Any], str]] = [
        ({"content": word}, word) for word in re.findall(r"\s*\S+\s*|\s+", content)
    ]
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    logprobs: Sequence[float] | None = None
    explicit: Sequence[int] | None = None
    if isinstance(reply, Text):
        message |= reply.message
        if reply.message:
            parts.insert(0, (dict(reply.message), ""))
        explicit, logprobs = reply.token_ids, reply.logprobs
    else:
        message["tool_calls"] = []
        for index, call in enumerate(reply.calls):
            whole, deltas = _tool_call(call, index, call.id or f"{id_prefix}_{index}")
            message["tool_calls"].append(whole)
            parts.extend(deltas)
    if explicit is None:
        end = () if reply.finish_reason == "length" else (END,)
        ids = (*tokenize("".join(text for _, text in parts)), *end)
        stops, stop = [], 0
        for _, text in parts:
            stops.append(stop := stop + len(tokenize(text)))
    else:
        ids = tuple(explicit)
        stops = [(i + 1) * len(ids) // len(parts) for i in range(len(parts))]
    if logprobs is None:
        logprobs = [logprob(token, position) for position, token in enumerate(ids)]
    if len(logprobs) != len(ids):
        raise ValueError(
            f"scripted `Text`: expected as many log-probabilities as token ids ({len(ids)}) but got {len(logprobs)}"
        )
    starts = [0, *stops]
    pieces = tuple(
        Piece(delta, a, b) for (delta, _), a, b in zip(parts, starts, stops, strict=False)
    )
    return Choice(message, pieces, ids, tuple(logprobs), reply.finish_reason)


def _tool_call(
    call: ToolCall, index: int, call_id: str
) -> tuple[dict[str, Any], list[tuple[dict[str, Any], str]]]:
    """The whole call, and its deltas with the text that each stands for."""
    given = call.arguments
    arguments = given if isinstance(given, str) else json.dumps(given)
    before, _, after = tool_call_text(call.name, "\0").partition("\0")
    half = len(arguments) // 2
    start: dict[str, Any] = {"id": call_id, "type": "function"}
    deltas = [({**start, "function": {"name": call.name, "arguments": ""}}, before)]
    if arguments[:half]:
        deltas.append(({"function": {"arguments": arguments[:half]}}, arguments[:half]))
    deltas.append(({"function": {"arguments": arguments[half:]}}, arguments[half:] + after))
    whole = {**start, "function": {"name": call.name, "arguments": arguments}}
    return whole, [({"tool_calls": [{"index": index, **delta}]}, text) for delta, text in deltas]


def _echo(prompt: Any, received: Received, chat: bool) -> str:
    if not chat:
        return prompt if isinstance(prompt, str) else bytes(i for i in prompt if i < 256).decode()
    users = [m for m in received.messages if m.get("role") == "user"] or received.messages
    return content_text(users[-1].get("content")) if users else ""


def _prompts(request: dict[str, Any]) -> list[Any]:
    return _split(request.get("prompt") or "")


def _split(value: Any) -> list[Any]:
    """One entry for each text or list of token ids."""
    if isinstance(value, list) and value and not isinstance(value[0], int):
        return value
    return [value]


def _ids(text: str | Sequence[int]) -> tuple[int, ...]:
    return tokenize(text) if isinstance(text, str) else tuple(text)


def _bytes(token: int) -> list[int]:
    return [token] if token < 256 else []


def _dumps(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
