"""The base of every record that crosses a process: frozen, versioned, JSON both ways."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import msgspec

from lightning_core.errors import FormatError, FormatVersionError

Json = Any
"""A value that JSON can hold: None, bool, int, float, str, list or dict with string keys."""


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A frozen record. Fields at their default are left out of the JSON; unknown fields are ignored,
    so that an older reader survives a newer writer within one format version."""

    VERSION: ClassVar[int] = 1
    """The format version that this release writes, and the newest that it reads."""

    def to_json(self) -> bytes:
        """Encode as one line of JSON with a leading `format_version`."""
        return msgspec.json.encode({"format_version": self.VERSION, **msgspec.to_builtins(self)})

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """Decode what `to_json` wrote.

        Raises:
            FormatVersionError: the record was written in a newer format.
            FormatError: it is not JSON, or not this record; the message names the path.
        """
        try:
            value = msgspec.json.decode(data)
        except msgspec.DecodeError as error:
            raise FormatError(f"{cls.__name__}: not JSON: {error}") from error
        return cls.from_value(value)

    @classmethod
    def from_value(cls, value: Json) -> Self:
        """Convert decoded JSON to this record; raises as `from_json` does."""
        if isinstance(value, dict):
            version = value.get("format_version", cls.VERSION)
            if not isinstance(version, int) or version > cls.VERSION:
                raise FormatVersionError(
                    f"{cls.__name__}: format version {version!r} is newer than {cls.VERSION}, which this"
                    " release reads; upgrade with `pip install -U lightning-core`"
                )
        try:
            return msgspec.convert(value, cls)
        except msgspec.ValidationError as error:
            raise FormatError(f"{cls.__name__}: {error}") from error
