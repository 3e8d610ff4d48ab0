"""Run by the Python of an environment: forget what an installation that was cut off left there by halves.

An installer that is killed may leave a distribution whose name and version are there and whose files are not; the next
one takes it for installed. Without its metadata it is installed again.
"""

from __future__ import annotations

import csv
import importlib.metadata
import os
import shutil
import sys
from pathlib import Path


def main() -> None:
    """Remove the metadata of each distribution that lacks a file or has one of another size, and say so."""
    for found in list(importlib.metadata.distributions()):
        metadata = getattr(found, "_path", None)
        if not isinstance(metadata, Path) or metadata.suffix != ".dist-info":
            continue
        # An environment may see the packages of the Python that it was made with; those are not its own.
        if not metadata.is_relative_to(sys.prefix):
            continue
        lacking = _lacking(found)
        if lacking:
            print(f"{metadata.name}: {lacking}; it is installed again")
            shutil.rmtree(metadata)


def _lacking(found: importlib.metadata.Distribution) -> str:
    record = found.read_text("RECORD")
    if not found.read_text("METADATA"):
        return "its metadata is missing"
    if not record:
        return "the list of its files is missing"
    for name, _, size in csv.reader(record.splitlines()):
        if name.endswith(".pyc"):
            continue
        try:
            there = os.stat(str(found.locate_file(name))).st_size
        except OSError:
            return f"`{name}` is missing"
        if size and int(size) != there:
            return f"`{name}` has {there} bytes where {size} are expected"
    return ""


if __name__ == "__main__":
    main()
