"""The event stream of Anthropic Messages, made of chat completions' as it comes."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from lightning_core.gateway import jsontext
from lightning_core.gateway.dialects.messages_arguments import Arguments
from lightning_core.gateway.dialects.messages_blocks import (
    Block,
    arguments_text,
    function_of,
    made_id,
    reasoning_in,
    stop_of,
    text_in,
    usage_of,
)
from lightning_core.gateway.dialects.sampled import message_of_error
from lightning_core.gateway.dialects.translation import ENDED_EARLY
from lightning_core.gateway.sse import StreamFilter, payloads

_DONE = b"[DONE]"
_NOTHING = re.compile(rb"(?!)")
_OVERLOADED = (503, 529)
_KINDS = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
}
_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}
_encode = msgspec.json.encode


class _Choice(msgspec.Struct, gc=False):
    """What strangers send is `Any` and is looked at before it is used."""

    index: Any = 0
    delta: Any = None
    finish_reason: Any = None
    stop_reason: Any = None
    matched_stop: Any = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    model: Any = None
    usage: Any = None
    error: Any = None


_chunk = msgspec.json.Decoder(_Chunk)


def event(value: Mapping[str, Any]) -> bytes:
    """One event as Anthropic sends it, with its blank line."""
    return b"event: %b\ndata: %b\n\n" % (value["type"].encode(), _encode(value))


def error_body(status: Any, error: Any) -> dict[str, Any]:
    """An error in the format's shape.

    Args:
        status: the HTTP status, which says what kind it is; anything else is a fault of the upstream's.
        error: what the upstream said, in any of the forms in use.
    """
    kind = "api_error"
    if status in _OVERLOADED:
        kind = "overloaded_error"
    elif isinstance(status, int) and 400 <= status < 600:
        kind = _KINDS.get(status, "invalid_request_error" if status < 500 else kind)
    return {"type": "error", "error": {"type": kind, "message": message_of_error(error)}}


class _Open:
    """A block that has not been closed. Only the first one's pieces go out as they come: blocks come one after the other."""

    def __init__(self, kind: Literal["text", "thinking", "tool_use"], **fields: Any) -> None:
        self.kind = kind
        self.fields = fields
        """Of its `content_block`: the id and the name of a tool's."""
        self.signature = ""
        self.arguments = Arguments() if kind == "tool_use" else None
        self.waiting: list[str] = []
        """Pieces that have not gone out."""
        self.index: int | None = None
        """Its number; None before it was begun."""
        self.closed = False

    def begun(self) -> dict[str, Any]:
        if self.kind == "tool_use":
            return {"type": "tool_use", **self.fields, "input": {}}
        block = {"type": self.kind, self.kind: ""}
        return {**block, "signature": ""} if self.kind == "thinking" else block

    @property
    def whole(self) -> bool:
        return self.arguments is None or self.arguments.whole


class MessagesSieve:
    """See `Sieve`. Takes time linear in the stream's length.

    Tool calls that a server sends interleaved come out one after the other: the pieces of later ones are kept back until
    the arguments of the one before are a whole object.
    """

    def __init__(self, call_id: str, model: Any, stops: Sequence[str]) -> None:
        """
        Args:
            call_id: the Call's id.
            model: the model that was asked for, should the upstream name none.
            stops: the request's `stop_sequences`.
        """
        self._events = StreamFilter(_NOTHING, bytes)  # holds an event back until it is whole
        self._call_id = call_id
        self._model = model
        self._stops = stops
        self._blocks: deque[_Open] = deque()
        """Those that have not been closed, in the order in which they were begun."""
        self._tools: dict[Any, list[_Open]] = {}
        """All of tools, by the index that the upstream gives them."""
        self._calls = 0
        self._count = 0
        """Of the blocks that were begun."""
        self._begun = False
        self._ended = False
        self._refused = False
        self._usage: Any = None
        """The latest token counts."""
        self._stop: dict[str, str | None] = {"stop_reason": None, "stop_sequence": None}

    def feed(self, chunk: bytes) -> bytes:
        """See `Sieve.feed`."""
        ready = self._events.feed(chunk)
        data = payloads(ready)
        # Comments keep a connection alive.
        return b"".join([self._translated(item) for item in data]) if data else ready

    def close(self) -> bytes:
        """See `Sieve.close`. A reply that has said why it ends is whole without the stream's own end."""
        out = [self._translated(item, last=True) for item in payloads(self._events.close())]
        if not self._ended:
            said_why = self._stop["stop_reason"] is not None
            out.append(self._finish() if said_why else self._fail(None, ENDED_EARLY))
        return b"".join(out)

    def _translated(self, data: bytes, *, last: bool = False) -> bytes:
        if self._ended:
            return b""
        if data.strip() == _DONE:
            return self._finish()
        try:
            chunk = _decoded(data)
        except (ValueError, msgspec.ValidationError) as error:
            # The last event may have been cut.
            return b"" if last else self._fail(None, f"the upstream sent no chat event: {error}")
        return self._said(chunk)

    def _said(self, chunk: _Chunk) -> bytes:
        if chunk.error is not None:
            code = chunk.error.get("code") if isinstance(chunk.error, dict) else None
            return self._fail(code, chunk.error)
        if chunk.usage is not None:
            self._usage = chunk.usage
        out: list[bytes] = []
        if not self._begun:
            self._begin(chunk, out)
        try:
            for choice in chunk.choices or ():
                if choice.index in (0, None):
                    self._choice(choice, out)
        except ValueError as error:
            out.append(self._fail(None, str(error)))
        return b"".join(out)

    def _begin(self, chunk: _Chunk, out: list[bytes]) -> None:
        self._begun = True
        model = chunk.model if isinstance(chunk.model, str) else self._model
        message = head(self._call_id, model, [], self._stop, self._usage)
        out += event({"type": "message_start", "message": message}), event({"type": "ping"})

    def _choice(self, choice: _Choice, out: list[bytes]) -> None:
        delta = choice.delta
        if isinstance(delta, dict):
            text = delta.get("content")
            if len(delta) == 1 and text and isinstance(text, str):
                self._add("text", text)  # nearly all events
            else:
                self._delta(delta)
        ends = bool(choice.finish_reason)  # some servers send an empty one all along
        if ends:
            if not self._count and not self._blocks:
                self._blocks.append(_Open("text"))  # see `blocks_of`
            self._stop = stop_of(
                msgspec.structs.asdict(choice),
                self._stops,
                called=self._calls > 0,
                refused=self._refused,
            )
        self._run(out, all_of_them=ends)

    def _delta(self, delta: dict[str, Any]) -> None:
        thought = reasoning_in(delta)
        if thought is not None:
            self._add("thinking", thought[1]).signature = thought[0]
        for name in ("content", "refusal"):
            text = text_in(delta.get(name))
            if text:
                self._refused = self._refused or name == "refusal"
                self._add("text", text)
        tools = delta.get("tool_calls")
        for piece in tools if isinstance(tools, list) else ():
            self._tool(piece)

    def _add(self, kind: Literal["text", "thinking"], text: str) -> _Open:
        if not self._blocks or self._blocks[-1].kind != kind:
            self._blocks.append(_Open(kind))
        block = self._blocks[-1]
        block.waiting.append(text)
        return block

    def _tool(self, piece: Any) -> None:
        function = function_of(piece)
        number, id_ = piece.get("index"), piece.get("id")
        known = self._tools.setdefault(number if isinstance(number, int) else None, [])
        # Some servers send whole calls, each under index 0 or under none.
        found = [b for b in reversed(known) if id_ in (None, "", b.fields["id"])]
        if found:
            block = found[0]
        else:
            id_ = id_ or made_id(self._call_id, self._calls)
            block = _Open("tool_use", id=id_, name="")
            self._calls += 1
            known.append(block)
            self._blocks.append(block)
        block.fields["name"] = block.fields["name"] or function.get("name") or ""
        said = arguments_text(function.get("arguments"))
        if block.closed and said.strip():
            raise ValueError(
                f"the upstream went on with the tool call {block.fields['id']!r} after its end"
            )
        assert block.arguments is not None  # it is a tool's
        block.waiting.append(block.arguments.feed(said))

    def _run(self, out: list[bytes], *, all_of_them: bool) -> None:
        """Send what may go: the first block's pieces, and the blocks after it once it is whole."""
        while self._blocks:
            block = self._blocks[0]
            if block.index is None:
                if not all_of_them and block.fields.get("name") == "":
                    return  # some servers send the name late
                block.index = self._count
                self._count += 1
                begun = {"type": "content_block_start", "index": block.index}
                out.append(event({**begun, "content_block": block.begun()}))
            ends = all_of_them or (block.whole and len(self._blocks) > 1)
            if ends and block.arguments is not None:
                block.waiting.append(block.arguments.close())
            kind, field = _DELTAS[block.kind]
            out += [_delta(block.index, kind, field, text) for text in block.waiting if text]
            block.waiting.clear()
            if not ends:
                return
            if block.signature:
                out.append(_delta(block.index, "signature_delta", "signature", block.signature))
            out.append(event({"type": "content_block_stop", "index": block.index}))
            block.closed = True
            self._blocks.popleft()

    def _finish(self) -> bytes:
        out: list[bytes] = []
        if not self._begun:
            self._begin(_Chunk(), out)
        self._run(out, all_of_them=True)
        self._ended = True
        usage = usage_of(self._usage)
        out.append(event({"type": "message_delta", "delta": self._stop, "usage": usage}))
        out.append(event({"type": "message_stop"}))
        return b"".join(out)

    def _fail(self, status: Any, error: Any) -> bytes:
        self._ended = True
        return event(error_body(status, error))


def head(
    call_id: str, model: Any, content: list[Block], stop: Mapping[str, Any], usage: Any
) -> dict[str, Any]:
    """A message of the format.

    Args:
        call_id: the Call's id, of which the message's is made.
        model: the model that answered.
        content: its blocks.
        stop: `stop_reason` and `stop_sequence`.
        usage: the token counts of chat completions.
    """
    return {
        "id": f"msg_{call_id}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        **stop,
        "usage": usage_of(usage),
    }


def _delta(index: int, kind: str, field: str, text: str) -> bytes:
    return (
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":'
        b'{"type":"%b","%b":%b}}\n\n' % (index, kind.encode(), field.encode(), _encode(text))
    )


def _decoded(data: bytes) -> _Chunk:
    try:
        return _chunk.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return msgspec.convert(jsontext.decode(data), _Chunk)
