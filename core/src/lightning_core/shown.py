"""Showing text that others wrote: an agent, a model, a server. A terminal would obey its control characters."""

from __future__ import annotations

from typing import Final

_VISIBLE: Final = {
    **{code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"},
    0x7F: "\u2421",
    **dict.fromkeys(range(0x80, 0xA0), "\ufffd"),
}
"""C0 characters as their pictures, C1 characters as unknown ones."""


def shown(text: str) -> str:
    """The text with its control characters made visible; line ends and tabs stay."""
    return text.translate(_VISIBLE)
