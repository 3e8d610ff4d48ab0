"""Making an agent's output JSON, or saying exactly where it cannot be."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import math
import os
import uuid
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from lightning_core.records import Json

OUTPUT_LIMIT: Final = 8 * 1024 * 1024
"""Bytes of JSON that an output may take by default."""
_DEPTH_LIMIT: Final = 100
_PART_LIMIT: Final = 60  # Characters of a key that a path shows.


class OutputError(ValueError):
    """The output cannot be JSON, or is too large. The text names the path, the type and the next step."""


def read_json(data: bytes, *, limit: int = OUTPUT_LIMIT) -> Json:
    """Decode an output that a process gave as JSON, within the bounds of `to_json`.

    Raises:
        OutputError: it is nested too deep or too large.
        msgspec.DecodeError: it is not JSON.
        UnicodeDecodeError: it is not UTF-8.
    """
    try:
        value = msgspec.json.decode(data)
    except RecursionError as error:
        raise OutputError(f"output: its JSON is nested deeper than {_DEPTH_LIMIT}") from error
    return to_json(value, limit=limit)


def to_json(output: object, *, limit: int = OUTPUT_LIMIT) -> Json:
    """Convert an agent's output to JSON.

    Knows dataclasses, msgspec structs, whatever has `model_dump` (pydantic models, LangChain messages), mappings,
    sequences, sets (sorted), enums, paths, dates, UUIDs, decimals (as text), and arrays and scalars of numpy and torch.

    Args:
        output: what the agent returned.
        limit: bytes of JSON that it may take.

    Raises:
        OutputError: a value cannot be JSON (a NaN, an object of another type, a cycle), or it is too large.
    """
    value = _convert(output, "output", 0)
    try:
        size = len(msgspec.json.encode(value))
    except UnicodeEncodeError as error:
        raise OutputError(
            f"output: a text holds {error.object[error.start : error.end]!r}, which UTF-8 cannot encode"
        ) from error
    if size > limit:
        raise OutputError(
            f"output: {size} bytes of JSON are over the limit of {limit}; return less, or write it to a file and"
            " return the path"
        )
    return value


def _convert(value: object, path: str, depth: int) -> Json:
    if depth > _DEPTH_LIMIT:
        raise OutputError(f"`{path}`: nested deeper than {_DEPTH_LIMIT}; does it hold itself?")
    if isinstance(value, enum.Enum):
        return _convert(value.value, path, depth + 1)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise OutputError(f"`{path}`: JSON cannot hold {float(value)!r}")
        return float(value)
    if isinstance(value, Mapping):
        return _convert_mapping(value, path, depth)
    if isinstance(value, list | tuple | deque):
        return [_convert(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
    if isinstance(value, set | frozenset):
        items = [_convert(item, f"{path}{{…}}", depth + 1) for item in value]
        return sorted(items, key=lambda item: (type(item).__name__, str(item)))
    return _convert_object(value, path, depth)


def _convert_mapping(value: Mapping[Any, Any], path: str, depth: int) -> dict[str, Json]:
    result: dict[str, Json] = {}
    for key, item in value.items():
        plain = key.value if isinstance(key, enum.Enum) else key
        if not isinstance(plain, str | int | uuid.UUID):
            raise OutputError(
                f"`{path}`: expected text as keys but got {key!r} of type `{_type_name(key)}`"
            )
        name = str(plain)
        if name in result:
            raise OutputError(f"`{path}`: two keys read {name[:_PART_LIMIT]!r} as text")
        part = name if len(name) <= _PART_LIMIT else f"{name[:_PART_LIMIT]}…"
        result[name] = _convert(item, f"{path}.{part}", depth + 1)
    return result


def _convert_object(value: object, path: str, depth: int) -> Json:
    if isinstance(value, os.PathLike):
        return _convert(os.fspath(value), path, depth + 1)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, uuid.UUID | decimal.Decimal):
        return str(value)
    if isinstance(value, type):
        raise _not_json(value, path)
    if isinstance(value, msgspec.Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        return _convert_mapping(fields, path, depth)
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return _convert_mapping(fields, path, depth)
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        try:
            dumped = dump(mode="json")
        except Exception as error:  # A model of the user's may raise anything from its serialisers.
            raise OutputError(
                f"`{path}`: `{_type_name(value)}.model_dump` raised {type(error).__name__}: {error}"
            ) from error
        return _convert(dumped, path, depth + 1)
    tolist = getattr(value, "tolist", None)
    if callable(tolist) and hasattr(value, "shape"):
        return _convert(tolist(), path, depth + 1)
    raise _not_json(value, path)


def _not_json(value: object, path: str) -> OutputError:
    return OutputError(
        f"`{path}`: JSON cannot hold a `{_type_name(value)}`; return text, numbers, lists, dicts, dataclasses or"
        " pydantic models"
    )


def _type_name(value: object) -> str:
    kind = value if isinstance(value, type) else type(value)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
