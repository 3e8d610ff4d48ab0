"""Server-sent events as bytes: where events end, what data they carry, and taking some out of a live stream."""

from __future__ import annotations

import re
from collections.abc import Callable

_BLANK_LINE = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?!\n))")
_LONGEST_EVENT = 8 * 2**20
_BEGUN = 3
"""Bytes of a blank line that may have come before its last one."""


def payloads(stream: bytes) -> list[bytes]:
    """What the events of a stream carry, one item for each event with data; the last one may be cut."""
    if stream.startswith(b"data: ") and b"\r" not in stream:
        plain = stream[6:].split(b"\n\ndata: ")
        plain[-1] = plain[-1].removesuffix(b"\n\n")
        # Two line ends between events and two at the end: nothing but single `data` lines.
        if stream.count(b"\n") == 2 * len(plain) - (0 if stream.endswith(b"\n\n") else 2):
            return plain
    events = _BLANK_LINE.split(stream)
    return [data for event in events if (data := data_of(event)) is not None]


def data_of(event: bytes) -> bytes | None:
    """What an event's `data` lines carry; None where it has none (a comment, a blank)."""
    if event[:6] == b"data: " and b"\n" not in event and b"\r" not in event:
        return event[6:]
    lines = [
        line[5:].removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:")
    ]
    return b"\n".join(lines) if lines else None


class StreamFilter:
    """Passes a stream on event by event, and lets `edit` change the events that may need it.

    Bytes of all other events stay as they are. An event is passed on once its blank line has come, however the
    network cut it.
    """

    def __init__(self, suspect: re.Pattern[bytes], edit: Callable[[bytes], bytes]) -> None:
        """
        Args:
            suspect: found in every event that may need an edit.
            edit: takes an event with its blank line and returns what to pass on in its place.
        """
        self._suspect = suspect
        self._edit = edit
        self._held: list[bytes] = []
        self._size = 0
        self._tail = b""
        """The end of what is held, in which a blank line may have begun."""

    def feed(self, chunk: bytes) -> bytes:
        """What may be passed on now that `chunk` has come."""
        if not self._held and chunk.endswith(b"\n\n") and self._suspect.search(chunk) is None:
            return chunk  # whole events and nothing to edit: nearly always
        # Only the end of what is held is looked at again: a long event may come in many chunks.
        recent = self._tail + chunk
        end = _last_end(recent)
        if end == 0 and self._size + len(chunk) > _LONGEST_EVENT:
            end = len(recent)
        if end == 0:
            self._hold(chunk, recent)
            return b""
        end -= len(self._tail)
        ready = b"".join([*self._held, chunk[:end]])
        rest = chunk[end:]
        self._held, self._size = [], 0
        self._hold(rest, rest)
        return self._edited(ready)

    def close(self) -> bytes:
        """What is left when the stream has ended: an event without its blank line, or nothing."""
        held = b"".join(self._held)
        self._held, self._size, self._tail = [], 0, b""
        return held

    def _hold(self, piece: bytes, recent: bytes) -> None:
        """Keep `piece`, with which `recent` ends."""
        if piece:
            self._held.append(piece)
        self._size += len(piece)
        self._tail = recent[-_BEGUN:]

    def _edited(self, block: bytes) -> bytes:
        """`block`, a number of whole events, with those edited that may need it."""
        pieces: list[bytes] = []
        done = 0
        plain = b"\r" not in block
        for match in self._suspect.finditer(block):
            if match.start() < done:
                continue  # in the event just edited
            start = _start_of_event(block, done, match.start(), plain=plain)
            end = _end_of_event(block, match.end())
            pieces += block[done:start], self._edit(block[start:end])
            done = end
        if not pieces:
            return block
        pieces.append(block[done:])
        return b"".join(pieces)


def _start_of_event(block: bytes, floor: int, position: int, *, plain: bool) -> int:
    if plain:  # no line end has a carriage return
        found = block.rfind(b"\n\n", floor, position)
        return floor if found < 0 else found + 2
    start = floor
    for match in _BLANK_LINE.finditer(block, floor, position):
        start = match.end()
    return start


def _end_of_event(block: bytes, position: int) -> int:
    match = _BLANK_LINE.search(block, position)
    return match.end() if match else len(block)


def _last_end(buffer: bytes) -> int:
    """The position after the last blank line, 0 where there is none."""
    if b"\r" not in buffer:
        position = buffer.rfind(b"\n\n")
        return 0 if position < 0 else position + 2
    end = 0
    for match in _BLANK_LINE.finditer(buffer):
        # A carriage return at the very end may be half of a line end whose other half is yet to come.
        if match.end() < len(buffer) or not buffer.endswith(b"\r"):
            end = match.end()
    return end
