"""How long is waited before a server is asked again."""

import asyncio

import pytest

from lightning_core.errors import EngineError
from lightning_prompt.retrying import Patience


@pytest.fixture
def clock(monkeypatch):
    """A clock that sleeping alone moves; what was slept."""
    slept: list[float] = []

    async def sleep(seconds):
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: Loop(slept))
    return slept


class Loop:
    def __init__(self, slept):
        self.slept = slept

    def time(self):
        return sum(self.slept)


async def test_waits_double_up_to_a_minute_with_jitter_for_an_hour(clock):
    told: list[str | None] = []
    patience = Patience(3600.0, told.append)

    async def wait_on():
        while True:
            await patience.wait("it is busy")

    with pytest.raises(EngineError, match=r"^it is busy; given up after \d+ tries in 3[56]\d\d s;"):
        await wait_on()
    assert 3480 < sum(clock) <= 3600
    for number, seconds in enumerate(clock):
        longest = min(0.5 * 2**number, 60.0)
        assert longest <= seconds <= 1.25 * longest
    assert len({round(seconds, 6) for seconds in clock[8:]}) > 1
    assert told[0] == "it is busy; asked again in 1 s, given up in 3600 s"
    assert len(told) == len(clock)


async def test_it_waits_at_least_as_long_as_it_was_asked_to_and_tells_when_it_is_over(clock):
    told: list[str | None] = []
    patience = Patience(100.0, told.append)
    patience.over()
    assert told == []
    await patience.wait("busy", at_least=30.0)
    assert clock[0] >= 30.0
    patience.over()
    assert told[-1] is None
