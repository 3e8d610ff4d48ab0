"""Scaffold: a plugin that works and passes its conformance class, for an author to change."""

from __future__ import annotations

import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template
from typing import Final

from lightning_core.errors import UsageError

KINDS: Final = ("adapter", "backend")
"""What there are scaffolds for."""
_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_SUFFIX: Final = ".txt"
# Names of files that are another package's own.
_NAMES: Final = {"package": "$module", "test_package.py": "test_$module.py"}


def write(kind: str, name: str, folder: Path) -> list[Path]:
    """Write the package of a plugin.

    Args:
        kind: one of `KINDS`.
        name: the plugin's name, as `lightning-core plugins` will list it: small letters, digits and single hyphens.
        folder: where its files go; made where it is missing.

    Returns:
        The files, relative to the folder.

    Raises:
        UsageError: the name is none, or the folder is not empty; nothing is written.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"expected a name of small letters, digits and single hyphens, such as `my-agents`, but got {name!r}"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(
            f"`{folder}` is there already; name a new or an empty folder with `--output`"
        )
    words = {
        "name": name,
        "module": f"lightning_{name.replace('-', '_')}",
        "title": "".join(word.capitalize() for word in name.split("-")),
    }
    written = []
    for parts, text in _files(files(__name__) / kind):
        path = Path(*(Template(_NAMES.get(part, part)).substitute(words) for part in parts))
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(Template(text).substitute(words), encoding="utf-8")
        written.append(path)
    return sorted(written)


def _files(folder: Traversable, *above: str) -> list[tuple[tuple[str, ...], str]]:
    """Each file's path, without the suffix that hides it from tools, and its text."""
    found = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _files(entry, *above, entry.name)
        elif entry.name.endswith(_SUFFIX):
            path = (*above, entry.name.removesuffix(_SUFFIX))
            found.append((path, entry.read_text(encoding="utf-8")))
    return found
