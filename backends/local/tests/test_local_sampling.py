"""Tokens are drawn from the distribution that was asked for; log-probabilities are of the kind that was asked for."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter

import pytest
import torch

from lightning_local.serve.sampling import Logprobs, Params, draw


class Row:
    def __init__(self, params: Params, *, prompt=(), tokens=(), seed=0, eos=frozenset()) -> None:
        self.params = params
        self.prompt = list(prompt)
        self.tokens = list(tokens)
        self.rng = torch.Generator().manual_seed(random.Random(seed).getrandbits(63))
        self.eos = eos


LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, -8.0])


def frequencies(params: Params, count: int = 4000, **row) -> list[float]:
    rows = [Row(params, seed=i, **row) for i in range(count)]
    seen = Counter(token.id for token in draw(LOGITS.repeat(count, 1), rows))
    return [seen[i] / count for i in range(len(LOGITS))]


def expected(logits: list[float]) -> list[float]:
    return torch.tensor(logits).softmax(-1).tolist()


INF = -math.inf
SHAPES = [
    ({}, {}, [2.0, 1.0, 0.0, -1.0, -8.0]),
    ({"temperature": 2.0}, {}, [1.0, 0.5, 0.0, -0.5, -4.0]),
    ({"temperature": 0.0}, {}, [0.0, INF, INF, INF, INF]),
    ({"top_k": 2}, {}, [2.0, 1.0, INF, INF, INF]),
    ({"top_p": 0.7}, {}, [2.0, 1.0, INF, INF, INF]),
    ({"top_p": 0.0}, {}, [0.0, INF, INF, INF, INF]),
    ({"min_p": 0.1}, {}, [2.0, 1.0, 0.0, INF, INF]),
    ({"logit_bias": {4: 10.0, 0: -100.0}}, {}, [-98.0, 1.0, 0.0, -1.0, 2.0]),
    ({"presence_penalty": 1.0}, {"tokens": [0, 0]}, [1.0, 1.0, 0.0, -1.0, -8.0]),
    ({"frequency_penalty": 1.0}, {"tokens": [0, 0]}, [0.0, 1.0, 0.0, -1.0, -8.0]),
    ({"repetition_penalty": 2.0}, {"prompt": [0], "tokens": [3]}, [1.0, 1.0, 0.0, -2.0, -8.0]),
    ({"min_tokens": 1}, {"eos": frozenset({0})}, [INF, 1.0, 0.0, -1.0, -8.0]),
]
"""Parameters, what the row holds, and the logits of the distribution that results."""


@pytest.mark.parametrize(("params", "row", "logits"), SHAPES)
def test_tokens_are_drawn_as_asked(params, row, logits):
    seen = frequencies(Params(**params), **row)
    # 4,000 draws with fixed seeds: three standard deviations of a share are at most 0.024.
    assert seen == pytest.approx(expected(logits), abs=0.025)


def test_logprobs_are_of_the_raw_logits_whatever_shapes_the_draw():
    raw = torch.log_softmax(LOGITS, -1)
    shaped = Params(temperature=0.3, top_k=2, logit_bias={1: 5.0}, logprobs=2)
    (token,) = draw(LOGITS[None], [Row(shaped)])
    assert token.id == 1
    assert token.logprob == pytest.approx(float(raw[1]))
    assert [id_ for id_, _ in token.top] == [0, 1]
    assert [logprob for _, logprob in token.top] == pytest.approx(raw[:2].tolist())


@pytest.mark.parametrize(
    ("temperature", "params", "row", "logits"),
    [(1.0, *shape) for shape in SHAPES if "temperature" not in shape[0]]
    # The temperature changes what the other filters leave.
    + [
        (0.7, *shape) for shape in SHAPES if not {"temperature", "top_p", "min_p"} & shape[0].keys()
    ],
)
def test_processed_logprobs_are_of_the_distribution_sampled_from(temperature, params, row, logits):
    wanted = Params(**params, temperature=temperature, logprobs=5)
    expected = torch.log_softmax(torch.tensor(logits) / temperature, -1)
    seen = set()
    for seed in range(20):
        (token,) = draw(LOGITS[None], [Row(wanted, seed=seed, **row)], Logprobs.PROCESSED)
        assert token.logprob == pytest.approx(float(expected[token.id]), abs=1e-6)
        seen.add(token.id)
        # What cannot be sampled has no log-probability, and is not listed.
        assert {id_ for id_, _ in token.top} == {i for i in range(5) if logits[i] > INF}
        assert dict(token.top) == pytest.approx(
            {i: float(expected[i]) for i, _ in token.top}, abs=1e-6
        )
    assert len(seen) > 1 or sum(value > INF for value in logits) == 1


def test_in_one_batch_greedy_rows_have_raw_logprobs_and_warm_ones_processed():
    kinds = [Params(temperature=0.0), Params(temperature=0.5), Params(temperature=0.0, top_k=1)]
    tokens = draw(LOGITS.repeat(3, 1), [Row(kind) for kind in kinds], Logprobs.PROCESSED)
    raw, warm = torch.log_softmax(LOGITS, -1), torch.log_softmax(LOGITS / 0.5, -1)
    assert tokens[0].logprob == tokens[2].logprob == pytest.approx(float(raw[0]))
    assert tokens[1].logprob == pytest.approx(float(warm[tokens[1].id]))


def test_a_rows_draw_does_not_depend_on_its_neighbours():
    logits = torch.randn(6, 500, generator=torch.Generator().manual_seed(0))
    kinds = [Params(), Params(top_p=0.5), Params(temperature=0.0), Params(top_k=3)] * 2
    together = draw(logits, [Row(kinds[i], seed=i) for i in range(6)])
    alone = [draw(logits[i][None], [Row(kinds[i], seed=i)])[0] for i in range(6)]
    assert [t.id for t in together] == [t.id for t in alone]


async def test_choices_differ_and_a_seed_repeats_them(serve):
    async with serve() as client:
        body = {"prompt": [7, 8, 9], "n": 3, "max_tokens": 12, "seed": 5, "return_token_ids": True}
        once, again, other = await asyncio.gather(
            client.ok("/v1/completions", **body),
            client.ok("/v1/completions", **body),
            client.ok("/v1/completions", **{**body, "seed": 6}),
        )
        ids = [choice["token_ids"] for choice in once["choices"]]
        assert len({tuple(i) for i in ids}) == 3
        assert ids == [choice["token_ids"] for choice in again["choices"]]
        assert ids != [choice["token_ids"] for choice in other["choices"]]
        assert once["usage"]["prompt_tokens"] == 3


async def test_sampled_logprobs_equal_a_teacher_forced_pass(serve, teacher_forced):
    async with serve() as client:
        body = {"temperature": 1.3, "seed": 1, "max_tokens": 40, "ignore_eos": True}
        choices = await asyncio.gather(
            *(client.complete([4 + i, 9], logprobs=0, **body) for i in range(8))
        )
        for i, choice in enumerate(choices):
            scores = teacher_forced(client.loaded.model, [4 + i, 9], choice["token_ids"])
            assert choice["logprobs"]["token_logprobs"] == pytest.approx(scores, abs=1e-4)


async def test_processed_logprobs_equal_a_teacher_forced_pass_at_that_temperature(serve):
    async with serve(logprobs=Logprobs.PROCESSED) as client:
        model = client.loaded.model
        assert (await client.stats())["logprobs"] == "processed"
        body = {"temperature": 0.7, "max_tokens": 40, "ignore_eos": True, "logprobs": 0}
        choices = await asyncio.gather(
            *(client.complete([4 + i, 9], seed=i, **body) for i in range(8))
        )
        for i, choice in enumerate(choices):
            prompt, completion = [4 + i, 9], choice["token_ids"]
            with torch.inference_mode():
                logits = model(torch.tensor([prompt + completion])).logits[0, 1:-1]
            scores = torch.log_softmax(logits / 0.7, dim=-1)
            expected = [float(row[token]) for row, token in zip(scores, completion, strict=True)]
            assert choice["logprobs"]["token_logprobs"] == pytest.approx(expected, abs=1e-4)
