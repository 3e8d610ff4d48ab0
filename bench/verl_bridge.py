"""What the way through gateway, server and workers costs verl's rollouts: our agent loop, against verl's own for one turn.

Both train the same model on the same prompts with verl's trainer, in the verl environment that
`LIGHTNING_CORE_VERL_PYTHON` names; both look for ended rollouts equally often. What is compared is verl's own
`timing_s/gen`: from the first prompt of a step until its last sample. From ours the agent's own time is taken off: what an
attempt took beyond its model call.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.results import Row, row

NAMES = ("verl-bridge",)
STEPS = 6
"""In a run; the first two of each warm up and are left out."""
WARM = 2
BATCH, GROUP, MAX_TOKENS = 2, 4, 64

_AGENT = '''
import openai

client = openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="any")


def agent(question):
    """One turn, with nothing that takes time of its own."""
    messages = [{"role": "user", "content": question}]
    return client.chat.completions.create(model="any", messages=messages).choices[0].message.content
'''
_REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return sum(letter == "e" for letter in solution_str) / max(len(solution_str), 1)


def score(task, trace):
    return compute_score("", str(trace.output), "")
"""
_SAMPLER = """
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer


class OftenLooking(ReplayBuffer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, poll_interval=0.2, **kwargs)
"""


def rows(names: Sequence[str] = NAMES) -> Iterator[Row]:
    """Run the benches in `names`."""
    if "verl-bridge" not in names:
        return
    python = os.environ.get("LIGHTNING_CORE_VERL_PYTHON")
    if not python:
        raise SystemExit(
            "verl-bridge: name the Python of the verl environment with LIGHTNING_CORE_VERL_PYTHON"
        )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_inputs(folder)
        ours = _ours(folder, python)
        theirs = _theirs(folder, python)
    yield row("verl-bridge", statistics.median(ours), statistics.median(theirs), goal=1.05)


def _model() -> str:
    from lightning_local import models

    return str(models.locate("smollm2"))


def _write_inputs(folder: Path) -> None:
    (folder / "agent.py").write_text(_AGENT + _REWARD)
    (folder / "reward.py").write_text(_REWARD)
    (folder / "sampler.py").write_text(_SAMPLER)
    questions = [f"Tell me about the number {number}." for number in range(BATCH * STEPS)]
    # Our rows hold ids where verl wants prompts; here they are the same.
    lines = [json.dumps({"id": each, "input": each}) for each in questions]
    (folder / "tasks.jsonl").write_text("\n".join(lines) + "\n")


def _ours(folder: Path, python: str) -> list[float]:
    subprocess.run(
        [sys.executable, "-m", "lightning_core.cli", "optimize", "agent.py:agent", "--tasks", "tasks.jsonl",
         "--reward", "agent.py:score", "--backend", "verl", "--model", _model(), "--steps", str(STEPS),
         "--batch-size", str(BATCH), "--group-size", str(GROUP), "--max-tokens", str(MAX_TOKENS),
         "--concurrency", str(BATCH * GROUP), "--save-every", str(STEPS), "--name", "ours", "--set", "platform=cpu",
         "--set", f"python={python}"],
        cwd=folder, check=True, stdout=sys.stderr, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    run = folder / "runs/ours"
    own: dict[int, list[float]] = {}
    from lightning_core.cli.reading import read_traces

    for trace in read_traces(str(run)).traces:
        if trace.attempt.ended_at is None:
            continue
        calls = sum(call.ended_at - call.started_at for call in trace.calls)
        took = trace.attempt.ended_at - trace.attempt.started_at - calls
        own.setdefault(int(trace.rollout.metadata["step"]), []).append(took)
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    took = {line["step"]: line["time/rollouts"] for line in lines if "time/rollouts" in line}
    print({step: (took[step], statistics.median(own[step])) for step in took}, file=sys.stderr)
    return [took[step] - statistics.median(own[step]) for step in sorted(took)[WARM:]]


def _theirs(folder: Path, python: str) -> list[float]:
    metrics = folder / "theirs.jsonl"
    run = json.loads((folder / "runs/ours/run.json").read_bytes())
    done: Any = subprocess.run(
        [python, "-m", "verl.trainer.main_ppo", *_overrides(folder, run)],
        cwd=folder, stdout=sys.stderr, env=os.environ | _environ(folder / "runs/ours", python, metrics),
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"verl-bridge: verl's own agent loop failed with status {done.returncode}")
    lines = map(json.loads, metrics.read_text().splitlines())
    took = {
        line["step"]: line["data"]["timing_s/gen"]
        for line in lines
        if "timing_s/gen" in line["data"]
    }
    print(took, file=sys.stderr)
    return [took[step] for step in sorted(took)[WARM:]]


def _overrides(folder: Path, run: dict[str, Any]) -> list[str]:
    """What ours is told, but for the agent loop, the trainer and the sampler."""
    import msgspec

    from lightning_core.runs import RunConfig
    from lightning_verl.config import overrides
    from lightning_verl.plan import plan_of

    config = msgspec.convert(run, RunConfig)
    trainer = folder / "runs/ours/verl"
    given = overrides(
        plan_of(config),
        config,
        trainer,
        train=trainer / "train.jsonl",
        val=trainer / "val.jsonl",
        validates=False,
    )
    left_out = (
        "agent_loop_config_path",
        "default_agent_loop",
        "trainer_mode",
        "custom_sampler",
        "sampler_kwargs",
        "VERL_FILE",
    )
    return [each for each in given if not any(name in each for name in left_out)] + [
        "++trainer.v1.trainer_mode=sync",
        f"++trainer.v1.sampler.custom_sampler.path={folder / 'sampler.py'}",
        "++trainer.v1.sampler.custom_sampler.name=OftenLooking",
        f"++reward.custom_reward_function.path={folder / 'reward.py'}",
        f"++trainer.default_local_dir={folder / 'theirs'}",
        "++trainer.save_freq=-1",
    ]


def _environ(run: Path, python: str, metrics: Path) -> dict[str, str]:
    return {
        "VERL_PLATFORM": "lightning_cpu",
        "VERL_ENGINE_DEVICE": "cuda",
        "VERL_FILE_LOGGER_PATH": str(metrics),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PATH": f"{Path(python).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
    }
