"""The adapter of `docs/writing-an-adapter.md` is one: it passes its conformance class and runs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[1] / "docs/writing-an-adapter.md").read_text()
FILES = dict(re.findall(r"^```\w+ (\S+)\n(.*?)^```", PAGE, re.S | re.M))

pytestmark = pytest.mark.slow


@pytest.fixture
def package(tmp_path):
    """The page's files, installed as pip would: with the metadata that names the entry point."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    info = tmp_path / "lightning_relay-1.0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lightning-relay\nVersion: 1.0.0\n")
    entry = re.search(r"\[project\.entry-points\.(\w+)\]\n(.*)", FILES["pyproject.toml"])
    (info / "entry_points.txt").write_text(f"[{entry[1]}]\n{entry[2].replace(chr(34), '')}\n")
    return tmp_path


def test_it_passes_the_conformance_class(package):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_lightning_relay.py"],
        cwd=package, capture_output=True, text=True, timeout=240,
        env={"PYTHONPATH": str(package), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b1[01] passed", done.stdout), done.stdout


def test_it_runs_and_its_calls_carry_their_labels(package, cli, folder, scripted_server):
    (folder / "agent.py").write_text(
        "import openai, relay\n"
        "team = relay.Relay(openai.AsyncOpenAI(api_key='any'), ('writer', 'critic'))\n"
    )
    (folder / "tasks.jsonl").write_text(json.dumps({"id": "a", "input": "hello"}) + "\n")
    done = cli("run", "agent.py:team", "--tasks", "tasks.jsonl", "--model", scripted_server.base_url,
               PYTHONPATH=str(package))  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = json.loads(cli("show", "last", "a", "--json").stdout)
    assert [call["agent"] for call in shown["calls"]] == ["writer", "critic"]
    assert [span["name"] for span in shown["spans"]] == ["writer", "critic"]
