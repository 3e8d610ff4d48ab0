"""The wire formats that the gateway speaks, one class each."""

from __future__ import annotations

from lightning_core.gateway.dialects.base import Dialect
from lightning_core.gateway.dialects.chat import ChatDialect
from lightning_core.gateway.dialects.completions import CompletionsDialect
from lightning_core.gateway.dialects.embeddings import EmbeddingsDialect

__all__ = ["DIALECTS", "Dialect", "dialect_of"]

DIALECTS: tuple[Dialect, ...] = (ChatDialect(), CompletionsDialect(), EmbeddingsDialect())
"""Longest suffix first: `/chat/completions` ends in `/completions` too."""


def dialect_of(path: str) -> Dialect | None:
    """The format that `path` speaks; None where none does."""
    for dialect in DIALECTS:
        if path.endswith(dialect.suffix):
            return dialect
    return None
