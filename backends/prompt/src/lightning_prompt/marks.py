"""Marks: a template as a model may read and write it.

Braces that are doubled in a template confuse a model, which writes JSON and code in its prompts. So holes are shown as `<<name>>`,
or with as many angles as make them unlike the text, and braces as they are.
"""

from __future__ import annotations

import re
from typing import Self

from lightning_core.errors import UsageError
from lightning_core.template import Template


class Marks:
    """The marks of one template."""

    def __init__(self, names: tuple[str, ...], shown: str, angles: int) -> None:
        self.names = names
        """The holes."""
        self.shown = shown
        """The template with marks in place of holes."""
        self._angles = angles

    @classmethod
    def of(cls, template: Template) -> Self:
        """The marks of a template."""
        angles = 2
        # What fills the holes here is in no text.
        blank = template.fill(dict.fromkeys(template.holes, "\0"))
        while "<" * angles in blank or ">" * angles in blank:
            angles += 1
        marked = {name: _mark(name, angles) for name in template.holes}
        return cls(template.holes, template.fill(marked), angles)

    @property
    def listed(self) -> str:
        """The marks, for a message."""
        return ", ".join(_mark(name, self._angles) for name in self.names)

    def read(self, text: str) -> Template:
        """The template that a text with such marks spells.

        Raises:
            UsageError: it is empty, lacks a mark, or has one that is not known.
        """
        if not text.strip():
            raise UsageError("the prompt is empty")
        pattern = rf"(?<!<)<{{{self._angles}}}(\w+)>{{{self._angles}}}(?!>)"
        parts = re.split(pattern, text)
        pieces, holes = parts[::2], parts[1::2]
        for name in self.names:
            if name not in holes:
                raise UsageError(
                    f"{_mark(name, self._angles)} is missing; it must be there, written exactly so"
                )
        for name in holes:
            if name not in self.names:
                raise UsageError(
                    f"{_mark(name, self._angles)} is not known; there are {self.listed or 'none'}"
                )
        return Template.of(tuple(pieces), tuple(holes))


def _mark(name: str, angles: int) -> str:
    return f"{'<' * angles}{name}{'>' * angles}"
