"""Optimising from the command line, as a user does it: optimize, resume, samples, export, serve what came of it."""

import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PAGE = (Path(__file__).parents[1] / "docs/optimizing.md").read_text()
TASKS = [{"id": f"t{n}", "input": f"Say {n}"} for n in range(4)]
ALL_OF_IT = ("--batch-size", "2", "--group-size", "2", "--max-tokens", "6", "--set", "threads=1")


@pytest.fixture
def optimize(cli, folder, tiny_model, write_tasks):
    write_tasks(*TASKS)
    val = [{"id": "v", "input": "Say 9", "metadata": {"kind": "nine"}}]
    (folder / "val.jsonl").write_text("".join(json.dumps(task) + "\n" for task in val))
    (folder / "rewards.py").write_text(
        "def length(task, trace):\n    return float(len(trace.output))\n"
    )

    def call(*options, steps=2):
        return cli(
            "optimize", "agents.py:plain", "--tasks", "tasks.jsonl", "--val", "val.jsonl", "--val-by", "kind",
            "--reward", "rewards.py:length", "--model", str(tiny_model), "--steps", str(steps), "--name", "learnt",
            *ALL_OF_IT, *options, timeout=400,
        )  # fmt: skip

    return call


def test_a_run_ends_in_an_artifact_that_is_exported_audited_and_served(
    optimize, cli, folder, serve
):
    done = optimize()
    assert done.returncode == 0, done.stderr
    assert "step 1/2" in done.stderr
    assert "step 2/2" in done.stderr
    assert re.search(r"validation: \S+ before, \S+ after; gain", done.stdout)
    assert "→" in done.stdout
    assert "nine" in done.stdout
    assert "curve      runs/learnt/curve.png" in done.stdout
    assert (folder / "runs/learnt/curve.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "runs/learnt/artifact/policy.pt").is_file()

    again = optimize("--resume", steps=3)
    assert again.returncode == 0, again.stderr
    assert "step 3/3" in again.stderr
    assert "step 2/3" not in again.stderr

    for format_, file in (
        ("policy.pt", "policy.pt"),
        ("peft", "adapter_config.json"),
        ("hf", "config.json"),
    ):
        output = f"out-{format_}"
        exported = cli("export", "--run", "learnt", "--format", format_, "--output", output)
        assert exported.returncode == 0, exported.stderr
        assert (folder / output / file).is_file()

    table = cli("samples", "learnt")
    assert table.returncode == 0, table.stderr
    assert "t0:step-" in table.stdout

    replies = set()
    for served in ("runs/learnt/artifact", "out-peft", "out-hf"):
        with serve("--policy", served) as server:
            lines = [server.process.stdout.readline() for _ in range(3)]
            base, key = (line.strip().partition("=")[2] for line in lines[1:])
            request = urllib.request.Request(
                f"{base}/chat/completions",
                json.dumps(
                    {
                        "model": "any",
                        "temperature": 0,
                        "max_tokens": 6,
                        "messages": [{"role": "user", "content": "Say 1"}],
                    }
                ).encode(),
                {"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=120) as reply:
                replies.add(json.load(reply)["choices"][0]["message"]["content"])
    assert len(replies) == 1


def test_what_cannot_be_is_one_line_and_makes_no_folder(optimize, folder):
    done = optimize("--algorithm", "magic")
    assert done.returncode == 1
    assert done.stderr.startswith("error: algorithm `magic`: backend `local` knows `grpo`")
    assert not (folder / "runs").exists()


def test_the_page_is_run_as_it_stands(folder, tiny_model, environment, write_tasks):
    write_tasks(*TASKS)
    (folder / "tasks.jsonl").rename(folder / "train.jsonl")
    (folder / "val.jsonl").write_text(json.dumps({"id": "v", "input": "Say 9"}) + "\n")
    (folder / "agents.py").rename(folder / "agent.py")
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    # Smaller than the page's, and untrained weights; the calls are the page's own.
    code = code.replace('model="smollm2"', f"model={str(tiny_model)!r}").replace(
        "steps=20, group_size=8", 'steps=1, group_size=2, batch_size=2, options={"threads": "1"}'
    )
    code = code.replace("agent.py:graph", "agent.py:plain")
    code = "def score(task, trace):\n    return float(len(trace.output))\n\n" + code
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder, env=environment | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")},
        capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "artifact/policy.pt" in done.stdout
