"""Code fences: taken off a reply, or looked for in it."""

from __future__ import annotations

import re
from typing import Final

_BLOCK: Final = re.compile(
    r"^[ \t]*(?P<fence>`{3,}|~{3,})[^\n`]*\n(?P<inside>.*?)(?:^[ \t]*(?P=fence)[ \t]*$|\Z)",
    re.DOTALL | re.MULTILINE,
)
"""A block; one that is not closed ends with the reply."""


def unfenced(reply: str) -> str:
    """The reply without the code fence around it, where all of it is one block; else as it is. Space around it goes."""
    text = reply.strip()
    found = _BLOCK.match(text)
    return found["inside"].strip() if found and found.end() == len(text) else text


def last_fenced(reply: str) -> str:
    """The last code block of a reply, for solutions that are code; a reply without one as it is."""
    blocks = [found["inside"].strip() for found in _BLOCK.finditer(reply)]
    return next((block for block in reversed(blocks) if block), reply.strip())
