"""A store of passages, searched by BM25."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import bm25s


@dataclass(frozen=True)
class Passage:
    """A piece of text to be found."""

    id: str
    """Its name in the store."""
    title: str
    """What it is about."""
    text: str
    """What it says."""


class Store:
    """Passages and their index."""

    def __init__(self, passages: list[Passage]) -> None:
        self.passages = passages
        self._index = bm25s.BM25()
        words = bm25s.tokenize([f"{p.title} {p.text}" for p in passages], show_progress=False)
        self._index.index(words, show_progress=False)

    def search(self, query: str, count: int) -> list[Passage]:
        """The best passages for a query, at most `count`; none where no word of it occurs anywhere."""
        words = bm25s.tokenize([query], return_ids=False, show_progress=False)
        if not words[0]:
            return []
        found, scores = self._index.retrieve(
            words, k=min(count, len(self.passages)), show_progress=False
        )
        pairs = zip(found[0], scores[0], strict=True)
        return [self.passages[number] for number, score in pairs if score > 0]


@cache
def load(file: Path) -> Store:
    """The store of a file with one passage a line: `id`, `title` and `text`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line is no passage, or there is none.
    """
    passages: list[Passage] = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            fields = json.loads(line)
            passages.append(Passage(*(str(fields[name]) for name in ("id", "title", "text"))))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"`{file}`, line {number}: expected an object with `id`, `title` and `text`"
            ) from error
    if not passages:
        raise ValueError(f"`{file}` has no passages")
    return Store(passages)
