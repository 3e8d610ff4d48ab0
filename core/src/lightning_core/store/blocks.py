"""Blocks: what is large and repeats, stored once and named by number.

A conversation sends all its messages again with every turn, so a call keeps only the numbers of its blocks. Long lists
of numbers are folded: every full run of `FANOUT` becomes a block itself, until few are left, so that what one more turn
adds does not grow with the turns before it, and a list that slides or branches still stores no block twice.

Numbers are given out in the event loop, in the order of the queue, and committed in that order: a call that is in the
file finds all its blocks there. The blocks known are those of a bounded memory; one that has left it is stored again
when it comes back, which costs space and nothing else. There is no index by hash: its random writes would cost more than
all other writes together once the store is large.
"""

from __future__ import annotations

import functools
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import Any, TypeVar

import msgspec

TOKENS = 256
"""Token ids in a block."""
HASH = 16
"""Bytes of a hash."""
_SMALL = 512
"""Bytes of a block whose hash is remembered."""
FANOUT = 32
"""Block numbers in a folded block."""

Body = tuple[bytes, bytes]
"""The hash of a block, and its bytes."""

K = TypeVar("K")
V = TypeVar("V")


def body(data: bytes) -> Body:
    """Name bytes by their content."""
    return _small(data) if len(data) <= _SMALL else _named(data)


def _named(data: bytes) -> Body:
    # The processor's own SHA-256 is the fastest strong hash in the standard library.
    return sha256(data).digest()[:HASH], data


# A conversation's messages come again with every turn, demonstrations with every call; of a short one the hash takes
# several times as long as to find it here.
_small = functools.lru_cache(maxsize=4096)(_named)


def pack(code: str, values: Iterable[float]) -> bytes:
    """Numbers as little-endian bytes of `array` type `code`; raises OverflowError or TypeError where they do not fit."""
    packed = array(code, values)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack(code: str, data: bytes) -> array[Any]:
    """What `pack` packed."""
    packed: array[Any] = array(code)
    packed.frombytes(data)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed


class RecentlyUsed(dict[K, V | None]):
    """A bounded dict that forgets what was not used for long; `cache[key]` is None where the key is unknown.

    Two generations: a key that is asked for moves to the younger, and once that is full the older goes. A key must be
    asked for before it is set.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._half = max(1, capacity // 2)
        self._old: dict[K, V | None] = {}

    def __missing__(self, key: K) -> V | None:
        if len(self) >= self._half:
            self._old = dict(self)
            super().clear()
        value = self._old.get(key)
        if value is not None:
            self[key] = value
        return value

    def clear(self) -> None:
        """Forget all."""
        super().clear()
        self._old.clear()


class NewBlocks(msgspec.Struct, frozen=True, gc=False):
    """What one call adds to the blocks."""

    first: int
    """The number of the first, the others follow; a number of its own where there are none."""
    hashes: list[bytes]
    """Their hashes."""
    bodies: list[bytes]
    """Their bytes."""
    refs: list[tuple[int, int]]
    """Uses of others' blocks: block, owner."""


class BlockNumbers:
    """Gives out the numbers of blocks and collects the rows to write. Used in the event loop only."""

    def __init__(self, next_id: int, capacity: int = 100_000) -> None:
        self._next = next_id
        self._known: RecentlyUsed[bytes, tuple[int, int]] = RecentlyUsed(capacity)
        self._shared: RecentlyUsed[tuple[int, int], bool] = RecentlyUsed(capacity)
        self._first = next_id
        self._hashes: list[bytes] = []
        self._bodies: list[bytes] = []
        self._refs: list[tuple[int, int]] = []

    def learn(self, hash_: bytes, number: int, owner: int) -> None:
        """Remember a block that is in the file."""
        if self._known[hash_] is None:
            self._known[hash_] = (number, owner)

    def forget(self) -> None:
        """Know nothing any more, because blocks are about to be deleted."""
        self._known.clear()
        self._shared.clear()

    def take(self) -> NewBlocks:
        """The blocks that are new since the last time, and the new uses of others'."""
        new = NewBlocks(self._first, self._hashes, self._bodies, self._refs)
        if not self._hashes:
            self._next += 1
        self._first = self._next
        self._hashes, self._bodies, self._refs = [], [], []
        return new

    def number(self, block: Body, owner: int) -> int:
        """The number under which `owner` may use the block."""
        return self._number([block], owner)[0]

    def _number(self, blocks: Sequence[Body], owner: int) -> list[int]:
        known = self._known
        numbers = []
        for hash_, data in blocks:
            entry = known[hash_]
            if entry is None:
                number = self._next
                self._next = number + 1
                known[hash_] = (number, owner)
                self._hashes.append(hash_)
                self._bodies.append(data)
            else:
                number, holder = entry
                if holder != owner and self._shared[(number, owner)] is None:
                    self._shared[(number, owner)] = True
                    self._refs.append((number, owner))
            numbers.append(number)
        return numbers

    def fold(self, blocks: Sequence[Body], owner: int) -> list[bytes]:
        """A list of blocks as its levels, lowest first: what is left over on each, and the few of the last."""
        numbers = self._number(blocks, owner)
        levels = []
        while len(numbers) > FANOUT:
            full = len(numbers) - len(numbers) % FANOUT
            levels.append(pack("I", numbers[full:]))
            runs = (numbers[at : at + FANOUT] for at in range(0, full, FANOUT))
            numbers = self._number([body(pack("I", run)) for run in runs], owner)
        levels.append(pack("I", numbers))
        return levels


def unfold(
    levels: Sequence[bytes], fetch: Callable[[Sequence[int]], Sequence[bytes]]
) -> Sequence[int]:
    """The numbers of the blocks that `fold` folded; `fetch` gives the bytes of blocks by number."""
    numbers: Sequence[int] = unpack("I", levels[-1])
    for rest in reversed(levels[:-1]):
        numbers = unpack("I", b"".join([*fetch(numbers), rest]))
    return numbers
