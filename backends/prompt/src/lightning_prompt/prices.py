"""Prices: what a model call costs, by its token counts and the prices that the user gives."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from lightning_core.errors import UsageError

_PRICE: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_DATE: Final = re.compile(r"-[0-9]{4}-?[0-9]{2}-?[0-9]{2}")
_EXPECTED: Final = (
    "expected `MODEL=IN,OUT` or `MODEL=IN,OUT,CACHED`, in US dollars for a million tokens, such as"
    " `gpt-4.1-mini=0.4,1.6,0.1`; several with spaces between"
)
_MILLION: Final = 1e6


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """What a model's tokens cost, in US dollars for a million."""

    prompt: float
    """Prompt tokens."""
    completion: float
    """Completion tokens."""
    cached: float | None = None
    """Prompt tokens that the provider had in its cache; None as `prompt`."""


class Prices(msgspec.Struct, frozen=True):
    """The prices of models. There is no list of our own, as it would soon be wrong."""

    of: Mapping[str, Price] = msgspec.field(default_factory=dict)
    """By the model's name."""

    @classmethod
    def parse(cls, text: str) -> Prices:
        """Read `MODEL=IN,OUT` or `MODEL=IN,OUT,CACHED`, several with spaces between.

        Raises:
            UsageError: it cannot be read so, or names a model twice.
        """
        found: dict[str, Price] = {}
        for part in text.split():
            model, _, numbers = part.rpartition("=")
            values = numbers.split(",")
            if not model or len(values) not in (2, 3) or not all(map(_PRICE.fullmatch, values)):
                raise UsageError(f"prices: cannot read {part!r}; {_EXPECTED}")
            if model in found:
                raise UsageError(f"prices: model {model!r} is named twice; give one price")
            prompt, completion, *cached = map(float, values)
            found[model] = Price(
                prompt=prompt, completion=completion, cached=cached[0] if cached else None
            )
        return cls(found)

    def price(self, model: str) -> Price | None:
        """The price of a model; that of `NAME` also for `NAME-2025-04-14`, as providers name what has answered."""
        dated = _DATE.search(model)
        found = self.of.get(model)
        if found is None and dated is not None and dated.end() == len(model):
            return self.of.get(model[: dated.start()])
        return found

    def cost(self, model: str, usage: Mapping[str, Any] | None) -> float | None:
        """What a call cost in US dollars: what the provider says (`usage.cost`), else by its token counts.

        Args:
            model: the model that answered.
            usage: the reply's `usage`.

        Returns:
            None where the provider says nothing and the model has no price, or the reply no token counts.
        """
        usage = usage or {}
        said = _number(usage.get("cost"))
        if said is not None:
            return said
        price = self.price(model)
        prompt, completion = (
            _number(usage.get(name)) for name in ("prompt_tokens", "completion_tokens")
        )
        if price is None or prompt is None:
            return None
        details = usage.get("prompt_tokens_details")
        told = _number(details.get("cached_tokens")) if isinstance(details, Mapping) else None
        cached = min(told or 0.0, prompt)
        of_cached = price.prompt if price.cached is None else price.cached
        parts = (
            (prompt - cached) * price.prompt,
            cached * of_cached,
            (completion or 0.0) * price.completion,
        )
        return math.fsum(parts) / _MILLION

    def require(self, models: Iterable[str]) -> None:
        """Refuse a budget in US dollars where the cost of a model is not known.

        Raises:
            UsageError: one of them has no price; the message names all that have none, and how to give one.
        """
        unknown = sorted({model for model in models if self.price(model) is None})
        if unknown:
            names = ", ".join(f"`{model}`" for model in unknown)
            raise UsageError(
                f"budget in USD: what {names} costs is not known; give the price as"
                f" `--set prices='{unknown[0]}=IN,OUT'`, in US dollars for a million prompt and completion tokens"
            )


def _number(value: object) -> float | None:
    """A finite number of 0 or more; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < math.inf else None
