"""Slots: what an agent's code reads of the strategy in use, by name.

`prompt`, `rule` and `choose` are meant to be called as `strategy.prompt` and so on, after
`from lightning_core import strategy`. Outside of a run each returns its default.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, overload

import msgspec

from lightning_core.errors import UsageError
from lightning_core.records import Record
from lightning_core.template import Template

if TYPE_CHECKING:
    from lightning_core.strategy import Strategy

Scalar = bool | int | float | str
"""The value of a decision rule."""
_Value = TypeVar("_Value", bound=Scalar)
_Meant = TypeVar("_Meant")
_LOCK: Final = threading.Lock()
_TYPES: Final = {bool: "bool", int: "int", float: "float", str: "str"}


class SlotKind(StrEnum):
    """What a slot holds."""

    PROMPT = "prompt"
    """A template, of `prompt_templates`."""
    RULE = "rule"
    """A value, of `decision_rules`."""
    CHOICE = "choice"
    """The name of an option, of `interaction_patterns`."""


class SlotDeclaration(Record, frozen=True, kw_only=True):
    """What a read says of its slot: what an optimiser may put there."""

    name: str
    """The slot's name, among those of its kind."""
    kind: SlotKind
    """What it holds."""
    type: str
    """`bool`, `int`, `float` or `str`."""
    default: Scalar
    """What is read outside of a run, or where the strategy has nothing."""
    low: int | float | None = None
    """The lowest value; None where there is no bound."""
    high: int | float | None = None
    """The highest value; None where there is no bound."""
    options: tuple[Scalar, ...] | None = None
    """The only values; None where any will do."""

    @property
    def title(self) -> str:
        """Its kind and name, as messages have them."""
        return f"{self.kind} `{self.name}`"

    @property
    def expectation(self) -> str:
        """The values that it can have, in words."""
        if self.options is not None:
            return f"one of {', '.join(repr(option) for option in self.options)}"
        low = "" if self.low is None else f" from {self.low}"
        high = "" if self.high is None else f" up to {self.high}"
        return f"{self.type}{low}{high}"

    def accepts(self, value: object) -> bool:
        """Whether it can have the value. True and False are no numbers; a whole number will do for a float."""
        kind = _TYPES.get(type(value), "")
        if kind != self.type and (kind, self.type) != ("int", "float"):
            return False
        if isinstance(value, float) and not math.isfinite(value):
            return False
        if isinstance(value, (int, float)):
            above = self.low is None or value >= self.low
            if not (above and (self.high is None or value <= self.high)):
                return False
        return self.options is None or value in self.options


Told = Callable[[SlotDeclaration], None]
"""Is told of each slot that is read."""


class _Reading(msgspec.Struct, frozen=True, eq=False):
    """What slots are read from."""

    strategy: Strategy
    told: Told | None
    declared: dict[str, SlotDeclaration]


_READING: Final[ContextVar[_Reading | None]] = ContextVar("lightning_core_strategy", default=None)
_of_process: list[Callable[[], tuple[Strategy, Told | None]] | _Reading] = []


def use_in_process(source: Callable[[], tuple[Strategy, Told | None]]) -> None:
    """Have slots read from one strategy in all threads of this process, but for where another is in use.

    Args:
        source: gives what `using` takes; is called at the first such read.
    """
    _of_process[:] = [source]


@contextmanager
def using(strategy: Strategy, told: Told | None = None) -> Iterator[None]:
    """Have slots read from a strategy in this context: this task or thread, and those that it starts with its context.

    Args:
        strategy: what is read. An empty one leaves every slot at its default.
        told: is called with the declaration of each slot at its first read in this context, by whoever reads it.
    """
    token = _READING.set(_Reading(strategy, told, {}))
    try:
        yield
    finally:
        _READING.reset(token)


def prompt(name: str, default: str) -> str:
    """The template of a prompt, with its holes: fill them with `.format(question=…)`.

    A brace that is no hole is doubled, `{{`, in the default as in `strategy.json`; `.format` makes it one again.

    Args:
        name: the slot's name, among prompts.
        default: the template outside of a run, or where the strategy has none of the name.

    Raises:
        UsageError: the default is no template, or the slot was declared differently before.
    """
    declared = SlotDeclaration(name=name, kind=SlotKind.PROMPT, type="str", default=default)
    if not isinstance(default, str):
        _refuse(declared, f"expected a default of type str but got {default!r}")
    try:
        Template(default)
    except UsageError as error:
        raise UsageError(f"{declared.title}: default {error}") from error
    strategy = _declare(declared)
    found = strategy.prompt_templates.get(name) if strategy else None
    return default if found is None else found.template


def rule(
    name: str,
    default: _Value,
    *,
    low: float | None = None,
    high: float | None = None,
    options: Sequence[_Value] | None = None,
) -> _Value:
    """The value of a decision rule, of the type of its default.

    Args:
        name: the slot's name, among rules.
        default: a bool, int, float or string: the value outside of a run, or where the strategy has none of the name.
        low: the lowest value, of numbers.
        high: the highest value, of numbers.
        options: the only values.

    Raises:
        UsageError: the declaration contradicts itself or an earlier one of the slot; or the strategy's value is of
            another type or out of range.
    """
    declared = SlotDeclaration(
        name=name, kind=SlotKind.RULE, type=_TYPES.get(type(default), ""), default=default,
        low=low, high=high, options=None if options is None else tuple(options),
    )  # fmt: skip
    if not declared.type:
        _refuse(
            declared, f"expected a default that is a bool, int, float or str but got {default!r}"
        )
    if declared.type in ("bool", "str") and not low is high is None:
        _refuse(declared, f"`low` and `high` are for numbers, and its default is {default!r}")
    for value in (default, *(declared.options or ())):
        if not declared.accepts(value):
            _refuse(declared, f"its own {value!r} is not {declared.expectation}")
    strategy = _declare(declared)
    if strategy is None or name not in strategy.decision_rules:
        return default
    found = strategy.decision_rules[name]
    _check(declared, found, strategy)
    return type(default)(found)


@overload
def choose(name: str, options: Mapping[str, _Meant], default: str | None = None) -> _Meant: ...
@overload
def choose(name: str, options: Sequence[str], default: str | None = None) -> str: ...
def choose(
    name: str, options: Mapping[str, Any] | Sequence[str], default: str | None = None
) -> Any:
    """Which of several ways to go.

    Args:
        name: the slot's name, among choices.
        options: names; or names and what each means.
        default: the name of the option outside of a run, or where the strategy chooses none; None is the first.

    Returns:
        The chosen option's name; where `options` says what each means, that.

    Raises:
        UsageError: the declaration contradicts itself or an earlier one of the slot; or the strategy chooses something
            that is none of the options.
    """
    names = () if isinstance(options, str) else tuple(options)
    declared = SlotDeclaration(
        name=name, kind=SlotKind.CHOICE, type="str", options=names,
        default=names[0] if default is None and names else default or "",
    )  # fmt: skip
    if not names or not all(isinstance(each, str) for each in names):
        _refuse(declared, f"expected options, by name, but got {options!r}")
    if not declared.accepts(declared.default):
        _refuse(declared, f"its own {default!r} is not {declared.expectation}")
    strategy = _declare(declared)
    pattern = strategy.interaction_patterns.get(name) if strategy else None
    chosen = declared.default if pattern is None else pattern.chosen
    if strategy is not None:
        _check(declared, chosen, strategy)
    return options[str(chosen)] if isinstance(options, Mapping) else chosen


def _declare(declared: SlotDeclaration) -> Strategy | None:
    """Tell of a slot at its first read, and return the strategy in use."""
    reading = _READING.get() or _reading_of_process()
    if reading is None:
        return None
    known = reading.declared.setdefault(declared.title, declared)
    if known is declared:
        if reading.told is not None:
            reading.told(declared)
    elif known != declared:
        _refuse(
            declared,
            f"declared as {known.expectation}, default {known.default!r}, and again as {declared.expectation},"
            f" default {declared.default!r}; declare it alike wherever it is read",
        )
    return reading.strategy


def _reading_of_process() -> _Reading | None:
    if not _of_process:
        return None
    found = _of_process[0]
    if not isinstance(found, _Reading):
        # Threads that come at once must share what is declared.
        with _LOCK:
            found = _of_process[0]
            if not isinstance(found, _Reading):
                found = _Reading(*found(), {})
                _of_process[:] = [found]
    return found


def _check(declared: SlotDeclaration, value: object, strategy: Strategy) -> None:
    if not declared.accepts(value):
        run = strategy.provenance.run
        origin = f"the strategy of run `{run}`" if run else "the strategy in use"
        _refuse(declared, f"expected {declared.expectation} but {origin} has {value!r}")


def _refuse(declared: SlotDeclaration, why: str) -> NoReturn:
    raise UsageError(f"{declared.title}: {why}")
