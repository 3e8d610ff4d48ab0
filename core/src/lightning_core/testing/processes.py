"""Which processes this one has started."""

from __future__ import annotations

import os
from pathlib import Path


def descendants() -> set[int]:
    """Ids of the living processes that this one started, directly or not; empty where there is no `/proc`."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue  # it has just ended
        if state not in "ZX":
            parents[int(entry.name)] = int(parent)
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {os.getpid()}
