"""What is known to have been filled in: parts of a task's input that stand in its texts word for word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from lightning_core.prompts.settle import matcher
from lightning_core.template import Misfit

_MASK: Final = "\0"
_SHORTEST: Final = 2
"""Characters of a value below which it may stand in a text by accident."""


def mask(texts: Sequence[str], hints: Sequence[Mapping[str, str]]) -> list[str]:
    """The texts with a mask in place of each known value.

    A value counts where each text has that of its own task once, and where tasks have different ones.

    Args:
        texts: the texts.
        hints: for each text, values by name.
    """
    masked = list(texts)
    if any(_MASK in text for text in texts):
        return masked
    for name in hints[0] if hints else ():
        values = [hint.get(name, "") for hint in hints]
        if len(set(values)) < 2 or min(map(len, values)) < _SHORTEST:
            continue
        if all(text.count(value) == 1 for text, value in zip(masked, values, strict=True)):
            masked = [
                text.replace(value, _MASK) for text, value in zip(masked, values, strict=True)
            ]
    return masked


def unmask(pieces: Sequence[str]) -> list[str]:
    """The pieces of masked texts as those of the texts: each mask is a hole, one with a hole beside it."""
    parted = [part for piece in pieces for part in piece.split(_MASK)]
    between = [part for part in parted[1:-1] if part]
    return [parted[0], *between, parted[-1]] if len(parted) > 1 else parted


def known_holes(
    pieces: Sequence[str], texts: Sequence[str], hints: Sequence[Mapping[str, str]]
) -> dict[int, str]:
    """The names of the values that fill holes, by the hole's number."""
    matches = matcher(pieces)
    found = [values for text in texts if not isinstance(values := matches(text), Misfit)]
    names: dict[int, str] = {}
    for hole in range(len(pieces) - 1):
        filled = [values[f"_{hole}"] for values in found]
        for name in hints[0] if hints else ():
            if len(set(filled)) > 1 and filled == [hint.get(name) for hint in hints]:
                names.setdefault(hole, name)
    return names
