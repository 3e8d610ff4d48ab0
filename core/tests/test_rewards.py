"""The built-in rewards: each scores the gold answer first, then what is near it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.errors import RewardError
from lightning_core.rewards import contains, exact_match, numeric, output_text, token_f1
from lightning_core.rollout import Attempt, Cause, Rollout
from lightning_core.task import Task
from lightning_core.trace import Trace

BUILT_IN = [contains, exact_match, numeric, token_f1]


def score(function, output, expected):
    task = Task(id="t", input="?", expected=expected)
    attempt = Attempt(
        id="r.1", rollout_id="r", number=1, fence=1, worker="w", started_at=0.0, deadline=1.0,
        lease_until=1.0, cause=Cause.SUCCESS, output=output,
    )  # fmt: skip
    return function(task, Trace(rollout=Rollout(id="r", task_id="t"), task=task, attempt=attempt))


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("as it is ", "as it is "),
        (None, ""),
        (42, "42"),
        (True, "true"),
        ({"b": [1, "é"]}, '{"b": [1, "é"]}'),
        ({"answer": "a", "output": "o"}, "o"),
        ({"answer": 3}, "3"),
        ({"output": {"answer": "deep"}}, "deep"),
        ({"messages": [{"role": "assistant", "content": "one"}, {"role": "user", "content": "?"}]}, "one"),
        ({"messages": [{"type": "human", "content": "?"}, {"type": "ai", "content": "two"}]}, "two"),
        ({"messages": [{"type": "ai", "content": "two"}], "output": "other"}, "two"),
        ({"messages": [{"type": "human", "content": "?"}], "answer": "a"}, "a"),
        ([{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "image"}, "b"]}], "ab"),
        ({"messages": [{"role": "assistant", "content": None}]}, ""),
    ],
)  # fmt: skip
def test_the_text_of_an_output(output, text):
    assert output_text(output) == text


@pytest.mark.parametrize(
    ("output", "expected", "value"),
    [
        ("  Paris\n", "Paris", 1.0),
        ("paris", "Paris", 0.0),
        ("a  b", "a b", 0.0),
        ({"answer": "Paris"}, "Paris", 1.0),
        ('{"b": 2, "a": [1, true]}', {"a": [1.0, True], "b": 2}, 1.0),
        ({"a": [1]}, {"a": [True]}, 0.0),
        ({"a": 1}, {"a": 1, "b": 1}, 0.0),
        ({"a": [1, 2]}, {"a": [1]}, 0.0),
        ("42", 42, 1.0),
        ("forty-two", 42, 0.0),
        (True, True, 1.0),
        (1, True, 0.0),
        ("[" * 100_000, [1], 0.0),
    ],
)
def test_exact_match(output, expected, value):
    assert score(exact_match, output, expected) == value


@pytest.mark.parametrize(
    ("output", "expected", "value"),
    [
        ("It is PARIS,\n France.", "paris, france", 1.0),
        ("Lyon", "Paris", 0.0),
        ("Lyon", ["Paris", "Lyon"], 1.0),
        ("the year 1984", 1984, 1.0),
        (None, "x", 0.0),
    ],
)
def test_contains(output, expected, value):
    assert score(contains, output, expected) == value


@pytest.mark.parametrize("expected", ["", "  ", ["Paris", ""]])
def test_contains_refuses_what_everything_contains(expected):
    with pytest.raises(RewardError, match="task `t`: `contains` got an empty `expected`"):
        score(contains, "anything", expected)


@pytest.mark.parametrize(
    ("output", "expected", "value"),
    [
        ("First 3, then 42.", 42, 1.0),
        ("First 42, then 3.", 42, 0.0),
        ("#### 42\nI checked 7 times.", "3 + 39 = 42\n#### 42", 1.0),
        ("It costs $1,234.50.", 1234.5, 1.0),
        ("1,234,567", "1234567", 1.0),
        ("-$5", -5, 1.0),
        ("$-5", -5, 1.0),
        ("\u22125", -5, 1.0),
        ("x=-5", -5, 1.0),
        ("from 3-5", 5, 1.0),
        ("10 - 3", 3, 1.0),
        ("3/4", "3/4", 1.0),
        ("1/4", "3/4", 0.0),
        ("0.75", "3/4", 1.0),
        (".5", 0.5, 1.0),
        ("1e3", 1000, 1.0),
        ("42.0", 42, 1.0),
        ("41.99999999", 42, 0.0),
        ("99", 100, 0.0),
        ("3.1415927", 3.14159265, 1.0),
        ("3.1416", 3.14159265, 0.0),
        ("0.0000001", 0.0000002, 0.0),
        ("100000000000000000001", 100000000000000000000, 0.0),
        ("6", [5, "6"], 1.0),
        ("no number", 0, 0.0),
        ("", 0, 0.0),
        ("H2O", 2, 0.0),
        ("__import__('os').getpid()", 1, 0.0),
        ("9" * 100_000, 9, 0.0),
        ("1e999999999", 1, 0.0),
        ("5/0", 5, 0.0),
    ],
)
def test_numeric(output, expected, value):
    assert score(numeric, output, expected) == value


@pytest.mark.parametrize("expected", ["none", [1, "none"]])
def test_numeric_needs_a_number_to_compare_with(expected):
    with pytest.raises(RewardError, match="task `t`: `numeric` expected a number"):
        score(numeric, "1", expected)


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_a_number_is_found_as_it_is_written(number):
    assert score(numeric, f"So the answer is {number}.", number) == 1.0
    assert score(numeric, f"So the answer is {number:,}!", number) == 1.0
    assert score(numeric, f"{number}", abs(number) * 1.1 + 1) == 0.0


@pytest.mark.parametrize(
    ("output", "expected", "value"),
    [
        ("The Eiffel Tower!", "eiffel tower", 1.0),
        ("the tower in Paris", "Eiffel Tower", 0.4),
        ("tower tower", "tower", 2 / 3),
        ("Lyon", "Paris", 0.0),
        ("U.S.", "US", 1.0),
        ("no man's land", "no", 0.0),
        ("yes", "no", 0.0),
        ("Yes.", "yes", 1.0),
        ("A.", "the", 1.0),
        ("A.", "b", 0.0),
        ("", "b", 0.0),
        ("Lyon", ["Paris", "city of Lyon"], 0.5),
        ("1984", 1984, 1.0),
    ],
)
def test_token_f1(output, expected, value):
    assert math.isclose(score(token_f1, output, expected), value)


@given(st.text(), st.text())
def test_token_f1_is_symmetric_and_bounded(one, other):
    value = score(token_f1, one, other)
    assert 0.0 <= value <= 1.0
    assert value == score(token_f1, other, one)
    assert score(token_f1, one, one) == 1.0


@pytest.mark.parametrize("function", BUILT_IN)
def test_a_task_without_expected_is_named(function):
    with pytest.raises(RewardError, match=f"task `t` has no `expected`.*`{function.__name__}`"):
        score(function, "x", None)


@pytest.mark.parametrize("function", [contains, numeric, token_f1])
@pytest.mark.parametrize("expected", [{"a": 1}, True, [], [None]])
def test_what_no_text_can_be_compared_with_is_refused(function, expected):
    with pytest.raises(RewardError, match="expected a string, a number or a list of them"):
        score(function, "x", expected)
