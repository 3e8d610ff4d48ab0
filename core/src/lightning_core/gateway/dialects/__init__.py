"""The wire formats that the gateway speaks, one class each."""

from __future__ import annotations

from collections.abc import Mapping

from lightning_core.gateway.dialects.base import Dialect
from lightning_core.gateway.dialects.chat import ChatDialect
from lightning_core.gateway.dialects.completions import CompletionsDialect
from lightning_core.gateway.dialects.embeddings import EmbeddingsDialect
from lightning_core.gateway.dialects.messages import MessagesDialect
from lightning_core.gateway.dialects.messages_translation import MessagesTranslator
from lightning_core.gateway.dialects.responses import ResponsesDialect
from lightning_core.gateway.dialects.responses_translation import ResponsesTranslator
from lightning_core.gateway.dialects.translation import Translator

__all__ = ["DIALECTS", "TRANSLATORS", "Dialect", "dialect_of"]

DIALECTS: tuple[Dialect, ...] = (
    ChatDialect(),
    CompletionsDialect(),
    EmbeddingsDialect(),
    ResponsesDialect(),
    MessagesDialect(),
)
"""Longest suffix first: `/chat/completions` ends in `/completions` too."""

TRANSLATORS: Mapping[str, Translator] = {
    translator.name: translator for translator in (ResponsesTranslator(), MessagesTranslator())
}
"""What puts a format into the terms of chat completions, by the format's name."""


def dialect_of(path: str) -> Dialect | None:
    """The format that `path` speaks; None where none does."""
    if (
        "/threads/" in path
    ):  # OpenAI's Assistants, whose `/threads/ID/messages` is no format of ours.
        return None
    for dialect in DIALECTS:
        if path.endswith(dialect.suffix):
            return dialect
    return None
