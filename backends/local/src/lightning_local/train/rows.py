"""Passes: samples laid into rows, so that what they begin with in common is computed once.

A row is a tree of tokens: the union of some samples, each a path from the root. Sorted, a sample shares the most with
the one before it, so a row is filled in order, and a token's descendants are one stretch after it. A token sees those
before it whose stretch has not ended. A row that holds one sample is an ordinary causal row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Source(NamedTuple):
    """What is to be computed of one sample."""

    token_ids: Sequence[int]
    """Its tokens, length L."""
    targets: Sequence[int]
    """Positions of the tokens whose log-probabilities are wanted, ascending, each at least 1."""


class Pass(NamedTuple):
    """One forward pass, of R rows with T tokens, padded on the right. It holds S whole samples."""

    samples: list[int]
    """Which samples, by their position in what was planned; length S."""
    token_ids: Tensor
    """Shape [R, T]."""
    positions: Tensor
    """Position of each token in its sample, shape [R, T]."""
    seen: Tensor | None
    """Whether a token (third axis) sees another (fourth axis), shape [R, 1, T, T]; None: rows are causal."""
    queries: Tensor
    """Places in the flattened rows whose next token is wanted, each once, shape [Q]."""
    slots: Tensor
    """For each sample and target, the position in `queries`, 0 beyond its last; shape [S, N]."""
    targets: Tensor
    """The target tokens, 0 beyond its last; shape [S, N]."""
    mask: Tensor
    """1 where there is a target, shape [S, N]."""


class _Row:
    """A tree that grows by samples in sorted order."""

    def __init__(self) -> None:
        self.samples: list[int] = []
        self.token_ids: list[int] = []
        self.positions: list[int] = []
        self.ends: list[int] = []
        self.paths: list[list[int]] = []

    def add(self, number: int, tokens: Sequence[int], shared: int) -> None:
        start = len(self.token_ids)
        kept = self.paths[-1][:shared] if self.paths else []
        path = [*kept, *range(start, start + len(tokens) - shared)]
        self.token_ids.extend(tokens[shared:])
        self.positions.extend(range(shared, len(tokens)))
        self.ends.extend([0] * (len(tokens) - shared))
        for place in path:
            self.ends[place] = len(self.token_ids)
        self.samples.append(number)
        self.paths.append(path)

    @property
    def forked(self) -> bool:
        """Whether it is more than one chain: some token's descendants end before the row does."""
        return any(end != len(self.token_ids) for end in self.ends)


def plan(
    sources: Sequence[Source], *, budget: int, share: bool, hidden: int, device: str = "cpu"
) -> list[Pass]:
    """Lay samples into passes.

    Args:
        sources: the samples; none is split.
        budget: most tokens in a pass, padding included; a longer sample gets one of its own.
        share: compute common beginnings once; else each row is one sample.
        hidden: the model's width, which decides whether sharing pays.
        device: where the tensors go.
    """
    order = sorted(range(len(sources)), key=lambda number: tuple(sources[number].token_ids))
    rows: list[_Row] = []
    for number in order:
        tokens = sources[number].token_ids
        if share and rows:
            row = rows[-1]
            shared = _common(sources[row.samples[-1]].token_ids, tokens)
            if _pays(shared, len(tokens) - shared, len(row.token_ids), budget, hidden):
                row.add(number, tokens, shared)
                continue
        rows.append(_Row())
        rows[-1].add(number, tokens, 0)
    rows.sort(key=lambda row: len(row.token_ids), reverse=True)
    passes: list[list[_Row]] = []
    for row in rows:
        if passes and len(passes[-1][0].token_ids) * (len(passes[-1]) + 1) <= budget:
            passes[-1].append(row)
        else:
            passes.append([row])
    return [_lay(group, sources, device) for group in passes]


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    length = min(len(a), len(b))
    return next((i for i in range(length) if a[i] != b[i]), length)


def _pays(shared: int, new: int, row: int, budget: int, hidden: int) -> bool:
    # In each layer, there and back, a token costs about 48·hidden² operations in the matrices, and 14·hidden for each
    # token of its row in attention, seen or not. Sharing saves the first for the shared tokens and adds the second
    # for strangers.
    return row + new <= budget and shared * 3 * hidden > new * (row - shared)


def _lay(rows: list[_Row], sources: Sequence[Source], device: str) -> Pass:
    width = max(len(row.token_ids) for row in rows)
    token_ids = torch.zeros(len(rows), width, dtype=torch.long)
    positions = torch.arange(width).repeat(len(rows), 1)
    ends = torch.arange(1, width + 1).repeat(len(rows), 1)
    samples: list[int] = []
    places: dict[int, int] = {}
    slots: list[list[int]] = []
    targets: list[list[int]] = []
    for index, row in enumerate(rows):
        length = len(row.token_ids)
        token_ids[index, :length] = torch.tensor(row.token_ids)
        positions[index, :length] = torch.tensor(row.positions)
        ends[index, :length] = torch.tensor(row.ends)
        for number, path in zip(row.samples, row.paths, strict=True):
            samples.append(number)
            source = sources[number]
            before = [index * width + path[target - 1] for target in source.targets]
            slots.append([places.setdefault(place, len(places)) for place in before])
            targets.append([source.token_ids[target] for target in source.targets])
    seen = None
    if any(row.forked for row in rows):
        here = torch.arange(width)
        seen = (here[None, None, :] <= here[None, :, None]) & (here[None, :, None] < ends[:, None])
        seen = seen[:, None].to(device)
    most = max(map(len, targets))
    mask = [[1] * len(each) + [0] * (most - len(each)) for each in targets]
    return Pass(
        samples=samples,
        token_ids=token_ids.to(device),
        positions=positions.to(device),
        seen=seen,
        queries=torch.tensor(list(places), dtype=torch.long).to(device),
        slots=torch.tensor([each + [0] * (most - len(each)) for each in slots]).to(device),
        targets=torch.tensor([each + [0] * (most - len(each)) for each in targets]).to(device),
        mask=torch.tensor(mask).to(device),
    )
