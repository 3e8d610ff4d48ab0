"""Optimisers of prompts held against each other: the same model, tasks and number of rollouts; three seeds.

The task is that of `examples/tool_calls`. SmolLM2-135M answers, proposes and reflects, on one engine. Every search has
the same tasks, none of them held out, and may run the agent equally often; what it ends in is run on the held-out tasks
with the same sampling, and scored by the example's own function. `gepa` and DSPy run in an environment of their own,
made on first use. Held-out tasks of one wording stand or fall together: intervals are of the bootstrap over wordings,
and each seed's mean is shown beside.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.parent import ROOT
from bench.peers import HOME, environment
from bench.prompt_ours import EXAMPLE, Outcome, optimize
from bench.results import Row, row
from lightning_core.learn.compare import interval, paired_gain

SEEDS = (0, 1, 2)
BUDGET = 240
"""Rollouts that a search may take; a method that cannot be told so is set up to come near it."""
CHOOSE = 24
"""Of the tasks of a search, how many are to choose by: two fifths, as ours has it."""
REQUIREMENTS = ("dspy==3.4.1", "gepa==0.1.4", "optuna==5.0.0", "langgraph==1.2.24", "langchain-openai==1.7.4")  # fmt: skip
"""What the peers run in; gepa and the example's agent at the versions of our own constraints."""
MODEL = "smollm2"
_OUR_PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
_AT_ONCE = 9
"""Searches at once: the engine answers many for little more than one."""
_KEPT = HOME / "prompt.json"
"""What each search found, and every reward."""


@dataclass(frozen=True)
class Method:
    """An optimiser, as it is set up here."""

    told: str
    """In the table."""
    options: tuple[str, ...] = ()
    """Of `lightning-core optimize`, for ours."""
    peer: str | None = None
    """The function of `bench.prompt_peers`; None for ours."""
    adapter: str = "plain"
    """How DSPy words messages: `plain` as the agent does, `chat` its default."""


_REFLECTS = ("--reflection-model", "smollm2@{address}", "--set", "reflection_max_tokens=96")
METHODS = {
    "ours-expected": Method(
        "lightning-prompt, demonstrations of expected answers", ("--set", "demonstrations=expected")
    ),
    "ours-both": Method(
        "lightning-prompt, the same and reflection",
        ("--set", "demonstrations=expected", *_REFLECTS),
    ),
    "ours-reflection": Method(
        "lightning-prompt, reflection alone", ("--set", "demonstrations=none", *_REFLECTS)
    ),
    "ours-traces": Method(
        "lightning-prompt, demonstrations of own traces", ("--set", "demonstrations=traces")
    ),
    "gepa": Method("gepa alone", peer="gepa"),
    "own": Method("BootstrapFewShot, own answers alone", peer="own"),
    "labeled": Method("LabeledFewShot", peer="labeled"),
    "bootstrap": Method("BootstrapFewShot", peer="bootstrap"),
    "search": Method("BootstrapFewShotWithRandomSearch", peer="search"),
    "mipro": Method("MIPROv2", peer="mipro"),
    "bootstrap-chat": Method("BootstrapFewShot, ChatAdapter", peer="bootstrap", adapter="chat"),
    "mipro-chat": Method("MIPROv2, ChatAdapter", peer="mipro", adapter="chat"),
}
AS_IT_IS = "as-it-is"
OURS = "ours-expected"
"""What is held against the peers in the rows."""
AGAINST: dict[str, tuple[str, float | None]] = {
    "prompt-vs-gepa": ("gepa", 1.0),
    "prompt-vs-bootstrapfewshot": ("bootstrap", None),
    "prompt-vs-miprov2": ("mipro", None),
}
"""The peer of each row, and the least ratio of ours to it; None where none is claimed."""


NAMES = tuple(AGAINST)


@dataclass(frozen=True)
class Setting:
    """What all searches have in common."""

    folder: Path
    """Where they write."""
    address: str
    """The engine's, with `/v1`."""
    train: Path
    """The tasks of a search."""
    held_out: Path
    """Those that none sees."""
    budget: int
    """Rollouts of a search."""


def rows(names: Sequence[str] = NAMES) -> Iterator[Row]:
    """Run all methods, print their table, and give the rows in `names`.

    Raises:
        RuntimeError: a search of ours failed, or all of a peer that a row is held against.
    """
    home = environment("dspy", [*REQUIREMENTS, "-e", str(ROOT / "core")], (_OUR_PYTHON,))
    console = Console(stderr=True, width=150, highlight=False)
    with tempfile.TemporaryDirectory(prefix="lightning-bench-") as name:
        folder = Path(name)
        train, held_out = write_tasks(folder)
        with _engine(folder) as address, concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
            setting = Setting(folder, address, train, held_out, BUDGET)
            jobs = {
                pool.submit(_run, home, setting, key, seed): (key, seed)
                for key in METHODS
                for seed in SEEDS
            }
            try:
                for done in concurrent.futures.as_completed(jobs):
                    key, seed = jobs[done]
                    told = _told(done.result())
                    console.print(f"[dim]{METHODS[key].told}, seed {seed}: {told}[/dim]")
            except RuntimeError:
                pool.shutdown(cancel_futures=True)
                raise
        ended = {job: done.result() for done, job in jobs.items()}
        found = {key: [ended[key, seed] for seed in SEEDS] for key in METHODS}
        kinds = {task["id"]: task["metadata"]["wording"] for task in read(held_out)}
    _KEPT.write_text(json.dumps({k: [vars(o) for o in each] for k, each in found.items()}))
    console.print(table(found, kinds))
    for name in names:
        peer, goal = AGAINST[name]
        theirs = _rewards(found[peer], found[OURS])
        if not theirs:
            raise RuntimeError(found[peer][-1].failed)
        ours = _mean(_beside(found[OURS], found[peer]))
        yield row(name, ours, _mean(theirs), goal=goal, side="at least")


def write_tasks(folder: Path) -> tuple[Path, Path]:
    """The example's tasks, two of each wording: those of a search, and those that are held out. The files."""
    command = [sys.executable, "tasks.py", "--output", str(folder)]
    subprocess.run(command, cwd=EXAMPLE, check=True, stdout=subprocess.DEVNULL)
    made = []
    for split in ("train", "val"):
        some = [task for task in read(folder / f"{split}.jsonl") if task["id"][-2:] in ("-1", "-2")]
        made.append(folder / f"some_{split}.jsonl")
        made[-1].write_text("".join(json.dumps(task) + "\n" for task in some))
    return made[0], made[1]


def table(found: Mapping[str, Sequence[Outcome]], kinds: Mapping[str, str]) -> Table:
    """Means over seeds with intervals, how much better or worse than ours, what each search took."""
    ours = found[OURS]
    made = Table(box=None, pad_edge=False)
    for title in ("method", "reward", "95 %", "seeds", "ours more by", "95 %", "rollouts", "s"):
        made.add_column(title, justify="left" if title == "method" else "right", no_wrap=True)
    as_it_is = [Outcome(each.before, 0, 0.0) for each in ours]
    told = {AS_IT_IS: "the agent as it is", **{key: each.told for key, each in METHODS.items()}}
    for key, outcomes in {AS_IT_IS: as_it_is, **found}.items():
        rewards = _rewards(outcomes, ours)
        if not rewards:
            made.add_row(told[key], *[""] * 2, _seeds(outcomes, ours))
            continue
        gain = paired_gain(rewards, _beside(ours, outcomes), kinds=kinds)
        assert gain is not None  # the tasks are the same
        more = (f"{gain.gain:+.3f}", _interval(gain.low, gain.high, "+"))
        made.add_row(
            told[key],
            f"{_mean(rewards):.3f}",
            _interval(*(interval(_by_kind(rewards, kinds), draws=10_000, seed=0) or (None, None))),
            _seeds(outcomes, ours),
            *(("", "") if key == OURS else more),
            " ".join(str(each.rollouts) for each in outcomes),
            f"{sum(each.seconds for each in outcomes) / len(outcomes):.0f}",
        )
    return made


def _run(home: Path, setting: Setting, key: str, seed: int) -> Outcome:
    """One search, and what it ends in on the held-out tasks."""
    method = METHODS[key]
    folder = setting.folder / f"{key}-{seed}"
    folder.mkdir()
    if method.peer is None:
        return optimize(
            folder, setting.address, setting.train, setting.held_out, rollouts=setting.budget, seed=seed,
            options=method.options,
        )  # fmt: skip
    answer = folder / "answer.json"
    order = {
        "method": method.peer, "adapter": method.adapter, "seed": seed, "budget": setting.budget, "model": MODEL,
        "address": setting.address, "train": read(setting.train), "choose": CHOOSE,
        "held_out": read(setting.held_out), "answer": str(answer),
    }  # fmt: skip
    began = time.monotonic()
    script = Path(__file__).with_name("prompt_peers.py")
    done = subprocess.run(
        [str(home / "bin" / "python"), str(script)], cwd=folder, input=json.dumps(order), capture_output=True,
        text=True, check=False, env=os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    )  # fmt: skip
    if done.returncode:
        # Not ours to mend: a proposer as small as this one may not keep to the form that its optimiser reads.
        why = f"{method.told}, seed {seed}, failed:\n{done.stderr[-3000:]}"
        return Outcome({}, 0, time.monotonic() - began, failed=why)
    told = json.loads(answer.read_text())
    return Outcome(
        rewards=told["rewards"],
        rollouts=told["rollouts"],
        seconds=time.monotonic() - began,
        found=told["found"],
    )


@contextlib.contextmanager
def _engine(folder: Path) -> Iterator[str]:
    """Serve the model to all of them; the address, with `/v1`."""
    command = [sys.executable, "-m", "lightning_local.serve", "--model", MODEL, "--port", "0"]
    with (folder / "engine.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(
                f"the engine did not start:\n{(folder / 'engine.log').read_text()[-3000:]}"
            )
        yield line.split()[-1]
    finally:
        process.terminate()
        process.wait()


def read(path: Path) -> list[dict[str, Any]]:
    """The tasks of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def _rewards(outcomes: Sequence[Outcome], ours: Sequence[Outcome]) -> dict[str, list[float]]:
    """Rewards by task, one for each seed that did not fail; where there was nothing to search, those of the agent as it
    is."""
    every = [
        one.rewards or as_it_is.before
        for one, as_it_is in zip(outcomes, ours, strict=True)
        if one.failed is None
    ]
    return {task: [rewards[task] for rewards in every] for task in every[0]} if every else {}


def _beside(ours: Sequence[Outcome], outcomes: Sequence[Outcome]) -> dict[str, list[float]]:
    """Rewards of ours by task, of the seeds in which the others did not fail."""
    same = [our for our, one in zip(ours, outcomes, strict=True) if one.failed is None]
    return _rewards(same, same)


def _by_kind(rewards: Mapping[str, Sequence[float]], kinds: Mapping[str, str]) -> list[list[float]]:
    found: dict[str, list[float]] = {}
    for task, values in rewards.items():
        found.setdefault(kinds[task], []).extend(values)
    return list(found.values())


def _mean(rewards: Mapping[str, Sequence[float]]) -> float:
    return statistics.fmean(value for values in rewards.values() for value in values)


def _told(outcome: Outcome) -> str:
    if outcome.failed is not None:
        return f"failed after {outcome.seconds:.0f} s: {outcome.failed[-300:]}"
    mean = f"{statistics.fmean(outcome.rewards.values()):.3f}" if outcome.rewards else "as it is"
    return f"{mean} after {outcome.rollouts} rollouts, {outcome.seconds:.0f} s"


def _seeds(outcomes: Sequence[Outcome], ours: Sequence[Outcome]) -> str:
    """The mean of each seed."""
    means = (
        statistics.fmean(column) for column in zip(*_rewards(outcomes, ours).values(), strict=True)
    )
    return " ".join(f"{next(means):.2f}" if one.failed is None else "failed" for one in outcomes)


def _interval(low: float | None, high: float | None, sign: str = "") -> str:
    return "" if low is None or high is None else f"{low:{sign}.2f} to {high:{sign}.2f}"
