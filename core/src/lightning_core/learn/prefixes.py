"""PrefixTree: finds the longest stored sequence that another one begins with.

A radix tree over packed token ids. Both operations take time in proportion to the sequence's length, at the speed of
`memcmp`, however many sequences there are; the tree holds what sequences share once.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from lightning_core.learn.replies import WIDTH

_T = TypeVar("_T")


class _Node(Generic[_T]):
    """A place in the tree: the end of a stored sequence, or where sequences part."""

    __slots__ = ("children", "label", "values")

    def __init__(self, label: bytes) -> None:
        self.label = label
        self.children: dict[bytes, _Node[_T]] = {}
        self.values: list[_T] = []


class PrefixTree(Generic[_T]):
    """Sequences of packed token ids, each with the values that were put there."""

    def __init__(self) -> None:
        self._root: _Node[_T] = _Node(b"")

    def put(self, sequence: bytes, value: _T) -> None:
        """Store a value at the end of a sequence; a sequence may have several."""
        node, at = self._root, 0
        while at < len(sequence):
            key = sequence[at : at + WIDTH]
            child = node.children.get(key)
            if child is None:
                child = node.children[key] = _Node(sequence[at:])
            elif not sequence.startswith(child.label, at):
                child = node.children[key] = _part(child, common(child.label, sequence[at:]))
            node, at = child, at + len(child.label)
        node.values.append(value)

    def longest(self, sequence: bytes) -> list[_T]:
        """The values at the longest stored sequence that `sequence` begins with; empty where there is none."""
        node, at = self._root, 0
        found = node.values
        while at < len(sequence):
            child = node.children.get(sequence[at : at + WIDTH])
            if child is None or not sequence.startswith(child.label, at):
                break
            node, at = child, at + len(child.label)
            if node.values:
                found = node.values
        return found


def _part(node: _Node[_T], length: int) -> _Node[_T]:
    """Put a new node above `node`, `length` bytes into its label."""
    above: _Node[_T] = _Node(node.label[:length])
    node.label = node.label[length:]
    above.children[node.label[:WIDTH]] = node
    return above


def common(first: bytes, second: bytes) -> int:
    """How many bytes two sequences of packed token ids begin with in common; a multiple of `WIDTH`."""
    low, high = 0, min(len(first), len(second)) // WIDTH
    # What lies before `low` is equal; the answer is at most `high`.
    while low < high:
        middle = (low + high + 1) // 2
        if first[low * WIDTH : middle * WIDTH] == second[low * WIDTH : middle * WIDTH]:
            low = middle
        else:
            high = middle - 1
    return low * WIDTH
