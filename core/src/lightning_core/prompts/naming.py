"""Names of holes, from what stands before them."""

from __future__ import annotations

import keyword
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

_OPENING: Final = " \t\r\n\"'`([{<*_“‘«「『"  # noqa: RUF001
_FENCE: Final = re.compile(r"(?:```|~~~)\w*\s*\Z")
_TAG: Final = re.compile(r"<(\w[\w-]*)[^<>]*>\s*\Z")
_HEADING: Final = re.compile(r"(?:^|\n)#+[ \t]*([^\n]+?)[ \t#]*\n\s*\Z")
_SIGNS: Final = ":：=＝"  # noqa: RUF001
_CLAUSE: Final = re.compile(r"[\n.,;:!?。，；：！？]")  # noqa: RUF001
_ARTICLE: Final = re.compile(r"\A\W*(?:the|an?|this|your)\s", re.IGNORECASE)
_WORD: Final = re.compile(r"\w+")
_WORDS: Final = 3
"""Words that a label has at most; of a longer line the last word stands for it."""
_LONGEST: Final = 24


def hole_names(pieces: Sequence[str], known: Mapping[int, str] | None = None) -> list[str]:
    """A name for each hole between the pieces: an identifier, each another, no keyword.

    `Question: ` before a hole names it `question`, so does `<question>` or a heading `## Question`; a sentence that
    ends in a colon gives its last word; then comes what is known; all else is `text`.

    Args:
        pieces: constant text before, between and behind the holes.
        known: names of the values that fill holes, by the hole's number.
    """
    taken: set[str] = set()
    names = []
    for hole, piece in enumerate(pieces[:-1]):
        wanted = label(piece) or _name((known or {}).get(hole, "")) or "text"
        name, number = wanted, 1
        while name in taken:
            number += 1
            name = f"{wanted}_{number}"
        taken.add(name)
        names.append(name)
    return names


def label(before: str) -> str:
    """The name that a text gives to the hole behind it; empty where it gives none."""
    return next(filter(None, map(_name, _labels(before))), "")


def _name(line: str) -> str:
    """A short label as an identifier, of a longer one the last word; empty where that is none."""
    words = _WORD.findall(_ARTICLE.sub("", line))
    for chosen in (words, words[-1:]):
        name = unicodedata.normalize("NFKC", "_".join(chosen)).lower()
        if len(chosen) <= _WORDS and len(name) <= _LONGEST and name.isidentifier():
            return name + "_" if keyword.iskeyword(name) else name
    return ""


def _labels(before: str) -> Iterator[str]:
    """What may name the hole, the likeliest first."""
    tag = _TAG.search(before)
    if tag:
        yield tag[1]
    heading = _HEADING.search(before)
    if heading:
        yield heading[1]
    line = _FENCE.sub("", before.rstrip(_OPENING) if not _FENCE.search(before) else before)
    line = line.rstrip(_OPENING)
    if line.endswith(tuple(_SIGNS)):
        yield _CLAUSE.split(line.rstrip(_SIGNS))[-1]
