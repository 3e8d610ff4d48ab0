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
PAGES = {"adapter": "docs/writing-an-adapter.md", "backend": "docs/writing-a-backend.md"}
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


AGENT = """
import openai
from lightning_relay.stand_in import Team

team = Team(openai.AsyncOpenAI(api_key="any"), ("writer", "critic"))


def answer(words):
    messages = [{"role": "system", "content": "Answer."}, {"role": "user", "content": words}]
    reply = openai.OpenAI(api_key="any").chat.completions.create(model="any", messages=messages)
    return reply.choices[0].message.content


def score(task, trace):
    return float(trace.output.islower())
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_stranger_builds_installs_tests_and_runs_them(tmp_path, scripted_server):
    """In a fresh environment: an adapter that labels a run's calls, and a backend that finds a better prompt."""
    bin = tmp_path / "venv/bin"
    environ = {k: v for k, v in os.environ.items() if not k.startswith("OPENAI_")}
    environ |= {"OPENAI_BASE_URL": scripted_server.base_url, "PYTHONPATH": ""}

    def call(*words):
        done = subprocess.run(
            [str(word) for word in words], cwd=tmp_path, capture_output=True, text=True, timeout=600, env=environ
        )  # fmt: skip
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def pip(*words):
        call(bin / "python", "-m", "pip", "--disable-pip-version-check", *words)

    def core(*words):
        return call(bin / "lightning-core", *words)

    call(sys.executable, "-m", "venv", "venv")
    pip("install", "-q", "-c", ROOT / "constraints.txt", ROOT / "core")
    for kind, name, passed in (("adapter", "relay", r"1[01]"), ("backend", "another", "[89]")):
        assert f"cd lightning-{name}" in core("new-plugin", kind, name)
        pip("wheel", "-q", "--no-deps", "-w", f"wheels/{name}", f"./lightning-{name}")
        (wheel,) = (tmp_path / "wheels" / name).iterdir()
        pip("install", "-q", "-c", ROOT / "constraints.txt", f"{wheel}[test]")
        said = call(bin / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", f"lightning-{name}")  # fmt: skip
        assert re.search(rf"\b{passed} passed", said), said
    listed = core("plugins")
    assert "relay" in listed
    assert "another" in listed

    (tmp_path / "agent.py").write_text(AGENT)
    lines = [json.dumps({"id": f"t{n}", "input": f"HELLO {n}"}) for n in range(6)]
    (tmp_path / "tasks.jsonl").write_text("\n".join(lines))
    core("run", "agent.py:team", "--tasks", "tasks.jsonl", "--limit", "1")
    shown = json.loads(core("show", "last", "t0", "--json"))
    assert [call["agent"] for call in shown["calls"]] == ["writer", "critic"]
    assert [span["name"] for span in shown["spans"]] == ["writer", "critic"]

    def reply(request):
        told = request.messages[0]["content"] == "Use small letters."
        return "hello" if told else "HELLO"

    scripted_server.respond(reply)
    core("optimize", "agent.py:answer", "--tasks", "tasks.jsonl", "--val", "tasks.jsonl", "--reward", "agent.py:score",
         "--backend", "another", "--set", "original=Answer.", "--set", "other=Use small letters.", "--name", "better")  # fmt: skip
    strategy = json.loads((tmp_path / "runs/better/strategy.json").read_text())
    assert strategy["prompt_templates"]["prompt"]["template"] == "Use small letters."
