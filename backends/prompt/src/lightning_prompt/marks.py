"""Marks: a template as a model may read and write it.

Braces that are doubled in a template confuse a model, which writes JSON and code in its prompts. So holes are shown as `<<name>>`,
or in other brackets where the text has such ones, and braces as they are.
"""

from __future__ import annotations

import re
from typing import Final, Self

from lightning_core.errors import UsageError
from lightning_core.template import Template

_BRACKETS: Final = ("<>", "[]", "()", "⟦⟧", "⟨⟩", "⟪⟫")


class Marks:
    """The marks of one template."""

    def __init__(self, names: tuple[str, ...], shown: str, brackets: str) -> None:
        self.names = names
        """The holes."""
        self.shown = shown
        """The template with marks in place of holes."""
        self._brackets = brackets

    @classmethod
    def of(cls, template: Template) -> Self:
        """The marks of a template, in the first brackets that nothing of its text could be taken for."""
        brackets = next((b for b in _BRACKETS if _apart(template.pieces, b)), _BRACKETS[-1])
        marked = {name: _mark(name, brackets) for name in template.holes}
        return cls(template.holes, template.fill(marked), brackets)

    @property
    def listed(self) -> str:
        """The marks, for a message."""
        return ", ".join(_mark(name, self._brackets) for name in self.names)

    def read(self, text: str) -> Template:
        """The template that a text with such marks spells.

        Raises:
            UsageError: it is empty, lacks a mark, or has one that is not known.
        """
        if not text.strip():
            raise UsageError("the prompt is empty")
        opening, closing = (re.escape(each) for each in self._brackets)
        pattern = rf"(?<!{opening}){opening}{{2}}(\w+){closing}{{2}}(?!{closing})"
        parts = re.split(pattern, text)
        pieces, holes = parts[::2], parts[1::2]
        for name in self.names:
            if name not in holes:
                raise UsageError(
                    f"{_mark(name, self._brackets)} is missing; it must be there, written exactly so"
                )
        for name in holes:
            if name not in self.names:
                raise UsageError(
                    f"{_mark(name, self._brackets)} is not known; there are {self.listed or 'none'}"
                )
        return Template.of(tuple(pieces), tuple(holes))


def _apart(pieces: tuple[str, ...], brackets: str) -> bool:
    """Whether marks in these brackets stand apart from the text around them."""
    opening, closing = brackets[0], brackets[1]
    return not any(
        2 * opening in piece or 2 * closing in piece
        or piece.endswith(opening) or piece.startswith(closing)
        for piece in pieces
    )  # fmt: skip


def _mark(name: str, brackets: str) -> str:
    opening, closing = brackets[0], brackets[1]
    return f"{2 * opening}{name}{2 * closing}"
