"""How long to wait before a model server is asked again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from lightning_core.errors import EngineError

_FIRST_WAIT: Final = 0.5
_LONGEST_WAIT: Final = 60.0

Tell = Callable[[str | None], None]
"""Called with what is waited for, and with None once it goes on."""


class Patience:
    """Waits between the tries of one request, twice as long each time, with jitter, and gives up in the end."""

    def __init__(self, seconds: float, tell: Tell) -> None:
        """Args:
        seconds: how long to wait in all from the first fault on.
        tell: called before each wait, and once it is over.
        """
        self._seconds = seconds
        self._tell = tell
        self._tries = 0
        self._began: float | None = None

    async def wait(self, fault: str, *, at_least: float = 0.0) -> None:
        """Wait after a fault.

        Args:
            fault: who did not answer and why, for the user.
            at_least: seconds that the server asked for.

        Raises:
            EngineError: it would take longer than was allowed.
        """
        now = asyncio.get_running_loop().time()
        self._began = now if self._began is None else self._began
        longest = min(_FIRST_WAIT * 2**self._tries, _LONGEST_WAIT)
        delay = max(longest, at_least) * random.uniform(1.0, 1.25)
        self._tries += 1
        waited = now - self._began
        if waited + delay > self._seconds:
            asked = f", which asks for {at_least:.0f} s" if at_least > self._seconds else ""
            raise EngineError(
                f"{fault}; given up after {_tries(self._tries)} in {waited:.0f} s{asked}; what was paid for is kept,"
                " and `--resume` goes on from it"
            )
        left = self._seconds - waited
        self._tell(f"{fault}; asked again in {delay:.0f} s, given up in {left:.0f} s")
        await asyncio.sleep(delay)

    def over(self) -> None:
        """It has answered."""
        if self._tries:
            self._tell(None)


def _tries(count: int) -> str:
    return "1 try" if count == 1 else f"{count} tries"
