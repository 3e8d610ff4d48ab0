"""What is known of servers with an OpenAI-compatible address."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from lightning_core.provider import retry_after


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("7", 7.0, 7.0),
        (" 0 ", 0.0, 0.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0, 0.0),
        ("soon", 0.0, 0.0),
        ("", 0.0, 0.0),
        ("-5", 0.0, 0.0),
        ("٣", 0.0, 0.0),
        ("1e9", 0.0, 0.0),
    ],
)  # fmt: skip
def test_seconds_of_retry_after_are_read_and_nothing_else_is(text, least, most):
    assert least <= (retry_after(text) or 0.0) <= most


def test_a_moment_as_retry_after_is_read_in_both_ways_to_write_it():
    then = datetime.now(UTC) + timedelta(seconds=300)
    for text in (format_datetime(then, usegmt=True), then.strftime("%a, %d %b %Y %H:%M:%S -0000")):
        assert 200.0 <= (retry_after(text) or 0.0) <= 300.0


def test_no_header_asks_for_nothing():
    assert (retry_after("") or 0.0) == 0.0


def test_a_retry_after_that_asks_nothing_is_told_apart_from_one_of_no_seconds():
    assert retry_after("soon") is None
    assert retry_after("0") == 0.0
