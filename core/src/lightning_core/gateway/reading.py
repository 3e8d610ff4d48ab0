"""Reading an agent's request."""

from __future__ import annotations

import msgspec
from aiohttp import web

from lightning_core.gateway import jsontext
from lightning_core.gateway.dialects.base import Fields
from lightning_core.gateway.refusal import Refusal

_fields = msgspec.json.Decoder(Fields)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


async def read_body(request: web.BaseRequest, limit: int) -> bytes:
    """The request's body, decompressed.

    Raises:
        Refusal: it is larger than `limit` bytes, or cannot be read.
        ConnectionError: the agent has gone.
    """
    if "Expect" in request.headers and request.transport is not None:
        request.transport.write(_CONTINUE)
    if (request.content_length or 0) > limit:
        raise _too_large(limit)
    content = request.content
    chunks: list[bytes] = []
    size = 0
    try:
        while True:
            chunk = await content.readany()
            size += len(chunk)
            if size > limit:
                raise _too_large(limit)
            if content.at_eof():
                return b"".join([*chunks, chunk]) if chunks else chunk
            chunks.append(chunk)
    except web.RequestPayloadError as error:
        raise Refusal(400, "bad_request", f"the body cannot be read: {error}") from None


def read_fields(body: bytes, content_type: str) -> Fields:
    """The fields of a body that is a JSON object.

    Raises:
        Refusal: the type or the body is not JSON's, or it is no object.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        message = f"expected a body of type `application/json` but got {content_type!r}"
        raise Refusal(415, "content_type", message)
    try:
        return _fields.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        reason = str(error)
    try:
        value = jsontext.decode(body)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise Refusal(400, "bad_request", f"expected the body to be a JSON object: {reason}")
    return {name: msgspec.Raw(msgspec.json.encode(item)) for name, item in value.items()}


def _too_large(limit: int) -> Refusal:
    message = f"the body is larger than {limit} bytes; the server's limit is `max_body`"
    return Refusal(413, "too_large", message)
