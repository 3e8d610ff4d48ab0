"""Posting the spans of an attempt that runs in the worker's process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from lightning_core.client import Client
from lightning_core.errors import WireError

_BATCH: Final = 500
_LIMIT: Final = 20_000

_log = logging.getLogger("lightning_core.worker")


class SpanPoster:
    """Posts spans, and keeps those that could not be posted while the server is away, up to 20,000.

    Args:
        client: where to post.
        attempt_id: the attempt.
        take: gives the spans since it was last called.
    """

    def __init__(
        self, client: Client, attempt_id: str, take: Callable[[], list[dict[str, Any]]]
    ) -> None:
        self._client = client
        self._id = attempt_id
        self._take = take
        self._waiting: list[dict[str, Any]] = []

    async def flush(self) -> None:
        """Post what waits.

        Raises:
            WireError: the server cannot be reached; what waits stays.
        """
        self._waiting += self._take()
        if len(self._waiting) > _LIMIT:
            _log.warning(
                "attempt `%s`: %d spans are lost: more than %d wait for the server",
                self._id,
                len(self._waiting) - _LIMIT,
                _LIMIT,
            )
            del self._waiting[_LIMIT:]
        while self._waiting:
            batch = self._waiting[:_BATCH]
            try:
                await self._client.spans(self._id, batch)
            except WireError as error:
                if error.status is None or error.status >= 500:
                    raise
                _log.warning(
                    "attempt `%s`: %d spans are lost: %s", self._id, len(self._waiting), error
                )
                self._waiting.clear()
            else:
                del self._waiting[:_BATCH]
