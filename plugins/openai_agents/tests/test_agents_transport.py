"""WebSockets, and clients that several event loops would use."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import os
import subprocess
import sys
import threading

import agents as sdk
import openai
import pytest
from agents import Agent, OpenAIResponsesWSModel, RunConfig, Runner
from agents.models.multi_provider import MultiProvider

from lightning_core.instrument import attempt, instrument
from lightning_core.testing import Error, ToolCall, ToolCalls
from lightning_openai_agents import OpenAIAgentsAdapter, hooks, transport

from .conftest import WAYS, Agents, Stage, close, labels_of, reply

NOWHERE = "http://127.0.0.1:9/v1"
CALL = ToolCalls([ToolCall("where", {})])


@pytest.fixture
def by_default(monkeypatch, closing):
    """The SDK's own clients, whose addresses lead nowhere."""
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("OPENAI_BASE_URL", NOWHERE)
    monkeypatch.setenv("OPENAI_WEBSOCKET_BASE_URL", NOWHERE.replace("http", "ws"))


def test_what_is_hooked_has_the_names_and_parameters_that_we_know():
    """Private names of the SDK among them; this runs on its oldest and newest supported release."""
    known = {
        "start": ["self", "mark_as_current"],
        "finish": ["self", "reset_current"],
        "set_error": ["self", "error"],
        "on_trace_start": ["self", "trace"],
        "on_span_end": ["self", "span"],
        "_run_sync_impl": ["self", "starting_agent", "input", "kwargs"],
        "shared_http_client": [],
    }
    for module, owner, name, _ in hooks.PLACES:
        place = importlib.import_module(module)
        function = vars(place if owner is None else getattr(place, owner))[name]
        if name != "_fetch_response":
            assert list(inspect.signature(function).parameters) == known[name], name
    http = sdk.OpenAIResponsesModel._fetch_response
    websocket = OpenAIResponsesWSModel._fetch_response
    assert list(inspect.signature(http).parameters) == list(inspect.signature(websocket).parameters)
    assert issubclass(OpenAIResponsesWSModel, sdk.OpenAIResponsesModel)
    batch = sdk.tracing.processors.BatchTraceProcessor(object())
    assert hasattr(batch, "_exporter")
    helper = Agent("helper")
    assert helper.as_tool("ask", "Asks.")._agent_instance is helper
    assert sdk.handoff(helper)._agent_ref() is helper


@pytest.mark.parametrize("where", ["the default", "the provider", "the model"])
@pytest.mark.parametrize("way", WAYS)
async def test_websockets_are_replaced_within_rollouts(
    stage, by_default, monkeypatch, caplog, way, where
):
    monkeypatch.setattr(transport, "_told", False)
    client = openai.AsyncOpenAI(max_retries=0)
    agent, config = Agent("solo", instructions="agent=solo span=agent:solo"), RunConfig()
    if where == "the default":
        monkeypatch.setattr(
            "agents.models._openai_shared._default_openai_responses_transport", "http"
        )
        monkeypatch.setattr(
            "agents.models._openai_shared._use_responses_websocket_by_default", False
        )
        sdk.set_default_openai_responses_transport("websocket")
        config = RunConfig()
    elif where == "the provider":
        config = RunConfig(model_provider=MultiProvider(openai_use_responses_websocket=True))
    else:
        agent.model = OpenAIResponsesWSModel("scripted", client)
    scopes = [stage.scope(name) for name in ("a1", "a2")]
    for scope in scopes:
        with attempt(scope), caplog.at_level(logging.WARNING, "lightning_openai_agents"):
            await WAYS[way](agent, f"do mark-{scope.attempt}", run_config=config)
        assert stage.wrong(scope, 1) == []
    assert [r.name for r in caplog.records] == ["lightning_openai_agents"]
    assert all(r.path.endswith("/responses") for r in stage.server.requests)
    await close(client, in_threads=way == "run_sync")


async def test_websockets_are_used_outside_rollouts(stage, by_default):
    client = openai.AsyncOpenAI(max_retries=0)
    agent = Agent("solo", model=OpenAIResponsesWSModel("scripted", client))
    with pytest.raises((OSError, openai.APIConnectionError)):  # Nothing listens there.
        await Runner.run(agent, "x")
    assert stage.server.requests == []
    await client.close()


LOOPS = """
import asyncio, sys
from agents import Agent, Runner
from lightning_core.instrument import ListSink, Scope, attempt, instrument
from lightning_openai_agents import OpenAIAgentsAdapter, transport

async def one():
    with attempt(Scope(gateway=sys.argv[1], session="s", attempt="a", sink=ListSink())):
        return (await Runner.run(Agent("solo"), "x")).final_output

with instrument([OpenAIAgentsAdapter()]):
    for _ in range(5):
        assert asyncio.run(one()) == "said so none"
        assert len(transport._clients) == 1
"""


def test_the_sdks_own_client_is_used_in_no_two_loops(server):
    """As where each rollout of a synchronous agent calls `asyncio.run`."""
    environment = {**os.environ, "OPENAI_API_KEY": "k", "OPENAI_BASE_URL": NOWHERE}
    done = subprocess.run(
        [sys.executable, "-c", LOOPS, server.url],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(server.requests) == 5


def test_synchronous_runs_in_threads_share_a_loop(server):
    """So that a client of the user's, here one for all, is used in one loop; the threads have no other."""
    agents, stage = Agents(NOWHERE), Stage(server)
    loops, failed = set(), []

    @sdk.function_tool
    async def where() -> str:
        loops.add(asyncio.get_running_loop())
        return "x"

    agent = agents.agent("solo", "", tools=[where])
    server.respond(lambda r: reply(r) if r.messages[-1]["role"] == "tool" else CALL)

    def work(name: str) -> None:
        try:
            with attempt(stage.scope(name)):
                assert (
                    Runner.run_sync(agent, f"do mark-{name}").final_output == f"said so mark-{name}"
                )
        except BaseException as error:
            failed.append(error)

    with instrument([OpenAIAgentsAdapter()]):
        for turn in range(3):
            threads = [threading.Thread(target=work, args=(f"{turn}-{n}",)) for n in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert failed == []
    assert len(loops) == 1
    agents.in_threads = True
    asyncio.run(agents.close())
    sessions = {labels_of(r)["agent"] for r in server.requests}
    assert sessions == {"solo"}
    assert len(server.requests) == 48


def test_a_synchronous_run_raises_what_it_would(server):
    agents, stage, raised = Agents(NOWHERE), Stage(server), []

    def work() -> None:
        with attempt(stage.scope()), pytest.raises(openai.BadRequestError) as caught:
            Runner.run_sync(agents.agent("solo", ""), "x")
        raised.append(caught)

    server.enqueue(Error(400))
    with instrument([OpenAIAgentsAdapter()]):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert len(raised) == 1
    agents.in_threads = True
    asyncio.run(agents.close())
