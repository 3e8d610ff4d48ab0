"""An OpenAI Agents SDK program that knows nothing of us, started as a command: its calls are labelled."""

from __future__ import annotations

import os
import subprocess
import sys
from urllib.parse import parse_qs

import pytest

from lightning_core.instrument import child_environment
from lightning_core.testing import ScriptedServer
from lightning_openai_agents import OpenAIAgentsAdapter

AGENT = """
from agents import Agent, Runner, function_tool

@function_tool
def shout(text: str) -> str:
    return text.upper()

agent = Agent("writer", instructions="Write.", model="scripted", tools=[shout])
assert Runner.run_sync(agent, "hello").final_output == "hello"
"""

FIRST = {
    "agents": "",
    "tracing": "import agents.tracing\n",
    "models": "from agents.models.openai_provider import OpenAIProvider\n",
    "run": "import agents.run\n",
    "disabled": "import agents\nagents.set_tracing_disabled(True)\n",
    "openai": "import openai\n",
}


@pytest.mark.parametrize("first", FIRST)
def test_a_command_is_labelled_whatever_it_imports_first(tmp_path, first):
    file = tmp_path / "agent.py"
    file.write_text(FIRST[first] + AGENT)
    target = "lightning_openai_agents:OpenAIAgentsAdapter"
    base = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "PYTHON"))}
    with ScriptedServer.in_thread(responses=True) as gateway:
        done = subprocess.run(
            [sys.executable, str(file)],
            env=child_environment(
                base,
                gateway=gateway.url,
                session="tok",
                attempt="a1",
                span=None,
                adapters=dict.fromkeys(OpenAIAgentsAdapter.triggers, target),
                base_url=f"{gateway.url}/s/tok/v1",
                set_key=True,
            ),
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        (request,) = [r for r in gateway.requests if r.path.endswith("/responses")]
    # The scripted server has no route for spans, and that is said once.
    assert done.stderr.count("lightning-core:") == 1
    assert request.headers["x-lightning-session"] == "tok"
    labels = parse_qs(request.headers["x-lightning-labels"])
    assert labels["agent"] == ["writer"]
    assert labels["span"]


def test_a_folder_of_the_users_own_that_is_called_agents_is_left_alone(tmp_path):
    package = tmp_path / "agents"
    package.mkdir()
    (package / "__init__.py").write_text("class Agent: pass\n")
    (package / "run.py").write_text("class AgentRunner: pass\n")
    code = (
        "import agents, agents.run\n"
        "from lightning_core.instrument import instrument\n"
        "from lightning_openai_agents import OpenAIAgentsAdapter\n"
        "adapter = OpenAIAgentsAdapter()\n"
        "with instrument([adapter]):\n"
        "    assert not adapter.accepts(agents.Agent())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTHON")},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
