"""Advantages of a step's rows, and what each row's tokens count in the loss. Imports no verl."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lightning_core.learn.advantage import whiten
from lightning_core.learn.aggregation import Aggregation
from lightning_verl.trainer.samples import Note


def advantages(notes: Sequence[Note], shape: tuple[int, int], *, whitened: bool) -> torch.Tensor:
    """What the notes say of each token, float32, shape [rows, R]; 0.0 where nothing is learnt.

    Args:
        notes: one for each row; every piece has an advantage.
        shape: rows and the longest response.
        whitened: whether they are whitened over the step, each token counted once (arXiv 2501.03262). A group without
            a signal keeps its zeros: moved by the others' mean, it would be learnt from.
    """
    spots = [(at, piece) for at, note in enumerate(notes) for piece in note.pieces]
    values = [piece.advantage or 0.0 for _, piece in spots]
    if whitened:
        chosen = [at for at, (_, piece) in enumerate(spots) if piece.compared]
        white = whiten(
            [values[at] for at in chosen],
            [spots[at][1].stop - spots[at][1].start for at in chosen],
        )
        for at, value in zip(chosen, white, strict=True):
            values[at] = value
    found = torch.zeros(shape, dtype=torch.float32)
    for (row, piece), value in zip(spots, values, strict=True):
        found[row, piece.start : piece.stop] = value
    return found


def token_rewards(notes: Sequence[Note], shape: tuple[int, int]) -> torch.Tensor:
    """The reward at each token for a value network, float32, shape [rows, R]."""
    found = torch.zeros(shape, dtype=torch.float32)
    for row, note in enumerate(notes):
        for at, value in note.rewards:
            found[row, at] = value
    return found


def scales(
    rollouts: Sequence[str],
    mask: torch.Tensor,
    aggregation: Aggregation,
    *,
    total: int | None = None,
) -> torch.Tensor:
    """What the advantages of each row are multiplied with, so that verl's mean over tokens counts what `aggregation` says.

    A policy's loss is proportional to the advantage, as long as the factor is positive. So a token of weight w, in a
    loss that gives each of N tokens 1/N, gets N·w; the sum of all w is 1.

    Args:
        rollouts: each row's rollout; shape [rows].
        mask: which tokens are learnt from, shape [rows, R].
        aggregation: what is to count the same.
        total: tokens that verl's mean is over; by default those that are learnt from.

    Returns:
        float32, shape [rows]; 0.0 for rows without a token that is learnt from.
    """
    tokens = mask.sum(dim=1).to(torch.float64)
    learnt = float(tokens.sum())
    used = tokens > 0
    if not learnt:
        return torch.zeros(len(tokens), dtype=torch.float32)
    if aggregation is Aggregation.TOKEN:
        of_each, count = torch.full_like(tokens, learnt), 1
    elif aggregation is Aggregation.SEQUENCE:
        of_each, count = tokens, int(used.sum())
    else:
        sums: dict[str, float] = {}
        for rollout, own in zip(rollouts, tokens.tolist(), strict=True):
            sums[rollout] = sums.get(rollout, 0.0) + own
        of_each = torch.tensor([sums[each] for each in rollouts], dtype=torch.float64)
        count = sum(own > 0 for own in sums.values())
    mean_of = learnt if total is None else total
    return torch.where(used, mean_of / (count * of_each.clamp(min=1)), 0.0).to(torch.float32)
