"""What formats of typed events share, for upstreams that speak them themselves."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

from lightning_core.gateway import jsontext
from lightning_core.gateway.dialects.base import Dialect, Fields, Prepared, Terms
from lightning_core.gateway.dialects.request import changed, term_changes
from lightning_core.gateway.dialects.translation import Sieve
from lightning_core.gateway.sse import payloads
from lightning_core.sampling import SamplingPolicy


class NativeDialect(Dialect):
    """A format of which the upstream is asked for no more than the agent asked for, so that its replies pass as they are."""

    max_token_fields: ClassVar[tuple[str, ...]]
    """The fields that bound the completion; the last is the one to add."""

    @abstractmethod
    def fit(self, changes: dict[str, Any], fields: Fields, sampling: SamplingPolicy) -> None:
        """Take out of the changes what the sampling policy says and the format has no field for."""

    def prepare(self, body: bytes, fields: Fields, terms: Terms) -> Prepared:
        """See `Dialect.prepare`."""
        changes = term_changes(fields, terms, self.max_token_fields)
        if terms.sampling is not None:
            self.fit(changes, fields, terms.sampling)
        stream = bytes(fields.get("stream", b"")) == b"true"
        sent = changed(body, fields, changes, terms)
        return Prepared(body=sent, overrides=changes, stream=stream)

    def conceal(self, body: bytes, prepared: Prepared) -> bytes:
        """See `Dialect.conceal`. There is nothing that the agent did not ask for."""
        return body

    def stream_filter(self, prepared: Prepared) -> Sieve | None:
        """See `Dialect.stream_filter`."""
        return None

    def remake(self, body: bytes, prepared: Prepared) -> bytes:
        """See `Dialect.remake`. `prepare` never asks for it."""
        raise ValueError(f"a stream of `{self.name}` is never made of a whole reply")


def events(stream: bytes, *, besides: bytes | None = None) -> Iterator[dict[str, Any]]:
    """The events of a stream, without the last one where that was cut.

    Args:
        stream: the stream.
        besides: what is no event and may come all the same.

    Raises:
        ValueError: one that is not the last is no event.
    """
    data = payloads(stream)
    for number, item in enumerate(data):
        if item == besides:
            continue
        try:
            event = jsontext.decode(item)
        except ValueError:
            if number + 1 < len(data):
                raise
            return
        if not isinstance(event, dict):
            raise ValueError("an event is no object")
        yield event
