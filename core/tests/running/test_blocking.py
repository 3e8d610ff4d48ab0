"""Async functions for code that is not async."""

import asyncio

import pytest

from lightning_core.errors import UsageError
from lightning_core.running.blocking import blocking


async def answer(text, *, times=1):
    await asyncio.sleep(0)
    if not times:
        raise ValueError(text)
    return text * times


def test_what_the_function_returns_and_raises_comes_through():
    assert blocking(answer, "ab", times=2) == "abab"
    with pytest.raises(ValueError, match="ab") as caught:
        blocking(answer, "ab", times=0)
    assert caught.value.__context__ is None


async def test_within_a_running_loop_nothing_begins_and_the_way_to_go_is_told():
    with pytest.raises(
        UsageError,
        match=r"^answer_sync: .* in this thread already; use `await lightning_core\.answer",
    ):
        blocking(answer, "ab")
