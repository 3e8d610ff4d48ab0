"""No agent sees a token of a worker or of a run."""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lightning_core.children import Child
from lightning_core.tokens import Claims, Scope, TokenSigner

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="looks for tokens in /proc"
)

LOOKING = """
import os, pathlib, re, subprocess, sys, json

def ancestors():
    pid = os.getpid()
    while pid > 1:
        yield pid
        pid = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        if str(pid) == os.environ["STOP_AT"]:
            return

def tokens():
    own = json.loads(os.environ.get("LIGHTNING_CORE_SESSION", '{"session": ""}'))["session"]
    texts = ["\\n".join(map("=".join, os.environ.items()))]
    for pid in ancestors():
        texts.append(pathlib.Path(f"/proc/{pid}/environ").read_text(errors="replace"))
        texts.append(pathlib.Path(f"/proc/{pid}/cmdline").read_text(errors="replace"))
    found = set(re.findall(r"lc1\\.[\\w-]+\\.[\\w-]+", "\\n".join(texts)))
    names = [n for n in os.environ if n == "LIGHTNING_CORE_TOKEN"]
    return {"found": sorted(found - {own}), "names": names, "looked": len(texts)}

def agent(text):
    mine = tokens()
    child = subprocess.run(["env"], capture_output=True, text=True).stdout
    below = [line for line in child.splitlines() if line.startswith("LIGHTNING_CORE_TOKEN")]
    os.system("env > env.txt")
    by_shell = [l for l in open("env.txt") if l.startswith("LIGHTNING_CORE_TOKEN")]
    return mine | {"below": below, "by_shell": by_shell}

if __name__ == "__main__":
    print(json.dumps(agent("")))
"""
KINDS = {
    "in process": ["agent.py:agent"],
    "isolated": ["agent.py:agent", "--isolate"],
    "command": ["--", sys.executable, "agent.py"],
}


@pytest.fixture
def token():
    claims = Claims(scope=Scope.WORKER, expires_at=time.time() + 3600)
    return TokenSigner(b"k" * 32).sign(claims)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "agent.py").write_text(LOOKING)
    return tmp_path


def _seen(report):
    assert report.cause == "success", report.error
    assert report.output["looked"] >= 3
    return [report.output[k] for k in ("found", "names", "below", "by_shell")]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_agent_of_work_finds_no_token(server, folder, token, kind):
    process = subprocess.Popen(
        [sys.executable, "-m", "lightning_core.cli", "work", "--server", server.url, *KINDS[kind]],
        cwd=folder,
        env={**os.environ, "LIGHTNING_CORE_TOKEN": token, "STOP_AT": str(os.getpid())},
    )
    try:
        report = await server.report(await server.put("x"))
        assert _seen(report) == [[], [], [], []]
        assert token in server.tokens
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 60)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_agent_of_a_runs_worker_finds_no_token(server, folder, token, kind, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("LIGHTNING_CORE_TOKEN", token)  # As a run with `--server` has it.
    monkeypatch.setenv("STOP_AT", str(os.getpid()))
    agent, *rest = KINDS[kind]
    arguments = ["--server", server.url]
    arguments += [agent, *rest] if agent == "--" else [*rest, "--agent", agent]
    child = Child(
        "worker", "lightning_core.worker", arguments, secret=token, log=folder / "l/w.log"
    )
    await child.start()
    try:
        assert _seen(await server.report(await server.put("x"))) == [[], [], [], []]
        assert token in server.tokens
    finally:
        await child.stop()


def test_a_traced_program_finds_no_token(folder, token):
    done = subprocess.run(
        ["lightning-core", "trace", "--", sys.executable, "agent.py"],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "LIGHTNING_CORE_TOKEN": token,
            "STOP_AT": str(os.getpid()),
        },
        capture_output=True, text=True, timeout=240, check=True,
    )  # fmt: skip
    seen = json.loads(done.stdout.splitlines()[-1])
    assert [seen[k] for k in ("found", "names", "below", "by_shell")] == [[], [], [], []]


def test_a_worker_without_a_secret_says_where_it_belongs():
    done = subprocess.run(
        [sys.executable, "-m", "lightning_core.worker", "--server", "http://127.0.0.1:9", "--", "true"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert "lightning-core work" in json.loads(done.stdout)["error"]
