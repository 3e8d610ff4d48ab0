"""Agents that want a key while the gateway answers their calls."""

import asyncio
import os

import pytest

from lightning_core.errors import AgentError
from lightning_core.rollout import Cause, Mode
from lightning_core.worker import work

AGENT = """
import os
KEY = os.environ["NAME"]

def agent(text):
    return [KEY, os.environ.get("NAME")]
"""


@pytest.fixture(params=["OPENAI_API_KEY", "ANTHROPIC_API_KEY"])
def name(request):
    return request.param


@pytest.fixture
def spec(tmp_path, monkeypatch, name):
    # Set first, so that it is taken away again whatever the code under test does.
    for each in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(each, "x")
        monkeypatch.delenv(each)
    path = tmp_path / f"agent_{tmp_path.name}.py"
    path.write_text(AGENT.replace("NAME", name))
    return f"{path}:agent"


@pytest.mark.parametrize("isolate", [False, True])
async def test_an_agent_that_wants_a_key_runs_without_one_where_the_gateway_answers(
    server, spec, isolate
):
    stop = asyncio.Event()
    working = asyncio.create_task(work(spec, url=server.url, token="t", isolate=isolate, stop=stop))
    report = await server.report(await server.put("x", mode=Mode.VAL))
    assert (report.cause, report.output) == (Cause.SUCCESS, ["lightning-core"] * 2), report.error
    stop.set()
    assert await working


async def test_no_placeholder_is_set_where_the_users_own_key_counts(server, spec, name, caplog):
    stop = asyncio.Event()
    working = asyncio.create_task(work(spec, url=server.url, token="t", stop=stop))
    report = await server.report(await server.put("x", mode=Mode.OBSERVE))
    assert report.output == ["lightning-core", None]
    assert name in caplog.text
    stop.set()
    assert await working
    assert name not in os.environ


async def test_the_users_key_is_left_alone(server, spec, name, monkeypatch):
    monkeypatch.setenv(name, "the user's")
    stop = asyncio.Event()
    working = asyncio.create_task(work(spec, url=server.url, token="t", stop=stop))
    report = await server.report(await server.put("x", mode=Mode.TRAIN))
    assert report.output == ["the user's"] * 2
    stop.set()
    assert await working


async def test_an_agent_and_a_command_are_not_both_taken(server, spec):
    with pytest.raises(AgentError, match="both given"):
        await work(spec, ["true"], url=server.url, token="t")
