"""What samples cost: tokens that a trainer computes, against simpler ways to cut traces up; and how fast they are made.

The traces are recorded here and now: agents talk through the gateway to a scripted model that gives token ids.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

from bench.results import Row, row
from lightning_core import run
from lightning_core.learn import build_samples
from lightning_core.rollout import Attempt, Mode, Rollout
from lightning_core.task import Task
from lightning_core.testing.received import Received
from lightning_core.testing.scripted import ScriptedServer
from lightning_core.trace import Call, Choice, TokenSource, Trace

NAMES = ("samples-vs-rows", "samples-vs-chain", "samples-throughput")
TURNS = 12
ROUNDS = 5


def rows(names: Sequence[str] = NAMES) -> Iterator[Row]:
    """Run the benches in `names`."""
    if "samples-vs-rows" in names or "samples-vs-chain" in names:
        traces = asyncio.run(_recorded())
        unique = sum(map(_unique, traces))
        ours = sum(build_samples(trace).drift.tokens for trace in traces) / unique
        if "samples-vs-rows" in names:
            per_call = sum(len(tokens) for trace in traces for tokens in _sequences(trace))
            yield row("samples-vs-rows", ours, per_call / unique, goal=0.5)
        if "samples-vs-chain" in names:
            chains = [_one_chain(trace) for trace in traces]
            made = row("samples-vs-chain", ours, sum(c[0] for c in chains) / unique, goal=1.0)
            # What a single chain that does not start anew would leave out.
            yield {**made, "calls": _calls(traces), "calls_off_the_first_chain": sum(c[1] for c in chains)}  # fmt: skip
    if "samples-throughput" in names:
        yield row("samples-throughput", _throughput(), 1_000_000, goal=1.0, side="at least")


# Recording -----------------------------------------------------------------------------------------------------------


async def _ask(client: Any, messages: list[dict[str, str]], text: str) -> None:
    messages.append({"role": "user", "content": text})
    reply = await client.chat.completions.create(model="m", messages=messages)
    messages.append({"role": "assistant", "content": reply.choices[0].message.content})


def _client() -> Any:
    from openai import AsyncOpenAI

    # Where it goes is not the agent's to say: the run leads its calls to the gateway.
    return AsyncOpenAI(api_key="unused")


async def agent(task: Any) -> str:
    """One conversation with results of tools, or a planner that sends out two workers and asks for two drafts."""
    async with _client() as client:
        planner = [{"role": "system", "content": "You plan. " * 20}]
        if task == "turns":
            for turn in range(TURNS):
                await _ask(client, planner, f"Result {turn}: " + "data " * 40)
            return planner[-1]["content"]
        workers = [[{"role": "system", "content": f"You are worker {n}. " * 20}] for n in range(2)]
        for turn in range(TURNS // 3):
            await _ask(client, planner, f"Report {turn}: {workers[0][-1]['content'][:80]}")
            for step in range(2):
                await asyncio.gather(
                    *(_ask(client, worker, f"{turn}.{step}: " + "look " * 30) for worker in workers)
                )
        drafts = [list(planner) for _ in range(2)]
        await asyncio.gather(*(_ask(client, draft, "Conclude.") for draft in drafts))
        return drafts[0][-1]["content"]


def _reply(received: Received) -> str:
    random_ = random.Random(str(received.messages))
    return " ".join(random_.choice(("move", "look", "count", "write")) for _ in range(30))


async def _recorded() -> list[Trace]:
    tasks = [Task(id=f"{kind}-{n}", input=kind) for kind in ("turns", "team") for n in range(4)]
    with tempfile.TemporaryDirectory() as folder:
        async with ScriptedServer() as server:
            server.respond(_reply)
            result = await run(
                agent,
                tasks,
                model=server.base_url,
                engine_options={"capabilities": "token_ids,logprobs,stream_token_ids"},
                runs=folder,
                concurrency=2,
            )
    for trace in result.traces:
        if not build_samples(trace).samples:
            raise RuntimeError(
                f"nothing to learn from: {trace.attempt.cause}: {trace.attempt.error}"
            )
    return list(result.traces)


# Other ways ----------------------------------------------------------------------------------------------------------


def _sequences(trace: Trace) -> list[tuple[int, ...]]:
    """One row for each reply."""
    return [
        (call.prompt_token_ids or ()) + (choice.token_ids or ())
        for call in trace.calls
        for choice in call.choices
    ]


def _unique(trace: Trace) -> int:
    """Tokens of a trace where each shared beginning counts once: no way computes less."""
    count = 0
    before: tuple[int, ...] = ()
    for tokens in sorted(_sequences(trace)):
        shared = next((i for i, (a, b) in enumerate(zip(before, tokens, strict=False)) if a != b), min(len(before), len(tokens)))  # fmt: skip
        count += len(tokens) - shared
        before = tokens
    return count


def _one_chain(trace: Trace) -> tuple[int, int]:
    """A rollout as one conversation that starts anew where a prompt does not go on from it: its tokens, and how many
    calls are not on the first stretch."""
    tokens = off = 0
    chain: tuple[int, ...] = ()
    broken = False
    for sequence, call in zip(_sequences(trace), trace.calls, strict=True):
        prompt = call.prompt_token_ids or ()
        if chain and prompt[: len(chain)] != chain:
            tokens += len(chain)
            broken = True
        off += broken
        chain = sequence
    return tokens + len(chain), off


def _calls(traces: Sequence[Trace]) -> int:
    return sum(len(trace.calls) for trace in traces)


# Throughput ----------------------------------------------------------------------------------------------------------


def _throughput() -> float:
    """Tokens read per second of CPU, of the slowest of: a conversation of 50 turns that reaches 16k tokens, the same
    whose reasoning is dropped so that nothing merges, and 64 interleaved conversations of 16 turns."""
    talks = [_conversation(16, 4_096, f"{n}") for n in range(64)]
    shapes = [
        _conversation(50, 16_384, "one"),
        _conversation(50, 16_384, "two", drops=True),
        [talk[turn] for turn in range(16) for talk in talks],
    ]
    return min(map(_speed, shapes))


def _speed(parts: Sequence[dict[str, Any]]) -> float:
    calls = [
        Call(
            id=f"call-{index}", attempt_id="r.1", rollout_id="r", index=index, dialect="chat",
            token_source=TokenSource.ENGINE, mode=Mode.TRAIN, policy_version=1, complete=True, **part,
        )
        for index, part in enumerate(parts)
    ]  # fmt: skip
    trace = Trace(
        rollout=Rollout(id="r", task_id="t", run="bench"),
        task=Task(id="t", input=None),
        attempt=Attempt(
            id="r.1", rollout_id="r", number=1, fence=1, worker="w", started_at=0, deadline=0,
            lease_until=0,
        ),
        calls=tuple(calls),
    )  # fmt: skip
    tokens = sum(map(len, _sequences(trace)))
    taken = []
    for _ in range(ROUNDS):
        start = time.process_time()
        build_samples(trace)
        taken.append(time.process_time() - start)
    return tokens / sorted(taken)[ROUNDS // 2]


def _conversation(
    turns: int, tokens: int, name: str, *, drops: bool = False
) -> list[dict[str, Any]]:
    """A conversation's calls, whose prompts grow to `tokens`."""
    random_ = random.Random(name)
    half = tokens // turns // 2
    messages: list[dict[str, str]] = [{"role": "system", "content": "Be brief."}]
    ids: list[int] = []
    made = []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"{name}, turn {turn}: " + "word " * half})
        ids += [random_.randrange(150_000) for _ in range(half)]
        sampled = tuple(random_.randrange(150_000) for _ in range(half))
        thought = "<think>so</think>" if drops else ""
        answer = {"role": "assistant", "content": thought + "word " * half}
        made.append(
            {
                "request": {"messages": list(messages)},
                "prompt_token_ids": tuple(ids),
                "choices": (Choice(message=answer, token_ids=sampled, logprobs=(-0.5,) * half),),
            }
        )
        messages.append(answer)
        ids += sampled[half // 2 :] if drops else sampled
    return made
