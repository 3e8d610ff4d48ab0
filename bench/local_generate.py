"""What sampling through the engine costs: the demo's load by the OpenAI API, against plain `generate` in this process.

Each round is one step's rollouts: 6 prompts of about 140 tokens that begin alike, 8 samples of each in any order, 8
tokens. Before each round the engine takes up weights, as between two steps, so that it knows no prompt. The reference
is `PlainGRPO.generate`, which computes what is shared only once. Seconds are of CPU: the machine may be shared.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from bench.results import Row, in_turns

NAMES = ("local-generate",)
ROUNDS = 4
GROUP = 8
PROMPTS = 6
THREADS = 1


def rows(names: Sequence[str] = NAMES) -> Iterator[Row]:
    """Run the benches in `names`."""
    if "local-generate" in names:
        yield asyncio.run(_generate())


async def _generate() -> Row:
    import torch
    from langchain_core.messages import convert_to_openai_messages

    from bench.plain_grpo import PlainGRPO, example_module
    from lightning_local import models
    from lightning_local.engine import LocalEngineFactory

    torch.set_num_threads(THREADS)
    agent = example_module("agent")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tasks = example_module("tasks").write_tasks(folder)["train"]
        asked = [
            convert_to_openai_messages(agent.conversation(t["input"]["message"])) for t in tasks
        ]
        plain = PlainGRPO(group=GROUP)
        weights = Path(models.locate("smollm2"))
        engine = LocalEngineFactory().create(
            "smollm2", folder=folder, options={"threads": str(THREADS), "device": "cpu"}
        )
        (endpoint,) = await engine.start()
        headers = {"authorization": f"Bearer {endpoint.api_key}"}
        ours, reference = [], []
        try:
            connections = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(headers=headers, connector=connections) as session:
                for number in range(ROUNDS + 1):
                    prompts = asked[PROMPTS * number : PROMPTS * (number + 1)]
                    await engine.load_weights(weights)
                    seconds = await _through(engine, endpoint, session, prompts, seed=number)
                    began = time.process_time()
                    plain.generate(
                        plain.encode(prompts), count=GROUP, temperature=plain.temperature
                    )
                    if number:  # the first warms both up
                        ours.append(seconds)
                        reference.append(time.process_time() - began)
        finally:
            await engine.stop()
    return in_turns("local-generate", ours, reference, goal=1.0)


async def _through(
    engine: Any, endpoint: Any, session: aiohttp.ClientSession, prompts: Sequence[Any], *, seed: int
) -> float:
    """CPU seconds that the engine's process takes for a group of each prompt."""
    batch = [prompt for prompt in prompts for _ in range(GROUP)]
    random.Random(seed).shuffle(batch)

    async def ask(messages: Any) -> None:
        body = {
            "messages": messages, "temperature": 0.8, "max_tokens": 8, "logprobs": True,
            "return_token_ids": True,
        }  # fmt: skip
        async with session.post(f"{endpoint.base_url}/chat/completions", json=body) as response:
            reply = json.loads(await response.read())
            if response.status != 200:
                raise RuntimeError(f"the engine answered {response.status}: {reply}")

    before = _cpu(engine.pid)
    await asyncio.gather(*map(ask, batch))
    return _cpu(engine.pid) - before


def _cpu(pid: int) -> float:
    """User and system time of a running process, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


if __name__ == "__main__":
    for found in rows():
        json.dump(found, sys.stdout)
        print()
