"""Computing prompts: several at once, each after as much of it as is known."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from lightning_local.serve.batch import Forward, Layers
from lightning_local.serve.prefix import LEAST, common
from lightning_local.serve.sequence import Sequence

MOST_PADDING = 0.5
"""Largest share of padding in what is computed at once."""


class Prompt:
    """A prompt to be computed, for one row or several with the same tokens."""

    def __init__(self, sequences: list[Sequence], ids: list[int], known: Layers, done: int) -> None:
        self.sequences = sequences
        self.ids = ids
        self.known = known
        """Keys and values of its first `done` tokens."""
        self.done = done

    @property
    def left(self) -> int:
        """How many tokens are still to be computed."""
        return len(self.ids) - self.done


def may_join(prompt: Prompt, group: Items[Prompt], budget: int, *, remembers: bool) -> bool:
    """Whether a prompt is computed together with the others, rather than after them.

    Args:
        prompt: the prompt.
        group: the others, in one computation.
        budget: most tokens of one computation, padding included.
        remembers: whether what is computed is kept for later prompts.
    """
    if not group:
        return True
    lefts = [*(other.left for other in group), prompt.left]
    size = len(lefts) * max(lefts)
    if size > budget or size * (1 - MOST_PADDING) > sum(lefts):
        return False
    # What it has in common with another is computed once, and known when its turn comes.
    return not remembers or all(
        common(other.ids, prompt.ids) < prompt.done + LEAST for other in group
    )


def compute(forward: Forward, group: Items[Prompt], budget: int) -> torch.Tensor:
    """Run the next tokens of each prompt: all that is left, or `budget` tokens of a single one.

    Afterwards `known` and `done` say how far each is.

    Returns:
        The logits after the last of them: float32 of shape (prompts, vocabulary).
    """
    ends = [len(prompt.ids) for prompt in group]
    if len(group) == 1:
        ends = [min(ends[0], group[0].done + budget)]
    new = max(end - prompt.done for end, prompt in zip(ends, group, strict=True))
    # Rows end in the same column and have no gaps. So a row with less to compute does again what it has known.
    pasts = [max(0, end - new) for end in ends]
    past = max(pasts)
    device = forward.device
    ids = torch.zeros((len(group), new), dtype=torch.long)
    for row, (prompt, end) in enumerate(zip(group, ends, strict=True)):
        part = prompt.ids[max(0, end - new) : end]
        ids[row, new - len(part) :] = torch.tensor(part)
    lengths = torch.tensor(ends, device=device)[:, None]
    columns = torch.arange(past + new, device=device)[None]
    mask = columns >= past + new - lengths
    positions = (columns[:, past:] - (past + new) + lengths).clamp(min=0)
    cache = _cache(group, pasts)
    logits = forward(ids.to(device), mask, positions, cache)
    for row, (prompt, end) in enumerate(zip(group, ends, strict=True)):
        prompt.known, prompt.done = _row(cache, row, end, alone=len(group) == 1), end
    return logits


def _cache(group: Items[Prompt], pasts: Items[int]) -> DynamicCache:
    """What is known of each row, aligned at the ends."""
    cache, past = DynamicCache(), max(pasts)
    if not past:
        return cache
    like = next(prompt.known for prompt in group if prompt.known)
    for layer, states in enumerate(like):
        both = []
        for part, state in enumerate(states):
            joined = state.new_zeros((len(group), state.shape[0], past, state.shape[2]))
            for row, (prompt, length) in enumerate(zip(group, pasts, strict=True)):
                if length:
                    joined[row, :, past - length :] = prompt.known[layer][part][:, :length]
            both.append(joined)
        cache.update(both[0], both[1], layer)
    return cache


def _row(cache: DynamicCache, row: int, length: int, *, alone: bool) -> Layers:
    """A row's keys and values; copied, where the whole would be kept alive for it."""
    layers: Any = cache.layers  # kinds that `models.load` refuses have no keys
    rows = [(layer.keys[row, :, -length:], layer.values[row, :, -length:]) for layer in layers]
    return rows if alone else [(keys.clone(), values.clone()) for keys, values in rows]
