"""Writing the events of one OpenAI Responses stream: numbers, indices, and what opens and closes an item."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from lightning_core.gateway.dialects.responses_items import Item, arguments_of, call_item, text_part

_PARTS: Final = {
    "output_text": ("text", "response.output_text"),
    "refusal": ("refusal", "response.refusal"),
    "reasoning_text": ("text", "response.reasoning_text"),
}
"""For each type of part the field that has its text, and what the names of its events begin with."""


class EventWriter:
    """The events that are ready to go out."""

    def __init__(self) -> None:
        self._ready: list[bytes] = []
        self._count = 0

    def put(self, kind: str, **fields: Any) -> None:
        """Write an event."""
        event = {"type": kind, "sequence_number": self._count, **fields}
        self._count += 1
        self._ready.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode(event)))

    def drain(self) -> bytes:
        """What was written since the last time."""
        ready, self._ready = self._ready, []
        return b"".join(ready)


class TextItem:
    """An item of text or reasoning that is being written."""

    def __init__(self, out: EventWriter, index: int, item: Item) -> None:
        """
        Args:
            out: takes its events.
            index: its place in the output.
            item: the item, without a part.
        """
        self.item = item
        """As far as its parts have ended."""
        self._out = out
        self._index = index
        self._kind: str | None = None
        self._pieces: list[str] = []
        self._logprobs: list[Any] = []
        self._closed = False
        began = {**item, "status": "in_progress"}
        out.put("response.output_item.added", output_index=index, item=began)

    def add(self, kind: str, text: str, logprobs: Sequence[Any] = ()) -> None:
        """Write a piece of a part of type `kind`; an empty one only begins the part."""
        if kind != self._kind:
            self._close_part()
            self._kind = kind
            self._put("response.content_part.added", part=_part(kind, "", ()))
        self._pieces.append(text)
        self._logprobs += logprobs
        if text:
            more = _logprobs(kind, logprobs)
            self._put(f"{_PARTS[kind][1]}.delta", delta=text, **more)

    def add_logprobs(self, logprobs: Sequence[Any]) -> None:
        """Take in log-probabilities that came after the last text."""
        self._logprobs += logprobs

    def so_far(self) -> Item:
        """The item as it would be if nothing followed."""
        return {**self.item, "content": [*self.item["content"], *self._open_part()]}

    def close(self, status: str) -> Item:
        """Write its end, unless that was done before, and return it."""
        if not self._closed:
            self._closed = True
            self._close_part()
            self.item["status"] = status
            self._out.put("response.output_item.done", output_index=self._index, item=self.item)
        return self.item

    def _open_part(self) -> list[dict[str, Any]]:
        if self._kind is None:
            return []
        return [_part(self._kind, "".join(self._pieces), self._logprobs)]

    def _close_part(self) -> None:
        for part in self._open_part():
            assert self._kind is not None  # else none is open
            field, name = _PARTS[self._kind]
            said = {field: part[field], **_logprobs(self._kind, self._logprobs)}
            self._put(f"{name}.done", **said)
            self._put("response.content_part.done", part=part)
            self.item["content"].append(part)
        self._kind, self._pieces, self._logprobs = None, [], []

    def _put(self, kind: str, **fields: Any) -> None:
        self._out.put(
            kind,
            item_id=self.item["id"],
            output_index=self._index,
            content_index=len(self.item["content"]),
            **fields,
        )


class FunctionItem:
    """A function call that is being written. Nothing goes out before its name is known."""

    def __init__(self, out: EventWriter, call_id: str, number: int, tool_call_id: Any) -> None:
        """
        Args:
            out: takes its events.
            call_id: see `call_item`, as for the others.
            number: its place among the reply's calls.
            tool_call_id: the upstream's id of it.
        """
        self.tool_call_id = tool_call_id
        self.begun = False
        """Whether anything has gone out."""
        self._out = out
        self._index = 0
        self._item = call_item(call_id, number, tool_call_id, "", "")
        self._pieces: list[str] = []

    def add(self, arguments: Any) -> None:
        """Write a piece of the arguments."""
        text = arguments_of(arguments)
        if text:
            self._pieces.append(text)
            if self.begun:
                self._put("delta", delta=text)

    def begin(self, index: int, name: str) -> None:
        """Write its beginning.

        Args:
            index: its place in the output.
            name: the function.
        """
        self.begun = True
        self._index = index
        self._item["name"] = name
        began = {**self._item, "status": "in_progress"}
        self._out.put("response.output_item.added", output_index=index, item=began)
        if self._pieces:
            self._put("delta", delta="".join(self._pieces))

    def so_far(self) -> Item:
        """See `TextItem.so_far`."""
        return {**self._item, "arguments": "".join(self._pieces)}

    def close(self, status: str) -> Item:
        """Write its end and return it."""
        item = {**self.so_far(), "status": status}
        self._put("done", name=item["name"], arguments=item["arguments"])
        self._out.put("response.output_item.done", output_index=self._index, item=item)
        return item

    def _put(self, kind: str, **fields: Any) -> None:
        self._out.put(
            f"response.function_call_arguments.{kind}",
            item_id=self._item["id"],
            output_index=self._index,
            **fields,
        )


def _part(kind: str, text: str, logprobs: Sequence[Any]) -> dict[str, Any]:
    if kind == "output_text":
        return text_part(text, logprobs)
    return {"type": kind, _PARTS[kind][0]: text}


def _logprobs(kind: str, logprobs: Sequence[Any]) -> dict[str, Any]:
    return {"logprobs": text_part("", logprobs)["logprobs"]} if kind == "output_text" else {}
