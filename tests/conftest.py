"""What the whole-path tests share: the command line as a user calls it, in a folder of its own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

AGENTS = '''
import asyncio, json, os, sys, time
from openai import AsyncOpenAI, OpenAI


def ask(question, **options):
    reply = OpenAI(api_key=os.environ.get("OPENAI_API_KEY", "own-key"), max_retries=0).chat.completions.create(
        model="gpt-x", messages=[{"role": "user", "content": question}], **options)
    return reply.choices[0].message.content


def plain(question):
    return ask(question)


async def streaming(question):
    client = AsyncOpenAI(api_key=os.environ.get("OPENAI_API_KEY", "own-key"))
    said = ""
    stream = await client.chat.completions.create(
        model="gpt-x", messages=[{"role": "user", "content": question}], stream=True)
    async for chunk in stream:
        if chunk.choices:
            said += chunk.choices[0].delta.content or ""
    return said


async def moody(question):
    """Does what it is told, and asks the model first."""
    said = await streaming(question)
    if question == "raise":
        raise ValueError("the agent broke")
    if question == "hang":
        await asyncio.sleep(3600)
    if question == "garbage":
        return object()
    if question == "exit":
        os._exit(7)
    return said


def score(task, trace):
    if task.metadata.get("grader") == "raise":
        raise RuntimeError("the grader broke")
    if task.metadata.get("grader") == "nan":
        return float("nan")
    return float(trace.output == task.expected)
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with `agents.py`, as a user's project."""
    (tmp_path / "agents.py").write_text(AGENTS)
    return tmp_path


@pytest.fixture
def environment() -> dict[str, str]:
    """This environment without what a developer may have set for agents or for us."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "LIGHTNING_CORE_"))}
    return kept | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture
def cli(folder, environment):
    """Call `lightning-core`; its finished process."""

    def call(
        *arguments: str, timeout: float = 240, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["lightning-core", *arguments],
            cwd=folder, env=environment | variables, capture_output=True, text=True, timeout=timeout,
        )  # fmt: skip

    return call


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder: random weights, few of them, with the embedded model's tokenizer."""
    import torch
    import transformers

    from lightning_local import smollm2

    path = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2.prepare())
    torch.manual_seed(0)
    ends = {"bos_token_id": 1, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": 2}
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048, initializer_range=0.3, **ends,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def write_tasks(folder):
    """Write the tasks of the user's project to `tasks.jsonl`."""

    def write(*tasks: dict[str, Any]) -> None:
        (folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))

    return write


@pytest.fixture
def run(cli, scripted_server):
    """`lightning-core run AGENT` on the tasks of the project, with the scripted server's model."""

    def call(agent: str, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
        model = ("--model", scripted_server.base_url)
        return cli("run", agent, "--tasks", "tasks.jsonl", *model, *options, **variables)

    return call


@pytest.fixture
def processes_with():
    """The processes whose environment holds a marker."""

    def find(marker: str) -> list[int]:
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if marker.encode() in path.read_bytes():
                    found.append(int(path.parent.name))
            except OSError:
                continue
        return found

    return find


@pytest.fixture
def serve(folder, environment):
    """Start `lightning-core serve` and workers for it; all are ended with Ctrl+C, and must end well."""

    @contextlib.contextmanager
    def start(*options: str, **variables: str) -> Iterator[Served]:
        process = subprocess.Popen(
            ["lightning-core", "serve", "--port", "0", *options],
            cwd=folder, env=environment | variables, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        served = Served(process, folder, environment | variables)
        try:
            said = [process.stdout.readline() for _ in range(5)]
            served.url = said[0].split()[2].rstrip(",")
            served.worker_token, served.admin_token = (
                line.partition("TOKEN=")[2].strip() for line in (said[1], said[3])
            )
            yield served
        finally:
            for ending in (*reversed(served.workers), process):
                ending.send_signal(signal.SIGINT)
            process.stdout.close()
            assert [ending.wait(60) for ending in (*served.workers, process)] == [
                0 for _ in (*served.workers, process)
            ]

    return start


class Served:
    """A server that runs, as its user knows it."""

    def __init__(
        self, process: subprocess.Popen[str], folder: Path, environment: dict[str, str]
    ) -> None:
        self.process = process
        self.url = ""
        self.admin_token = ""
        self.worker_token = ""
        self.workers: list[subprocess.Popen[bytes]] = []
        self._folder = folder
        self._environment = environment

    @property
    def elsewhere(self) -> dict[str, str]:
        """The environment of a run that uses this server."""
        return {"LIGHTNING_CORE_SERVER": self.url, "LIGHTNING_CORE_TOKEN": self.admin_token}

    def work(self, agent: str, *options: str) -> None:
        """Start a worker."""
        token = {"LIGHTNING_CORE_TOKEN": self.worker_token}
        self.workers.append(
            subprocess.Popen(
                ["lightning-core", "work", agent, "--server", self.url, *options],
                cwd=self._folder, env=self._environment | token, stderr=subprocess.DEVNULL,
            )
        )  # fmt: skip

    def wait_for_worker(self) -> None:
        """Wait until the server has heard a worker."""
        headers = {"authorization": f"Bearer {self.admin_token}"}
        request = urllib.request.Request(f"{self.url}/api/v1/status", headers=headers)
        deadline = time.monotonic() + 60
        while True:
            with urllib.request.urlopen(request, timeout=30) as answer:
                if json.load(answer).get("workers"):
                    return
            assert time.monotonic() < deadline, "no worker came"
            time.sleep(0.1)
