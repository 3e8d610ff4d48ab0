"""What the SQLite store costs: rows a second against bare `sqlite3`, and space for a long conversation."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import sqlite3
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from lightning_core.children import tune_interpreter
from lightning_core.store import SQLiteStore
from lightning_core.trace import Call, Choice, TokenSource

ROWS = 8_000
ROUNDS = 9
MEGABYTE = 1_000_000


def store_rows() -> dict[str, Any]:
    """Rows a second for calls of about 4 KB, no two of which share a message, until the file is closed.

    The reference does what a program without a store would: it encodes the same calls with msgspec and inserts them,
    100 a transaction, into a table with the id as its key; write-ahead log, the same disk, in turns with ours.
    """
    calls = list(_unique_calls(ROWS))
    # As `lightning-core serve` does; the collector would otherwise look through the calls, and only while ours makes
    # objects that live for longer.
    tune_interpreter()
    ours, reference = [], []
    with tempfile.TemporaryDirectory() as folder:
        for round_ in range(ROUNDS):
            reference.append(ROWS / _bare(Path(folder) / f"bare-{round_}.db", calls))
            ours.append(ROWS / asyncio.run(_stored(Path(folder) / f"store-{round_}.db", calls)))
    gc.unfreeze()
    # Of each round, because the machine's speed changes between rounds.
    ratio = statistics.median(a / b for a, b in zip(ours, reference, strict=True))
    return {
        "name": "store-rows",
        "ours": round(statistics.median(ours)),
        "reference": round(statistics.median(reference)),
        "ratio": round(ratio, 3),
        "goal": 0.7,
        "holds": ratio >= 0.7,
    }


def store_50_turns() -> dict[str, Any]:
    """Bytes of the file of one conversation of 50 turns that reaches 16k tokens; the goal is less than 3 MB.

    Holds only if it is also linear: 50 turns take at most 2.2 times the disk and the memory of 25.
    """
    small, large = (asyncio.run(_conversation(turns)) for turns in (25, 50))
    growth = {kind: large[kind] / small[kind] for kind in ("file", "memory")}
    return {
        "name": "store-50-turns",
        "ours": large["file"],
        "reference": 3 * MEGABYTE,
        "ratio": round(large["file"] / (3 * MEGABYTE), 3),
        "goal": 1.0,
        "holds": large["file"] < 3 * MEGABYTE and all(ratio <= 2.2 for ratio in growth.values()),
        "growth_25_to_50": {kind: round(ratio, 3) for kind, ratio in growth.items()},
        "bytes_as_json": large["json"],
    }


def _words(random_: random.Random, characters: int) -> str:
    return random_.randbytes(characters // 2).hex()


def _unique_calls(count: int) -> Iterator[Call]:
    random_ = random.Random(1)
    for number in range(count):
        yield Call(
            id=f"{number:032x}",
            attempt_id=f"rollout-{number // 10}.1",
            rollout_id=f"rollout-{number // 10}",
            index=number % 10,
            dialect="chat",
            agent="writer",
            node="write",
            request={
                "model": "m",
                "messages": [
                    {"role": "system", "content": _words(random_, 800)},
                    {"role": "user", "content": _words(random_, 1800)},
                ],
                "temperature": 0.7,
            },
            choices=(
                Choice(
                    message={"role": "assistant", "content": _words(random_, 800)},
                    finish_reason="stop",
                ),
            ),
            reply={"id": f"chatcmpl-{number}", "object": "chat.completion", "created": 1700000000},
            usage={"prompt_tokens": 700, "completion_tokens": 200, "total_tokens": 900},
            model="m",
            target="https://api.example.com/v1/chat/completions",
            status=200,
            complete=True,
            started_at=1.7e9 + number,
            first_byte_at=1.7e9 + number + 0.5,
            ended_at=1.7e9 + number + 1,
        )


def _bare(path: Path, calls: list[Call]) -> float:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("CREATE TABLE call (id TEXT PRIMARY KEY, data BLOB)")
    start = time.perf_counter()
    for first in range(0, len(calls), 100):
        connection.execute("BEGIN")
        connection.executemany(
            "INSERT INTO call VALUES (?, ?)",
            [(call.id, msgspec.json.encode(call)) for call in calls[first : first + 100]],
        )
        connection.execute("COMMIT")
    connection.close()
    return time.perf_counter() - start


async def _stored(path: Path, calls: list[Call]) -> float:
    store = await SQLiteStore.open(path)
    start = time.perf_counter()
    for call in calls:
        await store.put(call)
    await store.flush()
    await store.close()
    return time.perf_counter() - start


async def _conversation(turns: int, tokens: int = 16_384, of: int = 50) -> dict[str, int]:
    """Store a conversation with token ids and log-probabilities; its file, the store's peak memory and the size as JSON, in bytes."""
    random_ = random.Random(2)
    per_turn = tokens // of
    ids: list[int] = []
    messages: list[dict[str, str]] = [{"role": "system", "content": _words(random_, 1000)}]
    as_json = peak = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        async with await SQLiteStore.open(path) as store:
            await store.put_state("warm", None)
            await store.flush()
            # What the caller holds is made outside the measurement; what the store keeps of it is measured.
            tracemalloc.start()
            for turn in range(turns):
                messages.append({"role": "user", "content": _words(random_, per_turn * 2)})
                ids += [random_.randrange(150_000) for _ in range(per_turn // 2)]
                sampled = tuple(random_.randrange(150_000) for _ in range(per_turn // 2))
                answer = {"role": "assistant", "content": _words(random_, per_turn * 2)}
                call = Call(
                    id=f"call-{turn}",
                    attempt_id="rollout.1",
                    rollout_id="rollout",
                    index=turn,
                    dialect="chat",
                    request={"model": "m", "messages": list(messages), "temperature": 1.0},
                    choices=(
                        Choice(
                            message=answer,
                            finish_reason="stop",
                            token_ids=sampled,
                            logprobs=tuple(-random_.random() for _ in sampled),
                        ),
                    ),
                    prompt_token_ids=tuple(ids),
                    token_source=TokenSource.ENGINE,
                    complete=True,
                )
                as_json += len(msgspec.json.encode(call))
                tracemalloc.reset_peak()
                before = tracemalloc.get_traced_memory()[0]
                await store.put(call)
                await store.flush()
                peak = max(peak, tracemalloc.get_traced_memory()[1] - before)
                messages.append(answer)
                ids += sampled
            tracemalloc.stop()
        return {"file": path.stat().st_size, "memory": peak, "json": as_json}


if __name__ == "__main__":
    for bench in (store_rows, store_50_turns):
        print(json.dumps(bench()))
