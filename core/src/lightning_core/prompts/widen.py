"""Holes from end to end: what is known to have been filled in shows where a hole begins and ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from lightning_core.prompts.hints import NOW, Hints
from lightning_core.prompts.settle import matcher
from lightning_core.template import Misfit

Known = Callable[[str], Hints]
"""Gives, for a text, what may have been filled into it."""

_MASK: Final = "\0"
_SHARE: Final = 4
"""One in so many texts has to show where a hole begins and ends, and what fills it."""


class _Reach(NamedTuple):
    """How far a value reaches that fills holes."""

    first: int
    """The first hole."""
    last: int
    """The last hole; what stands between is of the value."""
    before: int
    """Characters of the piece before the first hole that are of the value."""
    behind: int
    """Characters of the piece behind the last hole that are of the value."""

    @property
    def width(self) -> int:
        """How much that looked constant is of the value."""
        return self.before + self.behind


def widen(pieces: Sequence[str], texts: Sequence[str], known: Known) -> list[str]:
    """The pieces without what is of a value that is known to have been filled in.

    All replies that begin with `SELECT ` make it look constant; that the texts hold each its own reply from there on shows
    that it is not. What a value reaches over counts where one text in four, and two values, have it so, and where fewer
    have it otherwise; of equally many the longer value does. A date that is the call's own is a hole even where all texts
    have the same.

    Args:
        pieces: constant pieces that the texts fit.
        texts: distinct texts.
        known: gives what may have been filled into a text.
    """
    values: dict[_Reach, set[str]] = {}
    holders: dict[_Reach, set[str]] = {}
    fitting = list(_holes(pieces, texts))
    for text, holes in fitting:
        for value in known(text):
            for reach in _reaches(text, value, holes):
                values.setdefault(reach, set()).add(value)
                holders.setdefault(reach, set()).add(text)
    left = list(pieces)
    taken: list[_Reach] = []
    for reach in sorted(holders, key=lambda reach: (-len(holders[reach]), -reach.width, reach)):
        if _SHARE * len(holders[reach]) < len(fitting) or len(values[reach]) < 2:
            continue
        if all(reach.last < each.first or each.last < reach.first for each in taken):
            taken.append(reach)
    for reach in sorted(taken, reverse=True):
        before, behind = left[reach.first], left[reach.last + 1]
        left[reach.first : reach.last + 2] = [
            before[: len(before) - reach.before],
            behind[reach.behind :],
        ]
    if texts:
        dates = [value for value, name in known(texts[0]).items() if name == NOW]
        for date in sorted(dates, key=len, reverse=True):
            left = [part for piece in left for part in piece.split(date)]
    # Of two holes side by side nothing tells where one ends: they are one.
    return [left[0], *filter(None, left[1:-1]), left[-1]] if len(left) > 1 else left


def sources(pieces: Sequence[str], texts: Sequence[str], known: Known) -> dict[int, str]:
    """The names of what fills holes in one text of four, by the hole's number; of several, of what is known first."""
    found: dict[int, Counter[str]] = {}
    ranks: dict[str, int] = {}
    fitting = list(_holes(pieces, texts))
    for text, holes in fitting:
        named = known(text)
        for rank, name in enumerate(dict.fromkeys(named.values())):
            ranks[name] = min(rank, ranks.get(name, rank))
        for hole, (start, end) in enumerate(holes):
            filling = text[start:end].strip()
            if filling in named:
                found.setdefault(hole, Counter())[named[filling]] += 1
    return {
        hole: min(names, key=lambda name: (ranks[name], name))
        for hole, names in found.items()
        if _SHARE * names.total() >= len(fitting)
    }


def mask(texts: Sequence[str], known: Known) -> list[str]:
    """The texts with a mask in place of each value that is known to have been filled in and stands there once."""
    if any(_MASK in text for text in texts):
        return list(texts)
    masked = []
    for text in texts:
        left = text
        for value in sorted(known(text), key=len, reverse=True):
            if left.count(value) == 1:
                left = left.replace(value, _MASK)
        masked.append(left)
    return masked


def _holes(
    pieces: Sequence[str], texts: Sequence[str]
) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """Each text that fits, with start and end of its holes."""
    matches = matcher(pieces)
    for text in texts:
        values = matches(text)
        if isinstance(values, Misfit):
            continue
        places, at = [], len(pieces[0])
        for hole, piece in enumerate(pieces[1:]):
            end = at + len(values[f"_{hole}"])
            places.append((at, end))
            at = end + len(piece)
        yield text, places


def _reaches(text: str, value: str, holes: Sequence[tuple[int, int]]) -> Iterator[_Reach]:
    """How far a value reaches at each place where it fills holes whole."""
    at = text.find(value)
    while at >= 0:
        end = at + len(value)
        first = next((hole for hole, (_, stop) in enumerate(holes) if stop > at), len(holes))
        last = next((h for h in range(len(holes) - 1, -1, -1) if holes[h][0] < end), -1)
        if first <= last and at <= holes[first][0] and holes[last][1] <= end:
            yield _Reach(first, last, holes[first][0] - at, end - holes[last][1])
        at = text.find(value, at + 1)
