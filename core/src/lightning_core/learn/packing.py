"""Padded and packed layouts of samples, for trainers: flat arrays that torch and numpy read without a copy.

`torch.frombuffer(batch.token_ids, dtype=torch.int64)` or `numpy.frombuffer(batch.token_ids, "int64")`. Nothing is lost:
`unpack` gives the samples back as they were.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec

from lightning_core.errors import UsageError
from lightning_core.learn.sample import NO_VERSION, Sample

Longer = Literal["alone", "refuse"]
"""What becomes of a sample that is longer than the budget: a micro-batch of its own, or an error."""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Samples as flat arrays of N tokens, where N is the sum of their lengths (packed) or rows x width (padded)."""

    token_ids: array[int]
    """Token ids, int64, shape [N]."""
    position_ids: array[int]
    """Each token's position within its sample, from 0, int64, shape [N]; 0 for padding."""
    mask: array[int]
    """1 for a token that is learnt from, else 0; int8, shape [N]."""
    logprobs: array[float]
    """Recorded log-probabilities, float64, shape [N]; 0.0 where `mask` is 0."""
    versions: array[int]
    """Policy versions, int64, shape [N]; `NO_VERSION` where `mask` is 0."""
    advantages: array[float] | None
    """Advantages, float64, shape [N], 0.0 where `mask` is 0; None where one of the samples has none yet."""
    weights: array[float]
    """What each token's loss is multiplied with: its sample's weight, 0.0 where `mask` is 0; float64, shape [N]."""
    lengths: array[int]
    """Tokens of each sample, int32, shape [S]."""
    width: int | None
    """Tokens of a row; None where the samples lie end to end."""
    side: Literal["left", "right"] | None
    """Where a row is padded; None where the samples lie end to end."""
    places: tuple[int, ...]
    """Each sample's place in the list that was given, shape [S]."""
    heads: tuple[Sample, ...]
    """The samples without their tokens: ids, segments and weight, shape [S]."""

    @property
    def starts(self) -> array[int]:
        """Where each sample's tokens begin, int32, shape [S]."""
        if self.width is None:
            return self.cu_seqlens[:-1]
        left = self.side == "left"
        return array(
            "i",
            [
                row * self.width + (self.width - length if left else 0)
                for row, length in enumerate(self.lengths)
            ],
        )

    @property
    def cu_seqlens(self) -> array[int]:
        """Sums of the lengths, from 0, as attention over samples that lie end to end wants them; int32, shape [S + 1]."""
        sums = array("i", [0])
        for length in self.lengths:
            sums.append(sums[-1] + length)
        return sums


def padded(
    samples: Sequence[Sample],
    *,
    pad_id: int = 0,
    side: Literal["left", "right"] = "right",
    multiple_of: int = 1,
) -> Batch:
    """All samples as one batch, a row each, as wide as the longest.

    Args:
        samples: the samples.
        pad_id: the token id of padding.
        side: where to pad.
        multiple_of: what the width is rounded up to.

    Raises:
        UsageError: `multiple_of` is less than 1, or a sample's lengths differ.
    """
    if multiple_of < 1:
        raise UsageError(f"`multiple_of`: expected at least 1 but got {multiple_of!r}")
    longest = max((len(sample.token_ids) for sample in samples), default=0)
    width = -(-longest // multiple_of) * multiple_of
    return _batch(samples, range(len(samples)), width, side, pad_id)


def packed(
    samples: Sequence[Sample], budget: int, *, longer: Longer = "alone"
) -> tuple[Batch, ...]:
    """Micro-batches of whole samples end to end, each of at most `budget` tokens, by best fit of the longest first.

    No two of the micro-batches would fit into one. They are in the order of their first sample; so are the samples in
    each. The same samples give the same micro-batches.

    Args:
        samples: the samples.
        budget: the most tokens of a micro-batch.
        longer: what becomes of a sample that is longer than that.

    Raises:
        UsageError: the budget is less than 1, a sample is longer than it and `longer` is `refuse`, or a sample's
            lengths differ.
    """
    if budget < 1:
        raise UsageError(f"`budget`: expected at least 1 token but got {budget!r}")
    lengths = [len(sample.token_ids) for sample in samples]
    bins: list[list[int]] = []
    room: list[tuple[int, int]] = []  # tokens that still fit, and the bin; sorted
    for place in sorted(range(len(samples)), key=lambda place: (-lengths[place], place)):
        length = lengths[place]
        if length > budget and longer == "refuse":
            sample = samples[place]
            calls = ", ".join(f"`{segment.call_id}`" for segment in sample.segments[:3])
            raise UsageError(
                f"sample of rollout `{sample.rollout_id}` (calls {calls or 'unknown'}): {length:,} tokens, but the"
                f" budget of a micro-batch is {budget:,}; raise the budget, or shorten the agent's context"
            )
        at = bisect_left(room, (length, -1))
        if at < len(room):
            left, number = room.pop(at)
            bins[number].append(place)
            insort(room, (left - length, number))
        else:
            bins.append([place])
            if length < budget:
                insort(room, (budget - length, len(bins) - 1))
    order = sorted(sorted(places) for places in bins)
    return tuple(_batch([samples[n] for n in places], places, None, None, 0) for places in order)


def unpack(batches: Batch | Iterable[Batch]) -> list[Sample]:
    """The samples of a batch, or of all micro-batches of a list, in the order in which they were given."""
    found: dict[int, Sample] = {}
    for batch in (batches,) if isinstance(batches, Batch) else batches:
        for place, head, start, length in zip(
            batch.places, batch.heads, batch.starts, batch.lengths, strict=True
        ):
            part = slice(start, start + length)
            found[place] = msgspec.structs.replace(
                head,
                token_ids=tuple(batch.token_ids[part]),
                mask=tuple(batch.mask[part]),
                logprobs=tuple(batch.logprobs[part]),
                versions=tuple(batch.versions[part]),
            )
    return [found[place] for place in sorted(found)]


def _batch(
    samples: Sequence[Sample],
    places: Iterable[int],
    width: int | None,
    side: Literal["left", "right"] | None,
    pad_id: int,
) -> Batch:
    for sample in samples:
        _check(sample)
    lengths = [len(sample.token_ids) for sample in samples]

    def ints(code: str, pad: int, of: Callable[[Sample], Sequence[int]]) -> array[int]:
        flat: array[int] = array(code)
        for sample, length in zip(samples, lengths, strict=True):
            fill = array(code, [pad]) * (0 if width is None else width - length)
            row = array(code, of(sample))
            flat += fill + row if side == "left" else row + fill
        return flat

    def floats(of: Callable[[Sample], Sequence[float]]) -> array[float]:
        flat = array("d")
        for sample, length in zip(samples, lengths, strict=True):
            fill = array("d", [0.0]) * (0 if width is None else width - length)
            row = array("d", of(sample))
            flat += fill + row if side == "left" else row + fill
        return flat

    known = all(
        segment.advantage is not None
        for sample in samples
        for segment in sample.segments
        if segment.trainable
    )
    return Batch(
        token_ids=ints("q", pad_id, lambda sample: sample.token_ids),
        position_ids=ints("q", 0, lambda sample: range(len(sample.token_ids))),
        mask=ints("b", 0, lambda sample: sample.mask),
        logprobs=floats(lambda sample: sample.logprobs),
        versions=ints("q", NO_VERSION, lambda sample: sample.versions),
        advantages=floats(Sample.advantages) if known else None,
        weights=floats(lambda sample: [sample.weight if bit else 0.0 for bit in sample.mask]),
        lengths=array("i", lengths),
        width=width,
        side=side,
        places=tuple(places),
        heads=tuple(
            msgspec.structs.replace(sample, token_ids=(), mask=(), logprobs=(), versions=())
            for sample in samples
        ),
    )


def _check(sample: Sample) -> None:
    lengths = {
        name: len(getattr(sample, name)) for name in ("token_ids", "mask", "logprobs", "versions")
    }
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"`{name}` {length}" for name, length in lengths.items())
        raise UsageError(
            f"sample of rollout `{sample.rollout_id}`: expected one length, but got {said}"
        )
