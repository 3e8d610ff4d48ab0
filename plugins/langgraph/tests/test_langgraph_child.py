"""A LangGraph program that knows nothing of us, started as a command: its calls are labelled."""

from __future__ import annotations

import os
import subprocess
import sys
from urllib.parse import parse_qs

import pytest

from lightning_core.instrument import child_environment
from lightning_core.testing import ScriptedServer
from lightning_langgraph import LangGraphAdapter

AGENT = """
from typing import TypedDict
from langgraph.graph import START, StateGraph
from langchain_openai import ChatOpenAI

class State(TypedDict):
    text: str

def write(state):
    return {"text": ChatOpenAI(model="scripted", api_key="k").invoke(state["text"]).text}

graph = StateGraph(State).add_node("write", write).add_edge(START, "write").compile(name="writer")
assert graph.invoke({"text": "hello"}) == {"text": "hello"}
"""

FIRST = {
    "graph": "",
    "model": "import langchain_openai\n",
    "callbacks": "from langchain_core.callbacks import BaseCallbackHandler\n",
    "manager": "import langchain_core.callbacks.manager\n",
    "agents": "from langchain.agents import create_agent\n",
}


@pytest.mark.parametrize("first", FIRST)
def test_a_command_is_labelled_whatever_it_imports_first(tmp_path, first):
    file = tmp_path / "agent.py"
    file.write_text(FIRST[first] + AGENT)
    target = "lightning_langgraph:LangGraphAdapter"
    base = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "PYTHON"))}
    with ScriptedServer.in_thread() as gateway:
        done = subprocess.run(
            [sys.executable, str(file)],
            env=child_environment(
                base,
                gateway=gateway.url,
                session="tok",
                attempt="a1",
                span=None,
                adapters=dict.fromkeys(LangGraphAdapter.triggers, target),
                base_url=f"{gateway.url}/s/tok/v1",
                set_key=False,
            ),
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        (request,) = [r for r in gateway.requests if "chat" in r.path]
    # The scripted server has no route for spans, and that is said once.
    assert done.stderr.count("lightning-core:") == 1
    assert request.headers["x-lightning-session"] == "tok"
    labels = parse_qs(request.headers["x-lightning-labels"])
    assert (labels["agent"], labels["node"]) == (["writer"], ["write"])
    assert labels["span"]
