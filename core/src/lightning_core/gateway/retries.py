"""Which requests are tries of one Call, and the replies that a retry may be given again."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable

import msgspec

from lightning_core.gateway.limits import GatewayLimits
from lightning_core.trace import Call, Try


class Replay(msgspec.Struct, frozen=True):
    """A complete reply, as the agent was to see it."""

    call: Call
    """The Call as it was recorded."""
    status: int
    """The HTTP status."""
    content_type: str
    """The body's type."""
    body: bytes
    """The bytes that were sent to the agent."""


class Entry:
    """One Call across the tries at it."""

    __slots__ = (
        "_waiters", "admitted", "digest", "failed", "id", "index", "key", "last", "remembered", "replay",
        "tries",
    )  # fmt: skip

    def __init__(self, call_id: str, index: int, key: Hashable, digest: Hashable) -> None:
        self.id = call_id
        self.index = index
        self.key = key
        self.digest = digest
        self.tries: tuple[Try, ...] = ()
        self.last: Try | None = None
        """The latest try; None while it runs."""
        self.replay: Replay | None = None
        self.remembered = False
        """Whether a retry may look for it."""
        self.admitted = False
        """Whether it counts as one of the attempt's calls."""
        self.failed = False
        """Whether the latest try gave no complete reply, or its agent has gone."""
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def running(self) -> bool:
        """Whether a try is under way."""
        return self.last is None

    def again(self) -> None:
        """Begin another try."""
        if self.last is not None:
            self.tries += (self.last,)
        self.last = None
        self.failed = False

    def end(self, last: Try, *, failed: bool) -> None:
        """The try under way has ended and is recorded."""
        self.last = last
        self.failed = failed
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def ended(self) -> None:
        """Return once no try is under way."""
        while self.running:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter


class Memory:
    """The latest calls of one session, bounded in number and in bytes kept for replay."""

    def __init__(self, limits: GatewayLimits) -> None:
        self._limits = limits
        self._entries: dict[Hashable, list[Entry]] = {}
        self._order: deque[Entry] = deque()
        self._replays: dict[Entry, int] = {}
        self._bytes = 0

    def add(self, entry: Entry) -> None:
        """Remember a new Call and forget the oldest beyond the bound."""
        entry.remembered = True
        self._entries.setdefault(entry.key, []).append(entry)
        self._order.append(entry)
        if len(self._order) > self._limits.remember:
            oldest = self._order.popleft()
            self._forget_replay(oldest)
            siblings = self._entries[oldest.key]
            siblings.remove(oldest)
            if not siblings:
                del self._entries[oldest.key]

    async def earlier_try(
        self, call_key: str | None, retry: int | None, digest: Hashable
    ) -> Entry | None:
        """The Call that this request tries again, once its earlier try has ended; None for a new Call.

        Args:
            call_key: the call's id as instrumentation sent it.
            retry: the number of this try; None where nobody said.
            digest: equal for equal requests.
        """
        if call_key is not None:
            if retry == 0:
                return None
            siblings = self._entries.get(call_key, ())
            entry = siblings[-1] if siblings else None
            if entry is None or entry.digest != digest:
                return None
        elif retry:
            entry = await self._earlier_by_digest(retry, digest)
            if entry is None:
                return None
        else:
            return None
        await entry.ended()
        return entry

    async def _earlier_by_digest(self, retry: int, digest: Hashable) -> Entry | None:
        """Parallel calls may be equal: one that failed is the one tried again; among several that did not,
        nobody can tell, and a guess would fold two calls into one."""
        for _ in range(3):
            candidates = [
                entry for entry in self._entries.get(digest, ()) if len(entry.tries) < retry
            ]
            failed = [entry for entry in candidates if entry.failed]
            if failed:
                return failed[-1]
            if len(candidates) < 2:
                break
            # A connection that its client has closed is noticed in one of the next turns of the loop.
            await asyncio.sleep(0)
        return candidates[0] if len(candidates) == 1 else None

    def keep(self, entry: Entry, replay: Replay, size: int) -> None:
        """Keep a complete reply, and drop the oldest ones beyond the bound."""
        if size > self._limits.replay_bytes:
            return
        if entry.replay is not None:
            self._forget_replay(entry)
        entry.replay = replay
        self._replays[entry] = size
        self._bytes += size
        while self._bytes > self._limits.replay_bytes:
            self._forget_replay(next(iter(self._replays)))

    def _forget_replay(self, entry: Entry) -> None:
        entry.replay = None
        self._bytes -= self._replays.pop(entry, 0)
