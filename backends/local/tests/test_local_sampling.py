"""Tokens are drawn from the distribution that was asked for; log-probabilities are of the raw logits."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter

import pytest
import torch

from lightning_local.serve.sampling import Params, draw


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


@pytest.mark.parametrize(
    ("params", "row", "logits"),
    [
        ({}, {}, [2.0, 1.0, 0.0, -1.0, -8.0]),
        ({"temperature": 2.0}, {}, [1.0, 0.5, 0.0, -0.5, -4.0]),
        ({"temperature": 0.0}, {}, [0.0, INF, INF, INF, INF]),
        ({"top_k": 2}, {}, [2.0, 1.0, INF, INF, INF]),
        ({"top_p": 0.7}, {}, [2.0, 1.0, INF, INF, INF]),
        ({"top_p": 0.0}, {}, [0.0, INF, INF, INF, INF]),
        ({"min_p": 0.1}, {}, [2.0, 1.0, 0.0, INF, INF]),
        ({"logit_bias": {4: 10.0, 0: -100.0}}, {}, [INF, 1.0, 0.0, -1.0, 2.0]),
        ({"presence_penalty": 1.0}, {"tokens": [0, 0]}, [1.0, 1.0, 0.0, -1.0, -8.0]),
        ({"frequency_penalty": 1.0}, {"tokens": [0, 0]}, [0.0, 1.0, 0.0, -1.0, -8.0]),
        ({"repetition_penalty": 2.0}, {"prompt": [0], "tokens": [3]}, [1.0, 1.0, 0.0, -2.0, -8.0]),
        ({"min_tokens": 1}, {"eos": frozenset({0})}, [INF, 1.0, 0.0, -1.0, -8.0]),
    ],
)
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
