"""Template: constant text with named holes, read from a text and filled again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import islice
from typing import Final, NoReturn

from lightning_core.errors import UsageError

_BRACE: Final = re.compile("[{}]")
_DOUBLED: Final = "a brace that is no hole is doubled: `{{`, `}}`"
_TRIES: Final = 1000
"""Bound of the places that are tried where only equal values of a hole tell which way a text is taken apart."""
_LONG: Final = 64
"""Letters of a long piece that are looked for before the whole of it."""
_LOOKS: Final = 8
"""Places at which these may be found in vain, so that texts which repeat them take no longer than others."""


class Misfit(StrEnum):
    """Why a text does not give values for a template's holes."""

    OTHER = "other"
    """The constant text is not that of the template, or a hole with several places has not the same value in all."""
    AMBIGUOUS = "ambiguous"
    """The text can be taken apart in more than one way, as what fills a hole looks like constant text; or there are too
    many ways to try."""


class Template:
    """A template in the form of `strategy.json`: `{name}` is a hole, `{{` and `}}` are braces.

    Immutable; equal where the source is. Names of holes are identifiers. Between two holes stands constant text: else
    nothing tells where one ends.
    """

    __slots__ = ("_holes", "_pieces", "_places", "_source")

    def __init__(self, source: str) -> None:
        """
        Raises:
            UsageError: a brace is left open or closed too often, a hole's name is not an identifier, or two holes stand
                side by side; the message says which, and where (line and column).
        """
        self._source = source
        self._pieces, self._places = _parsed(source)
        self._holes = tuple(dict.fromkeys(self._places))

    @classmethod
    def of(cls, pieces: Sequence[str], holes: Sequence[str]) -> Template:
        """The template of constant pieces, one more than there are holes, and the holes between them.

        Braces in pieces are text. A hole may come several times.

        Raises:
            UsageError: as the constructor; or the numbers do not fit.
        """
        if len(pieces) != len(holes) + 1:
            raise UsageError(
                f"template: expected one piece more than holes but got {len(pieces)} pieces and {len(holes)} holes"
            )
        for name in holes:
            if not name.isidentifier():
                raise UsageError(f"template: {_unnamed(name)}")
        parts = [_escaped(pieces[0])]
        for name, piece in zip(holes, pieces[1:], strict=True):
            parts += (f"{{{name}}}", _escaped(piece))
        return cls("".join(parts))

    @property
    def source(self) -> str:
        """What it was made of."""
        return self._source

    @property
    def holes(self) -> tuple[str, ...]:
        """The names of its holes, in order of their first place; a hole may have several places."""
        return self._holes

    @property
    def places(self) -> tuple[str, ...]:
        """The hole at each place, in order."""
        return self._places

    @property
    def pieces(self) -> tuple[str, ...]:
        """The constant text before, between and after the places: one more than there are places."""
        return self._pieces

    def match(self, text: str) -> dict[str, str] | Misfit:
        """What fills the holes of a text that was made of this template; linear in the length of the text.

        What comes back, filled in again, is the text. A hole with several places has the same value in all.
        """
        pieces = self._pieces
        if not self._places:
            return {} if text == pieces[0] else Misfit.OTHER
        at, end = len(pieces[0]), len(text) - len(pieces[-1])
        if at > end or not text.startswith(pieces[0]) or not text.endswith(pieces[-1]):
            return Misfit.OTHER
        starts = [0]
        for piece in pieces[1:-1]:
            at = _place(text, piece, at, end)
            if at < 0:
                return Misfit.OTHER
            starts.append(at)
            at += len(piece)
        starts.append(end)
        # Each piece lies as far left as it can. In any other way to take the text apart some pieces lie further right;
        # the last of these lies before the next piece's place here, and could be moved there alone.
        for index in range(1, len(pieces) - 1):
            if _place(text, pieces[index], starts[index] + 1, starts[index + 1]) >= 0:
                return self._told_by_repeats(text, end)
        values: dict[str, str] = {}
        for index, name in enumerate(self._places):
            value = text[starts[index] + len(pieces[index]) : starts[index + 1]]
            if values.setdefault(name, value) != value:
                return Misfit.OTHER
        return values

    def fill(self, values: Mapping[str, str]) -> str:
        """The text with each hole's value, taken as it is: braces in it mean nothing. Other values are left alone.

        Raises:
            UsageError: a hole has no value.
        """
        parts = [self._pieces[0]]
        for name, piece in zip(self._places, self._pieces[1:], strict=True):
            if name not in values:
                given = ", ".join(f"`{key}`" for key in values) or "none"
                raise UsageError(f"template: no value for hole `{name}`; values given: {given}")
            parts += (values[name], piece)
        return "".join(parts)

    def _told_by_repeats(self, text: str, end: int) -> dict[str, str] | Misfit:
        """The one way to take the text apart in which each hole has one value, where its pieces fit in several ways."""
        if len(self._places) == len(self._holes):
            return Misfit.AMBIGUOUS
        found = list(islice(self._ways(text, end), 2))
        if not found:
            return Misfit.OTHER
        return found[0] if len(found) == 1 and found[0] is not None else Misfit.AMBIGUOUS

    def _ways(self, text: str, end: int) -> Iterator[dict[str, str] | None]:
        """The ways to take the text apart in which each hole has one value; None where the tries are used up."""
        last = len(self._places) - 1
        # Place, its start, where to look on for the piece behind it, values of the holes before it.
        open_: list[tuple[int, int, int, dict[str, str]]] = [
            (0, len(self._pieces[0]), len(self._pieces[0]), {})
        ]
        for _ in range(_TRIES):
            if not open_:
                return
            place, start, after, values = open_.pop()
            name, piece = self._places[place], self._pieces[place + 1]
            known = values.get(name)
            if known is not None:
                at = start + len(known)
                # The last piece fits nowhere but at `end`; each other lies before it.
                room = at == end if place == last else at + len(piece) <= end
                if not (room and text.startswith(known, start) and text.startswith(piece, at)):
                    continue
            elif place == last:
                at = end
            else:
                at = text.find(piece, after, end)
                if at < 0:
                    continue
                open_.append((place, start, at + 1, values))
            values = {**values, name: text[start:at]}
            if place == last:
                yield values
            else:
                open_.append((place + 1, at + len(piece), at + len(piece), values))
        yield None

    def __eq__(self, other: object) -> bool:
        return self._source == other._source if isinstance(other, Template) else NotImplemented

    def __hash__(self) -> int:
        return hash((Template, self._source))

    def __repr__(self) -> str:
        return f"Template({self._source!r})"


def _place(text: str, piece: str, at: int, end: int) -> int:
    """`str.find`, which first studies a long piece, and that takes longer than to look at the few places where it may be."""
    if len(piece) > end - at:
        return -1
    if len(piece) > _LONG:
        head = piece[:_LONG]
        latest = end - len(piece) + _LONG
        for _ in range(_LOOKS):
            at = text.find(head, at, latest)
            if at < 0 or text.startswith(piece, at, end):
                return at
            at += 1
    return text.find(piece, at, end)


def _escaped(piece: str) -> str:
    return piece.replace("{", "{{").replace("}", "}}")


def _unnamed(name: str) -> str:
    shown = name if len(name) <= 40 else name[:39] + "…"
    return (
        f"expected a hole's name, an identifier such as `question`, but got {shown!r}; {_DOUBLED}"
    )


def _parsed(source: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The pieces and places of a template's source."""
    pieces: list[str] = []
    places: list[str] = []
    piece: list[str] = []
    at = 0
    while True:
        found = _BRACE.search(source, at)
        if found is None:
            piece.append(source[at:])
            pieces.append("".join(piece))
            return tuple(pieces), tuple(places)
        brace = found.start()
        piece.append(source[at:brace])
        if source.startswith(source[brace], brace + 1):
            piece.append(source[brace])
            at = brace + 2
            continue
        if source[brace] == "}":
            _refuse(source, brace, f"`}}` closes no hole; {_DOUBLED}")
        at = source.find("}", brace) + 1
        name = source[brace + 1 : at - 1]
        if not at or "{" in name:
            _refuse(source, brace, f"`{{` is not closed; {_DOUBLED}")
        if not name.isidentifier():
            _refuse(source, brace, _unnamed(name))
        if places and not any(piece):
            _refuse(
                source,
                brace,
                f"hole `{name}` follows hole `{places[-1]}` at once, so that nothing tells where one ends;"
                " put text between them, such as a space",
            )
        pieces.append("".join(piece))
        places.append(name)
        piece = []


def _refuse(source: str, at: int, why: str) -> NoReturn:
    line = source.count("\n", 0, at) + 1
    column = at - source.rfind("\n", 0, at)
    raise UsageError(f"template, line {line}, column {column}: {why}")
