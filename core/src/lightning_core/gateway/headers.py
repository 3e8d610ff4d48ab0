"""Which headers pass, in both directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from multidict import CIMultiDict

from lightning_core.gateway.refusal import Refusal
from lightning_core.tokens import PREFIX
from lightning_core.trace import CallErrorKind

_HOP_BY_HOP = frozenset(
    {
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te",
        "trailer", "transfer-encoding", "upgrade",
    }
)  # fmt: skip
# An SDK that followed a redirect would bypass the record, and take the session along.
_NOT_BACK = _HOP_BY_HOP | {"location", "content-length"}
_OF_THE_BODY = _NOT_BACK | {"content-encoding", "etag", "content-md5"}
_OURS_UPSTREAM = _HOP_BY_HOP | {
    "host", "content-length", "expect",
    # The body has been decompressed on the way in.
    "content-encoding",
    # Replies must be readable for the record; see `passed_on`.
    "accept-encoding",
}  # fmt: skip
_CREDENTIALS = frozenset(
    {"authorization", "api-key", "x-api-key", "cookie", "openai-organization", "openai-project"}
)


class Line(NamedTuple):
    """A header of an agent's request, judged."""

    pair: tuple[str, str]
    """Its name in lower case, and its value."""
    sent: bytes
    """As it goes upstream, with its line end; empty where it does not."""
    public: bytes
    """The same where the agent's own keys do not go along."""


def line_of(name: str, value: str) -> Line:
    """Judge a header. The server's parser has made sure that it holds no line end."""
    key = name.lower()
    pair = (key, value)
    if key in _OURS_UPSTREAM or key.startswith("x-lightning-"):
        return Line(pair, b"", b"")
    sent = f"{name}: {value}\r\n".encode("utf-8", "surrogateescape")
    if key not in _CREDENTIALS:
        return Line(pair, sent, sent)
    # A session's token never goes along.
    return Line(pair, b"" if session_token(value) is not None else sent, b"")


def passed_on(
    lines: Sequence[Line],
    connection: str | None,
    *,
    credentials: bool,
    api_key: str | None = None,
    key_header: str = "Authorization: Bearer",
) -> bytes:
    """The headers of an agent's request that go upstream, as lines.

    Args:
        lines: the request's headers.
        connection: the value of its `Connection`.
        credentials: whether the agent's own keys go along. A session's token never does.
        api_key: a key to send instead.
        key_header: what stands before it.
    """
    named = _named_by(connection)
    if named:
        lines = [line for line in lines if line.pair[0] not in named]
    parts = [line.sent for line in lines] if credentials else [line.public for line in lines]
    parts.append(b"Accept-Encoding: identity\r\n")
    if api_key is not None:
        key = f"{key_header} {_one_line(api_key)}\r\n"
        parts.append(key.encode("utf-8", "surrogateescape"))
    return b"".join(parts)


def passed_back_lines(headers: CIMultiDict[str], *, edited: bool) -> str:
    """The headers of an upstream's reply that go to the agent, as lines, without the body's length.

    Args:
        headers: the reply's.
        edited: whether the agent gets another body than the upstream sent.
    """
    dropped = _OF_THE_BODY if edited else _NOT_BACK
    if "Connection" in headers:
        dropped |= _named_by(headers["Connection"])
    return "".join(
        [f"{name}: {value}\r\n" for name, value in headers.items() if name.lower() not in dropped]
    )


def _one_line(key: str) -> str:
    if "\r" in key or "\n" in key:
        raise Refusal(
            502, "refused", "the policy's `api_key` holds a line end", CallErrorKind.REFUSED
        )
    return key


def session_token(value: str) -> str | None:
    """The session token in a header that holds a key; None where it is another key."""
    token = value[7:].strip() if value[:7].lower() == "bearer " else value
    return token if token.startswith(PREFIX) else None


def _named_by(connection: str | None) -> frozenset[str]:
    """The headers that `Connection` names: they are for this connection only."""
    if connection is None or connection.lower() in ("keep-alive", "close"):
        return frozenset()
    return frozenset(name.strip().lower() for name in connection.split(","))
