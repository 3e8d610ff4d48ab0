"""Making what adapters put into spans JSON, and bounded, whatever it is. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Mapping

TYPE_CHECKING = False  # `typing` costs the start of every child process; a checker knows the name.
if TYPE_CHECKING:
    from typing import Any

TEXT_LIMIT = 64 * 1024
"""Characters that one attribute, or the error, of a span may take."""
NAME_LIMIT = 1024
"""Characters of a span's name."""
_SPAN_LIMIT = 256 * 1024
_DEPTH = 32
_BESIDES = (
    2  # Characters that a value takes beside its text, so that many small ones are bounded too.
)
_LATEST = 1e12  # Unix time in seconds; excludes NaN and infinities too.
_NUMBERS = (int, float)  # Tuples, since Python 3.9 knows no unions.
_BYTES = (bytes, bytearray)
_SEQUENCES = (list, tuple, set, frozenset)


def plain(value: Any, limit: int = TEXT_LIMIT) -> Any:
    """`value` as JSON of about `limit` characters at most. Never raises.

    Lone surrogates become `?`; what JSON does not know, NaN included, becomes its `repr`; what is left out is said in
    its place.
    """
    return _plain(value, _Room(limit))


def plain_name(name: Any) -> str:
    """A name, or its `repr` where it is no string, cut to its limit. Never raises."""
    return _clipped(name if isinstance(name, str) else _shown(name), NAME_LIMIT)


def plain_error(error: Any) -> str:
    """An error's text, cut to its limit. Never raises."""
    return _clipped(error if isinstance(error, str) else _shown(error), TEXT_LIMIT)


def plain_time(seconds: Any) -> float | None:
    """Unix time in seconds; None for what is none. Never raises."""
    known = isinstance(seconds, _NUMBERS) and abs(seconds) < _LATEST
    return float(seconds) if known else None


def plain_attributes(given: Any) -> dict[str, Any]:
    """A span's attributes as bounded JSON. Never raises."""
    attributes: dict[str, Any] = {}
    left = _SPAN_LIMIT
    for name, value in given.items() if isinstance(given, Mapping) else [("value", given)]:
        if left <= 0:
            attributes["…"] = f"{len(given) - len(attributes)} attributes left out"
            break
        room = _Room(min(left, TEXT_LIMIT))
        left -= room.left
        attributes[plain_name(name)] = _plain(value, room)
        left += room.left
    return attributes


class _Room:
    """How many characters there may still be."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left


def _plain(value: Any, room: _Room) -> Any:
    try:
        return _convert(value, room, 0)
    except Exception:  # A value of the user's may raise from anything that it is asked.
        return _text(_shown(value), room)


def _convert(value: Any, room: _Room, depth: int) -> Any:
    room.left -= _BESIDES
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, room)
    if isinstance(value, int) and -(2**63) <= value < 2**64:
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, _BYTES):
        return _text(repr(bytes(value[: max(room.left, 0)])), room)
    if depth < _DEPTH and isinstance(value, Mapping):
        result: dict[str, Any] = {}
        for key, item in value.items():
            if room.left <= 0:
                result["…"] = f"{len(value) - len(result)} more"
                break
            name = _key(key, room)
            result[name] = _convert(item, room, depth + 1)
        return result
    if depth < _DEPTH and isinstance(value, _SEQUENCES):
        items: list[Any] = []
        for item in value:
            if room.left <= 0:
                items.append(f"… {len(value) - len(items)} more")
                break
            items.append(_convert(item, room, depth + 1))
        return items
    return _text(_shown(value), room)


def _key(key: Any, room: _Room) -> str:
    return _text(key if isinstance(key, str) else _shown(key), room)


def _text(text: str, room: _Room) -> str:
    if type(text) is str and text.isascii() and len(text) <= room.left:
        room.left -= len(text)
        return text  # As nearly all are.
    limit = max(room.left, 0)
    room.left -= min(str.__len__(text), limit)
    return _clipped(text, limit)


def _clipped(text: str, limit: int) -> str:
    if type(text) is str and text.isascii() and len(text) <= limit:
        return text
    kept = str.__str__(text)[:limit]
    left_out = str.__len__(text) - len(kept)
    if not kept.isascii():
        kept = kept.encode("utf-8", "replace").decode()
    return f"{kept}… {left_out} characters left out" if left_out else kept


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except Exception as error:
        return f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"
