"""What the README says of input, output and functions, as a user does it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import lightning_core as lc
from lightning_core.testing import ScriptedServer

README = Path(__file__).parents[1] / "README.md"
TRIAGE = """
from agents import Agent

triage = Agent("triage", instructions="Answer.", model="scripted")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "given", "output"),
    [
        (
            "Adapted",
            {"question": "why"},
            {"answer": "why", "by": "triage"},
        ),
        ("async def agent", "why", "why"),
    ],
    ids=["adapted", "function"],
)
async def test_the_readme_s_ways_run(tmp_path, monkeypatch, part, given, output):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
    (block,) = (block for block in blocks if part in block)
    file = tmp_path / "agent_readme.py"
    file.write_text(TRIAGE + block)
    with ScriptedServer.in_thread() as server:
        result = await lc.run(
            f"{file}:agent",
            [lc.Task(id="t", input=given)],
            model=server.base_url,
            runs=tmp_path / "runs",
        )
    (trace,) = result.traces
    assert trace.attempt.error is None
    assert trace.output == output
    assert [call.agent for call in trace.calls] == ["triage"]
