"""One search of `lightning-prompt`, through the command that a user has, and what came out of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.parent import ROOT

EXAMPLE = ROOT / "examples" / "tool_calls"
_NOTHING = ("nothing can be tuned", "so that none can be chosen")
"""What a search says that has nothing to go by: the agent stays as it is."""


@dataclass(frozen=True)
class Outcome:
    """What a search ended in."""

    rewards: Mapping[str, float]
    """Of the held-out tasks, by id; empty where there was nothing to search, and the agent stays as it is."""
    rollouts: int
    """Rollouts that the search took."""
    seconds: float
    """Wall time, the held-out tasks included."""
    before: Mapping[str, float] = field(default_factory=dict)
    """Rewards of the agent as it is, where that was run too."""
    found: Any = None
    """What the optimiser tells of it."""
    failed: str | None = None
    """Why it ended in nothing; None where it did not."""


def optimize(
    folder: Path,
    address: str,
    train: Path,
    held_out: Path,
    *,
    rollouts: int,
    seed: int,
    options: Sequence[str],
) -> Outcome:
    """Search, and have the best strategy run on the held-out tasks, be it better than the agent as it is or not.

    Args:
        folder: where the run's folder goes.
        address: the engine's, with `/v1`.
        train: the tasks of the search.
        held_out: those that it does not see.
        rollouts: its bound, those on held-out tasks not counted.
        seed: of its draws.
        options: further ones of the command; `{address}` in them is the engine's.

    Raises:
        RuntimeError: the command failed.
    """
    tasks = [json.loads(line) for line in held_out.read_text().splitlines()]
    command = [
        sys.executable, "-m", "lightning_core.cli", "optimize", f"{EXAMPLE / 'agent.py'}:graph",
        "--reward", f"{EXAMPLE / 'scoring.py'}:score", "--tasks", str(train), "--val", str(held_out),
        "--val-by", "wording", "--backend", "prompt", "--budget", f"{rollouts + 2 * len(tasks)} rollouts",
        "--seed", str(seed), "--name", "search", *(each.format(address=address) for each in options),
    ]  # fmt: skip
    own = {"OPENAI_BASE_URL": address, "OPENAI_API_KEY": "any", "OPENAI_MODEL": "smollm2"}
    done = subprocess.run(
        command, cwd=folder, env=os.environ | own, capture_output=True, text=True, check=False
    )
    if done.returncode and not any(each in done.stderr for each in _NOTHING):
        raise RuntimeError(f"`{' '.join(command[2:])}` failed:\n{done.stderr[-3000:]}")
    return _outcome(folder / "runs" / "search", {task["id"] for task in tasks})


def _outcome(run: Path, held_out: set[str]) -> Outcome:
    from lightning_core.cli.reading import read_traces

    traces = read_traces(str(run)).traces
    ended = [t for t in traces if t.attempt.ended_at is not None]
    began = min(trace.attempt.started_at for trace in ended)
    before: dict[str, float] = {}
    after: dict[str, float] = {}
    taken = 0
    for trace in ended:
        if trace.task.id not in held_out:
            taken += 1
            continue
        # A rollout that failed counts as the lowest reward there is.
        (after if trace.rollout.strategy else before)[trace.task.id] = trace.reward or 0.0
    file = run / "artifact.json"
    return Outcome(
        rewards=after or before,
        rollouts=taken,
        seconds=max(trace.attempt.ended_at or began for trace in ended) - began,
        before=before,
        found=json.loads(file.read_text())["metrics"] if file.exists() else None,
    )
