"""Policies of runs on one server: each answers its own run's calls, and is paused, changed and forgotten alone."""

import asyncio
import socket

import aiohttp
import msgspec
import pytest

from lightning_core.client import Client
from lightning_core.engine import Endpoint
from lightning_core.errors import WireError
from lightning_core.gateway.limits import GatewayLimits
from lightning_core.rollout import Cause, Mode, Rollout
from lightning_core.sampling import SamplingPolicy
from lightning_core.server import policies as policies_module
from lightning_core.task import Task
from lightning_core.testing import Delay, ScriptedServer, Text
from lightning_core.tokens import Scope
from lightning_core.wire import EventKind, Finish, ServedPolicy


@pytest.fixture
async def models():
    """Three model servers, each of which answers with its own name."""
    names = ("site", "one", "two")
    async with (
        ScriptedServer(models=names[:1]) as site,
        ScriptedServer(models=names[1:2]) as one,
        ScriptedServer(models=names[2:]) as two,
    ):
        for server in (site, one, two):
            server.respond(lambda request, name=server.models[0]: Text(name))
        yield {server.models[0]: server for server in (site, one, two)}


def policy_at(model, *, version=0, **fields):
    endpoint = Endpoint(base_url=model.base_url, model=model.models[0])
    return ServedPolicy(version=version, endpoints=(endpoint,), **fields)


async def lease(admin, run, number=0):
    """An attempt of a run in val mode."""
    rollout = Rollout(id=f"{run}:{number}", task_id="t", run=run, mode=Mode.VAL)
    return await admin.open_session(rollout, Task(id="t", input="x"), upstream=None, timeout=600)


async def ask(lease):
    """What answers the attempt's call."""
    body = {"model": "any", "messages": [{"role": "user", "content": "who?"}]}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{lease.base_url}/chat/completions", json=body) as answer,
    ):
        value = await answer.json()
        return value["choices"][0]["message"]["content"] if answer.status == 200 else value["error"]


async def test_each_run_is_answered_by_its_own_policy_and_the_others_by_the_servers(
    open_server, models
):
    async with open_server() as (_, admin, _worker):
        leases = {run: await lease(admin, run) for run in ("one", "two", "none")}
        await admin.set_policy(policy_at(models["one"]), run="one")
        assert (await ask(leases["none"]))["code"] == "unknown_model"
        await admin.set_policy(policy_at(models["site"]))
        await admin.set_policy(policy_at(models["two"]), run="two")
        assert [await ask(each) for each in leases.values()] == ["one", "two", "site"]
        await admin.drop_policy("two")
        await admin.finish(
            leases["one"].attempt.id,
            Finish(fence=leases["one"].attempt.fence, cause=Cause.SUCCESS),
        )
        await admin.drop_policy("one")
        assert await ask(await lease(admin, "one", 1)) == "site"


async def test_a_pause_of_one_run_holds_no_other(open_server, models):
    async with open_server() as (_, admin, _worker):
        await admin.set_policy(policy_at(models["site"]))
        await admin.set_policy(policy_at(models["one"]), run="one")
        one, two, none = [await lease(admin, run) for run in ("one", "two", "none")]
        assert (await admin.pause(5, run="one")).drained
        # A run without a policy of its own can be paused alone, too.
        assert (await admin.pause(5, run="two")).drained
        held = [asyncio.create_task(ask(each)) for each in (one, two)]
        assert await ask(none) == "site"
        status = await admin.status()
        assert not status.paused
        assert {run for run, each in status.policies.items() if each.paused} == {"one", "two"}
        await admin.set_policy(policy_at(models["two"], version=1), run="one")
        await admin.resume(run="one")
        assert await held[0] == "two"
        assert not held[1].done()
        await admin.resume(run="two")
        assert await held[1] == "site"


async def test_a_pause_of_the_servers_policy_holds_those_whom_it_answers(open_server, models):
    async with open_server() as (_, admin, _worker):
        await admin.set_policy(policy_at(models["site"]))
        await admin.set_policy(policy_at(models["one"]), run="one")
        one, two = [await lease(admin, run) for run in ("one", "two")]
        assert (await admin.pause(5)).drained
        held = asyncio.create_task(ask(two))
        assert await ask(one) == "one"
        await asyncio.wait([held], timeout=0.2)
        assert not held.done()
        # It waits no longer once it has a policy of its own.
        await admin.set_policy(policy_at(models["two"]), run="two")
        assert await held == "two"


async def test_a_pause_waits_for_the_runs_own_calls_alone(open_server, models):
    async with open_server() as (_, admin, _worker):
        slow = models["one"]
        await admin.set_policy(policy_at(models["site"]))
        await admin.set_policy(policy_at(slow), run="one")
        one, two = [await lease(admin, run) for run in ("one", "two")]
        slow.respond(lambda request: Delay(2, Text("slow")))
        call = asyncio.create_task(ask(one))
        await slow.wait_for(1)
        assert await ask(two) == "site"
        assert await admin.pause(5) == (True, 0)
        assert await admin.pause(0.05, run="one") == (False, 1)
        assert await call == "slow"
        assert await admin.pause(5, run="one") == (True, 0)


async def test_a_server_that_was_started_again_waits_for_a_runs_policy(open_server, models):
    limits = GatewayLimits(max_pause=60)
    async with open_server(limits=limits) as (_, admin, worker):
        await admin.set_policy(policy_at(models["site"]))
        await admin.set_policy(policy_at(models["one"]), run="one")
        one = await lease(admin, "one")
        await admin.put_tasks("one", [Task(id="t", input="x")])
        await admin.enqueue([Rollout(id="one:queued", task_id="t", run="one", mode=Mode.VAL)])
    async with open_server(limits=limits) as (server, admin, worker):
        await admin.set_policy(policy_at(models["site"]))
        (event,) = await admin.events(0, run="one")
        assert (event.kind, event.run, event.rollout_id) == (
            EventKind.POLICY_AWAITED,
            "one",
            "",
        )
        assert (await admin.status()).policies["one"].awaited
        call = asyncio.create_task(ask_at(server, one))
        assert await worker.lease("w", capacity=1, wait=0.2) == []
        assert not call.done()
        waiting = asyncio.create_task(worker.lease("w", capacity=1, wait=30))
        await admin.set_policy(policy_at(models["one"]), run="one")
        assert await call == "one"
        (queued,) = await waiting
        assert await ask(queued) == "one"
    assert models["site"].requests == []


async def ask_at(server, lease):
    """As `ask`, where the server has another address by now."""
    path = lease.base_url.partition("/s/")[2]
    return await ask(msgspec.structs.replace(lease, base_url=f"{server.url}/s/{path}"))


async def test_what_is_left_of_a_run_that_took_its_policy_back_waits(open_server, models):
    async with open_server() as (_, admin, worker):
        await admin.set_policy(policy_at(models["site"]))
        await admin.set_policy(policy_at(models["one"]), run="one")
        for run in ("one", "two"):
            await admin.put_tasks(run, [Task(id="t", input="x")])
            rollouts = [
                Rollout(id=f"{run}:{n}", task_id="t", run=run, mode=Mode.VAL) for n in range(2)
            ]
            await admin.enqueue(rollouts)
        await admin.drop_policy("one")
        leases = await worker.lease("w", capacity=9, wait=0)
        assert {each.rollout.run for each in leases} == {"two"}
        assert (await admin.status()).queued == 2
        await admin.cancel("one:1", "not wanted")
        await admin.set_policy(policy_at(models["one"]), run="one")
        (left,) = await worker.lease("w", capacity=9, wait=0)
        assert left.rollout.id == "one:0"
        assert await ask(left) == "one"


async def test_a_run_that_is_gone_is_forgotten_with_its_last_rollout(
    open_server, models, monkeypatch
):
    monkeypatch.setattr(policies_module, "_SILENT_SECONDS", 0.0)
    async with open_server(lease_seconds=0.4, keep_seconds=0.3) as (_, admin, worker):
        await admin.set_policy(policy_at(models["one"]), run="one")
        await admin.put_tasks("one", [Task(id="t", input="x")])
        await admin.enqueue([Rollout(id="one:0", task_id="t", run="one", mode=Mode.VAL)])
        (lease,) = await worker.lease("w", capacity=1, wait=0)
        await worker.finish(
            lease.attempt.id, Finish(fence=lease.attempt.fence, cause=Cause.SUCCESS)
        )
        async with asyncio.timeout(60):
            while (await admin.status()).policies:
                await asyncio.sleep(0.05)


async def test_a_policy_that_the_server_cannot_reach_is_refused(open_server):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    nowhere = ServedPolicy(
        version=0, endpoints=(Endpoint(base_url=f"http://127.0.0.1:{port}/v1", model="m"),)
    )
    async with open_server() as (_, admin, _worker):
        with pytest.raises(
            WireError,
            match=f"policy of run `one`: this server cannot reach the run's engine: http://127.0.0.1:{port}/v1",
        ) as raised:
            await admin.set_policy(nowhere, run="one")
        assert raised.value.status == 400
        assert (await admin.status()).policies == {}


async def test_only_an_admin_may_and_only_with_a_runs_name(open_server, models):
    async with open_server() as (server, _, worker):
        for refused in (
            worker.set_policy(policy_at(models["one"]), run="one"),
            worker.drop_policy("one"),
            worker.pause(1, run="one"),
            worker.resume(run="one"),
        ):
            with pytest.raises(WireError, match="needs `admin`") as raised:
                await refused
            assert raised.value.status == 403
        async with Client(server.url, server.token(Scope.ADMIN)) as admin:
            with pytest.raises(WireError, match="no such route"):
                await admin.set_policy(policy_at(models["one"]), run="")
            assert (await admin.status()).policy is None


async def test_the_status_says_how_a_policy_is_sampled_and_no_key(open_server, models):
    async with open_server() as (server, admin, _worker):
        site = policy_at(models["site"], val=SamplingPolicy(temperature=0.25))
        await admin.set_policy(site)
        keyed = Endpoint(base_url=models["one"].base_url, model="one", api_key="sk-hidden")
        await admin.set_policy(ServedPolicy(version=4, endpoints=(keyed,)), run="one")
        status = await admin.status()
        assert status.policy.val.temperature == 0.25
        assert (status.policies["one"].version, status.policies["one"].model) == (4, "one")
        headers = {"authorization": f"Bearer {server.token(Scope.WORKER)}"}
        async with (
            aiohttp.ClientSession(headers=headers) as http,
            http.get(f"{server.url}/api/v1/status") as answer,
        ):
            assert "sk-hidden" not in await answer.text()


async def test_a_worker_of_a_run_gets_that_runs_rollouts_alone_and_any_other_worker_all_in_order(
    open_server,
):
    async with open_server() as (_, admin, worker):
        for run in ("one", "two"):
            await admin.put_tasks(run, [Task(id="t", input="x")])
        for number, run in enumerate(("one", "two", "one", "two")):
            await admin.enqueue([Rollout(id=f"{run}:{number}", task_id="t", run=run)])
        assert await worker.lease("w", capacity=1, wait=0, run="three") == []
        (second,) = await worker.lease("w", capacity=1, wait=0, run="two")
        assert second.rollout.id == "two:1"
        rest = await worker.lease("w", capacity=9, wait=0)
        assert [lease.rollout.id for lease in rest] == ["one:0", "one:2", "two:3"]
