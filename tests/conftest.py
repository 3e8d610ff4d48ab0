"""What the whole-path tests share: the command line as a user calls it, in a folder of its own."""

import os
import subprocess
import sys
from pathlib import Path

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
