"""JSON of strangers: decoded strictly where that works, and leniently where only the record depends on it."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

_SURROGATE = re.compile("[\ud800-\udfff]")
_decoder = msgspec.json.Decoder()


def decode(data: bytes) -> Any:
    """Decode JSON for the record.

    Lone surrogates become U+FFFD, and `NaN` and the infinities None: other JSON writers emit them, and the record
    must be JSON that every reader takes.

    Raises:
        ValueError: it is not JSON, even so.
    """
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError:
        return _decode_leniently(data)
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None


def exact(data: bytes) -> Any:
    """JSON decoded as it is; None where only leniency reads it."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None


def legible(data: bytes) -> Any:
    """What can be read of JSON: None stands for a text that is not UTF-8, and for an object with such a key."""
    try:
        text = data.decode("utf-8", "surrogateescape")
        return _legible(json.loads(text, parse_int=float))
    except (ValueError, RecursionError):
        return None


def _legible(value: Any) -> Any:
    if isinstance(value, str):
        return None if _SURROGATE.search(value) else value
    if isinstance(value, list):
        return [_legible(item) for item in value]
    if isinstance(value, dict):
        if any(map(_SURROGATE.search, value)):
            return None
        return {key: _legible(item) for key, item in value.items()}
    return value


def _decode_leniently(data: bytes) -> Any:
    try:
        text = data.decode("utf-8", "surrogatepass")
        return _clean(json.loads(text, parse_constant=lambda _: None))
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return value
