"""Posting the spans of an attempt that runs in the worker's process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec

from lightning_core.client import Client
from lightning_core.errors import WireError

_BATCH: Final = 500
_BATCH_BYTES: Final = 4 * 2**20
_LIMIT: Final = 20_000

_log = logging.getLogger("lightning_core.worker")


class SpanPoster:
    """Posts spans, and keeps those that could not be posted while the server is away, up to 20,000.

    What the server refuses, and what cannot be sent, is logged and dropped.

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

    @property
    def waiting(self) -> int:
        """How many spans could not be posted yet."""
        return len(self._waiting)

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
            batch, taken = self._next_batch()
            try:
                await self._client.spans(self._id, batch)
            except WireError as error:
                if not refused_for_good(error):
                    raise
                if error.status not in (400, 413, 422):  # More of them would be refused too.
                    taken = len(self._waiting)
                _log.warning("attempt `%s`: %d spans are lost: %s", self._id, taken, error)
            del self._waiting[:taken]

    def _next_batch(self) -> tuple[list[dict[str, Any]], int]:
        """Spans to be posted together, and how many of those that wait they are made of."""
        batch: list[dict[str, Any]] = []
        taken = size = 0
        for span in self._waiting[:_BATCH]:
            if size > _BATCH_BYTES:
                break
            taken += 1
            try:
                size += len(msgspec.json.encode(span))
            except Exception as error:  # A sink of somebody's own may hold anything.
                _log.warning("attempt `%s`: a span is lost: it is not JSON: %s", self._id, error)
            else:
                batch.append(span)
        return batch, taken


def refused_for_good(error: WireError) -> bool:
    """Whether the server would refuse the same again."""
    return error.status is not None and error.status < 500 and error.status not in (408, 425, 429)
