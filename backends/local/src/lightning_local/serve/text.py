"""Turning sampled tokens into text, a piece at a time."""

from __future__ import annotations

from functools import cache
from typing import Any

BROKEN = "\ufffd"
"""What a decoder puts for bytes that are not yet a whole character."""


class Detokenizer:
    """The text of one growing token sequence.

    What it gives is final: a piece is held back while it ends within a character, or while it may be the
    start of a stop text. The pieces together are the whole text.
    """

    def __init__(self, tokenizer: Any, stop: tuple[str, ...] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = stop
        self._longest = max(map(len, stop), default=0)
        self._tokens: list[int] = []
        self._context = 0  # where decoding starts: some decoders treat the first token apart
        self._done = 0  # tokens whose text is known
        self._text = ""
        self._given = 0
        self.stopped: str | None = None
        """The stop text that was met, if any."""

    def push(self, token: int) -> str:
        """Take one token; return the text that became final."""
        self._tokens.append(token)
        before = self._decode(self._tokens[self._context : self._done])
        after = self._decode(self._tokens[self._context :])
        if len(after) > len(before) and not after.endswith(BROKEN):
            self._context, self._done = self._done, len(self._tokens)
            self._extend(after[len(before) :])
        return self._give(len(self._text) - self._held())

    def finish(self) -> str:
        """Return what is still held back; nothing is pushed after it."""
        if self.stopped is None:
            before = self._decode(self._tokens[self._context : self._done])
            after = self._decode(self._tokens[self._context :])
            self._extend(after[len(before) :])
        return self._give(len(self._text))

    def _extend(self, piece: str) -> None:
        searched = max(0, len(self._text) - self._longest + 1)
        self._text += piece
        found = [
            (at, -len(word), word)
            for word in self._stop
            if (at := self._text.find(word, searched)) >= 0
        ]
        if found:
            at, _, self.stopped = min(found)
            self._text = self._text[:at]

    def _held(self) -> int:
        """How many characters at the end may be the start of a stop text."""
        if self.stopped is not None:
            return 0
        for size in range(min(self._longest - 1, len(self._text)), 0, -1):
            end = self._text[-size:]
            if any(word.startswith(end) for word in self._stop if len(word) > size):
                return size
        return 0

    def _give(self, upto: int) -> str:
        piece = self._text[self._given : upto]
        self._given = max(self._given, upto)
        return piece

    def _decode(self, tokens: list[int]) -> str:
        return str(
            self._tokenizer.decode(
                tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )


class Vocabulary:
    """Single tokens as text and bytes, for log-probability lists."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, tuple[str, list[int]]] = {}
        self._byte_level = _is_byte_level(tokenizer)

    def show(self, token: int) -> tuple[str, list[int]]:
        """The token's text, and the exact bytes where the vocabulary is made of bytes."""
        known = self._known.get(token)
        if known is None:
            text = str(
                self._tokenizer.decode(
                    [token], skip_special_tokens=False, clean_up_tokenization_spaces=False
                )
            )
            known = self._known[token] = (text, self._bytes(token, text))
        return known

    def _bytes(self, token: int, text: str) -> list[int]:
        if self._byte_level and BROKEN in text:
            piece = self._tokenizer.convert_ids_to_tokens(token)
            table = _bytes_of_characters()
            if isinstance(piece, str) and all(character in table for character in piece):
                return [table[character] for character in piece]
        return list(text.encode())


def _is_byte_level(tokenizer: Any) -> bool:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return backend is not None and "ByteLevel" in repr(backend.decoder)


@cache
def _bytes_of_characters() -> dict[str, int]:
    """The inverse of the byte-level alphabet: printable bytes stand for themselves, the rest from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in plain}
    others = (byte for byte in range(256) if byte not in set(plain))
    return table | {chr(0x100 + i): byte for i, byte in enumerate(others)}
