"""A tool call's arguments: a text in chat completions, an object in Anthropic Messages."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

INVALID = "INVALID_JSON"
"""The key under which arguments that are no JSON object travel word for word; Anthropic's documentation wraps them so."""

_MARK = re.compile(r'["{}\[\],:]')
_STRING_MARK = re.compile(r'["\\]')
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
# A surrogate counts only with its other half: readers refuse a lone one.
_ESCAPE = re.compile(
    r'\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}'
    r"|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
_BEGUN = re.compile(
    r"\\(?:u(?:[0-9a-fA-F]{0,3}"
    r"|[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?)?)?"
)
_BEFORE, _MEMBER, _TEXT, _AFTER = range(4)


def text_of(value: Any) -> str:
    """The arguments of chat completions that say what a `tool_use` block's `input` says: in the spelling that engines give
    them, or those that `INVALID` holds, word for word."""
    said = value.get(INVALID) if isinstance(value, dict) else None
    return said if isinstance(said, str) else json.dumps(value, ensure_ascii=False)


def input_of(text: str) -> dict[str, Any]:
    """The `input` that says what the arguments `text` say. Empty ones are an empty object."""
    arguments = Arguments()
    made = arguments.feed(text) + arguments.close()
    value: dict[str, Any] = msgspec.json.decode(made) if made else {}
    return value


class Arguments:
    """One call's arguments on their way into `input_json_delta` events.

    What it lets through can at any time still become a JSON object, so that an SDK that reads it as it comes never fails: a
    string's text goes at once, any other value once it is whole. Arguments that turn out to be no object are closed and
    added word for word under `INVALID`. Takes time linear in their length.
    """

    def __init__(self) -> None:
        self._said: list[str] = []
        self._state = _BEFORE
        self._broken = False
        self._held: list[str] = []
        """Of the member that is not whole yet."""
        self._comma = ""
        self._members = False
        """Whether any member was let through."""
        self._depth = 0
        self._quoted = False
        self._escaped = False
        self._colon = False
        self._bare = False
        """Whether nothing but space came after the colon."""
        self._over = False
        """Whether the member's value was let through."""
        self._rest = ""
        """An escape that is not whole yet."""

    @property
    def whole(self) -> bool:
        """Whether the object has come to its end."""
        return self._state == _AFTER and not self._broken

    def feed(self, piece: str) -> str:
        """What may be let through now that `piece` has come."""
        self._said.append(piece)
        if self._broken:
            return ""
        text, self._rest = self._rest + piece, ""
        out: list[str] = []
        at = 0
        while at < len(text) and not self._broken:
            if self._state == _TEXT:
                at = self._string(text, at, out)
            elif self._state == _MEMBER:
                at = self._member(text, at, out)
            else:
                at = self._around(text, at, out)
        return "".join(out)

    def close(self) -> str:
        """What makes that which was let through a JSON object; nothing where nothing was said."""
        if self.whole:
            return "}"
        said = "".join(self._said)
        if not said.strip():
            return ""
        start = "{" if self._state == _BEFORE else '"' if self._state == _TEXT else ""
        comma = ", " if self._members else ""
        return f"{start}{comma}{json.dumps(INVALID)}: {json.dumps(said, ensure_ascii=False)}}}"

    def _around(self, text: str, at: int, out: list[str]) -> int:
        """Before the object and after it."""
        rest = text[at:].lstrip()
        if not rest:
            return len(text)
        if self._state == _AFTER or rest[0] != "{":
            self._broken = True
            return at
        out.append("{")
        self._state = _MEMBER
        return len(text) - len(rest) + 1

    def _string(self, text: str, at: int, out: list[str]) -> int:
        """Within a string that is let through as it comes."""
        found = _PLAIN.match(text, at) or _ESCAPE.match(text, at)
        if found is not None:
            out.append(found.group())
            return found.end()
        if text[at] == '"':
            out.append('"')
            self._state, self._over = _MEMBER, True
            return at + 1
        # The longest escape has 12 characters.
        if len(text) - at < 12 and _BEGUN.fullmatch(text, at):
            self._rest = text[at:]
            return len(text)
        self._broken = True
        return at

    def _member(self, text: str, at: int, out: list[str]) -> int:
        """Within a member, which is held until it is whole or its value turns out to be a string."""
        if self._escaped:
            self._held.append(text[at])
            self._escaped = False
            return at + 1
        found = (_STRING_MARK if self._quoted else _MARK).search(text, at)
        end = len(text) if found is None else found.start()
        if end > at:
            self._held.append(text[at:end])
            self._bare = self._bare and text[at:end].isspace()
        if found is None:
            return end
        mark = found.group()
        if self._quoted:
            self._quoted, self._escaped = mark != '"', mark == "\\"
        elif self._depth == 0 and mark in ",}":
            self._end_member(mark, out)
            return end + 1
        elif mark == '"' and self._colon and self._bare and self._depth == 0:
            self._begin_string(out)
            return end + 1
        elif mark == '"':
            self._quoted = True
        elif mark in "{[":
            self._depth += 1
        elif mark in "}]":
            self._depth -= 1
        elif self._depth == 0 and mark == ":":
            self._colon = self._bare = True
            self._held.append(mark)
            return end + 1
        self._held.append(mark)
        self._bare = False
        self._broken = self._depth < 0
        return end + 1

    def _begin_string(self, out: list[str]) -> None:
        held = self._take()
        if self._is_member(held + '""'):
            out.append(f'{self._comma}{held}"')
            self._members, self._state = True, _TEXT
        else:
            self._broken = True

    def _end_member(self, mark: str, out: list[str]) -> None:
        held = self._take()
        nothing = not held.strip()
        if nothing and (self._over or (mark == "}" and not self._members)):
            pass
        elif not self._over and self._is_member(held):
            out.append(self._comma + held)
            self._members = True
        else:
            self._broken = True
            return
        self._comma, self._over, self._colon = ",", False, False
        if mark == "}":
            self._state = _AFTER

    def _take(self) -> str:
        held = "".join(self._held)
        self._held.clear()
        return held

    def _is_member(self, text: str) -> bool:
        try:
            value = msgspec.json.decode(f"{{{text}}}")
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            return False
        # The model may have said our own key; then its words are kept whole.
        return bool(value) and INVALID not in value
