"""The running batch: rows of different lengths in one key-value cache, aligned at their ends.

Rows are padded on the left, so that every row's next token lies in the same column, and the cache is never wider
than its longest row. A row joins and leaves at any step.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

Layers = list[tuple[torch.Tensor, torch.Tensor]]
"""Keys and values by layer; of one row, each of shape (heads, length, size)."""

GROWTH = 128
"""Columns that are allocated ahead."""


class _Window:
    """The part of the buffers in use: the same for all layers."""

    def __init__(self) -> None:
        self.rows = 0
        self.start = 0
        self.end = 0

    @property
    def width(self) -> int:
        return self.end - self.start


class _Layer(CacheLayerMixin):  # type: ignore[no-untyped-call] # the mix-in has no types
    """One layer's keys and values, in a buffer larger than what is in use."""

    is_sliding = False  # all positions are kept; a sliding layer's mask leaves the old ones out

    def __init__(self, window: _Window) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # likewise
        self._window = window

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        raise RuntimeError("a layer of the running batch is used before a row was added")

    def allocate(
        self, like: tuple[torch.Tensor, torch.Tensor] | None, rows: int, columns: int, at: int
    ) -> None:
        """New buffers like the given tensors or the present ones, with what is in use copied to column `at`.

        Zeros, not empty memory: a masked column still takes part in the sums, and must not be NaN.
        """
        window = self._window
        for i, name in enumerate(("keys", "values")):
            old = getattr(self, name)
            model = old if like is None else like[i]
            new = model.new_zeros((rows, model.shape[-3], columns, model.shape[-1]))
            if old is not None and window.rows:
                new[: window.rows, :, at : at + window.width] = old[
                    : window.rows, :, window.start : window.end
                ]
            setattr(self, name, new)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        window, new = self._window, key_states.shape[2]
        assert self.keys is not None
        assert self.values is not None
        self.keys[: window.rows, :, window.end : window.end + new] = key_states
        self.values[: window.rows, :, window.end : window.end + new] = value_states
        used = slice(window.start, window.end + new)
        return self.keys[: window.rows, :, used], self.values[: window.rows, :, used]

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        new = query_length if isinstance(query_length, int) else int(query_length.shape[0])
        return self._window.width + new, 0

    def get_seq_length(self, *args: Any) -> int:
        return self._window.width

    def get_max_length(self) -> int:
        return -1

    def get_max_cache_shape(self) -> int:
        return -1


class Forward:
    """Runs the model; hides what differs between releases of transformers."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.device: torch.device = model.device
        parameters = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"

    def __call__(
        self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: Cache
    ) -> torch.Tensor:
        """The logits after each row's last token: float32 of shape (rows, vocabulary)."""
        output = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_name: cache},
        )
        logits: torch.Tensor = output.logits[:, -1].float()
        return logits


class Batch:
    """The rows that are being decoded. A row is known by its index; removing one moves the last into its place."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self._window = _Window()
        self._layers: list[_Layer] = []
        self._capacity = (0, 0)
        self.lengths: list[int] = []
        """Positions in the cache, by row."""

    @property
    def width(self) -> int:
        """Columns in use: the longest row's length."""
        return self._window.width

    def add(self, source: Layers, count: int = 1) -> None:
        """Append `count` rows with the same contents."""
        length = source[0][0].shape[1]
        if not self._layers:
            self._layers = [_Layer(self._window) for _ in source]
        self._reserve(source, rows=self._window.rows + count, width=max(length, self.width))
        window = self._window
        window.start = min(window.start, window.end - length)
        new = slice(window.rows, window.rows + count)
        for layer, (keys, values) in zip(self._layers, source, strict=True):
            for buffer, states in ((layer.keys, keys), (layer.values, values)):
                assert buffer is not None
                buffer[new, :, window.start : window.end - length] = 0
                buffer[new, :, window.end - length : window.end] = states
        window.rows += count
        self.lengths.extend([length] * count)

    def remove(self, row: int) -> None:
        """Drop a row; the last row takes its index."""
        window, last = self._window, self._window.rows - 1
        if row != last:
            length = self.lengths[last]
            used = slice(window.end - length, window.end)
            for layer in self._layers:
                for buffer in (layer.keys, layer.values):
                    assert buffer is not None
                    buffer[row, :, window.start : window.end - length] = 0
                    buffer[row, :, used] = buffer[last, :, used]
            self.lengths[row] = length
        self.lengths.pop()
        window.rows = last
        window.start = window.end - max(self.lengths, default=0)

    def take(self, row: int) -> Layers:
        """A copy of a row's keys and values."""
        window = self._window
        used = slice(window.end - self.lengths[row], window.end)
        return [
            (layer.keys[row, :, used].clone(), layer.values[row, :, used].clone())
            for layer in self._layers
            if layer.keys is not None and layer.values is not None
        ]

    def step(self, tokens: list[int]) -> torch.Tensor:
        """Run each row's last token; the logits after it: float32 of shape (rows, vocabulary)."""
        self._reserve(None, rows=self._window.rows, width=self.width)
        device, window = self._forward.device, self._window
        lengths = torch.tensor(self.lengths, device=device)[:, None]
        columns = torch.arange(window.width + 1, device=device)[None]
        mask = columns >= window.width - lengths
        ids = torch.tensor(tokens, device=device)[:, None]
        logits = self._forward(ids, mask, lengths, Cache(layers=list(self._layers)))
        window.end += 1
        self.lengths = [length + 1 for length in self.lengths]
        window.start = window.end - max(self.lengths)
        return logits

    def _reserve(self, like: Layers | None, *, rows: int, width: int) -> None:
        """Room for `rows` rows, `width` columns in use and one more."""
        window = self._window
        have_rows, have_columns = self._capacity
        if rows <= have_rows and window.end >= width and window.end + 1 <= have_columns:
            return
        new_rows = rows + rows // 2
        columns = width + max(GROWTH, width // 4)
        at = width - window.width
        for i, layer in enumerate(self._layers):
            layer.allocate(like[i] if like else None, new_rows, columns, at)
        self._capacity = (new_rows, columns)
        window.start, window.end = at, at + window.width
