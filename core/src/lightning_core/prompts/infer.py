"""Inference: the template of texts that one prompt made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from lightning_core.errors import UsageError
from lightning_core.prompts.align import align
from lightning_core.prompts.hints import Hints
from lightning_core.prompts.naming import hole_names
from lightning_core.prompts.settle import matcher, settle, trim
from lightning_core.prompts.widen import Known, sources, widen
from lightning_core.template import Misfit, Template

SAMPLE: Final = 192
"""Texts, evenly spread, that are looked at for what is known to have been filled in."""
_STEP: Final = 40
"""Texts that are aligned at once; those that do not fit what comes of it are taken in after that."""
_SPARE: Final = 10
"""One in so many texts may be taken apart in several ways."""
_HELD_OUT: Final = 48
"""Texts that the confidence is measured with; fewer where they are long."""
_CHARACTERS: Final = 1_000_000
"""Characters of them."""
_FOLDS: Final = 4


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The template of some texts."""

    template: Template
    """The template; each of the texts was made of it."""
    fillings: tuple[Mapping[str, str] | None, ...]
    """What fills its holes, by name, for each text in the order given; None for the few that can be taken apart in several
    ways."""
    confidence: float
    """The chance that another text of the same prompt fits it, 0 to 1; see `infer`."""
    reasons: tuple[str, ...]
    """Why not more and not less, in words."""


def infer(texts: Sequence[str], known: Known | None = None) -> Found:
    """The template of texts that are all made of it.

    What is constant in all distinct texts is constant, all else are holes; `align` says when a piece between two holes
    is no accident. A piece that could lie at two places of more than one text in ten, because what fills a hole looks like
    it, is none: the holes around it are one. Few, long holes are preferred. What is known to have been filled in is a
    hole from end to end, see `widen`.

    The confidence is the chance that another text fits, if it comes as these came. A text that was seen fits as these do.
    One that was not fits with the chance (s + 1) / (n + 2), where s of n distinct texts fit the template of the others
    when held out (Laplace's rule of succession); with one distinct text it does not. That the next one was not seen has the
    chance (o + 1) / (c + 2), where o of the c texts came once (Good and Turing's estimate, smoothed likewise).

    Args:
        texts: the texts, each as often as it came.
        known: gives, for a text, what may have been filled into it; it is asked for at most `SAMPLE` of the distinct ones.

    Raises:
        UsageError: there is no text.
    """
    if not texts:
        raise UsageError("`infer` needs at least one text of the prompt but got none")
    known = known or _nothing
    counts = Counter(texts)
    distinct = list(counts)
    sample = spread(distinct, SAMPLE)
    pieces = _pieces(distinct, sample, known)
    template = Template.of(pieces, hole_names(pieces, sources(pieces, sample, known)))
    fillings = {text: _filled(template, text) for text in distinct}
    confidence, reasons = _confidence(counts, fillings, sample, known)
    return Found(
        template=template,
        fillings=tuple(fillings[text] for text in texts),
        confidence=confidence,
        reasons=reasons,
    )


def fit(distinct: Sequence[str]) -> list[str]:
    """The constant pieces of distinct texts: each was made of these.

    One text in ten may be such that it can be taken apart in several ways.
    """
    chosen = spread(distinct, _STEP)
    firm: set[str] = set()
    while True:
        spare = len(chosen) // _SPARE
        pieces = settle(align(chosen, spare, firm), chosen, spare)
        matches = matcher(pieces)
        outside = [text for text in distinct if matches(text) is Misfit.OTHER]
        if not outside:
            return trim(settle(pieces, distinct, len(distinct) // _SPARE), distinct)
        left_out = set(chosen).intersection(outside)
        if not left_out.isdisjoint(firm):
            return ["", ""]  # more words than `Vocabulary` can tell apart
        firm |= left_out
        chosen += spread([text for text in outside if text not in left_out], _STEP)


def spread(texts: Sequence[str], most: int) -> list[str]:
    """At most so many of the texts, evenly spread."""
    count = min(len(texts), most)
    return [texts[index * len(texts) // count] for index in range(count)]


def _nothing(text: str) -> Hints:
    return {}


def _pieces(distinct: Sequence[str], sample: Sequence[str], known: Known) -> list[str]:
    """The constant pieces of distinct texts; of those in `sample` is asked what may have been filled in."""
    return settle(widen(fit(distinct), sample, known), distinct, len(distinct) // _SPARE)


def _filled(template: Template, text: str) -> dict[str, str] | None:
    values = template.match(text)
    assert values is not Misfit.OTHER, (template, text)
    return None if isinstance(values, Misfit) else values


def _confidence(
    counts: Mapping[str, int],
    fillings: Mapping[str, Mapping[str, str] | None],
    sample: Sequence[str],
    known: Known,
) -> tuple[float, tuple[str, ...]]:
    total = sum(counts.values())
    unseen = (sum(count == 1 for count in counts.values()) + 1) / (total + 2)
    if len(counts) == 1:
        often = "once" if total == 1 else f"{total} times"
        return 1 - unseen, (f"one text, seen {often}: its holes cannot be told",)
    length = sum(map(len, sample)) // len(sample) + 1
    held = spread(sample, max(2, min(_HELD_OUT, _CHARACTERS // length)))
    folds = min(len(held), _FOLDS)
    fitting = 0
    for fold in range(folds):
        others = [text for number, text in enumerate(held) if number % folds != fold]
        matches = matcher(_pieces(others, others, known))
        fitting += sum(not isinstance(matches(text), Misfit) for text in held[fold::folds])
    new = (fitting + 1) / (len(held) + 2)
    reasons = [
        f"{len(counts)} distinct texts",
        f"{fitting} of {len(held)} fit the template of the others when held out",
    ]
    unclear = [text for text, values in fillings.items() if values is None]
    if unclear:
        reasons.append(
            f"{len(unclear)} can be taken apart in several ways, and would pass unchanged"
        )
    seen = 1 - sum(counts[text] for text in unclear) / total
    return unseen * new + (1 - unseen) * seen, tuple(reasons)
