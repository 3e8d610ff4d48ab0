"""`lightning-core new-plugin` writes plugins that work; the pages about writing one show what it writes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_core.errors import UsageError
from lightning_core.scaffold import KINDS, write

ROOT = Path(__file__).parents[1]
PAGES = {"adapter": "docs/writing-an-adapter.md"}
BLOCK = re.compile(r"^```\w+ (\S+)\n(.*?)^```", re.S | re.M)


@pytest.fixture(params=sorted(PAGES))
def plugin(request, tmp_path):
    """A plugin of each kind, as the page about it has it; its kind and folder."""
    folder = tmp_path / "lightning-relay"
    write(request.param, "relay", folder)
    return request.param, folder


def test_there_is_a_page_for_each_kind():
    assert set(PAGES) == set(KINDS)


def test_the_page_shows_what_is_written(plugin):
    kind, folder = plugin
    shown = dict(BLOCK.findall((ROOT / PAGES[kind]).read_text()))
    written = {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix in (".py", ".toml")
    }
    assert shown == written


@pytest.mark.parametrize("name", ["", "Relay", "my_agents", "-x", "x-", "a--b", "9x", "ä", "a b"])
def test_a_name_that_is_none_is_refused_and_nothing_is_written(name, tmp_path):
    with pytest.raises(UsageError, match="small letters, digits and single hyphens"):
        write("adapter", name, tmp_path / "made")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("taken", ["folder", "file"])
def test_what_is_there_is_not_written_over(taken, tmp_path):
    folder = tmp_path / "made"
    if taken == "file":
        folder.write_text("mine")
    else:
        folder.mkdir()
        (folder / "adapter.py").write_text("mine")
    with pytest.raises(UsageError, match="is there already"):
        write("adapter", "relay", folder)
    left = folder if taken == "file" else folder / "adapter.py"
    assert left.read_text() == "mine"


def test_it_is_named_after_its_author_s_words(tmp_path):
    write("adapter", "my-agents", tmp_path)
    text = (tmp_path / "src/lightning_my_agents/adapter.py").read_text()
    assert "class MyAgentsAdapter(Adapter):" in text
    assert (tmp_path / "tests/test_lightning_my_agents.py").exists()
    assert not re.search(r"\$\w", text)


def test_what_is_written_is_in_ruff_s_format(plugin):
    _, folder = plugin
    for words in (["check", "--select=E,F,I,UP,B", "--ignore=E501"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *words, "--line-length=100", "--isolated", "."],
            cwd=folder, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_stranger_builds_installs_tests_and_runs_it(tmp_path, scripted_server):
    """In a fresh environment, from the command to the labels of a run's calls."""

    def call(*words, **env):
        words = [str(word) for word in words]
        env = {k: v for k, v in os.environ.items() if not k.startswith("OPENAI_")} | env
        done = subprocess.run(
            words, cwd=tmp_path, capture_output=True, text=True, timeout=600, env=env
        )
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    call(sys.executable, "-m", "venv", "venv")
    bin = tmp_path / "venv/bin"
    pip = (bin / "python", "-m", "pip", "--disable-pip-version-check", "install", "-q", "-c", ROOT / "constraints.txt")  # fmt: skip
    call(*pip, ROOT / "core")
    said = call(bin / "lightning-core", "new-plugin", "adapter", "relay")
    assert "cd lightning-relay" in said
    call(bin / "python", "-m", "pip", "wheel", "-q", "--no-deps", "-w", "wheels", "./lightning-relay")  # fmt: skip
    (wheel,) = (tmp_path / "wheels").iterdir()
    call(*pip, f"{wheel}[test]")
    assert re.search(r"\b1[01] passed", call(bin / "python", "-m", "pytest", "-q", "lightning-relay"))  # fmt: skip
    assert "relay" in call(bin / "lightning-core", "plugins")
    (tmp_path / "agent.py").write_text(
        "import openai\n"
        "from lightning_relay.stand_in import Team\n"
        "team = Team(openai.AsyncOpenAI(api_key='any'), ('writer', 'critic'))\n"
    )
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"id": "a", "input": "hello"}) + "\n")
    call(bin / "lightning-core", "run", "agent.py:team", "--tasks", "tasks.jsonl",
         "--model", scripted_server.base_url)  # fmt: skip
    shown = json.loads(call(bin / "lightning-core", "show", "last", "a", "--json"))
    assert [call["agent"] for call in shown["calls"]] == ["writer", "critic"]
    assert [span["name"] for span in shown["spans"]] == ["writer", "critic"]
