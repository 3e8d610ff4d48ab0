"""Samples go to trainers and come back whole, within the budget."""

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_core.errors import UsageError
from lightning_core.learn import NO_VERSION, Sample, Segment
from lightning_core.learn.packing import packed, padded, unpack


@st.composite
def samples_of(draw, advantages=None):
    known = draw(st.booleans()) if advantages is None else advantages
    found = []
    for number in range(draw(st.integers(0, 8))):
        token_ids, mask, logprobs, versions, segments = [], [], [], [], []
        for turn in range(draw(st.integers(1, 3))):
            for learnt in (0, 1):
                length = draw(st.integers(1, 6))
                if learnt:
                    start = len(token_ids)
                    segments.append(
                        Segment(
                            call_id=f"{number}-{turn}",
                            start=start,
                            stop=start + length,
                            version=turn,
                            credit=draw(st.sampled_from([None, 0.5])),
                            advantage=draw(st.floats(-2, 2)) if known else None,
                        )
                    )
                token_ids += draw(
                    st.lists(st.integers(0, 2**31 - 1), min_size=length, max_size=length)
                )
                mask += [learnt] * length
                versions += [turn if learnt else NO_VERSION] * length
                logprobs += [draw(st.floats(-9, 0)) if learnt else 0.0 for _ in range(length)]
        found.append(
            Sample(
                rollout_id=f"r{number}",
                task_id="t",
                token_ids=tuple(token_ids),
                mask=tuple(mask),
                logprobs=tuple(logprobs),
                versions=tuple(versions),
                segments=tuple(segments),
                weight=draw(st.floats(0, 1)),
            )
        )
    return found


@settings(deadline=None)
@given(samples_of(), st.integers(1, 40))
def test_packing_loses_nothing_and_keeps_to_the_budget(samples, budget):
    batches = packed(samples, budget)
    assert unpack(batches) == samples
    sizes = [len(batch.token_ids) for batch in batches]
    assert sum(sizes) == sum(len(sample.token_ids) for sample in samples)
    for batch, size in zip(batches, sizes, strict=True):
        assert size <= budget or len(batch.places) == 1
        assert list(batch.places) == sorted(batch.places)
    assert all(a + b > budget for n, a in enumerate(sizes) for b in sizes[n + 1 :])
    assert [batch.places[0] for batch in batches] == sorted(batch.places[0] for batch in batches)


@settings(deadline=None)
@given(samples_of(), st.sampled_from(["left", "right"]), st.integers(1, 8), st.integers(0, 5))
def test_padding_loses_nothing(samples, side, multiple, pad):
    batch = padded(samples, side=side, multiple_of=multiple, pad_id=pad)
    assert unpack(batch) == samples
    longest = max((len(sample.token_ids) for sample in samples), default=0)
    assert batch.width == math.ceil(longest / multiple) * multiple
    for row, sample in enumerate(samples):
        cells = batch.token_ids[row * batch.width : (row + 1) * batch.width].tolist()
        fill = [pad] * (batch.width - len(sample.token_ids))
        ids = list(sample.token_ids)
        assert cells == (fill + ids if side == "left" else ids + fill)


@settings(deadline=None)
@given(samples_of(advantages=True), st.booleans())
def test_each_token_has_what_its_sample_says(samples, whole_rows):
    batches = [padded(samples, side="left")] if whole_rows else packed(samples, 16)
    for batch in batches:
        assert batch.cu_seqlens.tolist()[-1] == sum(batch.lengths)
        inside = set()
        for place, start, length in zip(batch.places, batch.starts, batch.lengths, strict=True):
            sample, part = samples[place], slice(start, start + length)
            inside.update(range(start, start + length))
            assert batch.position_ids[part].tolist() == list(range(length))
            assert batch.advantages[part].tolist() == sample.advantages()
            assert batch.weights[part].tolist() == [sample.weight * bit for bit in sample.mask]
        for at in set(range(len(batch.mask))) - inside:
            rest = (batch.mask[at], batch.logprobs[at], batch.versions[at], batch.weights[at])
            assert rest == (0, 0.0, NO_VERSION, 0.0)


def sample(length, **fields):
    return Sample(
        rollout_id="r", task_id="t", token_ids=(1,) * length, mask=(1,) * length,
        logprobs=(-1.0,) * length, versions=(0,) * length,
        segments=(Segment(call_id="c", start=0, stop=length),), **fields,
    )  # fmt: skip


def test_a_sample_longer_than_the_budget_is_alone_or_refused_by_name():
    samples = [sample(3), sample(10), sample(4)]
    assert [batch.places for batch in packed(samples, 8)] == [(0, 2), (1,)]
    with pytest.raises(
        UsageError, match=r"rollout `r` \(calls `c`\): 10 tokens, but the budget .* 8"
    ):
        packed(samples, 8, longer="refuse")


def test_advantages_that_are_not_computed_are_none():
    assert padded([sample(3)]).advantages is None
    assert packed([sample(3)], 8)[0].advantages is None


def test_arguments_and_samples_that_cannot_be_are_refused():
    with pytest.raises(UsageError, match="`budget`: expected at least 1 token but got 0"):
        packed([], 0)
    with pytest.raises(UsageError, match="`multiple_of`"):
        padded([], multiple_of=0)
    with pytest.raises(UsageError, match="`token_ids` 3, `mask` 2"):
        padded([msgspec.structs.replace(sample(3), mask=(1, 1))])


def test_arrays_have_the_widths_that_are_documented():
    batch = padded([sample(3)])
    widths = {name: getattr(batch, name).itemsize for name in
              ("token_ids", "position_ids", "mask", "logprobs", "versions", "weights", "lengths")}  # fmt: skip
    assert list(widths.values()) == [8, 8, 1, 8, 8, 8, 4]
