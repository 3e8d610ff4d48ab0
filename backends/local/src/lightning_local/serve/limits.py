"""How much the server may use."""

from __future__ import annotations

import msgspec

from lightning_local.models import Loaded


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the scheduler may use."""

    max_batch: int = 64
    """Most rows at once."""
    max_context: int = 8192
    """Most tokens of a row, prompt and completion."""
    cache_tokens: int = 32768
    """Most positions of the cache, rows times columns. A single row may always run."""
    prefix_bytes: int = 0
    """Memory for prompts' beginnings."""


def limits(
    loaded: Loaded, *, max_batch: int, max_context: int | None, cache_mb: int, prefix_mb: int
) -> Limits:
    """The limits for a model.

    Args:
        loaded: the model.
        max_batch: most rows at once.
        max_context: most tokens of a row; None for what the model was made for.
        cache_mb: MiB for the running batch.
        prefix_mb: MiB for known prompts.
    """
    config = loaded.model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    position = 2 * config.num_hidden_layers * heads * size * loaded.model.dtype.itemsize
    return Limits(
        max_batch=max_batch,
        max_context=min(max_context or loaded.context, loaded.context),
        cache_tokens=cache_mb * 2**20 // position,
        prefix_bytes=prefix_mb * 2**20,
    )
