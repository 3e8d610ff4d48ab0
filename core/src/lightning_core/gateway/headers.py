"""Which headers pass, in both directions."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from multidict import CIMultiDict, CIMultiDictProxy

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
_NOT_BACK = _HOP_BY_HOP | {"location"}
_NOT_BACK_WITH_LENGTH = _NOT_BACK | {"content-length"}
_OF_THE_BODY = _NOT_BACK_WITH_LENGTH | {"content-encoding", "etag", "content-md5"}
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
_REMEMBERED_NAMES = 1024


class _Passes(Enum):
    """Whether a header of an agent's goes upstream."""

    ALWAYS = 0
    AS_CREDENTIAL = 1
    NEVER = 2


_PASSES: dict[str, _Passes] = {}
"""Verdicts by name as it was spelt; bounded, since the names are the agents'."""


def _judge(name: str) -> _Passes:
    key = name.lower()
    if key in _OURS_UPSTREAM or key.startswith("x-lightning-"):
        passes = _Passes.NEVER
    else:
        passes = _Passes.AS_CREDENTIAL if key in _CREDENTIALS else _Passes.ALWAYS
    if len(_PASSES) < _REMEMBERED_NAMES:
        _PASSES[name] = passes
    return passes


def passed_on(
    headers: CIMultiDictProxy[str], *, credentials: bool, api_key: str | None = None
) -> str:
    """The headers of an agent's request that go upstream, as lines.

    Args:
        headers: the request's; the server's parser has made sure that no value holds a line end.
        credentials: whether the agent's own keys go along. A session's token never does.
        api_key: a key to send instead.
    """
    named = _named_by_connection(headers)
    lines = ["Accept-Encoding: identity\r\n"]
    for name, value in headers.items():
        # Names come back with every request: to judge each once saves a tenth of what a call costs.
        passes = _PASSES.get(name)
        if passes is None:
            passes = _judge(name)
        if passes is _Passes.NEVER or (named and name.lower() in named):
            continue
        if passes is _Passes.AS_CREDENTIAL and (
            not credentials or session_token(value) is not None
        ):
            continue
        lines.append(f"{name}: {value}\r\n")
    if api_key is not None:
        lines.append(f"Authorization: Bearer {_one_line(api_key)}\r\n")
    return "".join(lines)


def passed_back(headers: CIMultiDict[str], *, edited: bool) -> CIMultiDict[str]:
    """The headers of an upstream's reply that go to the agent.

    Args:
        headers: the reply's.
        edited: whether the agent gets another body than the upstream sent.
    """
    return CIMultiDict(_passing(headers, _OF_THE_BODY if edited else _NOT_BACK))


def passed_back_lines(headers: CIMultiDict[str], *, edited: bool) -> str:
    """The same as lines, without the body's length."""
    dropped = _OF_THE_BODY if edited else _NOT_BACK_WITH_LENGTH
    return "".join([f"{name}: {value}\r\n" for name, value in _passing(headers, dropped)])


def _passing(headers: CIMultiDict[str], dropped: frozenset[str]) -> list[tuple[str, str]]:
    if "Connection" in headers:
        dropped |= _named_by_connection(headers)
    return [(name, value) for name, value in headers.items() if name.lower() not in dropped]


def _one_line(key: str) -> str:
    if "\r" in key or "\n" in key:
        raise Refusal(
            502, "refused", "the policy's `api_key` holds a line end", CallErrorKind.REFUSED
        )
    return key


def session_token(value: str) -> str | None:
    """The session token in an `Authorization` or `api-key` header; None where it is another key."""
    token = value[7:].strip() if value[:7].lower() == "bearer " else value
    return token if token.startswith(PREFIX) else None


def _named_by_connection(headers: Mapping[str, str]) -> frozenset[str]:
    value = headers.get("Connection")
    if value is None or value.lower() in ("keep-alive", "close"):
        return frozenset()
    return frozenset(name.strip().lower() for name in value.split(","))
