"""How much speaks against chance where several texts share a piece."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from itertools import pairwise
from typing import Final

_RARE: Final = -20.0


class Chance:
    """What other text these texts might hold: a chain of tokens, each depending on the one before it.

    Its probabilities are those of the texts themselves, smoothed as Witten and Bell (1991) do: how likely a token is
    that did not yet follow depends on how many different ones did.
    """

    def __init__(self, texts: Collection[str]) -> None:
        """Count.

        Args:
            texts: distinct texts, a character for each token.
        """
        self._texts = len(texts)
        self._single: Counter[str] = Counter()
        self._pairs: Counter[tuple[str, str]] = Counter()
        for text in texts:
            self._single.update(text)
            self._pairs.update(pairwise(text))
        self._total = self._single.total()
        self._followers = Counter(first for first, _ in self._pairs)

    def bits(self, piece: str) -> float:
        """How surprising it is that a text holds a piece: -log2 of the chance, for one text.

        Args:
            piece: at least one token. Each text holds it once, which is no sign of how common it is.
        """
        own = self._texts
        inside = Counter(piece)
        pairs = Counter(pairwise(piece))
        total = max(self._total - own * len(piece), 0)

        def alone(token: str) -> float:
            seen = max(self._single[token] - own * inside[token], 0)
            return (seen + 1) / (total + len(self._single))

        # Of how often a text is expected to hold it.
        logarithm = math.log2(max(total, 1) / self._texts) + math.log2(alone(piece[0]))
        for first, second in pairwise(piece):
            seen = max(self._single[first] - own * inside[first], 0)
            together = max(self._pairs[first, second] - own * pairs[first, second], 0)
            new = self._followers[first] if seen else 1
            logarithm += math.log2((together + new * alone(second)) / (seen + new))
        if logarithm < _RARE:
            return -logarithm  # where the chance is as good as the expectation
        return -math.log2(-math.expm1(-(2.0**logarithm)))
