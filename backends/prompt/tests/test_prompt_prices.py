"""What a call costs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.errors import UsageError
from lightning_prompt.prices import Price, Prices

PRICES = Prices.parse("gpt-4.1-mini=0.4,1.6,0.1  org/big=2,8 odd=name=1,2")


def test_prices_are_read_for_several_models():
    assert PRICES.of == {
        "gpt-4.1-mini": Price(prompt=0.4, completion=1.6, cached=0.1),
        "org/big": Price(prompt=2.0, completion=8.0),
        "odd=name": Price(prompt=1.0, completion=2.0),
    }
    assert Prices.parse("") == Prices()


@pytest.mark.parametrize(
    "text", ["a", "a=", "a=1", "=1,2", "a=1,2,3,4", "a=1,x", "a=-1,2", "a=nan,1", "a = 1,2"]
)
def test_what_is_no_price_is_refused(text):
    with pytest.raises(UsageError, match="expected `MODEL=IN,OUT`"):
        Prices.parse(text)


def test_a_model_with_two_prices_is_refused():
    with pytest.raises(UsageError, match="'a' is named twice"):
        Prices.parse("a=1,2 a=1,3")


@pytest.mark.parametrize(
    ("model", "usage", "cost"),
    [
        ("org/big", {"prompt_tokens": 500_000, "completion_tokens": 250_000}, 3.0),
        ("org/big", {"prompt_tokens": 500_000, "prompt_tokens_details": {"cached_tokens": 9}}, 1.0),
        (
            "gpt-4.1-mini",
            {"prompt_tokens": 1_000_000, "completion_tokens": 0, "prompt_tokens_details": {"cached_tokens": 500_000}},
            0.25,
        ),
        (
            "gpt-4.1-mini",
            {"prompt_tokens": 1_000_000, "prompt_tokens_details": {"cached_tokens": 9_000_000}},
            0.1,
        ),
        ("gpt-4.1-mini", {"prompt_tokens": 1_000_000, "prompt_tokens_details": None}, 0.4),
        ("gpt-4.1-mini-2025-04-14", {"prompt_tokens": 1_000_000}, 0.4),
        ("gpt-4.1-mini-20250414", {"prompt_tokens": 1_000_000}, 0.4),
        ("gpt-4.1-mini-turbo", {"prompt_tokens": 1_000_000}, None),
        ("gpt-4.1-mini-2025-04-14-x", {"prompt_tokens": 1_000_000}, None),
        ("unknown", {"prompt_tokens": 1}, None),
        ("unknown", {"prompt_tokens": 1, "cost": 0.125}, 0.125),
        ("org/big", {"prompt_tokens": 1_000_000, "cost": 0}, 0.0),
        ("org/big", {"prompt_tokens": 1_000_000, "cost": "?"}, 2.0),
        ("org/big", {"prompt_tokens": 1_000_000, "cost": True}, 2.0),
        ("org/big", {"prompt_tokens": 1_000_000, "cost": float("nan")}, 2.0),
        ("org/big", {}, None),
        ("org/big", None, None),
    ],
)  # fmt: skip
def test_a_call_costs_what_the_provider_says_else_what_its_tokens_cost(model, usage, cost):
    assert PRICES.cost(model, usage) == (None if cost is None else pytest.approx(cost))


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9))
def test_tokens_of_the_cache_never_cost_more_than_others(prompt, completion, cached):
    usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    whole = PRICES.cost("gpt-4.1-mini", usage)
    part = PRICES.cost("gpt-4.1-mini", usage | {"prompt_tokens_details": {"cached_tokens": cached}})
    assert 0.0 <= part <= whole + 1e-12


def test_a_budget_in_dollars_needs_the_price_of_every_model():
    PRICES.require(["org/big", "gpt-4.1-mini-2025-04-14"])
    with pytest.raises(UsageError, match=r"`a`, `b` costs is not known; .*--set prices='a=IN,OUT'"):
        PRICES.require(["b", "org/big", "a", "b"])
