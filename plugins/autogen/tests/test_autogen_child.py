"""An AutoGen program that knows nothing of us, started as a command: its calls are labelled."""

from __future__ import annotations

import os
import subprocess
import sys
from urllib.parse import parse_qs

import pytest

from lightning_autogen import AutoGenAdapter
from lightning_core.instrument import child_environment
from lightning_core.testing import ScriptedServer

AGENT = """
import asyncio
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

async def main():
    info = dict(vision=False, function_calling=True, json_output=True, structured_output=False, family="unknown")
    client = OpenAIChatCompletionClient(model="scripted", api_key="k", model_info=info)
    team = RoundRobinGroupChat([AssistantAgent("writer", client)], name="desk", max_turns=1)
    result = await team.run(task="hello")
    assert result.messages[-1].content == "hello", result
    await client.close()

asyncio.run(main())
"""

FIRST = {
    "agents": "",
    "core": "import autogen_core\n",
    "model": "import autogen_ext.models.openai\n",
    "teams": "import autogen_agentchat.teams\n",
    "tools": "from autogen_core.tools import FunctionTool\n",
}


@pytest.mark.parametrize("first", FIRST)
def test_a_command_is_labelled_whatever_it_imports_first(tmp_path, first):
    file = tmp_path / "agent.py"
    file.write_text(FIRST[first] + AGENT)
    target = "lightning_autogen:AutoGenAdapter"
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
                adapters=dict.fromkeys(AutoGenAdapter.triggers, target),
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
    assert (labels["agent"], labels["team"]) == (["writer"], ["desk"])
    assert labels["span"]
