"""How the trainer steers the run's gateway, on a real server that may be started again, without verl."""

import asyncio
import time

import aiohttp
import msgspec
import pytest

from lightning_core.client import Client
from lightning_core.engine import Endpoint
from lightning_core.gateway.limits import GatewayLimits
from lightning_core.optimization import OptimizeConfig
from lightning_core.rollout import Mode, Rollout, RolloutStatus
from lightning_core.sampling import SamplingPolicy
from lightning_core.server import Server, ServerConfig
from lightning_core.task import Task
from lightning_core.testing import Delay, Text
from lightning_core.tokens import Scope
from lightning_core.wire import ServedPolicy
from lightning_verl.job import Job
from lightning_verl.learning import Learning
from lightning_verl.trainer.gateway import Gateway


@pytest.fixture
def server(tmp_path):
    def make(port=0):
        limits = GatewayLimits(max_pause=60)
        return Server(ServerConfig(folder=tmp_path / "run", port=port, limits=limits))

    return make


def job_at(server):
    return Job(
        run="run", url=server.url, token=server.token(Scope.ADMIN), overrides=(), train=SamplingPolicy(),
        val=SamplingPolicy(), timeout=60.0, max_attempts=1, consumed="",
        learning=Learning.of(OptimizeConfig(backend="verl"), max_tokens=1000),
    )  # fmt: skip


def policy(scripted_server, version):
    endpoint = Endpoint(base_url=f"{scripted_server.url}/v1", model="scripted")
    return ServedPolicy(version=version, endpoints=(endpoint,))


async def lease(server):
    async with Client(server.url, server.token(Scope.ADMIN)) as admin:
        rollout = Rollout(id="run:0", task_id="t", run="run", mode=Mode.VAL)
        return await admin.open_session(
            rollout, Task(id="t", input="x"), upstream=None, timeout=600
        )


async def ask(lease):
    body = {"model": "any", "messages": [{"role": "user", "content": "who?"}]}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{lease.base_url}/chat/completions", json=body) as answer,
    ):
        assert answer.status == 200, await answer.text()
        return (await answer.json())["choices"][0]["message"]["content"]


async def test_calls_wait_while_the_gateway_is_held_and_go_on_with_the_next_policy(
    server, scripted_server
):
    scripted_server.respond(lambda request: Text("hello"))
    async with server() as running:
        gateway = await asyncio.to_thread(Gateway(job_at(running)).__enter__)
        await asyncio.to_thread(gateway.serve, policy(scripted_server, 0))
        session = await lease(running)
        assert await ask(session) == "hello"
        await asyncio.to_thread(gateway.hold)
        held = asyncio.create_task(ask(session))
        await asyncio.wait([held], timeout=0.3)
        assert not held.done()
        await asyncio.to_thread(gateway.serve, policy(scripted_server, 1))
        assert await held == "hello"
        await asyncio.to_thread(gateway.__exit__)


async def test_a_hold_waits_for_what_is_under_way_and_no_longer_than_it_may(
    server, scripted_server, caplog
):
    scripted_server.respond(lambda request: Delay(1.5, Text("late")))
    async with server() as running:
        gateway = await asyncio.to_thread(Gateway(job_at(running)).__enter__)
        await asyncio.to_thread(gateway.serve, policy(scripted_server, 0))
        call = asyncio.create_task(ask(await lease(running)))
        await scripted_server.wait_for(1)
        await asyncio.to_thread(gateway.hold, 0.05)
        assert "1 model calls run still after 0.05 s" in caplog.text
        began = time.monotonic()
        await asyncio.to_thread(gateway.hold, 30)
        assert time.monotonic() - began < 25
        assert await call == "late"
        await asyncio.to_thread(gateway.__exit__)


async def test_a_server_that_was_started_again_is_told_of_the_policy_once_more(
    server, scripted_server
):
    scripted_server.respond(lambda request: Text("hello"))
    async with server() as running:
        port = int(running.url.rpartition(":")[2])
        gateway = await asyncio.to_thread(Gateway(job_at(running)).__enter__)
        await asyncio.to_thread(gateway.serve, policy(scripted_server, 3))
        session = await lease(running)
        assert await ask(session) == "hello"
    async with server(port) as running:
        # The call waits for the policy; nobody but the trainer's gateway tells of it.
        async with asyncio.timeout(60):
            assert await ask(session) == "hello"
        await asyncio.to_thread(gateway.hold)
    async with server(port) as running:
        # While the weights change, it is not told: it would send calls to a vLLM that sleeps.
        held = asyncio.create_task(ask(session))
        await asyncio.wait([held], timeout=2)
        assert not held.done()
        await asyncio.to_thread(gateway.serve, policy(scripted_server, 4))
        assert await held == "hello"
        await asyncio.to_thread(gateway.__exit__)


async def test_at_the_end_what_has_not_ended_is_cancelled_and_no_call_goes_to_vllm_any_more(
    server, scripted_server
):
    scripted_server.respond(lambda request: Text("hello"))
    async with server() as running, Client(running.url, running.token(Scope.ADMIN)) as admin:
        gateway = await asyncio.to_thread(Gateway(job_at(running)).__enter__)
        await asyncio.to_thread(gateway.serve, policy(scripted_server, 3))
        session = await lease(running)
        await admin.put_tasks("run", [Task(id="t", input="x")])
        some = [Rollout(id=f"run:{n}", task_id="t", run="run", mode=Mode.TRAIN) for n in "abc"]
        await admin.enqueue(some)
        await admin.put_tasks("other", [Task(id="t", input="x")])
        await admin.enqueue([Rollout(id="other:a", task_id="t", run="other", mode=Mode.TRAIN)])
        worker_token = await admin.worker_token()
        async with Client(running.url, worker_token) as worker:
            (leased,) = await worker.lease("worker", capacity=1, run="run", wait=10)
            await asyncio.to_thread(gateway.end)
            beat = await worker.heartbeat(leased.attempt.id, leased.attempt.fence)
        assert beat.cancel
        statuses = {each.id: each.status for each in await admin.rollouts(run="run")}
        assert statuses.pop(leased.rollout.id) is RolloutStatus.RUNNING
        assert [statuses[each.id] for each in some if each.id in statuses] == [
            RolloutStatus.CANCELLED
        ] * 2
        (other,) = await admin.rollouts(run="other")
        assert other.status is RolloutStatus.QUEUED
        asked = len(scripted_server.requests)
        call = asyncio.create_task(ask(session))
        await asyncio.wait([call], timeout=0.3)
        assert not call.done()
        assert len(scripted_server.requests) == asked
        call.cancel()
        await asyncio.to_thread(gateway.__exit__)


async def test_a_server_that_refuses_at_the_end_costs_no_training(server, scripted_server, caplog):
    async with server() as running:
        job = msgspec.structs.replace(job_at(running), token="not a token")
        gateway = await asyncio.to_thread(Gateway(job).__enter__)
        await asyncio.to_thread(gateway.end)
        assert "the rollouts that the run needs no more: " in caplog.text
        await asyncio.to_thread(gateway.__exit__)
