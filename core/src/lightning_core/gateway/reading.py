"""Reading an agent's request."""

from __future__ import annotations

import msgspec

from lightning_core.gateway import jsontext
from lightning_core.gateway.dialects.base import Fields
from lightning_core.gateway.refusal import Refusal

_fields = msgspec.json.Decoder(Fields)


def read_fields(body: bytes, content_type: str) -> Fields:
    """The fields of a body that is a JSON object.

    Raises:
        Refusal: the type or the body is not JSON's, or it is no object.
    """
    if content_type != "application/json":
        _check_type(content_type)
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


def too_large(limit: int) -> Refusal:
    """The answer to a body of more than `limit` bytes."""
    message = f"the body is larger than {limit} bytes; the server's limit is `max_body`"
    return Refusal(413, "too_large", message)


def _check_type(content_type: str) -> None:
    kind = content_type.partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        message = f"expected a body of type `application/json` but got {content_type!r}"
        raise Refusal(415, "content_type", message)
