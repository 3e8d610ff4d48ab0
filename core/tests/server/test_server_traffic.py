"""Calls that name no session, and what is told of a server's strategy."""

import asyncio
import contextlib

import aiohttp
import pytest

from lightning_core.cli import traffic
from lightning_core.cli.traffic import Telling, take_traffic
from lightning_core.gateway.strategy import CompiledStrategy
from lightning_core.gateway.tally import Tally
from lightning_core.rollout import Cause, RolloutStatus
from lightning_core.strategy import PromptTemplate, Provenance, Strategy
from lightning_core.testing import ScriptedServer
from lightning_core.testing.store import make_call
from lightning_core.trace import StrategyUse
from lightning_core.wire import Finish


@pytest.fixture
def plain(open_server):
    """A server that takes plain traffic for a scripted model, as `serve --upstream` does."""

    @contextlib.asynccontextmanager
    async def opened():
        async with (
            ScriptedServer() as model,
            open_server(lease_seconds=0.6) as (server, admin, _),
            aiohttp.ClientSession() as http,
        ):

            async def say(text):
                body = {"model": "m", "messages": [{"role": "user", "content": text}]}
                while True:
                    async with http.post(f"{server.url}/v1/chat/completions", json=body) as answer:
                        if answer.status != 401:
                            return answer.status, (await answer.json())["choices"][0]["message"]["content"]  # fmt: skip
                    await asyncio.sleep(0.02)

            taking = asyncio.create_task(take_traffic(server, admin, model.base_url))
            try:
                yield model, admin, say
            finally:
                taking.cancel()
                await asyncio.gather(taking, return_exceptions=True)

    return opened


async def ended(admin, number):
    while True:
        found = await admin.rollouts(run="traffic")
        if len(found) > number and found[number].status.ended:
            return found
        await asyncio.sleep(0.02)


async def test_a_new_rollout_begins_each_day_and_no_call_is_cut(plain, monkeypatch):
    monkeypatch.setattr(traffic, "_ROLLOUT_SECONDS", 0.3)
    monkeypatch.setattr(traffic, "_LOOK_SECONDS", 0.05)
    async with plain() as (model, admin, say):
        go_on = asyncio.Event()

        async def answer(request):
            if request.json["messages"][0]["content"] == "slow":
                await go_on.wait()

        model.respond(answer)
        late = asyncio.create_task(say("slow"))
        while not model.requests:
            await asyncio.sleep(0.02)
        found = await ended(admin, 1)
        # Several days have gone; the first one's call has not ended.
        assert not late.done()
        assert await say("quick") == (200, "quick")
        go_on.set()
        assert await late == (200, "slow")
        found = await ended(admin, 0)
        assert found[0].status is RolloutStatus.SUCCEEDED
        (call,) = (await admin.trace(found[0].id)).calls
        assert (call.text, call.complete, call.error) == ("slow", True, None)


async def test_a_session_that_is_lost_is_opened_again(plain):
    async with plain() as (_, admin, say):
        assert await say("before") == (200, "before")
        (first,) = await admin.rollouts(run="traffic")
        attempt = (await admin.trace(first.id)).attempt
        await admin.finish(attempt.id, Finish(fence=attempt.fence, cause=Cause.LOST))
        assert await say("after") == (200, "after")
        first, second = await admin.rollouts(run="traffic")
        assert [call.text for call in (await admin.trace(second.id)).calls] == ["after"]


def told(tally, *applied, agent=None):
    for number, slots in enumerate(applied):
        use = StrategyUse(digest="d", applied=slots)
        tally.add(make_call(f"c{number}", index=number, agent=agent, strategy=use))


@pytest.fixture
def tally():
    templates = {
        name: PromptTemplate(original=f"{name} {{x}}", template="{x}") for name in ("one", "two")
    }
    templates["own"] = PromptTemplate(template="read by name")
    made_for = Provenance(agent="other.py:graph")
    return Tally(CompiledStrategy(Strategy(prompt_templates=templates, provenance=made_for)))


def test_counts_are_told_only_where_there_were_calls_since(tally, capsys):
    telling = Telling(tally)
    telling.say()
    assert capsys.readouterr().out == ""
    told(tally, ("one",), ())
    tally.add(make_call("e"))  # Embeddings, and calls that were refused.
    telling.say()
    telling.say()
    assert capsys.readouterr().out.splitlines() == [
        "strategy: 2 calls",
        "  `one`: 1 matched, 1 did not",
        "  `two`: 0 matched, 2 did not",
    ]


async def test_a_slot_that_matched_none_of_20_calls_is_told_of_once(tally, capsys, monkeypatch):
    monkeypatch.setattr(traffic, "_LOOK_SECONDS", 0.01)
    telling = asyncio.create_task(Telling(tally, every=0.1).tell())
    told(tally, *[("one",)] * 19)
    await asyncio.sleep(0.25)
    said = capsys.readouterr().out
    assert "strategy: 19 calls" in said
    assert "fits none" not in said
    told(tally, ("one",))
    await asyncio.sleep(0.25)
    told(tally, *[()] * 30)
    await asyncio.sleep(0.25)
    telling.cancel()
    said = capsys.readouterr().out
    assert said.count("slot `two` fits none of 20 calls") == 1
    assert "The strategy was made for `other.py:graph`" in said
    assert "strategy: 50 calls" in said
    assert "slot `one`" not in said
