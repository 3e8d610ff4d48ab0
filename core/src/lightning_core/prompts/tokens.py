"""Texts as strings of tokens: a character for each word, number, blank or mark, so that `str` itself searches them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_UNSPACED: Final = r"\u0e00-\u109f\u1780-\u17ff\u2e80-\uffff\U00020000-\U0010ffff"
"""Scripts that set no blanks between words, such as Thai, Khmer, Han and Kana."""
_TOKEN: Final = re.compile(rf"[^\W\d_{_UNSPACED}]+|\d+|.", re.DOTALL)
_LAST: Final = 0x10FFFF


def tokens(text: str) -> list[str]:
    """The tokens of a text; joined they are the text.

    A run of letters is one, so is a run of digits; every other character, and every letter of a script that sets no
    blanks between words, stands alone.
    """
    return _TOKEN.findall(text)


class Vocabulary:
    """Which character stands for which token."""

    def __init__(self) -> None:
        self._codes: dict[str, str] = {}
        self._tokens: dict[str, str] = {}

    def encode(self, text: str) -> str:
        """The text with one character for each token."""
        return "".join([self._codes.get(token) or self._new(token) for token in tokens(text)])

    def decode(self, coded: Iterable[str]) -> str:
        """The text that `encode` was given."""
        return "".join([self._tokens[code] for code in coded])

    def _new(self, token: str) -> str:
        # Past the last character there is, tokens look alike; whoever aligns texts checks the result on the texts.
        code = chr(min(len(self._codes) + 1, _LAST))
        self._codes[token] = code
        return self._tokens.setdefault(code, token) and code
