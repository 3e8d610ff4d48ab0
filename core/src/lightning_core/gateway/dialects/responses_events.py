"""A stream of chat completions, as a stream of OpenAI Responses."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import msgspec

from lightning_core.gateway import jsontext
from lightning_core.gateway.dialects.assembly import EventChoice
from lightning_core.gateway.dialects.responses_items import (
    REASONING_FIELDS,
    reasoning_of,
    text_item,
    text_of,
)
from lightning_core.gateway.dialects.responses_reply import (
    INCOMPLETE,
    Head,
    begun,
    ended,
    failed,
    logprobs_of,
)
from lightning_core.gateway.dialects.responses_stream import EventWriter, FunctionItem, TextItem
from lightning_core.gateway.dialects.sampled import message_of_error
from lightning_core.gateway.dialects.translation import ENDED_EARLY
from lightning_core.gateway.sse import StreamFilter, payloads

_DONE = b"[DONE]"
_NOTHING = re.compile(rb"(?!)")


class _Event(msgspec.Struct, gc=False):
    """One event; see `EventChoice` for why so much is `Any`."""

    choices: list[EventChoice] | None = None
    usage: Any = None
    error: Any = None
    object: Any = None
    message: Any = None
    created: Any = None
    model: Any = None
    service_tier: Any = None


_event = msgspec.json.Decoder(_Event)


class ResponsesSieve:
    """See `Sieve`. Each event goes out as soon as what it says has come.

    Reasoning and text end where something else begins. Function calls, of which several may be under way at once, end with
    the reply.
    """

    def __init__(self, head: Head) -> None:
        """
        Args:
            head: what the reply has beside its items.
        """
        self._events = StreamFilter(_NOTHING, bytes)  # holds an event back until it is whole
        self._out = EventWriter()
        self._head = head
        self._fields: dict[str, Any] | None = None
        self._items: list[TextItem | FunctionItem] = []
        self._text: TextItem | None = None
        """The text or reasoning that is under way."""
        self._texts: Counter[str] = Counter()
        self._functions: list[tuple[Any, FunctionItem]] = []
        """The function calls by the upstream's numbers."""
        self._chosen = False
        """Whether a choice has come."""
        self._blank = False
        """Whether content has come, be it without a character."""
        self._logprobs: list[Any] = []
        """Those for which no text has come yet."""
        self._finish_reason: Any = None
        self._usage: Any = None
        self._over = False

    def feed(self, chunk: bytes) -> bytes:
        """See `Sieve.feed`."""
        for data in payloads(self._events.feed(chunk)):
            self._take(data)
        return self._out.drain()

    def close(self) -> bytes:
        """See `Sieve.close`. A reply that has said why it ends is whole without the stream's own end."""
        for data in payloads(self._events.close()):
            self._take(data, cut=True)
        if self._finish_reason is not None:
            self._end()
        elif not self._over:
            self._fail(ENDED_EARLY)
        return self._out.drain()

    def _take(self, data: bytes, *, cut: bool = False) -> None:
        """Take in what an event carries.

        Args:
            data: what it carries.
            cut: whether its end may be missing.
        """
        if self._over:
            return
        if data == _DONE:
            self._end()
            return
        try:
            event = _decoded(data)
        except (ValueError, msgspec.ValidationError) as error:
            if not cut:
                self._fail(f"an event of the upstream's is none of chat completions: {error}")
            return
        self._begin(event)
        if event.usage is not None:
            self._usage = event.usage
        for choice in event.choices or ():
            if not choice.index:  # the others are no part of the format
                self._add(choice)
        if event.error is not None:
            self._fail(message_of_error(event.error))
        elif event.object == "error":
            self._fail(message_of_error(event.message))

    def _begin(self, event: _Event) -> dict[str, Any]:
        if self._fields is None:
            self._fields = self._head.of(msgspec.structs.asdict(event))
            for kind in ("created", "in_progress"):
                self._out.put(f"response.{kind}", response=begun(self._fields))
        return self._fields

    def _add(self, choice: EventChoice) -> None:
        self._chosen = True
        if isinstance(choice.finish_reason, str):
            self._finish_reason = choice.finish_reason
        if choice.logprobs is not None:
            self._logprobs += logprobs_of(choice.logprobs)
        delta = choice.delta
        if not isinstance(delta, dict):
            return
        name, reasoning = reasoning_of(delta)
        if reasoning:
            self._open("reasoning", REASONING_FIELDS[name]).add("reasoning_text", reasoning)
        content, refusal = text_of(delta.get("content")), delta.get("refusal")
        if content is not None:
            self._blank = True
            if content:
                logprobs, self._logprobs = self._logprobs, []
                self._open("message", "msg").add("output_text", content, logprobs)
        if refusal and isinstance(refusal, str):
            self._open("message", "msg").add("refusal", refusal)
        calls = delta.get("tool_calls")
        for piece in calls if isinstance(calls, list) else ():
            if isinstance(piece, dict):
                self._add_call(piece)

    def _open(self, kind: str, prefix: str) -> TextItem:
        """The item that further text of a kind belongs to."""
        if self._text is None or self._text.item["type"] != kind:
            self._close_text()
            earlier = self._texts[kind]
            item_id = f"{prefix}_{self._head.call_id}" + (f"_{earlier}" if earlier else "")
            item = text_item(kind, item_id, [])
            self._text = TextItem(self._out, len(self._items), item)
            self._texts[kind] += 1
            self._items.append(self._text)
        return self._text

    def _close_text(self) -> None:
        if self._text is not None:
            self._text.close("completed")
            self._text = None

    def _add_call(self, piece: dict[str, Any]) -> None:
        function = piece.get("function")
        function = function if isinstance(function, dict) else {}
        call = self._call_of(piece.get("index"), piece.get("id"))
        call.add(function.get("arguments"))
        name = function.get("name")
        if not call.begun and name and isinstance(name, str):
            self._begin_call(call, name)

    def _call_of(self, number: Any, tool_call_id: Any) -> FunctionItem:
        """The call that a piece belongs to."""
        earlier: FunctionItem
        for known, earlier in reversed(self._functions):
            # Some servers send whole calls, each under index 0 or under none.
            if known == number and tool_call_id in (None, "", earlier.tool_call_id):
                return earlier
        self._close_text()
        call = FunctionItem(self._out, self._head.call_id, len(self._functions), tool_call_id)
        self._functions.append((number, call))
        return call

    def _begin_call(self, call: FunctionItem, name: str) -> None:
        call.begin(len(self._items), name)
        self._items.append(call)

    def _end(self) -> None:
        if self._over:
            return
        if self._fields is None or not self._chosen:
            self._fail("the upstream's stream ended without a choice")
            return
        if not self._functions and not self._texts["message"] and (self._blank or not self._items):
            message = self._open("message", "msg")
            if self._blank:
                message.add("output_text", "")
        if self._text is not None:
            self._text.add_logprobs(self._logprobs)
        for _, call in self._functions:
            if not call.begun:
                self._begin_call(call, "")
        last = "incomplete" if self._finish_reason in INCOMPLETE else "completed"
        output = [item.close("completed") for item in self._items[:-1]]
        output += [item.close(last) for item in self._items[-1:]]
        response = ended(self._fields, output, self._finish_reason, self._usage)
        self._over = True
        self._out.put(f"response.{response['status']}", response=response)

    def _fail(self, message: str) -> None:
        self._over = True
        fields = self._begin(_Event())
        output = [item.so_far() for item in self._items]
        response = failed(fields, output, message, self._usage)
        self._out.put("response.failed", response=response)


def _decoded(data: bytes) -> _Event:
    """Raises ValueError or `msgspec.ValidationError`: it is no event."""
    try:
        return _event.decode(data)
    except msgspec.DecodeError:
        return msgspec.convert(jsontext.decode(data), _Event)
