"""The examples of AutoGen and of the OpenAI Agents SDK, trained by verl: their `train.py`, with tools that vLLM reads."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"
VLLM = "+actor_rollout_ref.rollout.engine_kwargs.vllm"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.mark.parametrize(
    ("example", "dialect"), [("calculator", "chat"), ("wiki_rag", "responses")]
)
def test_a_step_is_learnt_from_the_agent_s_own_calls(
    tmp_path, verl_python, make_tiny, example, dialect
):
    folder = shutil.copytree(EXAMPLES / example, tmp_path / example)
    subprocess.run([sys.executable, "tasks.py"], cwd=folder, check=True, capture_output=True)
    tasks = (folder / "data/val.jsonl").read_text().splitlines(keepends=True)
    (folder / "data/few.jsonl").write_text("".join(tasks[:2]))
    make_tiny(folder / "tiny", places=4096)
    keys = [
        "platform=cpu", f"python={verl_python}", "actor_rollout_ref.rollout.max_model_len=4096",
        f"{VLLM}.enable_auto_tool_choice=true", f"{VLLM}.tool_call_parser=hermes",
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "train.py", "--backend", "verl", "--model", "tiny", "--steps", "1", "--limit", "6",
         "--group-size", "2", "--max-tokens", "16", "--val", "data/few.jsonl",
         *(word for key in keys for word in ("--set", key))],
        cwd=folder, capture_output=True, text=True, timeout=1400,
        env={k: v for k, v in os.environ.items() if not k.startswith("OPENAI_")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (run,) = (folder / "runs").iterdir()
    assert f"lightning-core export --run {run.name} --format hf" in done.stdout
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    (step,) = (line for line in lines if "tokens/trainable" in line)
    assert step["rollouts/scored"] == 12
    shown = subprocess.run(
        [sys.executable, "-m", "lightning_core.cli", "show", run.name, "--json"],
        cwd=folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    calls = [call for line in shown.stdout.splitlines() for call in json.loads(line)["calls"]]
    learnt = [call for call in calls if call["mode"] == "train"]
    said = sum(len(choice["token_ids"]) for call in learnt for choice in call["choices"])
    assert step["tokens/trainable"] == said > 0
    assert {call["dialect"] for call in calls} == {dialect}
    assert {call["token_source"] for call in calls} == {"engine"}
    assert len({call["agent"] for call in calls}) == 1
