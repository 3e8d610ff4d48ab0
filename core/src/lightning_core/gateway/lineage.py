"""Lineage: what a conversation holds that a request goes on with by the id of a response alone."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lightning_core.gateway.dialects.translation import Message


class Lineage:
    """The conversations of one session by the id of their last response, bounded in bytes; the latest are kept."""

    def __init__(self, limit: int) -> None:
        """
        Args:
            limit: bytes of JSON that they may have together, each counted whole although they share messages.
        """
        self._limit = limit
        self._kept: dict[str, tuple[Sequence[Message], int]] = {}
        self._bytes = 0
        self._gone: set[str] = set()

    def add(self, response_id: str, messages: Sequence[Message]) -> None:
        """Remember a conversation: prompt and reply."""
        self._drop(response_id)
        size = len(msgspec.json.encode(messages))
        self._kept[response_id] = messages, size
        self._bytes += size
        while self._bytes > self._limit:
            self._drop(next(iter(self._kept)))

    def find(self, response_id: str) -> Sequence[Message] | None:
        """A conversation; None where it is not remembered."""
        kept = self._kept.get(response_id)
        return None if kept is None else kept[0]

    def delete(self, response_id: str) -> None:
        """Forget a conversation for good: the agent wants it no more."""
        self._drop(response_id)
        self._gone.add(response_id)

    def deleted(self, response_id: str) -> bool:
        """Whether the agent had it forgotten."""
        return response_id in self._gone

    def _drop(self, response_id: str) -> None:
        if (kept := self._kept.pop(response_id, None)) is not None:
            self._bytes -= kept[1]
