"""What the whole system costs a training step: `optimize` on the example agent, against plain torch on the same load.

Ours is the wall time of a step of `lightning-core optimize`: an unmodified LangGraph agent in a worker process, gateway,
store, engine, grading, samples, update, checkpoint, new weights. The reference is `plain_grpo`, one script that samples
the same prompts and updates the same adapter. Each runs alone, with the threads that torch takes by itself.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.results import Row, row

NAMES = ("local-step",)
STEPS = 6
"""In a run; the first of each warms up and is left out."""
BATCH, GROUP, MAX_TOKENS, TEMPERATURE = 6, 8, 8, 0.8


def rows(names: Sequence[str] = NAMES) -> Iterator[Row]:
    """Run the benches in `names`."""
    if "local-step" in names:
        # The reference before and after ours, as the machine may have other work.
        reference = _plain()
        ours = _ours()
        reference += _plain()
        yield row("local-step", statistics.median(ours), statistics.median(reference), goal=1.3)


def _plain() -> list[float]:
    """Seconds of each step in plain torch."""
    from langchain_core.messages import convert_to_openai_messages

    from bench.plain_grpo import example_module, plain_steps

    agent = example_module("agent")
    with tempfile.TemporaryDirectory() as name:
        tasks = example_module("tasks").write_tasks(Path(name))["train"]
    done = plain_steps(
        [convert_to_openai_messages(agent.conversation(t["input"]["message"])) for t in tasks],
        [t["expected"]["number"] for t in tasks],
        STEPS,
        batch=BATCH,
        group=GROUP,
        max_new_tokens=MAX_TOKENS,
        temperature=TEMPERATURE,
    )
    return [step["step_s"] for step in done[1:]]


def _ours() -> list[float]:
    """Seconds of each step of `optimize`."""
    from bench.plain_grpo import EXAMPLE, example_module
    from lightning_core import OptimizeConfig, optimize

    agent = example_module("agent")
    with tempfile.TemporaryDirectory() as name:
        tasks = example_module("tasks").write_tasks(Path(name))["train"]
        config = OptimizeConfig(backend="local", steps=STEPS, batch_size=BATCH, group_size=GROUP)
        result = asyncio.run(
            optimize(
                f"{EXAMPLE / 'agent.py'}:graph",
                tasks,
                config,
                reward=agent.score,
                model="smollm2",
                temperature=TEMPERATURE,
                max_tokens=MAX_TOKENS,
                concurrency=BATCH * GROUP,
                runs=name,
            )
        )
    return [float(result.steps[number]["time/step"]) for number in sorted(result.steps)[1:]]
