"""Telling apart texts of different prompts that stand in one place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from lightning_core.prompts.infer import SAMPLE, fit, spread
from lightning_core.prompts.naming import label
from lightning_core.prompts.order import shuffled
from lightning_core.prompts.settle import matcher
from lightning_core.prompts.tokens import tokens
from lightning_core.prompts.widen import Known, mask
from lightning_core.template import Misfit

_WORDS: Final = 5
"""Words and marks in a row that are looked at together."""
_ROWS: Final = 4
"""Such rows that texts of one prompt share at least: eight words and marks."""
_PROMPTS: Final = 4
"""Prompts that one place may have."""
_MORE: Final = 16
"""Visible characters that each prompt has beyond what all have."""
_LITTLE: Final = 8
"""Visible characters below which constant text says nothing."""


class Split(NamedTuple):
    """Distinct texts, by prompt."""

    prompts: list[list[str]]
    """Those of each prompt."""
    rest: list[str]
    """Those that share nothing with others."""


def split(texts: Sequence[str], known: Known) -> Split:
    """Tell prompts apart.

    Texts are of few prompts (four at most) where groups of them share eight words and marks in a row, and more, that
    the others lack, and where most texts are in such a group, or nearly all if all begin or end alike. A template of all of
    them must be much worse, with half of the constant text that each group has, or less; and within each group one of its
    holes must be partly constant: one that merely holds one of a few values is wholly so, and one with a label before it,
    such as `Context:`, is a hole that holds whatever the label says. Texts that all have the same lines, in another order in
    each, are of one. What is known to have been filled in counts as no text of a prompt.

    Args:
        texts: distinct texts of one place.
        known: gives, for a text, what may have been filled into it.
    """
    asked = spread(texts, SAMPLE)
    owners: dict[str, list[str]] = {}
    for text, masked in zip(asked, mask(asked, known), strict=True):
        owners.setdefault(masked, []).append(text)
    chosen = list(owners)
    pieces = fit(chosen)
    if len(chosen) < 4 or len(pieces) == 1 or shuffled(chosen, pieces):
        return Split([list(texts)], [])
    head, tail = len(pieces[0]), len(pieces[-1])
    inner = {text: text[head : len(text) - tail] for text in chosen}
    groups, rest = _groups(inner)
    size = _size(pieces)
    # Where the texts have next to nothing in common, there is nothing to lose.
    fewest, spare = (1, 0.5) if size < _LITTLE else (2, 0.1)
    if not (fewest <= len(groups) <= _PROMPTS and len(rest) <= spare * len(chosen)):
        return Split([list(texts)], [])
    for group in groups:
        if _size(fit(group)) < max(2 * size, size + _MORE) or not _partly(pieces, group):
            return Split([list(texts)], [])
    found = Split([_owned(group, owners) for group in groups], _owned(rest, owners))
    others = set(texts).difference(asked)
    _assign(found, [text for text in texts if text in others])
    return found


def _owned(masked: Sequence[str], owners: Mapping[str, Sequence[str]]) -> list[str]:
    return [text for each in masked for text in owners[each]]


def _partly(pieces: Sequence[str], group: Sequence[str]) -> bool:
    """Whether what fills a hole without a label is partly constant in a group."""
    matches = matcher(pieces)
    found = [values for text in group if not isinstance(values := matches(text), Misfit)]
    for hole, before in enumerate(pieces[:-1]):
        inside = fit(list(dict.fromkeys(values[f"_{hole}"] for values in found)))
        if len(inside) > 1 and _size(inside) >= _LITTLE and not label(before):
            return True
    return False


def _size(pieces: Sequence[str]) -> int:
    """The visible characters of some pieces."""
    return sum(len("".join(piece.split())) for piece in pieces)


def _assign(found: Split, texts: Sequence[str]) -> None:
    """Put texts to the prompts that they fit."""
    known = [(matcher(fit(prompt)), prompt) for prompt in found.prompts] if texts else []
    for text in texts:
        fitting = (prompt for matches, prompt in known if not isinstance(matches(text), Misfit))
        next(fitting, found.rest).append(text)


def _groups(inner: Mapping[str, str]) -> tuple[list[list[str]], list[str]]:
    """Texts that share rows of words, the largest groups first, and those that share none."""
    holders: dict[tuple[str, ...], set[str]] = {}
    for text, part in inner.items():
        words = [token for token in tokens(part) if not token.isspace()]
        for row in zip(*(words[start:] for start in range(_WORDS)), strict=False):
            holders.setdefault(row, set()).add(text)
    several = [held for held in holders.values() if len(held) > 1]
    left = set(inner)
    groups: list[list[str]] = []
    while True:
        shared = Counter(
            frozenset(held) for each in several if 1 < len(held := each & left) < len(inner)
        )
        likely = [group for group, rows in shared.items() if rows >= _ROWS]
        if not likely or len(groups) > _PROMPTS:
            return groups, [text for text in inner if text in left]
        best = max(likely, key=lambda group: (len(group), shared[group], sorted(group)))
        groups.append([text for text in inner if text in best])
        left -= best
