"""What several texts have in common, in order: the constant pieces of the template that they were made of."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
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
_RIVALS: Final = 100
"""Pieces, those of most bits, that others are compared with."""
_MARKS: Final = 2
"""Visible characters that a piece between two holes has at least."""


class _Piece(NamedTuple):
    """A piece that all texts hold."""

    bits: float
    part: str
    """Its tokens."""
    places: tuple[int, ...]
    """Where it stands in each text; where it stands first in those that hold it several times."""
    repeated: frozenset[int]
    """Which texts hold it several times, by their number."""


def align(texts: Collection[str], spare: int = 0, firm: Collection[str] = ()) -> list[str]:
    """The constant pieces of the texts, one more than there are holes between them.

    What all texts begin with and end with is constant. Between these, a piece is what all texts hold, each once, and in
    one order. The pieces that are hardest to explain by chance come first; then what lies between them is aligned in
    turn, as Ratcliff and Obershelp (1988) compare two texts, but for any number of them. With d distinct texts between
    two pieces, a piece of b bits in each (see `Chance`) is taken for constant where (d - 1) b is 10 more than the bits
    that it takes to choose a place in the shortest of them. So an unusual line counts from two or three texts on, a
    common word in free text only where a dozen have it exactly once each.

    Pieces that change places are none, as where rules or examples come in another order on each call. A few texts may hold
    a piece several times, as where a task quotes some of the prompt. They are left out from there on, so that they may not
    fit; the bits that it takes to choose them are taken off the piece's.

    Time grows about as the texts' total length does.

    Args:
        texts: the texts.
        spare: how many of them may be left out.
        firm: those that may not.
    """
    vocabulary = Vocabulary()
    coded = {vocabulary.encode(text) for text in texts}
    alignment = _Alignment(vocabulary, coded, spare, {vocabulary.encode(text) for text in firm})
    return [vocabulary.decode(piece) for piece in alignment.pieces()]


class _Alignment:
    """One alignment of distinct texts."""

    def __init__(
        self, vocabulary: Vocabulary, texts: Collection[str], spare: int, firm: Collection[str]
    ) -> None:
        self._vocabulary = vocabulary
        self._texts = sorted(texts, key=lambda text: (len(text), text))
        self._spare = spare
        self._firm = {number for number, text in enumerate(self._texts) if text in firm}
        self._left_out: set[int] = set()

    def pieces(self) -> list[str]:
        """The constant pieces, of tokens."""
        return self._align(dict(enumerate(self._texts)))

    def _align(self, parts: Mapping[int, str]) -> list[str]:
        """The constant pieces of a part of each text, by the text's number."""
        owners: dict[str, list[int]] = {}
        for number, part in parts.items():
            if number not in self._left_out:
                owners.setdefault(part, []).append(number)
        every = sorted(owners, key=lambda text: (len(text), text))
        numbers = [owners[part] for part in every]
        if len(every) == 1:
            return every
        head = _beginning(every)
        every = [text[len(head) :] for text in every]
        tail = _beginning([text[::-1] for text in every])[::-1]
        every = [text[: len(text) - len(tail)] for text in every]
        pieces = [head]
        found = self._found(every, numbers) if every[0] else []
        before = [0] * len(every)
        for piece in found:
            self._extend(pieces, every, numbers, before, piece.places)
            pieces[-1] += piece.part
            before = [place + len(piece.part) for place in piece.places]
        if found:
            self._extend(pieces, every, numbers, before, [len(text) for text in every])
        else:
            pieces.append("")
        pieces[-1] += tail
        return pieces

    def _extend(
        self,
        pieces: list[str],
        texts: Sequence[str],
        numbers: Sequence[Sequence[int]],
        starts: Sequence[int],
        stops: Sequence[int],
    ) -> None:
        """Add the pieces of what stands between two."""
        places = zip(texts, numbers, starts, stops, strict=True)
        between = {n: text[start:stop] for text, own, start, stop in places for n in own}
        first, *more = self._align(between)
        pieces[-1] += first
        pieces += more

    def _found(self, texts: Sequence[str], numbers: Sequence[Sequence[int]]) -> list[_Piece]:
        """Pieces that stand in one order in all texts, the most surprising ones first chosen; in the order of their places."""
        shortest = texts[0]
        chance = Chance(texts)
        needed = math.log2(len(shortest) + 1) + _BITS
        candidates = []
        for start, stop in _shared(texts):
            part = shortest[start:stop]
            if not _solid(self._vocabulary.decode(part), len(texts)):
                continue
            places = tuple(text.find(part) for text in texts)
            repeated = [n for n, text in enumerate(texts) if text.find(part, places[n] + 1) >= 0]
            if not self._may_go(repeated, numbers):
                continue
            bits = chance.bits(part)
            of = math.log2(math.comb(len(texts), len(repeated)))
            if (len(texts) - len(repeated) - 1) * bits - of >= needed:
                candidates.append(_Piece(bits, part, places, frozenset(repeated)))
        chosen: list[_Piece] = []
        gone: frozenset[int] = frozenset()
        for piece in sorted(_steady(candidates), key=lambda piece: (-piece.bits, piece.places)):
            going = gone | piece.repeated
            if not self._may_go(going, numbers):
                continue
            kept = [number for number in range(len(texts)) if number not in going]
            at = sum(other.places[kept[0]] < piece.places[kept[0]] for other in chosen)
            row = [*chosen[max(at - 1, 0) : at], piece, *chosen[at : at + 1]]
            if all(_ordered(*pair, kept) for pair in itertools.pairwise(row)):
                chosen.insert(at, piece)
                gone = going
        self._left_out.update(number for text in gone for number in numbers[text])
        return chosen

    def _may_go(self, texts: Collection[int], numbers: Sequence[Sequence[int]]) -> bool:
        """Whether these texts may be left out too."""
        going = {number for text in texts for number in numbers[text]}
        return not going or (
            len(texts) < len(numbers)
            and going.isdisjoint(self._firm)
            and len(going | self._left_out) <= self._spare
        )


def _beginning(texts: Sequence[str]) -> str:
    """What all begin with."""
    first, last = min(texts), max(texts)
    differ = (at for at, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1])
    return first[: next(differ, len(first))]


def _steady(pieces: Sequence[_Piece]) -> list[_Piece]:
    """The pieces without those that change places with another of half their bits or more: parts that are shuffled."""
    strongest = sorted(pieces, key=lambda piece: (-piece.bits, piece.places))[:_RIVALS]
    return [
        piece
        for piece in pieces
        if not any(2 * other.bits >= piece.bits and _swapped(piece, other) for other in strongest)
    ]


def _swapped(one: _Piece, other: _Piece) -> bool:
    """Whether one piece stands before the other in some texts and behind it in others."""
    pairs = [
        pair
        for number, pair in enumerate(zip(one.places, other.places, strict=True))
        if number not in one.repeated and number not in other.repeated
    ]
    return any(a + len(one.part) <= b for a, b in pairs) and any(
        b + len(other.part) <= a for a, b in pairs
    )


def _ordered(first: _Piece, second: _Piece, texts: Sequence[int]) -> bool:
    """Whether one piece ends before the other begins in each of these texts."""
    length = len(first.part)
    return all(first.places[text] + length <= second.places[text] for text in texts)


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


def _solid(text: str, texts: int) -> bool:
    """Whether a piece may stand between two holes."""
    visible = "".join(text.split())
    if len(visible) < _MARKS:
        return False
    return texts >= _FEW or "\n" in text or not visible.isalnum()
