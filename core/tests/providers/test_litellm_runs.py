"""Whole runs on a provider's model: the agent speaks OpenAI's format to the gateway, and sees no key of the provider's."""

import asyncio
import importlib.util
import json
import os
import sys
import textwrap

import pytest

from lightning_core.children import Child
from lightning_core.litellm_engine import PROVIDERS
from lightning_core.store import SQLiteStore

MODEL = "gemini/gemini-2.5-flash"
KEYS = {"GEMINI_API_KEY": "gemini-0123456789", "AWS_SECRET_ACCESS_KEY": "aws-0123456789"}
AGENT = """
    import json, os
    from openai import OpenAI

    def agent(question):
        with open("seen.jsonl", "a") as file:
            file.write(json.dumps(dict(os.environ)) + "\\n")
        reply = OpenAI().chat.completions.create(
            model="gpt-4.1", messages=[{"role": "user", "content": question}]
        )
        return reply.choices[0].message.content

    if __name__ == "__main__":
        print(agent("Please hello"))
"""


async def test_a_child_gets_a_placeholder_for_what_is_hidden_from_it(tmp_path, monkeypatch):
    (tmp_path / "telling.py").write_text(
        "import json, os, sys\n"
        "print(json.dumps({n: os.environ.get(n) for n in ('ONE', 'TWO', 'THREE')}), flush=True)\n"
        "sys.stdin.read()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("ONE", "secret")
    monkeypatch.setenv("TWO", "open")
    monkeypatch.delenv("THREE", raising=False)
    child = Child("it", "telling", [], log=tmp_path / "log", hidden={"ONE", "THREE"})
    try:
        assert await child.start() == {"ONE": "lightning-core", "TWO": "open", "THREE": None}
    finally:
        await child.stop()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("litellm") is None, reason="litellm is not there")
@pytest.mark.asyncio(loop_scope="module")
async def test_an_agent_of_openais_format_runs_on_a_providers_model(providers, tmp_path):
    """Scored by `run`, and as any program by `trace`."""
    scored = ("run", "agent.py:agent", "--tasks", "tasks.jsonl", "--reward", "contains")
    for seen, kept in await asyncio.gather(
        _go(providers, tmp_path / "run", scored),
        _go(providers, tmp_path / "trace", ("trace",), sys.executable, "agent.py"),
    ):
        assert seen["GEMINI_API_KEY"] == "lightning-core"
        # It is of another provider than the run's.
        assert seen["AWS_SECRET_ACCESS_KEY"] == KEYS["AWS_SECRET_ACCESS_KEY"]
        files = [path for path in kept.rglob("*") if path.is_file()]
        assert not [path for path in files if KEYS["GEMINI_API_KEY"].encode() in path.read_bytes()]
        config = json.loads((kept / "run.json").read_text())
        assert (config["engine"], config["model"]) == ("litellm", MODEL)
        async with await SQLiteStore.open(kept / "store.sqlite", readonly=True) as store:
            (rollout,) = await store.rollouts()
            (call,) = (await store.trace(rollout.id)).calls
        assert call.usage["cost"] > 0
        assert call.choices[0].message["content"] == "Héllo ✓"


async def _go(providers, folder, command, *program):
    """Run a command in a folder of its own; the environment that the agent had, and the run's folder."""
    folder.mkdir()
    (folder / "agent.py").write_text(textwrap.dedent(AGENT))
    task = {"id": "t", "input": "Please hello", "expected": "Héllo ✓"}
    (folder / "tasks.jsonl").write_text(json.dumps(task))
    known = {name for provider in PROVIDERS.values() for name in provider.secrets}
    environment = {name: value for name, value in os.environ.items() if name not in known}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "lightning_core.cli", *command, "--name", "r", "--model", MODEL,
        *(("--", *program) if program else ()),
        cwd=folder,
        env={**environment, **KEYS, "GEMINI_API_BASE": f"{providers.url}/gemini"},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    (seen,) = map(json.loads, (folder / "seen.jsonl").read_text().splitlines())
    return seen, folder / "runs" / "r"
