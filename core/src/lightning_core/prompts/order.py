"""Parts that an agent puts in another order on each call: rules, examples, the fields of an object."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_NUMBER: Final = re.compile(r"\A[\W\d_]*")
_SHORTEST: Final = 8
"""Characters of a line below which it says nothing."""


def shuffled(texts: Sequence[str], pieces: Sequence[str]) -> int:
    """How many lines all texts have, but not as constant text, since they come in another order in each; 0 where the order
    is one.

    Args:
        texts: distinct texts.
        pieces: their constant pieces.
    """
    lines = [[_NUMBER.sub("", line).strip() for line in text.splitlines()] for text in texts]
    shared = set(lines[0]).intersection(*lines)
    moving = {
        line
        for line in shared
        if len(line) >= _SHORTEST and not any(line in piece for piece in pieces)
    }
    orders = {tuple(line for line in each if line in moving) for each in lines}
    return len(moving) if len(orders) > 1 else 0
