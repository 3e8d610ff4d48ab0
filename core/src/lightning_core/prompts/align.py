"""What several texts have in common, in order: the constant pieces of the template that they were made of."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

from lightning_core.prompts.chance import Chance
from lightning_core.prompts.tokens import Vocabulary

_BITS: Final = 10.0
"""Bits beyond those of choosing a piece in a text: one accident in a thousand places."""
_FEW: Final = 10
"""Below so many texts a phrase without a mark or line break between free texts is no piece: people repeat phrases."""
_ROW: Final = 3
"""Tokens, blanks among them, that a piece between two holes has at least."""
_MANY: Final = 50
"""Places of a row beyond which searching the whole text is faster than trying each."""
_MARKS: Final = 2
"""Visible characters that a piece between two holes has at least."""


class _Piece(NamedTuple):
    """A piece that all texts hold."""

    bits: float
    length: int
    places: tuple[int, ...]
    """Where it stands in each text."""


def align(texts: Collection[str]) -> list[str]:
    """The constant pieces of the texts, one more than there are holes between them.

    What all texts begin with and end with is constant. Between these, a piece is what all texts hold, each once, and in
    one order. The pieces that are hardest to explain by chance come first; then what lies between them is aligned in
    turn, as Ratcliff and Obershelp (1988) compare two texts, but for any number of them. With d distinct texts between
    two pieces, a piece of b bits in each (see `Chance`) is taken for constant where (d - 1) b is 10 more than the bits
    that it takes to choose a place in the shortest of them. So an unusual line counts from two or three texts on, a
    common word in free text only where a dozen have it exactly once each.

    Time grows about as the texts' total length does.
    """
    vocabulary = Vocabulary()
    coded = {vocabulary.encode(text) for text in texts}
    return [vocabulary.decode(piece) for piece in _align(coded, vocabulary)]


def _align(texts: Collection[str], vocabulary: Vocabulary) -> list[str]:
    every = sorted(set(texts), key=lambda text: (len(text), text))
    if len(every) == 1:
        return every
    head = _beginning(every)
    every = [text[len(head) :] for text in every]
    tail = _beginning([text[::-1] for text in every])[::-1]
    every = [text[: len(text) - len(tail)] for text in every]
    pieces = [head]
    found = _pieces(every, vocabulary) if every[0] else []
    before = [0] * len(every)
    for piece in found:
        _extend(pieces, _align(_between(every, before, piece.places), vocabulary))
        pieces[-1] += every[0][piece.places[0] : piece.places[0] + piece.length]
        before = [place + piece.length for place in piece.places]
    if found:
        ends = [len(text) for text in every]
        _extend(pieces, _align(_between(every, before, ends), vocabulary))
    else:
        pieces.append("")
    pieces[-1] += tail
    return pieces


def _beginning(texts: Sequence[str]) -> str:
    """What all begin with."""
    first, last = min(texts), max(texts)
    differ = (at for at, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1])
    return first[: next(differ, len(first))]


def _between(texts: Sequence[str], starts: Sequence[int], stops: Sequence[int]) -> list[str]:
    return [text[start:stop] for text, start, stop in zip(texts, starts, stops, strict=True)]


def _extend(pieces: list[str], more: list[str]) -> None:
    pieces[-1] += more[0]
    pieces += more[1:]


def _pieces(texts: Sequence[str], vocabulary: Vocabulary) -> list[_Piece]:
    """Pieces that stand in one order in all texts, the most surprising ones first chosen; in the order of their places."""
    shortest = texts[0]
    chance = Chance(texts)
    needed = math.log2(len(shortest) + 1) + _BITS
    candidates = []
    for start, stop in _shared(texts):
        part = shortest[start:stop]
        if not _solid(vocabulary.decode(part), len(texts)):
            continue
        places = _places(part, texts)
        if not places:
            continue
        bits = chance.bits(part)
        if (len(texts) - 1) * bits >= needed:
            candidates.append(_Piece(bits, stop - start, places))
    chosen: list[_Piece] = []
    for piece in sorted(candidates, key=lambda piece: (-piece.bits, piece.places)):
        at = sum(other.places < piece.places for other in chosen)
        before, after = chosen[at - 1 : at] if at else [], chosen[at : at + 1]
        if all(_ordered(*pair) for pair in ((*before, piece), (piece, *after)) if len(pair) == 2):
            chosen.insert(at, piece)
    return chosen


def _ordered(first: _Piece, second: _Piece) -> bool:
    """Whether one piece ends before the other begins in every text."""
    return all(a + first.length <= b for a, b in zip(first.places, second.places, strict=True))


def _shared(texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """The stretches of the first text that all hold and that cannot be made longer."""
    first, *others = texts
    indexed = [(text, _rows(text)) for text in others]
    common = set(_rows(first)).intersection(*(rows for _, rows in indexed))
    good = [first[at : at + _ROW] in common for at in range(len(first))]

    def held(start: int, stop: int) -> bool:
        part, row = first[start:stop], first[start : start + _ROW]
        for number, (text, rows) in enumerate(indexed):
            places = rows[row]
            if len(places) > _MANY:
                found = part in text
            else:
                found = any(text.startswith(part, at) for at in places)
            if not found:
                # The text that lacked one piece is the likeliest to lack the next.
                indexed.insert(0, indexed.pop(number))
                return False
        return True

    stop = end = 0
    for start in itertools.compress(range(len(first)), good):
        if start >= end:
            end = start
        while end < len(first) and good[end]:
            end += 1
        limit = end + _ROW - 1
        reached, step = max(stop, start + _ROW), 1
        # A part of what all hold is held by all: so the end never moves back, and can be looked for by halves.
        while step:
            if reached + step <= limit and held(start, reached + step):
                reached += step
                step *= 2
            else:
                step //= 2
        if reached > stop:
            yield start, reached
        stop = reached


def _rows(text: str) -> dict[str, list[int]]:
    """Where each row of tokens begins."""
    found: dict[str, list[int]] = {}
    for at in range(len(text) - _ROW + 1):
        found.setdefault(text[at : at + _ROW], []).append(at)
    return found


def _places(part: str, texts: Sequence[str]) -> tuple[int, ...]:
    """Where each text holds a piece; nothing where one holds it twice."""
    places = []
    for text in texts:
        at = text.find(part)
        if text.find(part, at + 1) >= 0:
            return ()
        places.append(at)
    return tuple(places)


def _solid(text: str, texts: int) -> bool:
    """Whether a piece may stand between two holes."""
    visible = "".join(text.split())
    if len(visible) < _MARKS:
        return False
    return texts >= _FEW or "\n" in text or not visible.isalnum()
