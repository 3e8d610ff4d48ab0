"""Watchdog: ends the trainer where vLLM has died. verl itself would wait for it for ever, such as to take new weights."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, Self

from lightning_core.engine import Endpoint
from lightning_core.errors import EngineError
from lightning_verl.trainer.replicas import check_alive

log = logging.getLogger("lightning_verl.trainer")

_SECONDS: Final = 5.0
"""Between two looks."""
_STRIKES: Final = 3
"""Looks in a row at which vLLM is not there."""


class Watchdog:
    """Looks after replicas from a thread of its own, from `watch` on until it is left.

    Args:
        died: called once, with what happened.
        seconds: between two looks.
    """

    def __init__(self, died: Callable[[str], None], *, seconds: float = _SECONDS) -> None:
        self._died = died
        self._seconds = seconds
        self._replicas: tuple[Endpoint, ...] = ()
        self._why: Callable[[], str | None] = lambda: None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True, name="watchdog")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def watch(
        self, replicas: tuple[Endpoint, ...], why: Callable[[], str | None] = lambda: None
    ) -> None:
        """Look after these from now on.

        Args:
            replicas: whose health is asked for.
            why: asked once one has died: the reason, where it is known.
        """
        self._why = why
        self._replicas = replicas

    def _look(self) -> None:
        strikes = 0
        while not self._over.wait(self._seconds):
            try:
                check_alive(self._replicas)
            except EngineError as error:
                if isinstance(error.__cause__, TimeoutError):
                    continue  # It is busy.
                strikes += 1
                log.warning("%s", error)
                if strikes >= _STRIKES and not self._over.is_set():
                    self._died(self._told(error))
                    return
            else:
                strikes = 0

    def _told(self, error: EngineError) -> str:
        try:
            reason = self._why()
        except Exception:
            log.exception("why vLLM died cannot be told")
            reason = None
        return str(error) if reason is None else f"{error}. Ray says: {reason}"
