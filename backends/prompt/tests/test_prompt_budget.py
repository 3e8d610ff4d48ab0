"""The bounds of a search: read, printed, kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.errors import UsageError
from lightning_prompt.budget import Budget, Spent


def test_every_kind_of_bound_is_read():
    text = "300 rollouts, 2 USD, 30 min, 1M tokens, 500 calls, 0.5 USD reflection, 20 proposals"
    assert Budget.parse(text) == Budget(
        rollouts=300, calls=500, tokens=1_000_000, usd=2.0, seconds=1800.0, reflection_usd=0.5,
        proposals=20,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("1 rollout", Budget(rollouts=1)),
        ("$2", Budget(usd=2.0)),
        ("2$", Budget(usd=2.0)),
        ("2.5 dollars", Budget(usd=2.5)),
        ("$0.5 reflection", Budget(reflection_usd=0.5)),
        ("0.5 usd Reflection", Budget(reflection_usd=0.5)),
        ("30m", Budget(seconds=1800.0)),
        ("1.5h", Budget(seconds=5400.0)),
        ("2 Hours", Budget(seconds=7200.0)),
        ("90 s", Budget(seconds=90.0)),
        ("5 Minutes", Budget(seconds=300.0)),
        ("1.5k tokens", Budget(tokens=1500)),
        ("2K calls", Budget(calls=2000)),
        ("0.25 M tokens", Budget(tokens=250_000)),
        ("7 candidates", Budget(proposals=7)),
        (" 3 requests ,4 rollouts", Budget(calls=3, rollouts=4)),
    ],
)  # fmt: skip
def test_bounds_are_read_in_the_words_that_people_use(text, budget):
    assert Budget.parse(text) == budget


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no bound; expected bounds such as"),
        (" , ", "no bound"),
        ("300", "'300' has no unit; known are `rollouts`"),
        ("30M", "'30M' has no unit"),
        ("300 rolouts", "'rolouts' is no unit"),
        ("1,000 rollouts", "'1' has no unit"),
        ("many rollouts", "cannot read 'many rollouts' as a number and its unit"),
        ("-3 rollouts", "cannot read '-3 rollouts'"),
        ("1e3 rollouts", "'e3 rollouts' is no unit"),
        ("inf USD", "cannot read 'inf USD'"),
        ("5 rollouts,", "cannot read ''"),
        ("9999999999999999999 rollouts", "cannot read"),
        ("0 rollouts", "'0 rollouts' allows nothing"),
        ("2 USD, 0.0 min", "'0.0 min' allows nothing"),
        ("0." + "0" * 349 + "1 USD", "allows nothing"),
        ("1.5 rollouts", "'1.5 rollouts': expected a whole number of `rollouts`"),
        ("0.0001k tokens", "expected a whole number of `tokens`"),
        ("3 rollouts, 1 USD, 4 rollout", "'4 rollout' is a second bound of `rollouts`"),
        ("$1, 2 USD", "'2 USD' is a second bound of `USD`"),
        ("30 min, 1 h", "'1 h' is a second bound of `min`"),
    ],
)
def test_what_cannot_be_read_is_an_error_that_says_what_was_read(text, says):
    with pytest.raises(UsageError, match=r"budget") as caught:
        Budget.parse(text)
    assert says in str(caught.value)


counts = st.one_of(st.none(), st.integers(1, 10**9), st.integers(1, 10**6).map(lambda n: n * 1000))
amounts = st.one_of(
    st.none(), st.floats(5e-324, 1e15, exclude_min=False), st.integers(1, 10**5).map(lambda n: n * 60.0)
)  # fmt: skip
budgets = st.builds(
    Budget, rollouts=counts, calls=counts, tokens=counts, usd=amounts, seconds=amounts,
    reflection_usd=amounts, proposals=counts,
).filter(lambda budget: budget != Budget())  # fmt: skip
spendings = st.builds(
    Spent, rollouts=st.integers(0, 10**9), calls=st.integers(0, 10**9), tokens=st.integers(0, 10**9),
    usd=st.floats(0, 1e6), seconds=st.floats(0, 1e6), reflection_usd=st.floats(0, 1e6),
    proposals=st.integers(0, 10**9),
)  # fmt: skip


@given(budgets)
def test_what_is_printed_is_read_again(budget):
    assert Budget.parse(str(budget)) == budget


@given(budgets, spendings, st.integers(0, 10**6))
def test_what_fits_stays_within_the_bound_and_nothing_fits_once_one_is_reached(
    budget, spent, wanted
):
    fitting = budget.fits(spent, rollouts=wanted)
    assert 0 <= fitting <= wanted
    if budget.rollouts is not None and fitting:
        assert spent.rollouts + fitting <= budget.rollouts
    agents = Budget(
        rollouts=budget.rollouts, calls=budget.calls, tokens=budget.tokens, usd=budget.usd,
        seconds=budget.seconds,
    )  # fmt: skip
    if agents.reached(spent) is not None:
        assert fitting == 0
    else:
        assert fitting > 0 or wanted == 0
    left = budget.left(spent)
    assert (budget.reached(spent) is not None) == (left.reached(Spent()) is not None)


@given(budgets, st.floats(0.01, 1.0))
def test_a_share_is_no_more_than_the_whole_and_never_nothing(budget, fraction):
    part = budget.share(fraction)
    for name in Budget.__struct_fields__:
        whole, share = getattr(budget, name), getattr(part, name)
        assert (whole is None) == (share is None)
        if whole is not None and whole > 1e-300:
            assert type(share) is type(whole)
            assert 0 < share <= whole


def test_a_share_is_a_share():
    whole = Budget(rollouts=7, usd=2.0, proposals=1)
    assert whole.share(0.5) == Budget(rollouts=3, usd=1.0, proposals=1)
    for wrong in (0.0, 1.1, -1.0, float("nan")):
        with pytest.raises(UsageError, match="share"):
            whole.share(wrong)


def test_spending_adds_up_and_is_told_against_the_bounds():
    spent = Spent(rollouts=200, usd=0.4, tokens=400_000) + Spent(
        rollouts=12, usd=0.0123, seconds=420.0, tokens=12_345, reflection_usd=0.01
    )
    budget = Budget.parse("300 rollouts, 2 USD, 30 min, 1M tokens, 0.5 USD reflection")
    assert budget.used(spent) == (
        "212 of 300 rollouts, 0.41M of 1M tokens, 0.41 of 2 USD, 7 of 30 min, 0.01 of 0.5 USD reflection"
    )
    assert str(spent) == "212 rollouts, 412.35k tokens, 0.41 USD, 7 min, 0.01 USD reflection"
    assert str(Spent()) == "nothing"
    assert Budget(usd=0.002).used(Spent(usd=0.00012345)) == "0.00012 of 0.002 USD"
    assert budget.left(spent) == Budget(
        rollouts=88, tokens=587_655, usd=2.0 - spent.usd, seconds=1380.0, reflection_usd=0.49
    )


def test_the_bound_that_is_reached_is_named():
    budget = Budget(rollouts=300, usd=2.0, reflection_usd=0.5)
    assert budget.reached(Spent(rollouts=299, usd=1.99)) is None
    assert budget.reached(Spent(rollouts=300)) == "300 of 300 rollouts"
    assert budget.reached(Spent(usd=2.0134)) == "2.01 of 2 USD"
    spent = Spent(usd=0.5, reflection_usd=0.5)
    assert budget.reached(spent) == "0.5 of 0.5 USD reflection"
    assert budget.reached(spent, reflecting=False) is None
    assert budget.fits(spent, rollouts=9) == 9
    assert Budget(rollouts=300).fits(Spent(rollouts=295), rollouts=9) == 5
    assert Budget(seconds=5.0).fits(Spent(seconds=5.0), rollouts=9) == 0


def test_a_budget_and_what_is_spent_survive_being_written_down():
    budget, spent = Budget.parse("30 min, 2 USD"), Spent(rollouts=3, usd=0.25)
    assert Budget.from_json(budget.to_json()) == budget
    assert Spent.from_json(spent.to_json()) == spent
