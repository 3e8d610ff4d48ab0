"""Head: the head of an agent's request, read strictly.

Only what is plainly well-formed is read; all else is left to a server that knows the whole of HTTP. The same lines come
with every request of an SDK, so each is judged once and remembered.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from lightning_core.gateway.headers import Line, line_of

LIMIT = 8190
"""Bytes of the longest head that is read here."""
_LINES = 100
_TARGET = re.compile(rb"POST (/[\w.~%:@!$&'()*+,;=/-]*)(?:\?([\w.~%:@!$&'()*+,;=/?-]+))? HTTP/1\.1")
_LINE = re.compile(
    rb"([\w!#$%&'*+.^`|~-]+):[ \t]*([!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)"
)
_DIGITS = 12
_ELSEWHERE = frozenset({"content-encoding", "expect", "transfer-encoding", "upgrade"})
_PER_CALL = ("x-lightning-", "content-length")
_REMEMBERED = 2048
_REMEMBERED_BYTES = 512

_targets: dict[bytes, tuple[str, str]] = {}
_lines: dict[bytes, Line] = {}


class Head(NamedTuple):
    """The head of a `POST`."""

    path: str
    """The path as it was sent."""
    query: str
    """The query as it was sent, without `?`."""
    lines: Sequence[Line]
    """The headers, in order; no two of one name."""
    headers: dict[str, str]
    """The values by name in lower case."""
    length: int
    """The body's bytes."""
    keep_alive: bool
    """Whether the connection is to stay open."""


class _Odd(Exception):
    """Not for here."""


def read_head(data: bytes) -> Head | None:
    """The head of a request that can be read here; None for any other.

    Args:
        data: the head, without the empty line at its end.
    """
    if len(data) > LIMIT:
        return None
    first, *rest = data.split(b"\r\n")
    if len(rest) > _LINES:
        return None
    try:
        path, query = _targets.get(first) or _read_target(first)
        lines = [_lines.get(line) or _read_line(line) for line in rest]
    except _Odd:
        return None
    headers = dict([line.pair for line in lines])
    length = headers.get("content-length")
    if length is None or len(headers) != len(lines) or "host" not in headers:
        return None
    keep_alive = headers.get("connection", "").lower() != "close"
    return Head(path, query, lines, headers, int(length), keep_alive)


def may_become_head(data: bytes) -> bool:
    """Whether more bytes could make of `data`, which holds no whole head, one that is read here."""
    *whole, last = data.split(b"\r\n")
    if len(data) > LIMIT + 3 or b"\n" in last or b"\r" in last[:-1]:
        return False
    if not whole:
        return b"POST /".startswith(last[:6])
    try:
        _read_target(whole[0])
        for line in whole[1:]:
            _read_line(line)
    except _Odd:
        return False
    return True


def _read_target(line: bytes) -> tuple[str, str]:
    match = _TARGET.fullmatch(line)
    if match is None:
        raise _Odd
    target = match[1].decode(), (match[2] or b"").decode()
    if len(line) <= _REMEMBERED_BYTES:
        if len(_targets) >= _REMEMBERED:
            _targets.clear()
        _targets[line] = target
    return target


def _read_line(data: bytes) -> Line:
    before, _, digits = data.partition(b": ")
    if digits.isdigit() and len(digits) <= _DIGITS and before.lower() == b"content-length":
        # The one line that is nearly always another.
        return Line(("content-length", digits.decode()), b"", b"")
    match = _LINE.fullmatch(data)
    if match is None:
        raise _Odd
    line = line_of(match[1].decode(), match[2].decode("utf-8", "surrogateescape"))
    name, value = line.pair
    if (
        name in _ELSEWHERE
        or (name == "connection" and value.lower() not in ("keep-alive", "close"))
        or (
            name == "content-length"
            and not (value.isascii() and value.isdigit() and len(value) <= _DIGITS)
        )
    ):
        raise _Odd
    if len(data) <= _REMEMBERED_BYTES and not name.startswith(_PER_CALL):
        if len(_lines) >= _REMEMBERED:
            _lines.clear()
        _lines[data] = line
    return line
