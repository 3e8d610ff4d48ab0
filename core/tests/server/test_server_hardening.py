"""What goes wrong stays where it went wrong: hostile agents, races, restarts."""

import asyncio
import io
import itertools
import json

import aiohttp
import msgspec
import pytest
from aiohttp import web

from lightning_core.errors import FencedError, WireError
from lightning_core.rollout import Attempt, Cause, Rollout, RolloutStatus
from lightning_core.server.retention import Retention
from lightning_core.store.sqlite import SQLiteStore
from lightning_core.task import Task
from lightning_core.tokens import Scope
from lightning_core.wire import Finish

TASK = Task(id="t", input="x", expected="secret")


async def enqueue(admin, *ids, **fields):
    await admin.put_tasks("default", [TASK])
    await admin.enqueue([Rollout(id=id, task_id="t", **fields) for id in ids])


def done(lease, cause=Cause.SUCCESS, **fields):
    return Finish(fence=lease.attempt.fence, cause=cause, **fields)


async def post(url, token, body):
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    async with (
        aiohttp.ClientSession() as http,
        http.post(url, data=io.BytesIO(body), headers=headers) as answer,
    ):
        return answer.status, await answer.text()


def nested(depth):
    return b'{"a":' * depth + b"1" + b"}" * depth


@pytest.mark.parametrize("depth", [500, 982, 1500, 100_000])
async def test_no_span_ends_the_server(open_server, depth):
    async with open_server() as (server, admin, worker):
        await enqueue(admin, "a")
        (lease,) = await worker.lease("w", capacity=1, wait=0)
        span = b'{"id":"s","kind":"tool","name":"x","attributes":' + nested(depth) + b"}"
        url = f"{server.url}/api/v1/attempts/{lease.attempt.id}/spans"
        status, _ = await post(url, lease.session, b'{"spans":[' + span + b"]}")
        assert status in (200, 400)
        assert not server._api.failed.done()
        await worker.finish(lease.attempt.id, done(lease))
        assert (await admin.trace("a")).attempt.cause is Cause.SUCCESS


async def test_an_output_that_cannot_be_kept_is_the_agents_error(open_server):
    async with open_server() as (server, admin, worker):
        await enqueue(admin, "a")
        (lease,) = await worker.lease("w", capacity=1, wait=0)
        body = b'{"fence":%d,"cause":"success","output":%s}' % (lease.attempt.fence, nested(985))
        status, text = await post(
            f"{server.url}/api/v1/attempts/{lease.attempt.id}/finish",
            server.token(Scope.WORKER),
            body,
        )
        if status == 200:
            assert (await admin.trace("a")).attempt.cause in (Cause.AGENT_ERROR, Cause.SUCCESS)
        else:
            assert status == 400, text
        assert not server._api.failed.done()


async def test_an_unknown_place_in_a_listing_is_the_callers_error(open_server):
    async with open_server() as (server, admin, _worker):
        with pytest.raises(WireError, match="no rollout 'gone'") as raised:
            await admin.rollouts(after="gone")
        assert raised.value.status == 400
        assert not server._api.failed.done()


@pytest.mark.parametrize("query", ["limit=nan", "limit=inf", "limit=x"])
async def test_a_number_that_is_none_is_refused(open_server, query):
    async with open_server() as (server, _admin, _worker), aiohttp.ClientSession() as http:
        headers = {"authorization": f"Bearer {server.token(Scope.ADMIN)}"}
        async with http.get(f"{server.url}/api/v1/rollouts?{query}", headers=headers) as answer:
            assert answer.status == 400
            assert "expected a" in (await answer.json())["error"]["message"]


async def test_a_session_can_post_only_so_much(open_server):
    async with open_server() as (server, admin, worker):
        await enqueue(admin, "a")
        (lease,) = await worker.lease("w", capacity=1, wait=0)
        url = f"{server.url}/api/v1/attempts/{lease.attempt.id}/spans"
        large = json.dumps({"spans": [], "x": "y" * (5 * 1024 * 1024)}).encode()
        assert (await post(url, lease.session, large))[0] == 413
        spans = [{"id": str(n), "kind": "tool", "name": "x"} for n in range(30_000)]
        many = json.dumps({"spans": spans}).encode()
        assert (await post(url, lease.session, many))[0] == 200
        status, text = await post(url, lease.session, many)
        assert (status, "more than 50000 spans" in text) == (413, True)
        await worker.finish(lease.attempt.id, done(lease))


async def test_equal_enqueues_at_once_make_one_rollout(open_server):
    async with open_server() as (_, admin, worker):
        await admin.put_tasks("default", [TASK])
        rollout = [Rollout(id="a", task_id="t")]
        created = await asyncio.gather(*(admin.enqueue(rollout) for _ in range(8)))
        assert sorted(created) == [0] * 7 + [1]
        assert len(await worker.lease("w", capacity=9, wait=0)) == 1


async def test_a_wish_to_cancel_outlives_the_server(open_server):
    async with open_server() as (_, admin, worker):
        await enqueue(admin, "a", max_attempts=5)
        (lease,) = await worker.lease("w", capacity=1, wait=0)
        await admin.cancel("a", "enough")
    async with open_server() as (_, admin, worker):
        assert (await worker.heartbeat(lease.attempt.id, lease.attempt.fence)).cancel
        await worker.finish(lease.attempt.id, done(lease, Cause.WORKER_ERROR))
        (rollout,) = await admin.rollouts()
        assert (rollout.status, rollout.cancel) == (RolloutStatus.CANCELLED, "enough")


@pytest.mark.parametrize(
    ("cause", "status"),
    [(Cause.SUCCESS, RolloutStatus.SUCCEEDED), (Cause.LOST, RolloutStatus.QUEUED)],
)
async def test_a_server_that_died_between_attempt_and_rollout_draws_the_conclusion(
    open_server, tmp_path, cause, status
):
    async with open_server() as (_, admin, worker):
        await enqueue(admin, "a", max_attempts=2)
        (lease,) = await worker.lease("w", capacity=1, wait=0)
    store = await SQLiteStore.open(tmp_path / "run" / "store.sqlite")
    (attempt,) = await store.attempts("a")
    assert isinstance(attempt, Attempt)
    await store.put(msgspec.structs.replace(attempt, ended_at=1.0, cause=cause, output="kept"))
    await store.close()
    async with open_server() as (_, admin, worker):
        assert [r.status for r in await admin.rollouts()] == [status]
        assert (await admin.trace("a")).output == "kept"
        with pytest.raises(FencedError):
            await worker.heartbeat(lease.attempt.id, lease.attempt.fence)


async def test_retention_goes_on_where_everything_is_old(open_server, caplog):
    async with open_server(lease_seconds=0.4, keep_seconds=0.3) as (_, admin, worker):
        for name in ("a", "b"):
            await enqueue(admin, name)
            (lease,) = await worker.lease("w", capacity=1, wait=5)
            await worker.finish(lease.attempt.id, done(lease))
            async with asyncio.timeout(60):
                while await admin.rollouts():
                    await asyncio.sleep(0.05)
    assert "failed; trying again" not in caplog.text


async def test_a_run_keeps_its_name(open_server):
    async with open_server() as (server, _admin, _worker), aiohttp.ClientSession() as http:
        headers = {"authorization": f"Bearer {server.token(Scope.ADMIN)}"}

        async def claim(owner):
            url = f"{server.url}/api/v1/runs/mine"
            async with http.put(url, json={"owner": owner}, headers=headers) as answer:
                return answer.status

        assert [await claim("one"), await claim("one"), await claim("two")] == [200, 200, 409]


async def test_a_run_can_have_tokens_for_its_workers_but_not_for_admins(open_server):
    async with open_server() as (server, _admin, _worker):
        url, admin = f"{server.url}/api/v1/tokens", server.token(Scope.ADMIN)
        status, text = await post(url, admin, b'{"scope": "worker"}')
        token = json.loads(text)["token"]
        assert status == 200
        assert (
            await post(
                f"{server.url}/api/v1/leases", token, b'{"worker": "w", "capacity": 1, "wait": 0}'
            )
        )[0] == 200
        assert (await post(url, admin, b'{"scope": "admin"}'))[0] == 400
        assert (await post(url, token, b'{"scope": "worker"}'))[0] == 403


async def test_what_a_dead_worker_held_is_lost_at_once(open_server):
    async with open_server() as (server, admin, worker):
        await enqueue(admin, "a", "b", max_attempts=2)
        (first,) = await worker.lease("dead", capacity=1, wait=0)
        await worker.lease("alive", capacity=1, wait=0)
        url = f"{server.url}/api/v1/workers/dead/lost"
        status, text = await post(
            url, server.token(Scope.ADMIN), b'{"reason": "ended with status 7"}'
        )
        assert (status, json.loads(text)) == (200, {"ended": 1, "lost": 1})
        (again,) = await worker.lease("other", capacity=9, wait=0)
        assert again.rollout.id == first.rollout.id
        assert "ended with status 7" in (await admin.trace(first.rollout.id, 1)).attempt.error


async def test_events_of_one_run_only(open_server):
    async with open_server() as (server, admin, worker), aiohttp.ClientSession() as http:
        await admin.put_tasks("one", [TASK])
        await admin.put_tasks("two", [TASK])
        await admin.enqueue(
            [Rollout(id="a", task_id="t", run="one"), Rollout(id="b", task_id="t", run="two")]
        )
        await worker.lease("w", capacity=2, wait=0)
        headers = {"authorization": f"Bearer {server.token(Scope.ADMIN)}"}
        async with http.get(
            f"{server.url}/api/v1/events?after=0&run=two", headers=headers
        ) as answer:
            events = (await answer.json())["events"]
        assert [event["rollout_id"] for event in events] == ["b"]


async def test_a_worker_cannot_send_observed_calls_to_a_host_that_is_not_allowed(open_server):
    seen = []

    async def internal(request):
        seen.append(request.path)
        return web.json_response({"data": []})

    inside = web.Server(internal)
    runner = web.ServerRunner(inside)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    try:
        async with (
            open_server(allow_targets=("api.openai.com",)) as (server, admin, worker),
            aiohttp.ClientSession() as http,
        ):
            await enqueue(admin, "a")
            for upstream in (
                f"http://127.0.0.1:{port}/latest?x=",
                "http://user:pw@host/v1",
                "ftp://host",
            ):
                for named in ({"upstream": upstream}, {"upstreams": {"messages": upstream}}):
                    with pytest.raises(WireError, match="upstream"):
                        await worker.lease("w", capacity=1, wait=0, **named)
            (lease,) = await worker.lease(
                "w", capacity=1, wait=0, upstream=f"http://127.0.0.1:{port}/v1"
            )
            async with http.get(f"{lease.base_url}/models") as answer:
                assert answer.status == 403
            async with http.post(
                f"{lease.base_url}/chat/completions", json={"model": "m", "messages": []}
            ) as answer:
                assert answer.status == 403
            assert server.url
            assert seen == []
    finally:
        await runner.cleanup()


async def test_fences_grow_and_cannot_be_guessed(open_server):
    async with open_server() as (_, admin, worker):
        await enqueue(admin, *map(str, range(20)))
        fences = [lease.attempt.fence for lease in await worker.lease("w", capacity=20, wait=0)]
        assert fences == sorted(fences)
        assert len({later - earlier for earlier, later in itertools.pairwise(fences)}) > 10
        assert all(fence < 2**53 for fence in fences)


async def test_a_look_for_what_is_old_ends_where_there_is_nothing(tmp_path):
    store = await SQLiteStore.open(tmp_path / "store.sqlite")
    try:
        async with asyncio.timeout(30):
            await Retention(store, 1.0).look(1000.0)
    finally:
        await store.close()


@pytest.mark.parametrize(
    ("statuses", "causes", "says"),
    [
        ((7,), [Cause.AGENT_ERROR], "the agent ended its process (status 7)"),
        ((-11,), [Cause.AGENT_ERROR], "(signal SIGSEGV)"),
        # Others may have killed it; twice in a row they hardly have.
        ((-9, -9), [Cause.LOST, Cause.AGENT_ERROR], "(signal SIGKILL)"),
        ((None, None), [Cause.LOST, Cause.LOST], "gone"),
    ],
)
async def test_an_agent_that_ran_alone_is_to_blame_for_its_workers_end(
    open_server, statuses, causes, says
):
    async with open_server() as (_, admin, worker):
        await enqueue(admin, "a", max_attempts=2)
        for start, (status, cause) in enumerate(zip(statuses, causes, strict=True)):
            (lease,) = await worker.lease(f"w.{start}", capacity=9, wait=0)
            end = await admin.worker_lost(f"w.{start}", "gone", status)
            assert end == (1, int(cause is Cause.LOST))
            assert (await admin.trace("a", lease.attempt.number)).attempt.cause is cause
        assert says in (await admin.trace("a")).attempt.error
        assert await worker.lease("w", capacity=9, wait=0) == []


async def test_a_worker_that_outlives_the_news_of_its_end_costs_no_attempt(open_server):
    """As on a cluster that is cut off: what one worker held must not be lost again with the next."""
    async with open_server() as (_, admin, worker):
        await enqueue(admin, "a", "b", max_attempts=2)
        await worker.lease("one", capacity=1, wait=0)
        await worker.lease("two", capacity=1, wait=0)
        waiting = asyncio.create_task(worker.lease("two", capacity=1, wait=30))
        for name in ("one", "two"):
            await admin.worker_gone(name)
        assert (await admin.status()).running == 2
        assert await admin.worker_lost("one", "cut off") == (1, 1)
        with pytest.raises(WireError, match="another name") as refused:
            await waiting
        assert refused.value.status == 409
        assert await admin.worker_lost("two", "cut off") == (1, 1)
        with pytest.raises(WireError, match="another name"):
            await worker.lease("two", capacity=9, wait=0)
        assert "two" not in (await admin.status()).workers
        left = await worker.lease("two.2", capacity=9, wait=0)
        assert {(lease.rollout.id, lease.attempt.number) for lease in left} == {("a", 2), ("b", 2)}
        await admin.worker_lost("two.2", "cut off")
        assert await worker.lease("three", capacity=9, wait=0) == []
        assert (await admin.status()).ended == 2


async def test_a_lease_that_waits_is_refused_once_its_worker_is_told_to_have_ended(open_server):
    async with open_server() as (_, admin, worker):
        waiting = asyncio.create_task(worker.lease("w", capacity=1, wait=30))
        while "w" not in (await admin.status()).workers:
            await asyncio.sleep(0.01)
        await admin.worker_lost("w", "gone")
        await enqueue(admin, "a")
        with pytest.raises(WireError, match="told to have ended"):
            await waiting
        (lease,) = await worker.lease("other", capacity=1, wait=0)
        assert lease.attempt.number == 1


async def test_where_a_worker_held_several_none_of_them_is_to_blame(open_server):
    async with open_server() as (_, admin, worker):
        await enqueue(admin, "a", "b")
        await worker.lease("w", capacity=2, wait=0)
        assert await admin.worker_lost("w", "gone", 7) == (2, 2)
        for rollout in ("a", "b"):
            assert (await admin.trace(rollout)).attempt.cause is Cause.LOST
