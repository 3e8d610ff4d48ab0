"""What a trained agent reads of replies: verdicts, and code in fences."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.trained import last_fenced, unfenced
from lightning_core.trained.verdict import read_verdict


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("yes", 1), ("Yes.", 1), ("**Correct**", 1), ("OK", 1), ("`true`", 1), ("正确。", 1), ("- yes", 1),
        ("no", 0), ("NO!", 0), ("wrong", 0), ("Incorrect.", 0), ("not correct", 0), ("错误", 0), ("not ok", 0),
        ("0.75", 0.75), ("1", 1), ("0", 0), ("1.0", 1), (".5", 0.5), ("1.", 1),
        ("It joins well.\n\nVERDICT: CORRECT", 1), ("The join is missing.\n**Verdict: INCORRECT**\n", 0),
        ("Final answer: no", 0), ("Score: **0.3**", 0.3), ("结论：正确", 1), ("Correct: no", 0),  # noqa: RUF001
        ("No.\nThe join is missing.", 0), ("yes\nand yet\nno", 0), ("```\nyes\n```", 1),
    ],
)  # fmt: skip
def test_a_verdict_is_read(reply, score):
    assert read_verdict(reply) == score


@pytest.mark.parametrize(
    "reply",
    [
        "", "   ", "maybe", "No errors found.", "It is correct.", "Yes, but the join is missing.", "8/10", "80%", "1.5",
        "-0.5", "7", "Errors: no", "Wrong? yes", "nan", "inf", "1e-3", "\u0660", "{\"score\": 1}",
    ],
)  # fmt: skip
def test_what_is_no_verdict_is_not_read(reply):
    assert read_verdict(reply) is None


@given(st.text())
def test_no_reply_is_too_odd_to_be_read(reply):
    score = read_verdict(reply)
    assert score is None or 0 <= score <= 1
    assert unfenced(reply) in reply
    assert last_fenced(reply) in reply


@pytest.mark.parametrize(
    ("reply", "solution"),
    [
        ("```sql\nSELECT 1\n```", "SELECT 1"),
        ("  ```\nSELECT 1;\n\nSELECT 2\n```  \n", "SELECT 1;\n\nSELECT 2"),
        ("~~~~\n```\ninner\n```\n~~~~", "```\ninner\n```"),
        ("```sql\nSELECT 1", "SELECT 1"),
        ("SELECT '```'", "SELECT '```'"),
        ("Here:\n```\nSELECT 1\n```", "Here:\n```\nSELECT 1\n```"),
        ("```\na\n```\n```\nb\n```", "```\na\n```\n```\nb\n```"),
        (" a {b} ", "a {b}"),
    ],
)
def test_a_fence_around_all_of_a_reply_is_taken_off(reply, solution):
    assert unfenced(reply) == solution


@pytest.mark.parametrize(
    ("reply", "solution"),
    [
        ("First:\n```sql\nSELECT 1\n```\nBetter:\n```sql\nSELECT 2\n```\nDone.", "SELECT 2"),
        ("Cut:\n```sql\nSELECT 1", "SELECT 1"),
        ("```sql\nSELECT 1\n```\n```\n```", "SELECT 1"),
        ("SELECT 1", "SELECT 1"),
    ],
)
def test_the_last_block_of_a_reply_is_found(reply, solution):
    assert last_fenced(reply) == solution
