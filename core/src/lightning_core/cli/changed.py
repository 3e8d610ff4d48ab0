"""Two texts, one made of the other: what differs, as lines for a terminal."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Final

from rich.text import Text

from lightning_core.shown import shown

_WORD: Final = re.compile(r"[^\W\u2e80-\uffff]+|\s+|.")
"""A word; of scripts that put no space between them, a character."""


def changed(old: str, new: str, *, context: int | None = None) -> Iterator[Text]:
    """The lines that differ, `-` before those that went and `+` before those that came, with the differing words marked.

    Args:
        old: the one text.
        new: the other.
        context: lines around each change that are shown; None is all.
    """
    lines = old.split("\n") if old else [], new.split("\n") if new else []
    matcher = difflib.SequenceMatcher(None, *lines, autojunk=False)
    around = max(map(len, lines)) if context is None else context
    for number, group in enumerate(matcher.get_grouped_opcodes(around)):
        if number:
            yield Text("  …", style="dim")
        for tag, a, b, c, d in group:
            if tag == "equal":
                yield from (Text(f"    {shown(line)}", style="dim") for line in lines[0][a:b])
            else:
                yield from _words("\n".join(lines[0][a:b]), "\n".join(lines[1][c:d]), a < b, c < d)


def _words(old: str, new: str, is_old: bool, is_new: bool) -> Iterator[Text]:
    """Lines that went and lines that came, the words in which they differ marked where both are there."""
    words = _WORD.findall(old), _WORD.findall(new)
    blocks = difflib.SequenceMatcher(None, *words).get_opcodes()
    for side, there, sign, colour in ((0, is_old, "-", "red"), (1, is_new, "+", "green")):
        if not there:
            continue
        marked = Text(style=colour)
        for tag, *edges in blocks:
            differs = tag != "equal" and is_old and is_new
            piece = "".join(words[side][edges[2 * side] : edges[2 * side + 1]])
            marked.append(shown(piece), style="reverse" if differs else None)
        for line in marked.split("\n", allow_blank=True):
            yield Text.assemble((f"  {sign} ", colour), line)
