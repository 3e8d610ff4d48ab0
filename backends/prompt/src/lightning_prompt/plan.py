"""Plan: what was asked of the backend, checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from lightning_core.errors import UsageError
from lightning_core.litellm_engine import provider_of
from lightning_core.optimization import OptimizeConfig
from lightning_core.runs import RunConfig
from lightning_prompt.budget import Budget
from lightning_prompt.prices import Prices

DEFAULT_BUDGET: Final = "300 rollouts"
"""What a search may take where nothing is said."""


class Source(StrEnum):
    """Where demonstrations come from."""

    TRACES = "traces"
    """The agent's own best traces."""
    EXPECTED = "expected"
    """The tasks' expected answers, for an agent that makes one call to a task."""
    BOTH = "both"
    """The agent's best traces, and expected answers where there are none."""
    NONE = "none"
    """There are none."""


OPTIONS: Final[Mapping[str, str]] = {
    "demonstrations": f"where demonstrations come from: {', '.join(Source)}",
    "expected_field": "the field of `expected` that is the answer, where it is an object",
    "sizes": "how many demonstrations are tried, such as `2,4,8`",
    "draws": "how many random sets of each size",
    "choose": "the share of the tasks by which strategies are chosen; the others are learnt from",
    "held_out": "the share of the tasks that is kept for the comparison at the end, where `--val` is not given",
    "trials": "the most trials of rules",
    "temperature": "bounds within which it is searched, such as `0,1`",
    "top_p": "bounds within which it is searched, such as `0.5,1`",
    "max_tokens": "bounds within which it is searched, such as `16,256`",
    "cost_weight": "how much reward a US dollar for each rollout is worth, where models are chosen",
    "prices": "what models cost, `MODEL=IN,OUT` in US dollars for a million tokens; several with blanks between",
    "reflection_temperature": "of the reflection model",
    "reflection_max_tokens": "bound of its replies",
    "reflection_key_env": "the environment variable with its key",
    "patience": "seconds for which a provider that refuses or is silent is waited for",
}
"""What `--set` takes."""
_SAMPLING: Final = {"temperature": (0.0, 2.0), "top_p": (0.001, 1.0), "max_tokens": (1.0, 1e9)}
"""Sampling parameters that can be searched, and between what."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked, checked."""

    asked: OptimizeConfig
    """What was asked of any backend."""
    budget: Budget
    """The bounds of the search."""
    source: Source = Source.BOTH
    """Where demonstrations come from."""
    expected_field: str | None = None
    """The field of `expected` that is the answer."""
    sizes: tuple[int, ...] = (2, 4, 8)
    """How many demonstrations are tried."""
    draws: int = 3
    """Random sets of each size."""
    choose: float = 0.4
    """The share of the tasks by which strategies are chosen."""
    held_out: float = 0.3
    """The share that is kept for the comparison at the end, without `--val`."""
    trials: int = 40
    """The most trials of rules."""
    sampling: Mapping[str, tuple[float, float]] = {}
    """Bounds of the sampling parameters that are searched, by name."""
    cost_weight: float = 0.0
    """Reward that a US dollar for each rollout is worth."""
    prices: Prices = Prices()
    """What models cost."""
    reflection_temperature: float = 1.0
    """Of the reflection model."""
    reflection_max_tokens: int = 4096
    """Bound of its replies."""
    reflection_key_env: str | None = None
    """The environment variable with its key."""
    patience: float = 3600.0
    """Seconds for which a provider is waited for."""


def plan_of(config: RunConfig) -> Plan:
    """The plan of a run.

    Raises:
        UsageError: an option is unknown or cannot be; the message says what may be given.
    """
    asked = config.optimize
    if asked is None:
        raise UsageError("backend `prompt`: expected what is to be optimised")
    given = asked.options
    for key in given:
        if key not in OPTIONS:
            raise UsageError(
                f"option `{key}`: backend `prompt` knows {', '.join(f'`{name}` ({what})' for name, what in OPTIONS.items())}"
            )
    _check_others(asked)
    if config.reward is None:
        raise UsageError("backend `prompt`: needs a reward to choose by; give it with `--reward`")
    plan = Plan(
        asked=asked,
        budget=Budget.parse(DEFAULT_BUDGET if asked.budget is None else asked.budget),
        source=_source(given),
        expected_field=given.get("expected_field"),
        sizes=_sizes(given),
        draws=_whole(given, "draws", 3),
        choose=_share(given, "choose", 0.4),
        held_out=_share(given, "held_out", 0.3),
        trials=_whole(given, "trials", 40),
        sampling={name: _bounds(given, name) for name in _SAMPLING if name in given},
        cost_weight=_number(given, "cost_weight", 0.0),
        prices=Prices.parse(given.get("prices", "")),
        reflection_temperature=_number(given, "reflection_temperature", 1.0),
        reflection_max_tokens=_whole(given, "reflection_max_tokens", 4096),
        reflection_key_env=given.get("reflection_key_env"),
        patience=_number(given, "patience", 3600.0),
    )
    if plan.budget.usd is not None or plan.cost_weight > 0:
        # LiteLLM says what its replies cost.
        plan.prices.require(model for model in asked.models if provider_of(model) is None)
    return plan


def _check_others(asked: OptimizeConfig) -> None:
    """Refuse what says how weights are trained: it would do nothing here."""
    usual = OptimizeConfig(backend=asked.backend)
    for name in (
        "algorithm",
        "credit",
        "aggregation",
        "group_by",
        "sampler",
        "refill",
        "asynchronous",
    ):
        if getattr(asked, name) != getattr(usual, name):
            raise UsageError(
                f"{name}: says how weights are trained, and backend `prompt` trains none; leave it out, or take"
                " `--backend local`"
            )


def _source(given: Mapping[str, str]) -> Source:
    try:
        return Source(given.get("demonstrations", Source.BOTH))
    except ValueError:
        raise UsageError(
            f"option `demonstrations`: expected {', '.join(f'`{each}`' for each in Source)} but got"
            f" {given['demonstrations']!r}"
        ) from None


def _sizes(given: Mapping[str, str]) -> tuple[int, ...]:
    text = given.get("sizes", "2,4,8")
    if not re.fullmatch(r"[1-9]\d{0,2}(,[1-9]\d{0,2})*", text):
        raise UsageError(f"option `sizes`: expected numbers such as `2,4,8` but got {text!r}")
    return tuple(sorted({int(each) for each in text.split(",")}))


def _bounds(given: Mapping[str, str], name: str) -> tuple[float, float]:
    number = r"\d{1,9}" if name == "max_tokens" else r"\d{1,9}(?:\.\d{1,9})?"
    found = re.fullmatch(rf"({number}),({number})", given[name])
    low, high = (float(found[1]), float(found[2])) if found else (0.0, 0.0)
    least, most = _SAMPLING[name]
    if not least <= low < high <= most:
        raise UsageError(f"option `{name}`: expected {OPTIONS[name]} but got {given[name]!r}")
    return low, high


def _whole(given: Mapping[str, str], key: str, usual: int) -> int:
    text = given.get(key, str(usual))
    if not re.fullmatch(r"[1-9]\d{0,8}", text):
        raise UsageError(f"option `{key}`: expected a whole number of 1 or more but got {text!r}")
    return int(text)


def _number(given: Mapping[str, str], key: str, usual: float) -> float:
    text = given.get(key, str(usual))
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text):
        raise UsageError(f"option `{key}`: expected a number of 0 or more but got {text!r}")
    return float(text)


def _share(given: Mapping[str, str], key: str, usual: float) -> float:
    value = _number(given, key, usual)
    if not 0.0 < value < 1.0:
        raise UsageError(f"option `{key}`: expected a share between 0 and 1 but got {given[key]!r}")
    return value
