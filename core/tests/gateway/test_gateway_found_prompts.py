"""The whole loop: an agent's traffic, the prompts found in it, a strategy made of them, and the agent's calls under it."""

import asyncio

import msgspec
import pytest

from lightning_core.cli import main
from lightning_core.folder import RunFolder
from lightning_core.gateway.strategy import CompiledStrategy
from lightning_core.rollout import Attempt, Mode, Rollout
from lightning_core.runs import RunConfig
from lightning_core.store.sqlite import SQLiteStore
from lightning_core.strategy import Strategy
from lightning_core.task import Task

from .conftest import completion, policy_at, whole

TOWNS = ("Ashby", "Bergen", "Como", "Delft", "Essen", "Fez")
REPLY = {
    **completion("hello"), "status": "completed", "object": "response", "created_at": 1, "output": [
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hello"}]}
    ],
}  # fmt: skip


def responses(town, question):
    text = f"Write one poem.\nTown: {town}\nBe brief."
    parts = [{"type": "input_text", "text": question}]
    given = [{"role": "developer", "content": text}, {"role": "user", "content": parts}]
    return "/responses", {"model": "gpt", "instructions": "You are a poet.", "input": given}


def chat(town, question):
    text = f"Write one poem.\nTown: {town}\nBe brief."
    pairs = (("system", "You are a poet."), ("developer", text), ("user", question))
    return "/chat/completions", {"model": "gpt", "messages": [{"role": r, "content": c} for r, c in pairs]}  # fmt: skip


@pytest.fixture
def site_of(site, upstream):
    """Open a session whose calls pass in their own format, or are put into chat completions."""

    async def handler(_, writer):
        writer.write(whole(REPLY))
        await writer.drain()

    def opened(*, native, **fields):
        upstream.handler = handler
        site.gateway.policies.set(policy_at(upstream.url))
        mode = Mode.OBSERVE if native else Mode.TRAIN
        site.open(mode, upstream=f"{upstream.url}/v1", **fields)
        return site

    return opened


@pytest.fixture
def find(tmp_path, monkeypatch):
    """`lightning-core prompts` on some calls; the strategy that it writes, with other words."""
    monkeypatch.setenv("LIGHTNING_CORE_RUNS", str(tmp_path))

    async def found(calls):
        made = RunFolder.create(tmp_path, "demo", hint="")
        made.write_config(RunConfig(name="demo", agent="a", created_at=1))
        async with await SQLiteStore.open(made.store) as store:
            for town, call in zip(TOWNS, calls, strict=True):
                rollout = Rollout(id=town, task_id=town, run="demo")
                attempt = Attempt(
                    id=f"{town}.1", rollout_id=town, number=1, fence=1, worker="w", started_at=0, deadline=9, lease_until=9,
                )  # fmt: skip
                call = msgspec.structs.replace(call, attempt_id=attempt.id, rollout_id=town)
                await store.put(Task(id=town, input=town), run="demo")
                await store.put(rollout, attempt, call)
        path = tmp_path / "strategy.json"
        assert await asyncio.to_thread(main, ["prompts", "demo", "--output", str(path)]) == 0
        strategy = Strategy.load(path)
        other = {
            name: msgspec.structs.replace(slot, template=slot.template.replace("brief", "long"))
            for name, slot in strategy.prompt_templates.items()
        }
        return CompiledStrategy(msgspec.structs.replace(strategy, prompt_templates=other))

    return found


def prompt_texts(body):
    said = [body["instructions"]] if "instructions" in body else []
    for item in body.get("input") or body["messages"]:
        content = item["content"]
        said.append(content if isinstance(content, str) else content[0]["text"])
    return said


@pytest.mark.parametrize("seen", ["responses native", "responses translated", "chat native"])
@pytest.mark.parametrize("used", ["responses native", "responses translated", "chat native"])
async def test_a_template_found_in_an_agents_traffic_matches_its_calls_at_the_gateway(
    site_of, upstream, find, seen, used
):
    asked = {"responses": responses, "chat": chat}
    form, _, way = seen.partition(" ")
    site = site_of(native=way == "native")
    for town in TOWNS:
        path, body = asked[form](town, f"About {town}?")
        assert (await site.ask(body, path=path))[0] == 200
    applied = await find(await site.calls())
    form, _, way = used.partition(" ")
    site = site_of(native=way == "native", strategy=applied, attempt="r2.1", rollout="r2")
    path, body = asked[form]("Ghent", "About Ghent?")
    assert (await site.ask(body, path=path, attempt="r2.1"))[0] == 200
    received = upstream.received[-1]
    assert received.path == ("/v1/chat/completions" if way == "translated" else f"/v1{path}")
    assert prompt_texts(received.json) == [
        "You are a poet.", "Write one poem.\nTown: Ghent\nBe long.", "About Ghent?",
    ]  # fmt: skip
    call = await site.call("r2.1")
    assert len(call.strategy.applied) == len(applied.slots(""))
    assert call.strategy.unmatched == 0


async def test_a_server_s_own_strategy_is_applied_to_a_plain_responses_agent(site_of, find):
    site = site_of(native=True)
    for town in TOWNS:
        path, body = responses(town, f"About {town}?")
        await site.ask(body, path=path)
    applied = await find(await site.calls())
    site = site_of(native=True, strategy=applied, attempt="r2.1", rollout="r2")
    site.gateway.plain = "r2.1"
    path, body = responses("Ghent", "About Ghent?")
    async with site.client.post(f"{site.url}/v1{path}", json=body) as answer:
        assert answer.status == 200
    call = await site.call("r2.1")
    assert "Be long." in call.sent_messages[1]["content"]
    assert call.strategy.unmatched == 0
