"""The verl environment, for tests that need it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from lightning_verl import environment


@pytest.fixture(scope="session")
def verl_python():
    """The Python of the verl environment. The test is skipped where none is named, and fails where it is not fit."""
    if not os.environ.get(environment.VARIABLE):
        pytest.skip(
            f"`{environment.VARIABLE}` names no verl environment; `make verl-env` makes one"
        )
    python = environment.find_python(None)
    environment.check(python)
    return python


@pytest.fixture(scope="session")
def make_tiny(verl_python):
    """Write a Hugging Face folder with a tiny random model of so many places."""
    program = Path(__file__).parent / "make_tiny.py"

    def make(folder, *, places=512):
        command = [verl_python, program, folder, str(places)]
        subprocess.run(command, check=True, env=environment.environ())

    return make


AGENT = '''
from openai import OpenAI


def agent(question):
    """Two turns over one conversation."""
    client, messages = OpenAI(), [{"role": "user", "content": question}]
    for _ in range(2):
        reply = client.chat.completions.create(model="any", messages=messages)
        said = reply.choices[0].message.content or ""
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "Go on."}]
    return said


def score(task, trace):
    """A number from 0 to 1 that two random texts hardly share: equal rewards tell a group nothing."""
    said = "".join(call.text for call in trace.calls)
    return sum(ord(letter) % 97 for letter in said) / (97 * max(len(said), 1))
'''


class Optimized(NamedTuple):
    """What a command that optimised came to."""

    folder: Path
    """The run's folder."""
    said: str
    """Its standard output."""


@pytest.fixture(scope="session")
def optimize_by_verl(tmp_path_factory, verl_python, make_tiny):
    """Optimises an agent of two turns with a tiny random model, on processors, from the command line.

    Called with the run's name, verl's keys as `KEY=VALUE`, and options; returns the run's folder and what the command
    said. The model is in `tiny` of `place`, where the command runs. Called again with `resume=True` the run goes on.
    """
    folder = tmp_path_factory.mktemp("verl")
    (folder / "agent.py").write_text(AGENT)
    for name, prefix in (("tasks", "t"), ("val", "v")):
        lines = [{"id": f"{prefix}{n}", "input": f"Say {prefix} {n}."} for n in range(3)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    make_tiny(folder / "tiny")

    def optimize(name, given, *, steps, algorithm="grpo", resume=False):
        keys = ["platform=cpu", f"python={verl_python}", *given]
        done = subprocess.run(
            [sys.executable, "-m", "lightning_core.cli", "optimize", "agent.py:agent", "--tasks", "tasks.jsonl",
             "--val", "val.jsonl", "--reward", "agent.py:score", "--backend", "verl", "--model", "tiny",
             "--algorithm", algorithm, "--steps", str(steps), "--batch-size", "2", "--group-size", "2",
             "--max-tokens", "12", "--name", name, *(["--resume"] if resume else []),
             *(word for key in keys for word in ("--set", key))],
            cwd=folder, capture_output=True, text=True, timeout=1500,
            env={k: v for k, v in os.environ.items() if not k.startswith("OPENAI_")},
        )  # fmt: skip
        log = folder / "runs" / name / "logs/verl.log"
        tail = log.read_text(errors="replace")[-4000:] if log.exists() else "no log"
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{tail}"
        return Optimized(folder / "runs" / name, done.stdout)

    optimize.place = folder
    return optimize


@pytest.fixture
def made_environment(tmp_path):
    """Make a real environment, which has distributions of given releases and requirements and nothing in them."""

    def make(versions, *, requires=None, files=None):
        venv = tmp_path / "made"
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=120
        )
        (packages,) = venv.glob("lib/python*/site-packages")
        for name, version in versions.items():
            metadata = packages / f"{name.replace('-', '_')}-{version}.dist-info"
            metadata.mkdir()
            lines = [
                "Metadata-Version: 2.1",
                f"Name: {name}",
                f"Version: {version}",
                *(f"Requires-Dist: {line}" for line in (requires or {}).get(name, ())),
            ]
            (metadata / "METADATA").write_text("\n".join(lines) + "\n")
        for name, text in (files or {}).items():
            path = packages / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return venv / "bin" / "python"

    return make
