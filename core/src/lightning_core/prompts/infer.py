"""Inference: the template of texts that one prompt made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from lightning_core.errors import UsageError
from lightning_core.prompts.align import align
from lightning_core.prompts.masking import known_holes, mask, unmask
from lightning_core.prompts.naming import hole_names
from lightning_core.prompts.settle import matcher, settle, trim
from lightning_core.template import Misfit, Template

_STEP: Final = 40
"""Texts that are aligned at once; those that do not fit what comes of it are taken in after that."""
_HELD_OUT: Final = 48
"""Texts that the confidence is measured with; fewer where they are long."""
_CHARACTERS: Final = 1_000_000
"""Characters of them."""
_FOLDS: Final = 4


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The template of some texts."""

    template: Template
    """The template; it matches each of the texts."""
    fillings: tuple[Mapping[str, str], ...]
    """What fills its holes, by name, for each text in the order given."""
    confidence: float
    """The chance that another text of the same prompt fits it, 0 to 1; see `infer`."""
    reasons: tuple[str, ...]
    """Why not more and not less, in words."""


def infer(texts: Sequence[str], hints: Sequence[Mapping[str, str]] = ()) -> Found:
    """The template of texts that are all made of it.

    What is constant in all distinct texts is constant, all else are holes; `align` says when a piece between two holes
    is no accident. A piece that could lie at two places of a text, because what fills a hole looks like it, is none: the
    holes around it are one. Few, long holes are preferred.

    The confidence is measured: parts of the distinct texts are held out in turn, and matched with the template of the
    others. With s of n texts matching it is (s + 1) / (n + 2), Laplace's rule of succession. One distinct text, whose
    holes cannot be told, has the confidence c / (c + 2) where it comes c times.

    Args:
        texts: the texts; equal ones count once but for the confidence.
        hints: for each text, values by name that may have been filled in. A value that each text has once is a hole,
            whatever it shares with others, and has its name where nothing before it says more.

    Raises:
        UsageError: there is no text.
    """
    if not texts:
        raise UsageError("`infer` needs at least one text of the prompt but got none")
    masked = dict(zip(texts, mask(texts, hints), strict=True))
    pieces = _pieces(masked)
    template = Template.of(pieces, hole_names(pieces, known_holes(pieces, texts, hints)))
    confidence, reasons = _confidence(masked, len(texts))
    return Found(
        template=template,
        fillings=tuple(_filled(template, text) for text in texts),
        confidence=confidence,
        reasons=reasons,
    )


def fit(distinct: Sequence[str]) -> list[str]:
    """The constant pieces of distinct texts: a template of these matches each."""
    chosen = spread(distinct, _STEP)
    while True:
        pieces = settle(align(chosen), chosen)
        matches = matcher(pieces)
        if any(matches(text) is Misfit.OTHER for text in chosen):
            return ["", ""]  # more words than `Vocabulary` can tell apart
        outside = [text for text in distinct if matches(text) is Misfit.OTHER]
        if not outside:
            return trim(settle(pieces, distinct), distinct)
        chosen += spread(outside, _STEP)


def spread(texts: Sequence[str], most: int) -> list[str]:
    """At most so many of the texts, evenly spread."""
    count = min(len(texts), most)
    return [texts[index * len(texts) // count] for index in range(count)]


def _pieces(masked: Mapping[str, str]) -> list[str]:
    """The constant pieces of distinct texts, each with its masked form."""
    return settle(unmask(fit(list(dict.fromkeys(masked.values())))), list(masked))


def _filled(template: Template, text: str) -> dict[str, str]:
    values = template.match(text)
    assert not isinstance(values, Misfit), (template, text)
    return values


def _confidence(masked: Mapping[str, str], count: int) -> tuple[float, tuple[str, ...]]:
    distinct = list(masked)
    if len(distinct) == 1:
        often = "once" if count == 1 else f"{count} times"
        return count / (count + 2), (f"one text, seen {often}: its holes cannot be told",)
    length = sum(map(len, distinct)) // len(distinct) + 1
    held = spread(distinct, max(2, min(_HELD_OUT, _CHARACTERS // length)))
    folds = min(len(held), _FOLDS)
    fitting = 0
    for fold in range(folds):
        others = {text: masked[text] for i, text in enumerate(held) if i % folds != fold}
        matches = matcher(_pieces(others))
        fitting += sum(not isinstance(matches(text), Misfit) for text in held[fold::folds])
    return (fitting + 1) / (len(held) + 2), (
        f"{len(distinct)} distinct texts",
        f"{fitting} of {len(held)} fit the template of the others when held out",
    )
