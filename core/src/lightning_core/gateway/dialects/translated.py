"""A format whose requests go upstream as chat completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from lightning_core.gateway.dialects.base import (
    Dialect,
    Edits,
    Fields,
    Prepared,
    Reply,
    Rewriter,
    Terms,
)
from lightning_core.gateway.dialects.chat import ChatDialect
from lightning_core.gateway.dialects.translation import Sieve, Translation
from lightning_core.gateway.refusal import Refusal

_chat = ChatDialect()
_fields = msgspec.json.Decoder(Fields)


class TranslatedDialect(Dialect):
    """One request of another format on its way through chat completions.

    Towards the upstream it is chat completions, so that sampling, strategy and token ids are as there; what the agent
    sees is put back into its own format.
    """

    suffix = _chat.suffix
    translated = True

    def __init__(self, own: Dialect, translation: Translation) -> None:
        """
        Args:
            own: the agent's format.
            translation: its request.
        """
        self._own = own
        self.translation = translation
        """Puts its reply back."""
        self.name = own.name
        self.request: dict[str, Any] = translation.request
        """The request in the terms of chat completions."""
        self._body = msgspec.json.encode(translation.request)
        self.fields: Fields = _fields.decode(self._body)
        """Its fields, which `prepare` takes."""

    def prepare(self, body: bytes, fields: Fields, terms: Terms) -> Prepared:
        """See `Dialect.prepare`; `body` is the agent's and says no more."""
        return _chat.prepare(self._body, fields, terms)

    def rewrite(self, request: Mapping[str, Any], rewriter: Rewriter) -> Edits:
        """See `Dialect.rewrite`; `request` is the one in the terms of chat completions."""
        return _chat.rewrite(request, rewriter)

    def read(self, body: bytes) -> Reply:
        """See `Dialect.read`."""
        return _chat.read(body)

    def read_stream(self, stream: bytes) -> Reply:
        """See `Dialect.read_stream`."""
        return _chat.read_stream(stream)

    def conceal(self, body: bytes, prepared: Prepared) -> bytes:
        """See `Dialect.conceal`.

        Raises:
            ValueError: the reply is no chat reply.
        """
        return self.translation.reply(_chat.conceal(body, prepared))

    def stream_filter(self, prepared: Prepared) -> Sieve:
        """See `Dialect.stream_filter`."""
        sieve = self.translation.sieve()
        hiding = _chat.stream_filter(prepared)
        return sieve if hiding is None else _Chain(hiding, sieve)

    def remake(self, body: bytes, prepared: Prepared) -> bytes:
        """See `Dialect.remake`."""
        sieve = self.translation.sieve()
        return sieve.feed(_chat.remake(body, prepared)) + sieve.close()

    def refusal(self, refusal: Refusal) -> bytes:
        """See `Dialect.refusal`."""
        return self._own.refusal(refusal)

    def failure(self, status: int, body: bytes) -> bytes:
        """See `Dialect.failure`."""
        return self.translation.failure(status, body)


class _Chain:
    """Two sieves, one behind the other."""

    def __init__(self, first: Sieve, second: Sieve) -> None:
        self._first = first
        self._second = second

    def feed(self, chunk: bytes) -> bytes:
        """See `Sieve.feed`."""
        return self._second.feed(self._first.feed(chunk))

    def close(self) -> bytes:
        """See `Sieve.close`."""
        return self._second.feed(self._first.close()) + self._second.close()
