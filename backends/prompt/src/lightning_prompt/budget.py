"""Budget: the bounds of a search, as `--budget` says them, and what has been spent of them."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

import msgspec

from lightning_core.errors import UsageError
from lightning_core.records import Record

_PART: Final = re.compile(
    r"(?P<dollar>\$)?\s*(?P<number>[0-9]{1,18}(?:\.[0-9]{1,350})?)\s*(?P<unit>(?:[^\W\d]|\$).*)?"
)
_EXPECTED: Final = 'expected bounds such as "300 rollouts, 2 USD, 30 min, 1M tokens"'


class _Kind(msgspec.Struct, frozen=True):
    """One kind of bound."""

    words: dict[str, int]
    """What a user may call it, and what one of it is in the field's own unit."""
    suffix: str = ""
    """What stands behind the unit, `reflection`."""
    whole: bool = False
    """Whether only whole numbers make sense."""

    def known(self) -> str:
        """The first of its words, for a message."""
        return f"{next(iter(self.words))} {self.suffix}".strip()


def _words(*words: str) -> dict[str, int]:
    return dict.fromkeys(words, 1)


_USD: Final = _words("USD", "dollar", "dollars", "$")
_KINDS: Final = {
    "rollouts": _Kind(_words("rollouts", "rollout"), whole=True),
    "calls": _Kind(_words("calls", "call", "requests", "request"), whole=True),
    "tokens": _Kind(_words("tokens", "token"), whole=True),
    "usd": _Kind(_USD),
    "seconds": _Kind(
        {
            "min": 60, "minutes": 60, "minute": 60, "mins": 60, "m": 60,
            "h": 3600, "hours": 3600, "hour": 3600, "hrs": 3600, "hr": 3600,
            "s": 1, "seconds": 1, "second": 1, "secs": 1, "sec": 1,
        }
    ),
    "reflection_usd": _Kind(_USD, suffix="reflection"),
    "proposals": _Kind(_words("proposals", "proposal", "candidates", "candidate"), whole=True),
}  # fmt: skip
_TIMES: Final = (("h", 3600), ("min", 60), ("s", 1))
_MULTIPLIERS: Final = {"k": 1000, "K": 1000, "M": 1_000_000}
_OF_THE_AGENT: Final = ("rollouts", "calls", "tokens", "usd", "seconds")
_OF_REFLECTION: Final = "reflection_usd"


class Spent(Record, frozen=True, kw_only=True):
    """What has been spent. Adds up."""

    rollouts: int = 0
    """Rollouts that were begun."""
    calls: int = 0
    """Model calls, of the agent and of the reflection model."""
    tokens: int = 0
    """Prompt and completion tokens of all these calls."""
    usd: float = 0.0
    """US dollars for all these calls."""
    seconds: float = 0.0
    """Wall time."""
    reflection_usd: float = 0.0
    """What of `usd` went to the reflection model."""
    proposals: int = 0
    """Candidates that were proposed."""

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            **{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__}
        )

    def __str__(self) -> str:
        """What was spent at all, such as `212 rollouts, 0.41 USD, 7 min`."""
        parts = []
        for name, kind in _KINDS.items():
            if value := getattr(self, name):
                unit, scale = _unit(name, value, rough=True)
                parts.append(f"{_short(value, scale)}{unit} {kind.suffix}".rstrip())
        return ", ".join(parts) or "nothing"


class Budget(Record, frozen=True, kw_only=True):
    """Bounds of a search; None is no bound. Its text is read by `parse`."""

    rollouts: int | None = None
    """Rollouts, those of validation included."""
    calls: int | None = None
    """Model calls, of the agent and of the reflection model."""
    tokens: int | None = None
    """Prompt and completion tokens of all these calls."""
    usd: float | None = None
    """US dollars for all these calls."""
    seconds: float | None = None
    """Wall time."""
    reflection_usd: float | None = None
    """What of `usd` may go to the reflection model."""
    proposals: int | None = None
    """Candidates that may be proposed."""

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Read `300 rollouts, 2 USD, 30 min, 1M tokens, 500 calls, 0.5 USD reflection, 20 proposals`.

        At least one bound, each kind at most once. `k` and `M` multiply; `$2` is `2 USD`; times are in `s`, `min` or `h`.

        Raises:
            UsageError: it cannot be read so, or a bound is 0.
        """
        bounds: dict[str, Any] = {}
        parts = [part.strip() for part in text.split(",")]
        if not any(parts):
            raise UsageError(f"budget {text!r}: no bound; {_EXPECTED}")
        for part in parts:
            name, value = _bound(part, f"budget {text!r}")
            if name in bounds:
                raise UsageError(
                    f"budget {text!r}: {part!r} is a second bound of `{_KINDS[name].known()}`; give one"
                )
            bounds[name] = value
        return cls(**bounds)

    def __str__(self) -> str:
        """The bounds, as `parse` reads them."""
        parts = []
        for name, value in self._given().items():
            unit, scale = _unit(name, value)
            parts.append(f"{_exact(value, scale)}{unit} {_KINDS[name].suffix}".rstrip())
        return ", ".join(parts)

    def left(self, spent: Spent) -> Budget:
        """What is left; 0 where a bound is reached."""
        return Budget(
            **{
                name: max(value - getattr(spent, name), type(value)(0))
                for name, value in self._given().items()
            }
        )

    def reached(self, spent: Spent, *, reflecting: bool = True) -> str | None:
        """The first bound that is reached, in words: `300 of 300 rollouts`; None while there is none.

        Args:
            spent: what has been spent.
            reflecting: whether the bound of reflection counts, as it does not for a search without it.
        """
        for name, value in self._given().items():
            if getattr(spent, name) >= value and (reflecting or name != _OF_REFLECTION):
                return self._of(name, spent)
        return None

    def fits(self, spent: Spent, *, rollouts: int) -> int:
        """How many of some rollouts may still begin: none once a bound that they add to is reached.

        What a rollout takes beside itself is known only once it has ended, so that calls, tokens, money and time may pass
        their bounds by what the rollouts under way take. Bounds of proposals and of reflection stop no rollout.
        """
        given = self._given()
        if any(getattr(spent, name) >= given[name] for name in _OF_THE_AGENT if name in given):
            return 0
        return rollouts if self.rollouts is None else min(rollouts, self.rollouts - spent.rollouts)

    def share(self, fraction: float) -> Budget:
        """A part of each bound, for one phase. Counts are rounded down, but not below 1: keep to the whole budget too.

        Raises:
            UsageError: the fraction is not above 0 and at most 1.
        """
        if not 0.0 < fraction <= 1.0:
            raise UsageError(f"budget: expected a share above 0 and at most 1 but got {fraction!r}")
        return Budget(
            **{
                name: max(int(value * fraction), 1) if _KINDS[name].whole else value * fraction
                for name, value in self._given().items()
            }
        )

    def used(self, spent: Spent) -> str:
        """How much of each bound is spent: `212 of 300 rollouts, 0.41 of 2 USD, 7 of 30 min`."""
        return ", ".join(self._of(name, spent) for name in self._given())

    def _given(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in _KINDS}
        return {name: value for name, value in values.items() if value is not None}

    def _of(self, name: str, spent: Spent) -> str:
        bound = getattr(self, name)
        unit, scale = _unit(name, bound)
        words = f"{unit} {_KINDS[name].suffix}".rstrip()
        multiplier = unit.partition(" ")[0]
        return f"{_short(getattr(spent, name), scale)}{multiplier} of {_short(bound, scale)}{words}"


def _bound(part: str, where: str) -> tuple[str, float]:
    """The kind and value of one part of the text."""
    found = _PART.fullmatch(part)
    if found is None:
        raise UsageError(f"{where}: cannot read {part!r} as a number and its unit; {_EXPECTED}")
    unit, scale = (found["unit"] or "").strip(), 1
    if found["dollar"]:
        unit = f"$ {unit}"
    elif unit[:1] in _MULTIPLIERS and _named(unit) is None:
        unit, scale = unit[1:].strip(), _MULTIPLIERS[unit[0]]
    named = _named(unit)
    if named is None:
        known = ", ".join(f"`{kind.known()}`" for kind in _KINDS.values())
        what = f"{unit!r} is no unit" if unit else f"{part!r} has no unit"
        raise UsageError(f"{where}: {what}; known are {known}")
    name, of_unit = named
    value = Fraction(found["number"]) * scale * of_unit
    if not float(value):
        raise UsageError(
            f"{where}: {part!r} allows nothing; give more, or leave it out for no bound"
        )
    if not _KINDS[name].whole:
        return name, float(value)
    if value.denominator != 1:
        raise UsageError(f"{where}: {part!r}: expected a whole number of `{name}`")
    return name, int(value)


def _named(unit: str) -> tuple[str, int] | None:
    """The kind of a unit, and what one of it is in the field's own unit; None for no unit."""
    words = " ".join(unit.split())
    for name, kind in _KINDS.items():
        for word, value in kind.words.items():
            spelt = f"{word} {kind.suffix}".strip()
            # `M` alone could be a million or minutes.
            if words == spelt or (len(word) > 1 and words.lower() == spelt.lower()):
                return name, value
    return None


def _unit(name: str, value: float, *, rough: bool = False) -> tuple[str, int]:
    """The unit that suits a value, with what stands before it, and its size; not rough: one that it is a multiple of."""
    if name == "seconds":
        for unit, size in _TIMES:
            if value >= size and (rough or value % size == 0):
                return f" {unit}", size
        return " s", 1
    if not _KINDS[name].whole:
        return " USD", 1
    for multiplier, size, least in (("M", 1_000_000, 1_000_000), ("k", 1000, 10_000)):
        if value >= least and (rough or value % size == 0):
            return f"{multiplier} {name}", size
    return f" {name}", 1


def _exact(value: float, scale: int) -> str:
    """A number in its unit, with all its digits and no exponent."""
    whole = value / scale if isinstance(value, float) else value // scale
    return format(Decimal(repr(whole)), "f").removesuffix(".0")


def _short(value: float, scale: int) -> str:
    """A number in its unit, to two decimals; a small one to two digits."""
    number = value / scale
    if number == 0 or number == int(number):
        return str(int(number))
    decimals = 2 if abs(number) >= 0.1 else 1 - math.floor(math.log10(abs(number)))
    return f"{number:.{decimals}f}".rstrip("0").rstrip(".")
