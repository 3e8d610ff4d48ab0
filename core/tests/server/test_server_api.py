"""The server's API, over HTTP, as runs and workers use it."""

import asyncio

import aiohttp
import msgspec
import pytest

from lightning_core.errors import FencedError, UsageError, WireError
from lightning_core.gateway.limits import GatewayLimits
from lightning_core.reward import Reward
from lightning_core.rollout import Cause, Rollout, RolloutStatus
from lightning_core.server import Server, ServerConfig
from lightning_core.task import Task
from lightning_core.tokens import Scope
from lightning_core.trace import Span, SpanKind
from lightning_core.wire import Finish

TASKS = [
    Task(id=f"t{number}", input=f"question {number}", expected=f"secret {number}")
    for number in range(5)
]


def rollouts(*numbers, **fields):
    """Rollouts of the tasks with these numbers."""
    return [Rollout(**{"id": f"r{number}", "task_id": f"t{number}"} | fields) for number in numbers]


async def enqueue(admin, *numbers, **fields):
    await admin.put_tasks("default", TASKS)
    await admin.enqueue(rollouts(*numbers, **fields))


def done(lease, cause=Cause.SUCCESS, **fields):
    return Finish(fence=lease.attempt.fence, cause=cause, **fields)


async def test_a_rollout_goes_from_queue_to_trace(open_server):
    async with open_server() as (_, admin, worker):
        await enqueue(admin, 0)
        (lease,) = await worker.lease("w", capacity=3, wait=0)
        assert lease.task.input == "question 0"
        await worker.spans(
            lease.attempt.id, [Span(id="s", attempt_id="lies", kind=SpanKind.AGENT, name="me")]
        )
        assert (
            await worker.finish(lease.attempt.id, done(lease, output={"a": 1}))
            is RolloutStatus.SUCCEEDED
        )
        await admin.reward("r0", [Reward(value=0.5)])
        trace = await admin.trace("r0")
        assert (trace.output, trace.reward, trace.attempt.cause) == ({"a": 1}, 0.5, Cause.SUCCESS)
        assert trace.task == TASKS[0]
        assert [(span.name, span.attempt_id) for span in trace.spans] == [("me", lease.attempt.id)]


async def test_a_worker_never_sees_what_only_the_grader_may(open_server):
    async with open_server() as (server, admin, worker):
        await enqueue(admin, 0, metadata={"expected_note": "secret 0"})
        async with aiohttp.ClientSession() as http:
            answer = await http.post(
                f"{server.url}/api/v1/leases",
                json={"worker": "w", "capacity": 1, "wait": 0},
                headers={"authorization": f"Bearer {server.token(Scope.WORKER)}"},
            )
            assert b"secret" not in await answer.read()
        for forbidden in (
            worker.trace("r0"),
            worker.rollouts(),
            worker.enqueue(rollouts(1)),
            worker.events(0),
        ):
            with pytest.raises(WireError, match="is for `worker` but this needs `admin`") as raised:
                await forbidden
            assert raised.value.status == 403


async def test_enqueueing_twice_makes_one_rollout(open_server):
    async with open_server() as (_, admin, _worker):
        await enqueue(admin, 0, 1)
        assert await admin.enqueue(rollouts(1, 2)) == 1
        assert [r.id for r in await admin.rollouts()] == ["r0", "r1", "r2"]


async def test_a_known_id_with_other_content_is_refused_and_nothing_is_queued(open_server):
    async with open_server() as (_, admin, _worker):
        await enqueue(admin, 0)
        with pytest.raises(
            WireError, match="known with another `task_id`: 't0' and not 't1'"
        ) as raised:
            await admin.enqueue([*rollouts(3), *rollouts(1, id="r0")])
        assert raised.value.status == 409
        assert [r.id for r in await admin.rollouts()] == ["r0"]


async def test_a_rollout_of_an_unknown_task_is_refused(open_server):
    async with open_server() as (_, admin, _worker):
        with pytest.raises(WireError, match="task `t9` of run `default` is not stored"):
            await admin.enqueue(rollouts(9))


async def test_a_lease_waits_for_work(open_server):
    async with open_server() as (_, admin, worker):
        waiting = asyncio.create_task(worker.lease("w", capacity=1, wait=30))
        while "w" not in (await admin.status()).workers:
            await asyncio.sleep(0.01)
        await enqueue(admin, 0)
        assert [lease.rollout.id for lease in await waiting] == ["r0"]


async def test_no_rollout_is_leased_twice(open_server):
    async with open_server() as (_, admin, worker):
        await enqueue(admin, 0, 1, 2, 3, 4)
        taken = await asyncio.gather(*(worker.lease(f"w{n}", capacity=2, wait=0) for n in range(6)))
        ids = [lease.rollout.id for leases in taken for lease in leases]
        assert sorted(ids) == ["r0", "r1", "r2", "r3", "r4"]


async def test_a_lost_attempt_is_tried_again_and_its_worker_is_fenced_off(open_server):
    async with open_server(lease_seconds=0.2) as (_, admin, worker):
        await enqueue(admin, 0, max_attempts=2)
        (first,) = await worker.lease("dead", capacity=1, wait=0)
        (second,) = await worker.lease("alive", capacity=1, wait=30)
        assert (first.attempt.number, second.attempt.number) == (1, 2)
        assert second.attempt.fence > first.attempt.fence
        for late in (
            worker.heartbeat(first.attempt.id, first.attempt.fence),
            worker.finish(first.attempt.id, done(first)),
            worker.spans(first.attempt.id, []),
        ):
            with pytest.raises(FencedError):
                await late
        await worker.finish(second.attempt.id, done(second, output="x"))
        trace = await admin.trace("r0", attempt=1)
        assert trace.attempt.cause is Cause.LOST
        assert "worker `dead` was not heard" in trace.attempt.error
        assert (await admin.trace("r0")).output == "x"


async def test_heartbeats_keep_a_lease(open_server):
    async with open_server(lease_seconds=0.4) as (_, admin, worker):
        await enqueue(admin, 0)
        (lease,) = await worker.lease("w", capacity=1, wait=0)
        for _ in range(10):
            await asyncio.sleep(0.1)
            await worker.heartbeat(lease.attempt.id, lease.attempt.fence)
        assert await worker.finish(lease.attempt.id, done(lease)) is RolloutStatus.SUCCEEDED


async def test_a_fence_of_another_lease_is_refused(open_server):
    async with open_server() as (_, admin, worker):
        await enqueue(admin, 0)
        (lease,) = await worker.lease("w", capacity=1, wait=0)
        with pytest.raises(FencedError, match="is not the lease's"):
            await worker.heartbeat(lease.attempt.id, lease.attempt.fence + 1)


async def test_the_same_report_twice_is_fine(open_server):
    async with open_server() as (_, admin, worker):
        await enqueue(admin, 0)
        (lease,) = await worker.lease("w", capacity=1, wait=0)
        for _ in range(2):
            assert await worker.finish(lease.attempt.id, done(lease)) is RolloutStatus.SUCCEEDED


@pytest.mark.parametrize(
    ("cause", "status", "again"),
    [
        (Cause.AGENT_ERROR, RolloutStatus.FAILED, False),
        (Cause.TIMEOUT, RolloutStatus.FAILED, False),
        (Cause.WORKER_ERROR, RolloutStatus.QUEUED, True),
        (Cause.CANCELLED, RolloutStatus.QUEUED, True),
    ],
)
async def test_what_follows_from_a_cause(open_server, cause, status, again):
    async with open_server() as (_, admin, worker):
        await enqueue(admin, 0, max_attempts=2)
        (lease,) = await worker.lease("w", capacity=1, wait=0)
        assert await worker.finish(lease.attempt.id, done(lease, cause)) is status
        assert bool(await worker.lease("w", capacity=1, wait=0)) is again


async def test_the_last_attempt_ends_the_rollout(open_server):
    async with open_server() as (_, admin, worker):
        await enqueue(admin, 0, max_attempts=2)
        for expected in (RolloutStatus.QUEUED, RolloutStatus.FAILED):
            (lease,) = await worker.lease("w", capacity=1, wait=0)
            assert (
                await worker.finish(lease.attempt.id, done(lease, Cause.WORKER_ERROR)) is expected
            )


async def test_a_worker_that_is_stopped_costs_no_attempt(open_server):
    async with open_server() as (_, admin, worker):
        await enqueue(admin, 0, max_attempts=1)
        for number in (1, 2, 3):
            (lease,) = await worker.lease("w", capacity=1, wait=0)
            assert lease.attempt.number == number
            await worker.finish(lease.attempt.id, done(lease, Cause.CANCELLED))
        (lease,) = await worker.lease("w", capacity=1, wait=0)
        assert (
            await worker.finish(lease.attempt.id, done(lease, Cause.WORKER_ERROR))
            is RolloutStatus.FAILED
        )


async def test_a_worker_that_goes_away_while_it_waits_takes_no_rollout_along(open_server):
    async with open_server() as (_, admin, worker):
        waiting = [asyncio.create_task(worker.lease("w", capacity=1, wait=30)) for _ in range(3)]
        while "w" not in (await admin.status()).workers:
            await asyncio.sleep(0.01)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await enqueue(admin, 0)
        (lease,) = await worker.lease("other", capacity=1, wait=30)
        assert lease.attempt.number == 1


async def test_a_server_closes_at_once_with_a_long_poll_open(open_server):
    async with open_server() as (server, admin, worker):
        waiting = asyncio.create_task(worker.lease("w", capacity=1, wait=60))
        while "w" not in (await admin.status()).workers:
            await asyncio.sleep(0.01)
        async with asyncio.timeout(30):
            await server.close()
        with pytest.raises(WireError):
            await waiting


async def test_cancelling_a_queued_rollout_leaves_a_trace(open_server):
    async with open_server() as (_, admin, worker):
        await enqueue(admin, 0)
        assert await admin.cancel("r0", "not needed") is RolloutStatus.CANCELLED
        assert await worker.lease("w", capacity=1, wait=0) == []
        assert "not needed" in (await admin.trace("r0")).attempt.error


async def test_the_worker_of_a_running_rollout_is_told_to_cancel(open_server):
    async with open_server() as (_, admin, worker):
        await enqueue(admin, 0)
        (lease,) = await worker.lease("w", capacity=1, wait=0)
        assert await admin.cancel("r0", "enough") is RolloutStatus.RUNNING
        assert (await worker.heartbeat(lease.attempt.id, lease.attempt.fence)).cancel
        await worker.finish(lease.attempt.id, done(lease, Cause.CANCELLED))
        assert (await admin.rollouts())[0].status is RolloutStatus.CANCELLED


async def test_a_reward_before_the_end_is_refused(open_server):
    async with open_server() as (_, admin, worker):
        await enqueue(admin, 0)
        await worker.lease("w", capacity=1, wait=0)
        with pytest.raises(WireError, match="is `running`; reward it once it has ended"):
            await admin.reward("r0", [Reward(value=1.0)])
        with pytest.raises(WireError, match="not known"):
            await admin.reward("r9", [Reward(value=1.0)])


async def test_events_come_in_order_and_wait(open_server):
    async with open_server() as (_, admin, worker):
        waiting = asyncio.create_task(admin.events(0, wait=30))
        await enqueue(admin, 0)
        (lease,) = await worker.lease("w", capacity=1, wait=0)
        (started,) = await waiting
        await worker.finish(lease.attempt.id, done(lease))
        later = await admin.events(started.number, wait=30)
        kinds = [event.kind for event in (started, *later)]
        assert kinds == ["attempt_started", "attempt_ended", "rollout_ended"]
        assert later[-1].cause is Cause.SUCCESS
        rewarding = asyncio.create_task(admin.events(later[-1].number, wait=30))
        await admin.reward("r0", [Reward(value=0.5)])
        (rewarded,) = await rewarding
        assert (rewarded.kind, rewarded.rollout_id) == ("rewarded", "r0")
        assert (await admin.trace("r0")).reward == 0.5


async def test_groups_hold_the_last_attempt_of_each_rollout(open_server):
    async with open_server() as (_, admin, worker):
        await enqueue(admin, 0, 1, group="g")
        for lease in await worker.lease("w", capacity=2, wait=0):
            await worker.finish(lease.attempt.id, done(lease, output=lease.rollout.id))
        assert [trace.output for trace in await admin.group("g")] == ["r0", "r1"]
        with pytest.raises(WireError, match="group `h`: not known"):
            await admin.group("h")


async def test_a_restart_loses_nothing_and_keeps_leases(open_server):
    async with open_server() as (_, admin, worker):
        await enqueue(admin, 0, 1, 2)
        leases = await worker.lease("w", capacity=2, wait=0)
        await worker.finish(leases[0].attempt.id, done(leases[0], output="kept"))
        last = (await admin.events(0))[-1].number
    async with open_server() as (_, admin, worker):
        held = leases[1].attempt
        await worker.heartbeat(held.id, held.fence)
        assert await worker.finish(held.id, done(leases[1])) is RolloutStatus.SUCCEEDED
        (third,) = await worker.lease("w", capacity=9, wait=0)
        assert third.rollout.id == "r2"
        assert third.attempt.fence > held.fence
        assert (await admin.trace("r0")).output == "kept"
        with pytest.raises(WireError) as raised:
            await admin.events(last, wait=0)
        assert raised.value.status == 410


async def test_what_ended_long_ago_is_deleted_where_that_is_asked(open_server):
    async with open_server(lease_seconds=0.4, keep_seconds=0.5) as (_, admin, worker):
        await enqueue(admin, 0, 1)
        (lease,) = await worker.lease("w", capacity=1, wait=0)
        await worker.finish(lease.attempt.id, done(lease))
        async with asyncio.timeout(60):
            while len(await admin.rollouts()) == 2:
                await asyncio.sleep(0.05)
        assert [r.id for r in await admin.rollouts()] == ["r1"]
        with pytest.raises(WireError, match="not known"):
            await admin.trace("r0")


async def test_a_port_in_use_is_one_clear_error(open_server, tmp_path):
    async with open_server() as (server, _, _worker):
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{port}"):
            await Server(ServerConfig(folder=tmp_path / "other", port=port)).start()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer nonsense"}, 401),
        ({"authorization": "Bearer lc1.e30.AAAA"}, 401),
        ({"authorization": "Basic abc"}, 401),
    ],
)
async def test_without_a_good_token_there_is_no_answer(open_server, headers, status):
    async with open_server() as (server, _, _worker), aiohttp.ClientSession() as http:
        answer = await http.get(f"{server.url}/api/v1/status", headers=headers)
        assert answer.status == status
        assert (await answer.json())["error"]["type"] == "unauthorized"


async def test_a_session_reaches_its_own_attempt_and_nothing_else(open_server):
    async with open_server() as (server, admin, worker), aiohttp.ClientSession() as http:
        await enqueue(admin, 0, 1)
        mine, other = await worker.lease("w", capacity=2, wait=0)
        headers = {"authorization": f"Bearer {mine.session}"}
        api = f"{server.url}/api/v1"

        async def post(path, body):
            return (await http.post(api + path, json=body, headers=headers)).status

        span = {"id": "s", "kind": "tool", "name": "x"}
        assert await post(f"/attempts/{mine.attempt.id}/spans", {"spans": [span]}) == 200
        assert await post(f"/attempts/{other.attempt.id}/spans", {"spans": [span]}) == 403
        assert await post("/rollouts/r0/rewards", {"rewards": [{"value": 1.0}]}) == 403
        assert (
            await post(f"/attempts/{mine.attempt.id}/finish", {"fence": 1, "cause": "success"})
            == 403
        )
        assert await post("/policy/pause", {"timeout": 1}) == 403
        assert (await http.get(f"{api}/rollouts/r1/trace", headers=headers)).status == 403
        await worker.finish(mine.attempt.id, done(mine))
        assert await post(f"/attempts/{mine.attempt.id}/spans", {"spans": [span]}) == 409


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/leases", b"{", 400, "not JSON"),
        ("/leases", b"[]", 400, "expected a JSON object"),
        ("/leases", b"{}", 400, "`worker` is missing"),
        ("/leases", b'{"worker": 3, "capacity": 1, "wait": 0}', 400, "`worker`: Expected `str`"),
        ("/tasks", b'{"run": "r", "tasks": [{"input": 1}]}', 400, "missing required field `id`"),
        ("/rollouts/r0/rewards", b'{"rewards": [{"value": "1"}]}', 400, "Expected `float"),
        (
            "/attempts/r0.1/finish",
            b'{"fence": 1, "cause": "bored"}',
            400,
            "Invalid enum value 'bored'",
        ),
        ("/nothing", b"{}", 404, "no such route"),
        (
            "/tasks",
            b'{"run": "r", "tasks": "' + b"x" * 5000 + b'"}',
            413,
            "more than the 4000 bytes",
        ),
    ],
    ids=lambda value: str(value)[:24],
)
async def test_bad_input_is_one_clear_error(open_server, path, body, status, says):
    limits = GatewayLimits(max_body=1000)
    async with (
        open_server(limits=limits) as (server, admin, _worker),
        aiohttp.ClientSession() as http,
    ):
        await enqueue(admin, 0)
        await admin.cancel("r0", "")
        headers = {
            "authorization": f"Bearer {server.token(Scope.ADMIN)}",
            "content-type": "application/json",
        }
        answer = await http.post(f"{server.url}/api/v1{path}", data=body, headers=headers)
        text = (await answer.json())["error"]["message"]
        assert (answer.status, says in text) == (status, True), text
        assert (await admin.status()).version


async def test_a_read_only_folder_is_one_clear_error(tmp_path):
    # The tests may run as root, whom no mode stops: a file where the folder should be stops everyone.
    (tmp_path / "file").write_text("")
    from lightning_core.errors import StoreError

    with pytest.raises(StoreError, match="run folder"):
        await Server(ServerConfig(folder=tmp_path / "file" / "run")).start()


async def test_healthz_needs_no_token(open_server):
    async with open_server() as (server, _, _worker), aiohttp.ClientSession() as http:
        answer = await http.get(f"{server.url}/healthz")
        assert msgspec.json.decode(await answer.read())["status"] == "ok"
