"""The running batch gives exactly what each request would get alone."""

from __future__ import annotations

import asyncio
import random

import pytest

from lightning_local.serve.batch import Batch


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    source = random.Random(seed)
    return [
        [source.randrange(3, 320) for _ in range(source.randrange(1, 60))] for _ in range(count)
    ]


@pytest.mark.parametrize("model", ["llama", "tied", "sliding"])
async def test_requests_of_all_lengths_at_once_equal_transformers_own_generation(
    serve, reference, teacher_forced, model
):
    async with serve(model) as client:
        asked = prompts(16)
        sizes = [3 + 5 * (i % 7) for i in range(16)]
        choices = await asyncio.gather(
            *(
                client.complete(prompt, max_tokens=size, logprobs=0)
                for prompt, size in zip(asked, sizes, strict=True)
            )
        )
        for prompt, size, choice in zip(asked, sizes, choices, strict=True):
            assert choice["prompt_token_ids"] == prompt
            assert choice["token_ids"] == reference(client.loaded.model, prompt, size)
            logprobs = choice["logprobs"]["token_logprobs"]
            expected = teacher_forced(client.loaded.model, prompt, choice["token_ids"])
            assert logprobs == pytest.approx(expected, abs=1e-4)


async def test_a_request_joins_and_leaves_while_others_are_decoded(serve, reference):
    async with serve(max_batch=3) as client:
        first, *others = prompts(9, seed=1)
        seen = client.chunks(
            "/v1/completions", prompt=first, temperature=0, max_tokens=80, ignore_eos=True,
            return_token_ids=True,
        )  # fmt: skip
        ids = (await anext(seen))["choices"][0]["token_ids"]
        later = asyncio.gather(
            *(client.complete(p, max_tokens=4 + i) for i, p in enumerate(others))
        )
        async for chunk in seen:
            ids += chunk["choices"][0]["token_ids"]
        for i, (prompt, choice) in enumerate(zip(others, await later, strict=True)):
            assert choice["token_ids"] == reference(client.loaded.model, prompt, 4 + i)
        client.loaded.model.generation_config.eos_token_id = None
        assert ids == reference(client.loaded.model, first, 80)


async def test_rows_that_had_to_make_room_are_computed_again_without_a_trace(
    serve, reference, teacher_forced
):
    async with serve(cache_tokens=500) as client:
        asked = [prompt + prompt for prompt in prompts(6, seed=2)]
        client.loaded.model.generation_config.eos_token_id = None
        choices = await asyncio.gather(
            *(client.complete(p, max_tokens=150, ignore_eos=True, logprobs=0) for p in asked)
        )
        assert (await client.stats())["preempted"] > 0
        for prompt, choice in zip(asked, choices, strict=True):
            assert choice["token_ids"] == reference(client.loaded.model, prompt, 150)
            expected = teacher_forced(client.loaded.model, prompt, choice["token_ids"])
            assert choice["logprobs"]["token_logprobs"] == pytest.approx(expected, abs=1e-4)


async def test_a_prompt_longer_than_a_chunk_is_computed_in_parts(
    serve, build, random_model, reference
):
    loaded = build(random_model("llama", max_position_embeddings=2048))
    async with serve(loaded, max_context=2048) as client:
        source = random.Random(3)
        prompt = [source.randrange(3, 320) for _ in range(1300)]
        short, long = await asyncio.gather(client.complete([5, 6, 7]), client.complete(prompt))
        assert long["token_ids"] == reference(client.loaded.model, prompt, 24)
        assert short["token_ids"] == reference(client.loaded.model, [5, 6, 7], 24)


async def test_what_is_known_of_a_prompt_is_not_computed_again(serve, reference):
    async with serve() as client:
        first = prompts(1, seed=4)[0] * 3
        answer = await client.complete(first)
        assert (await client.stats())["reused_prompt_tokens"] == 0
        turn = first + answer["token_ids"] + [9, 10, 11]
        choice = await client.complete(turn)
        assert choice["token_ids"] == reference(client.loaded.model, turn, 24)
        reused = (await client.stats())["reused_prompt_tokens"]
        assert reused == len(first) + len(answer["token_ids"]) - 1


def family(size: int, seed: int) -> list[list[int]]:
    """Prompts that begin alike, some for long and some hardly, of all lengths."""
    source = random.Random(seed)
    trunk = [source.randrange(3, 320) for _ in range(80)]
    return [
        trunk[: source.randrange(1, 80)] + [source.randrange(3, 320) for _ in range(1 + i % 30)]
        for i in range(size)
    ]


@pytest.mark.parametrize("model", ["llama", "tied", "sliding"])
@pytest.mark.parametrize("prefix_bytes", [0, 2**22, 100_000])
async def test_prompts_that_begin_alike_at_once_equal_transformers_own_generation(
    serve, reference, teacher_forced, model, prefix_bytes
):
    async with serve(model, prefix_bytes=prefix_bytes) as client:
        asked = [[5], *family(24, seed=5), [6]]
        await client.complete(asked[1])  # so that some are known in part
        choices = await asyncio.gather(
            *(client.complete(p, max_tokens=6, logprobs=0) for p in asked * 2)
        )
        for prompt, choice in zip(asked * 2, choices, strict=True):
            assert choice["token_ids"] == reference(client.loaded.model, prompt, 6)
            expected = teacher_forced(client.loaded.model, prompt, choice["token_ids"])
            assert choice["logprobs"]["token_logprobs"] == pytest.approx(expected, abs=1e-4)


async def test_equal_prompts_and_beginnings_are_computed_once(serve):
    async with serve() as client:
        computed = []

        def count(module, arguments, keywords):
            computed.append(keywords["input_ids"].shape)

        hook = client.loaded.model.register_forward_pre_hook(count, with_kwargs=True)
        source = random.Random(6)
        trunk = [source.randrange(3, 320) for _ in range(200)]
        asked = [[*trunk, 10 + i, 7, 7] for i in range(6)]
        await asyncio.gather(
            *(client.complete(p, max_tokens=4, ignore_eos=True) for p in asked for _ in range(8))
        )
        hook.remove()
        tokens = sum(rows * columns for rows, columns in computed)
        # The trunk, six endings with little padding, and what was sampled: each of the 48 rows' first 3 tokens,
        # and their prompt's last token where they came after it was known.
        assert tokens <= 203 + 6 * 3 + 48 * 4
        # Sampled together, not one by one; how many steps it takes depends on when the requests come.
        assert max(rows for rows, columns in computed if columns == 1) > 8


KNOWN = list(range(20, 40))


@pytest.mark.parametrize("part", ["model", "batch"])
@pytest.mark.parametrize("known", [False, True])
async def test_a_failed_step_ends_its_requests_and_not_the_server(
    serve, monkeypatch, reference, part, known
):
    async with serve() as client:
        model = client.loaded.model
        if known:
            await client.complete([*KNOWN, 8])
        target = (model.model, "forward") if part == "model" else (Batch, "add")
        with monkeypatch.context() as patch:

            def broken(*args, **kwargs):
                raise RuntimeError("out of memory")

            patch.setattr(*target, broken)
            status, reply = await client.post("/v1/completions", {"prompt": KNOWN})
        assert status == 500
        assert "out of memory" in reply["error"]["message"]
        assert (await client.complete(KNOWN))["token_ids"] == reference(model, KNOWN, 24)
