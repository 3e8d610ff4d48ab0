"""Keys and values of token sequences that were computed before, for prompts that begin the same."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from lightning_local.serve.batch import Layers

LEAST = 8
"""Shorter common beginnings are not worth a copy."""


class PrefixCache:
    """The most recently used sequences, within a bound of memory."""

    def __init__(self, limit: int) -> None:
        """Keep at most `limit` bytes; 0 turns it off."""
        self._limit = limit
        self._bytes = 0
        self._entries: OrderedDict[tuple[int, ...], Layers] = OrderedDict()

    def find(self, ids: list[int]) -> tuple[Layers, int]:
        """As much of `ids` as is known, but for the last token: keys and values, not copied, and how many tokens."""
        best, length = None, 0
        for key in self._entries:
            shared = common(key, ids)
            if shared > length:
                best, length = key, shared
        length = min(length, len(ids) - 1)
        if best is None or length < LEAST:
            return [], 0
        self._entries.move_to_end(best)
        return [
            (keys[:, :length], values[:, :length]) for keys, values in self._entries[best]
        ], length

    def put(self, ids: Sequence[int], layers: Layers) -> None:
        """Remember a sequence; what it begins with is forgotten, as it is part of it."""
        key = tuple(ids)
        size = sum(k.nbytes + v.nbytes for k, v in layers)
        if size > self._limit:
            return
        for other in list(self._entries):
            if len(other) >= len(key) and other[: len(key)] == key:
                self._entries.move_to_end(other)
                return
            if key[: len(other)] == other:
                self._drop(other)
        self._entries[key] = layers
        self._bytes += size
        while self._bytes > self._limit:
            self._drop(next(iter(self._entries)))

    def clear(self) -> None:
        """Forget everything: the weights have changed."""
        self._entries.clear()
        self._bytes = 0

    def _drop(self, key: tuple[int, ...]) -> None:
        self._bytes -= sum(k.nbytes + v.nbytes for k, v in self._entries.pop(key))


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences have in common at the start."""
    for i, (first, second) in enumerate(zip(one, other, strict=False)):
        if first != second:
            return i
    return min(len(one), len(other))
