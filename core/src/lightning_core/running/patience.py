"""Patience: asking a server again while it restarts or cannot be reached, for a bounded time."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final, Self, TypeVar

from lightning_core.errors import LightningError, WireError

PATIENCE: Final = 120.0
"""Seconds for which a run waits for its server."""
_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0
_T = TypeVar("_T")


class Patience:
    """Repeats what is safe to repeat.

    Args:
        seconds: how long one request is tried again.
        tell: called with what is waited for, and with None once nothing is.
    """

    def __init__(self, seconds: float, tell: Callable[[str | None], None]) -> None:
        self._seconds = seconds
        self._tell = tell
        self._waiting = 0
        self._over: asyncio.Future[LightningError] | None = None

    @classmethod
    def logged(cls, log: logging.Logger, seconds: float = PATIENCE) -> Self:
        """One that tells a log what is waited for."""
        return cls(seconds, lambda text: log.info("%s", text) if text else None)

    def end(self, error: LightningError) -> None:
        """Wait no more: the server will not come back. Whoever waits gets `error`."""
        over = self._future()
        if not over.done():
            over.set_result(error)

    @property
    def ended(self) -> LightningError | None:
        """What `end` was given, once it was."""
        return self._over.result() if self._over is not None and self._over.done() else None

    async def ask(self, request: Callable[[], Awaitable[_T]]) -> _T:
        """The answer to a request that may be made several times.

        Raises:
            WireError: the server refused it; or it could not be reached, or answered 5xx, for as long as is waited.
            LightningError: what `end` was given.
        """
        pause, since = _PAUSE, 0.0
        try:
            while True:
                try:
                    return await request()
                except WireError as error:
                    if error.status is not None and error.status < 500:
                        raise
                    now = time.monotonic()
                    if not since:
                        since = now
                        self._waiting += 1
                        self._tell("waiting for the server")
                    await self._sleep_or_give_up(error, pause, since + self._seconds - now)
                    pause = min(pause * 2, _LONGEST_PAUSE)
        finally:
            if since:
                self._waiting -= 1
                if not self._waiting:
                    self._tell(None)

    async def _sleep_or_give_up(self, error: WireError, pause: float, left: float) -> None:
        if left <= 0:
            raise WireError(
                f"{error}; given up after {self._seconds:.0f} s. Once the server runs again, go on with `--resume`",
                error.status,
            ) from error
        over = self._future()
        await asyncio.wait([over], timeout=min(pause * random.uniform(0.5, 1.0), left))
        if over.done():
            raise over.result()

    def _future(self) -> asyncio.Future[LightningError]:
        if self._over is None:
            self._over = asyncio.get_running_loop().create_future()
        return self._over
