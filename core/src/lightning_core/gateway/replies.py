"""What the bytes of a reply say."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import msgspec

from lightning_core.gateway import jsontext
from lightning_core.gateway.dialects.base import Dialect, Reply
from lightning_core.gateway.dialects.sampled import message_of_error
from lightning_core.trace import CallError, CallErrorKind

_MESSAGE = 4096
_TEXT = 65536


def bounded(text: str, size: int = _MESSAGE) -> str:
    """`text`, cut to at most `size` bytes of UTF-8."""
    data = text.encode("utf-8", "replace")
    return text if len(data) <= size else data[: size - 3].decode("utf-8", "ignore") + "…"


def inflater(encoding: str | None) -> Callable[[bytes], bytes] | None:
    """What decompresses a body piece by piece; None where it is not compressed, or not in a way known here."""
    if encoding is None or encoding.lower() not in ("gzip", "x-gzip", "deflate"):
        return None
    return zlib.decompressobj(wbits=47).decompress


def read_reply(
    dialect: Dialect, data: bytes, *, status: int, encoding: str | None, stream: bool, whole: bool
) -> tuple[Reply, CallError | None]:
    """What a reply says, and what is wrong with it.

    Args:
        dialect: the format.
        data: the bytes that the upstream sent.
        status: the HTTP status.
        encoding: the reply's `content-encoding`.
        stream: whether it is a stream of events.
        whole: whether the body came to its end.
    """
    inflate = inflater(encoding)
    try:
        if inflate is not None:
            data = inflate(data)
        if status >= 400:
            return _read_error(data, status)
        if not stream and not whole:
            return Reply(complete=False), None
        reply = dialect.read_stream(data) if stream else dialect.read(data)
    except (ValueError, TypeError, zlib.error, msgspec.MsgspecError) as error:
        kept = {"text": bounded(data.decode("utf-8", "replace"), _TEXT)}
        return Reply(complete=False, reply=kept), CallError(
            kind=CallErrorKind.UNREADABLE,
            status=status,
            message=bounded(f"the reply is not a `{dialect.name}` reply: {error}"),
        )
    if reply.failure is not None:
        failure = CallError(kind=CallErrorKind.CUT, status=status, message=bounded(reply.failure))
        return reply, failure
    if stream and whole and not reply.complete:
        message = "the stream ended without its terminator"
        return reply, CallError(kind=CallErrorKind.CUT, status=status, message=message)
    return reply, None


def _read_error(data: bytes, status: int) -> tuple[Reply, CallError]:
    text = data.decode("utf-8", "replace")
    value: Any = None
    try:
        value = jsontext.decode(data)
    except ValueError:
        message = text
    else:
        error = value.get("error", value) if isinstance(value, dict) else value
        message = message_of_error(error)
    kept = value if isinstance(value, dict) else {"text": bounded(text, _TEXT)}
    error = CallError(kind=CallErrorKind.STATUS, status=status, message=bounded(message))
    return Reply(complete=False, reply=kept), error
