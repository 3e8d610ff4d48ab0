"""The examples' `train.py`, started as a user does: a step of the backend `local`, and a search by `prompt`."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import lightning_core as lc
from lightning_core.testing import ScriptedServer, Text

EXAMPLES = Path(__file__).parents[1] / "examples"
BETTER = "Think of each step, and give the answer alone."

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(params=["calculator", "wiki_rag"])
def folder(request, tmp_path):
    """A copy of the example with the tasks that it makes, few to validate on."""
    copy = shutil.copytree(EXAMPLES / request.param, tmp_path / request.param)
    subprocess.run([sys.executable, "tasks.py"], cwd=copy, check=True, capture_output=True)
    tasks = (copy / "data/val.jsonl").read_text().splitlines(keepends=True)
    (copy / "data/val.jsonl").write_text("".join(tasks[:16]))
    return copy


def train(folder, *options):
    """What it said, and the newest run's folder."""
    done = subprocess.run(
        [sys.executable, "train.py", *options],
        cwd=folder,
        env={k: v for k, v in os.environ.items() if not k.startswith("OPENAI_")},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr
    (run,) = (folder / "runs").iterdir()
    assert f"runs/{run.name}: " in done.stdout
    return done, run


def test_a_step_of_reinforcement_learning_with_the_embedded_model(folder):
    done, run = train(
        folder, "--backend", "local", "--steps", "1", "--limit", "6", "--group-size", "2", "--max-tokens", "16",
        "--set", "lora_rank=4",
    )  # fmt: skip
    assert f"use it: lightning-core serve --policy runs/{run.name}/artifact" in done.stdout
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (line,) = (found for found in map(json.loads, lines) if "update/trained_tokens" in found)
    # It generates, and what it generates is learnt from; that so small a model finds no answer is another matter.
    assert line["update/trained_tokens"] > 0
    assert (run / "artifact/policy.pt").exists()


def test_better_instructions_are_found_by_reflection(folder):
    answers = {}
    for split in ("train", "val"):
        for task in lc.load_tasks(folder / f"data/{split}.jsonl"):
            expected = task.expected if isinstance(task.expected, str) else task.expected[0]
            answers[task.input] = re.sub(r"(?s).*#### ", "#### ", expected)

    def respond(got):
        if got.json["model"] == "reflector":
            return Text(f"```\n{BETTER}\n```")
        asked = got.messages[1]["content"]
        good = BETTER in got.messages[0]["content"] or sum(map(ord, asked)) % 3 == 0
        return Text(answers[asked] if good else "I cannot tell.")

    with ScriptedServer.in_thread() as server:
        server.respond(respond)
        done, run = train(
            folder, "--backend", "prompt", "--model", f"solver@{server.base_url}",
            "--reflection-model", f"reflector@{server.base_url}", "--budget", "300 rollouts, 3 proposals",
            "--limit", "24", "--set", "demonstrations=none",
        )  # fmt: skip
    strategy = lc.Strategy.load(run / "strategy.json")
    (slot,) = strategy.prompt_templates.values()
    assert slot.template == BETTER
    assert slot.original in (folder / "agent.py").read_text().replace('"\n    "', "")
    assert strategy.provenance.scores["interval"][0] > 0
    assert f"lightning-core serve --strategy runs/{run.name}/strategy.json" in done.stdout
