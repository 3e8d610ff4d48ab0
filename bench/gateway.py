"""What recording costs: our server against a bare pass-through, on the same upstream, in turns.

The figures are milliseconds of CPU of the proxy's process per request, parsing and storing included.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.parent import Child
from bench.results import Row, in_turns, row

ROUNDS = 9
OPEN = 1000
_APPLIED = "bench-strategy"
"""The session with a strategy."""


@dataclass(frozen=True)
class Case:
    """A load."""

    mode: str
    """The session's mode."""
    stream: bool
    """Whether streams are asked for."""
    connections: int
    """How many at once."""
    requests: int
    """How many in a round."""
    goal: float | None
    """The bound of the ratio; None only informs."""


CASES = {
    "gateway-plain-c1": Case("observe", False, 1, 2000, 1.3),
    "gateway-plain-c32": Case("observe", False, 32, 4000, 1.3),
    "gateway-stream-c1": Case("observe", True, 1, 800, 1.3),
    "gateway-stream-c32": Case("observe", True, 32, 1000, 1.3),
    "gateway-train-plain-c32": Case("train", False, 32, 1000, None),
    "gateway-train-stream-c32": Case("train", True, 32, 300, None),
}
"""In train mode the upstream's reply is larger than the reference's: it carries token ids and log-probabilities."""

STRATEGY_REQUESTS = 100
STRATEGY_ROUNDS = 100
"""Many short blocks: what they take differs by more than what is measured, and in some nothing else was going on."""
STRATEGY_MICROSECONDS = 50.0
"""What applying a strategy may add to a call."""

NAMES = (*CASES, "gateway-strategy-c1", "gateway-open-1000")


@dataclass(frozen=True)
class Bench:
    """The processes."""

    upstream: Child
    """The model server."""
    reference: Child
    """The pass-through."""
    ours: Child
    """Our server."""
    load: Child
    """The load generator."""
    paths: dict[str, str]
    """The path of our session, by mode."""
    sent: dict[str, int]
    """Requests sent to our server, by mode."""

    def through_ours(self, mode: str, **job: Any) -> dict[str, Any]:
        """Do a job through our server."""
        self.sent[mode] += job["requests"]
        path = f"{self.paths[mode]}/chat/completions"
        return self.load.order("load", port=self.ours.port, path=path, **job)

    def through(self, proxy: Child, **job: Any) -> dict[str, Any]:
        """Do a job through the pass-through, or straight at the upstream."""
        return self.load.order("load", port=proxy.port, path="/v1/chat/completions", **job)


def rows(names: Sequence[str] = NAMES) -> Iterator[Row]:
    """Run the benches in `names`.

    Raises:
        RuntimeError: a request failed, or our server did not record it.
    """
    with _bench() as bench:
        for name in names:
            if name in CASES:
                yield _cpu(bench, name, CASES[name])
            elif name == "gateway-strategy-c1":
                yield _strategy(bench, name)
            else:
                yield _open(bench, name)


def _cpu(bench: Bench, name: str, case: Case) -> Row:
    job = {"connections": case.connections, "stream": case.stream}
    warm = {**job, "requests": max(100, case.connections)}
    bench.through_ours(case.mode, **warm)
    bench.through(bench.reference, **warm)
    ours: list[float] = []
    reference: list[float] = []
    for turn in range(ROUNDS):
        for whose in (ours, reference) if turn % 2 else (reference, ours):
            proxy = bench.ours if whose is ours else bench.reference
            before = proxy.cpu()
            if whose is ours:
                bench.through_ours(case.mode, **job, requests=case.requests)
            else:
                bench.through(proxy, **job, requests=case.requests)
            whose.append((proxy.cpu() - before) / case.requests * 1000)
    return in_turns(name, ours, reference, goal=case.goal)


def _strategy(bench: Bench, name: str) -> Row:
    """Microseconds of CPU that a strategy adds to a call, parsing and storing what goes upstream included, against what it
    may: a prompt of 3.8 kB with two holes is replaced, four demonstrations go in, a model is chosen. The same calls go
    through a session without one, in turns."""
    template, demonstrations, filled = _prompt()
    strategy = {
        "prompt_templates": {
            "answer": {
                "original": template,
                "template": template.replace("Think", "Reflect"),
                "demonstrations": demonstrations,
            }
        },
        "models": {"*": {"model": "bench-other-model"}},
    }
    address = f"http://127.0.0.1:{bench.upstream.port}/v1"
    bench.paths[_APPLIED] = bench.ours.order(
        "session", id=_APPLIED, mode="observe", upstream=address, strategy=strategy
    )["path"]
    bench.sent[_APPLIED] = 0
    spent: dict[str, list[float]] = {"observe": [], _APPLIED: []}
    for turn in range(STRATEGY_ROUNDS + 1):
        for mode in spent if turn % 2 else reversed(spent):
            before = bench.ours.cpu()
            bench.through_ours(mode, connections=1, requests=STRATEGY_REQUESTS, system=filled)
            if turn:  # the first warms up
                spent[mode].append((bench.ours.cpu() - before) / STRATEGY_REQUESTS * 1e6)
    # The least of each: the difference is small, and what else the machine does can only add to them.
    return row(name, min(spent[_APPLIED]) - min(spent["observe"]), STRATEGY_MICROSECONDS, goal=1.0)


def _prompt() -> tuple[str, list[list[dict[str, str]]], str]:
    """A template with two holes, demonstrations, and the template filled, of 3.8 kB."""
    rules = "".join(
        f"{number}. Think before you write; a query has one statement and no comment.\n"
        for number in range(1, 25)
    )
    schema = "".join(
        f"CREATE TABLE t{number} (id INTEGER PRIMARY KEY, name TEXT, since DATE);\n"
        for number in range(32)
    )
    template = f"You write SQL for this schema:\n{{schema}}\nRules:\n{rules}Today is {{today}}. Answer now."
    demonstrations = [
        [
            {"role": "user", "content": f"Which rows of t{number} are the oldest?"},
            {"role": "assistant", "content": f"SELECT * FROM t{number} ORDER BY since LIMIT 10"},
        ]
        for number in range(4)
    ]
    return template, demonstrations, template.format(schema=schema, today="2026-01-31")


def _open(bench: Bench, name: str) -> Row:
    """Seconds until all of many slow streams are complete, against straight at the upstream: the best of three each,
    since what else the machine does can only add to them."""
    job = {"connections": OPEN, "requests": OPEN, "stream": True, "model": "slow"}
    ours: list[float] = []
    direct: list[float] = []
    for _ in range(3):
        direct.append(bench.through(bench.upstream, **job)["seconds"])
        ours.append(bench.through_ours("observe", **job)["seconds"])
    return row(name, min(ours), min(direct), goal=1.3)


@contextlib.contextmanager
def _bench() -> Iterator[Bench]:
    with (
        tempfile.TemporaryDirectory(prefix="lightning-bench-") as folder,
        Child("upstream") as upstream,
        Child("load") as load,
    ):
        address = f"http://127.0.0.1:{upstream.port}"
        with (
            Child("passthrough", "--upstream", address) as reference,
            Child("ours", "--folder", folder) as ours,
        ):
            paths = open_sessions(ours, address)
            bench = Bench(upstream, reference, ours, load, paths, dict.fromkeys(paths, 0))
            yield bench
        check_recorded(Path(folder), sum(bench.sent.values()))
        if _APPLIED in bench.sent:
            asyncio.run(_check_applied(Path(folder)))


def open_sessions(ours: Child, upstream: str) -> dict[str, str]:
    """A session of our server for each mode; the paths."""
    ours.order("policy", upstream=f"{upstream}/v1")
    return {
        mode: ours.order("session", id=f"bench-{mode}", mode=mode, upstream=f"{upstream}/v1")[
            "path"
        ]
        for mode in ("observe", "train")
    }


def check_recorded(folder: Path, sent: int) -> None:
    """Hold the store against what was sent: a gateway that drops records is fast for nothing."""
    with contextlib.closing(sqlite3.connect(folder / "store.sqlite")) as connection:
        (kept,) = connection.execute("SELECT count(*) FROM call").fetchone()
    if kept != sent:
        raise RuntimeError(f"store: expected {sent} recorded calls but found {kept}")


async def _check_applied(folder: Path) -> None:
    """Hold the calls of the session with a strategy against it: one that never matches costs little."""
    from lightning_core.store import SQLiteStore

    store = await SQLiteStore.open(folder / "store.sqlite", readonly=True)
    try:
        trace = await store.trace(_APPLIED, None)
    finally:
        await store.close()
    uses = (
        [None if call.strategy is None else call.strategy.applied for call in trace.calls]
        if trace
        else []
    )
    if not uses or set(uses) != {("answer",)}:
        raise RuntimeError(f"strategy: expected it to match every call but found {set(uses)}")
