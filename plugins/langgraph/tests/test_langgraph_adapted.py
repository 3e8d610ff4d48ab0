"""What the README says of input and output, as a user does it."""

import re
from pathlib import Path

import pytest

import lightning_core as lc

README = Path(__file__).parents[1] / "README.md"
GRAPH = """
from typing import TypedDict
from langgraph.graph import StateGraph

class State(TypedDict, total=False):
    question: str
    database: str
    answer: str

def answer(state):
    return {"answer": f"{state['question']} in {state['database']}"}

builder = StateGraph(State)
builder.add_node("answer", answer)
builder.set_entry_point("answer")
builder.set_finish_point("answer")
graph = builder.compile(name="sql")
"""


@pytest.mark.slow
@pytest.mark.parametrize("isolate", [False, True])
async def test_an_agent_with_an_adapter_of_its_own_runs_by_its_name(tmp_path, isolate):
    (block,) = (
        b for b in re.findall(r"```python\n(.*?)```", README.read_text(), re.S) if "Adapted" in b
    )
    (tmp_path / "agent_sql.py").write_text(GRAPH + block)
    result = await lc.run(
        f"{tmp_path / 'agent_sql.py'}:agent",
        [lc.Task(id="t", input="how many", metadata={"database": "shop"})],
        runs=tmp_path / "runs",
        isolate=isolate,
    )
    (trace,) = result.traces
    assert trace.attempt.error is None
    assert trace.output == "how many in shop"
    assert [span.name for span in trace.spans if span.kind == "node"] == ["answer"]
