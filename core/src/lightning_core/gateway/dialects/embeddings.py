"""Embeddings."""

from __future__ import annotations

import msgspec

from lightning_core.gateway import jsontext
from lightning_core.gateway.dialects.base import Dialect, Fields, Prepared, Reply, Terms
from lightning_core.gateway.sse import StreamFilter


class EmbeddingsDialect(Dialect):
    """`POST …/embeddings`. Nothing is sampled, and a policy is no embedding model: they go where the agent meant."""

    name = "embeddings"
    suffix = "/embeddings"
    answered_by_policy = False

    def prepare(self, body: bytes, fields: Fields, terms: Terms) -> Prepared:
        """See `Dialect.prepare`."""
        if terms.model is None:
            return Prepared(body=body)
        changed = msgspec.json.encode({**fields, "model": terms.model})
        return Prepared(body=changed, overrides={"model": terms.model})

    def read(self, body: bytes) -> Reply:
        """See `Dialect.read`."""
        value = jsontext.decode(body)
        if not isinstance(value, dict) or not isinstance(value.get("data"), list):
            raise ValueError("the reply has no `data`")
        usage, model = value.get("usage"), value.get("model")
        return Reply(
            reply=value,
            usage=usage if isinstance(usage, dict) else None,
            model=model if isinstance(model, str) else None,
        )

    def read_stream(self, stream: bytes) -> Reply:
        """See `Dialect.read_stream`."""
        raise ValueError("embeddings are never streamed")

    def conceal(self, body: bytes, prepared: Prepared) -> bytes:
        """See `Dialect.conceal`."""
        return body

    def stream_filter(self, prepared: Prepared) -> StreamFilter | None:
        """See `Dialect.stream_filter`."""
        return None

    def remake(self, body: bytes, prepared: Prepared) -> bytes:
        """See `Dialect.remake`."""
        raise ValueError("embeddings are never streamed")
