"""Making constant pieces fit: none that could lie at two places, none that is rather part of what fills a hole."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from lightning_core.template import Misfit, Template

_ASKING: Final = re.compile(r"[?!？！]+(?=\s|\Z)")  # noqa: RUF001
_LINE_START: Final = re.compile(r"(?:\A|\n|[:：][ \t]+)(?=\S)")  # noqa: RUF001
_LINE_END: Final = re.compile(r"(?<=\S)(?=\n|\Z)")

Match = Callable[[str], dict[str, str] | Misfit]


def matcher(pieces: Sequence[str]) -> Match:
    """`Template.match` of a template with these pieces, whose holes are named `_0`, `_1`, …"""
    return Template.of(pieces, [f"_{number}" for number in range(len(pieces) - 1)]).match


def settle(pieces: Sequence[str], texts: Sequence[str], spare: int = 0) -> list[str]:
    """The pieces without those that could lie at two places of a text; those of most texts, and the shortest, go first.

    Args:
        pieces: constant pieces.
        texts: texts that they fit.
        spare: of how many texts it may stay open how they are taken apart.
    """
    left = list(pieces)
    while True:
        matches = matcher(left)
        unclear = [text for text in texts if matches(text) is Misfit.AMBIGUOUS]
        if len(unclear) <= spare:
            return left
        # One piece less leaves more room to the others, so that every text is looked at again.
        counts = Counter(index for text in unclear for index in _loose(left, text))
        left.pop(min(counts, key=lambda index: (-counts[index], len(left[index]), index)))


def _loose(pieces: Sequence[str], text: str) -> list[int]:
    """Which pieces lie further right in one way to take the text apart than in another."""
    first, at = [], len(pieces[0])
    for piece in pieces[1:-1]:
        at = text.find(piece, at)
        first.append(at)
        at += len(piece)
    last, end = [], len(text) - len(pieces[-1])
    for piece in reversed(pieces[1:-1]):
        end = text.rfind(piece, 0, end)
        last.append(end)
    pairs = zip(first, reversed(last), strict=True)
    return [index for index, (one, other) in enumerate(pairs, 1) if one != other]


def trim(pieces: Sequence[str], texts: Sequence[str]) -> list[str]:
    """The pieces without what all fillings share at their edges but what is rather theirs.

    That is, beside a hole: the beginning of a line, or the end of one, that stands in every filling once more, as where
    each begins with `CREATE TABLE`; and question and exclamation marks at a line's end.
    """
    left = list(pieces)
    matches = matcher(left)
    texts = [text for text in texts if not isinstance(matches(text), Misfit)]
    for hole in range(len(pieces) - 1):
        filled = _filled(left, texts, hole)
        for end in _line_ends(left[hole + 1]):
            if _without(left, hole + 1, left[hole + 1][end:], texts, filled, left[hole + 1][:end]):
                break
        for start in _line_starts(left[hole]):
            if _without(left, hole, left[hole][:start], texts, filled, left[hole][start:]):
                break
    return left


def _filled(pieces: Sequence[str], texts: Sequence[str], hole: int) -> list[str]:
    found = map(matcher(pieces), texts)
    return [values[f"_{hole}"] for values in found if not isinstance(values, Misfit)]


def _line_ends(piece: str) -> Iterator[int]:
    """Where the part of a piece may end that belongs to the hole before it."""
    line = _LINE_END.search(piece)
    if line and "\n" not in piece[: line.end()]:
        yield line.end()
    asking = _ASKING.match(piece)
    if asking:
        yield asking.end()


def _line_starts(piece: str) -> Iterator[int]:
    """Where the part of a piece may start that belongs to the hole behind it, the furthest from it first."""
    line = piece.rfind("\n") + 1
    for found in _LINE_START.finditer(piece, max(line - 1, 0)):
        yield found.end()


def _without(
    pieces: list[str], index: int, rest: str, texts: Sequence[str], filled: Sequence[str], part: str
) -> bool:
    """Take a part of a piece to the hole, if it is rather the filling's and every text fits then too."""
    asking = _ASKING.fullmatch(part)
    if not part.strip() or not (asking or all(part in filling for filling in filled)):
        return False
    between = 0 < index < len(pieces) - 1
    if between and not rest.strip():
        return False
    changed = [*pieces[:index], rest, *pieces[index + 1 :]]
    matches = matcher(changed)
    if any(isinstance(matches(text), Misfit) for text in texts):
        return False
    pieces[:] = changed
    return True
