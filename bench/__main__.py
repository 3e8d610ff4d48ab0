"""Run benches, print a table, write `bench/results.json`."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.results import Row

RESULTS = Path(__file__).parent / "results.json"

MEANING = {
    "gateway-plain-c1": "CPU ms of the proxy per request, 1 connection; pass-through",
    "gateway-plain-c32": "the same, 32 connections",
    "gateway-stream-c1": "CPU ms per stream of 64 events, 1 connection; pass-through",
    "gateway-stream-c32": "the same, 32 connections",
    "gateway-train-plain-c32": "train mode, token ids recorded and hidden; pass-through without ids",
    "gateway-train-stream-c32": "the same, streamed",
    "gateway-strategy-c1": "CPU µs that applying a strategy adds to a call, 3.8 kB prompt; 50",
    "gateway-open-1000": "seconds until 1,000 streams of 3 s are complete; direct",
    "store-rows": "rows per second into the store; bare sqlite3 in batches of 100",
    "store-50-turns": "bytes in the store of a 50-turn conversation of 16k tokens; 3 MB",
    "samples-vs-rows": "tokens computed per unique token; one row for each call",
    "samples-vs-chain": "the same; one chain for each rollout, begun anew where it breaks",
    "samples-throughput": "tokens into samples per CPU second, slowest of three shapes; 1 million",
    "local-generate": "CPU seconds of the engine for 48 replies; `generate` with prompts' beginnings shared",
    "local-step": "seconds for a step of `optimize`, all in; plain torch on the same load",
    "prompt-vs-gepa": "reward on held-out tool calls after a search of 240 rollouts; gepa 0.1.4 alone",
    "prompt-vs-bootstrapfewshot": "the same; DSPy 3.4.1's BootstrapFewShot",
    "prompt-vs-miprov2": "the same; DSPy 3.4.1's MIPROv2",
    "verl-bridge": "seconds of a step's rollouts less the agent's own time; verl's own agent loop",
    "adapter-autogen": "CPU ms of a model call, of a tool and all around it; the framework alone",
    "adapter-langgraph": "CPU ms of a model call, of a tool and all around it; the framework alone",
    "adapter-openai-agents": "CPU ms of a model call, of a tool and all around it; the framework alone",
    "import-core": "CPU ms that `import lightning_core` adds to Python; `import aiohttp`",
    "plugins-imports-no-framework": "frameworks that `lightning-core plugins` imports",
    "peer-agentlightning": "requests per CPU second, worse of 1 and 32 connections; agentlightning 1.0.2",
    "peer-litellm": "requests per CPU second, worse of 1 and 32 connections; LiteLLM proxy 1.108.7",
}
"""What ours and the reference count; the reference is named last."""

_PEER_CASES = {
    "c1": "1 connection",
    "c32": "32 connections",
    "stream-c32": "32 streams of 64 events",
}

PEERS = ("peer-agentlightning", "peer-litellm")
"""Only run by name, or as `peers`: they make environments of their own under `bench/.peers` first."""

PROMPT = ("prompt-vs-gepa", "prompt-vs-bootstrapfewshot", "prompt-vs-miprov2")
"""Only run by name, or as `prompt`, which takes most of an hour; DSPy gets an environment of its own too."""

BY_NAME = (*PEERS, *PROMPT, "verl-bridge")
"""Only run by name; `verl-bridge` needs the verl environment, and takes a quarter of an hour."""

_GROUPS = {"peers": PEERS, "prompt": PROMPT}

_MODULES = {
    "gateway": "gateway",
    "store": "store",
    "samples": "samples",
    "local-generate": "local_generate",
    "local-step": "local_step",
    "prompt": "prompt",
    "verl-bridge": "verl_bridge",
    "adapter": "adapters",
    "import": "imports",
    "plugins": "imports",
}


def run(module: str, names: Sequence[str]) -> Iterator[Row]:
    """Run benches of one module; they share its processes."""
    found = importlib.import_module(f"bench.{module}")
    if module == "store":
        for name in names:
            yield getattr(found, name.replace("-", "_"))()
    else:
        yield from found.rows(names)


def main() -> int:
    """Run what was asked for; 0 unless a bench failed or, with `--check`, missed its goal."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"of {', '.join(MEANING)}; `peers` and `prompt` for all of these",
    )
    parser.add_argument("--check", action="store_true", help="fail where a goal does not hold")
    options = parser.parse_args()
    options.names = [each for name in options.names for each in _GROUPS.get(name, (name,))]
    for name in options.names:
        if name not in MEANING:
            parser.error(f"no bench {name!r}; there are {', '.join(MEANING)}")
    names = options.names or [name for name in MEANING if name not in BY_NAME]
    console = Console(stderr=True)
    rows: list[Row] = []
    failed = False
    for module, group in _by_module(names).items():
        try:
            for row in run(module, group):
                rows.append(row)
                console.print(f"[dim]{row['name']}: {row['ratio']}[/dim]", highlight=False)
        except Exception:  # the other modules' benches go on; the status tells
            traceback.print_exc()
            failed = True
    _write(rows, keep_others=bool(options.names))
    out = Console() if sys.stdout.isatty() else Console(width=170)
    out.print(_table(rows))
    missed = [row["name"] for row in rows if row["holds"] is False]
    if missed:
        console.print(f"goal missed: {', '.join(missed)}", style="red")
    return 1 if failed or (options.check and missed) else 0


def _by_module(names: Iterable[str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(
            _MODULES.get(name, _MODULES.get(name.partition("-")[0], "peers")), []
        ).append(name)
    return groups


def _write(rows: list[Row], *, keep_others: bool) -> None:
    """Write the results; a run of some benches leaves the rows of the others as they were."""
    new = {row["name"]: row for row in rows}
    if keep_others and RESULTS.exists():
        old = {row["name"]: row for row in json.loads(RESULTS.read_text())}
        new = {**old, **new}
    text = ",\n".join(json.dumps(row) for row in new.values())
    RESULTS.write_text(f"[\n{text}\n]\n")


def _table(rows: list[Row]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("bench", no_wrap=True, min_width=max(map(len, MEANING)))
    for column in ("ours", "reference", "ratio", "goal"):
        table.add_column(column, justify="right", no_wrap=True, min_width=8)
    table.add_column("holds", justify="center", no_wrap=True, min_width=5)
    table.add_column("of what; reference", style="dim", no_wrap=True, overflow="ellipsis")
    for row in rows:
        holds = {True: "[green]yes[/green]", False: "[red]no[/red]", None: ""}[row["holds"]]
        goal = "" if row["goal"] is None else f"{row['goal']:g}"
        cells = [_number(row[key]) for key in ("ours", "reference", "ratio")]
        table.add_row(row["name"], *cells, goal, holds, _meaning(row["name"]))
    return table


def _meaning(name: str) -> str:
    for peer in PEERS:
        if name.startswith(f"{peer}-"):
            return f"the same, {_PEER_CASES[name.removeprefix(f'{peer}-')]}"
    return MEANING.get(name, "")


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


if __name__ == "__main__":
    sys.exit(main())
