"""Live agents in the worker's process: async in one loop, sync in threads."""

import asyncio
import threading
import time

import pytest

from lightning_core.instrument import current, span
from lightning_core.rollout import Cause
from lightning_core.worker import inprocess


@pytest.fixture(params=[False, True], ids=["callers-loop", "own-loop"])
def own_loop(request):
    return request.param


async def test_async_and_sync_functions_give_their_output(server, worker, own_loop):
    async def shout(text):
        await asyncio.sleep(0)
        return {"answer": text.upper()}

    def reverse(text):
        return text[::-1]

    first = await worker(shout, own_loop=own_loop)
    report = await server.report(await server.put("abc"))
    assert (report.cause, report.output) == (Cause.SUCCESS, {"answer": "ABC"})
    assert await first.stop()
    await worker(reverse, own_loop=own_loop)
    report = await server.report(await server.put("abc"))
    assert (report.cause, report.output) == (Cause.SUCCESS, "cba")


async def test_eight_async_attempts_run_at_once_in_one_loop(server, worker, own_loop):
    loops = set()
    barrier = asyncio.Barrier(8)

    async def agent(number):
        loops.add(asyncio.get_running_loop())
        await barrier.wait()  # Passes only when all eight are in it.
        return number

    await worker(agent, own_loop=own_loop, concurrency=8)
    ids = [await server.put(n) for n in range(8)]
    reports = [await server.report(i) for i in ids]
    assert [r.output for r in reports] == list(range(8))
    assert len(loops) == 1


async def test_eight_sync_attempts_run_at_once(server, worker):
    barrier = threading.Barrier(8)

    def agent(number):
        barrier.wait(timeout=60)
        return number

    await worker(agent, concurrency=8)
    ids = [await server.put(n) for n in range(8)]
    assert [(await server.report(i)).output for i in ids] == list(range(8))


async def test_no_more_is_leased_than_there_are_places(server, worker):
    release = asyncio.Event()

    async def agent(number):
        await release.wait()

    await worker(agent, concurrency=2)
    ids = [await server.put(n) for n in range(5)]
    await server.until(lambda: len(server.beats) == 2)
    assert max(server.capacities) == 2
    assert server.reports == {}
    release.set()
    assert {(await server.report(i)).cause for i in ids} == {Cause.SUCCESS}


async def test_an_agent_that_raises_hurts_no_sibling(server, worker):
    async def agent(number):
        if number == 1:
            raise ValueError("no such table")
        if number == 2:
            raise SystemExit(3)
        return number

    await worker(agent)
    ids = [await server.put(n) for n in range(4)]
    reports = [await server.report(i) for i in ids]
    assert [r.cause for r in reports] == ["success", "agent_error", "agent_error", "success"]
    assert reports[1].error.startswith("ValueError: no such table")
    assert "test_worker_inprocess.py" in reports[1].error
    assert reports[2].error.startswith("SystemExit: 3")


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), StopIteration("x")])
async def test_whatever_a_sync_agent_raises_is_its_failure(server, worker, error):
    def agent(number):
        raise error

    await worker(agent)
    report = await server.report(await server.put(1))
    assert report.cause is Cause.AGENT_ERROR
    assert type(error).__name__ in report.error


async def test_a_long_error_is_bounded_and_keeps_both_ends(server, worker):
    def agent(text):
        raise RuntimeError("start " + "x" * 100_000)

    await worker(agent)
    report = await server.report(await server.put(1))
    assert len(report.error.encode()) <= 16 * 1024
    assert report.error.startswith("RuntimeError: start")


async def test_an_async_agent_that_hangs_ends_at_its_deadline(server, worker, own_loop):
    ended = []

    async def agent(number):
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(number)

    await worker(agent, own_loop=own_loop)
    report = await server.report(await server.put(7, timeout=0.3))
    assert report.cause is Cause.TIMEOUT
    assert "0.3 s" in report.error
    assert ended == [7]


async def test_an_agent_that_ignores_its_cancellation_is_left_behind(
    server, worker, monkeypatch, caplog
):
    monkeypatch.setattr(inprocess, "END_SECONDS", 0.3)
    release = asyncio.Event()

    async def agent(number):
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return number

    made = await worker(agent, concurrency=2)
    attempt = await server.put(7, timeout=0.3)
    report = await server.report(attempt)
    assert report.cause is Cause.TIMEOUT
    assert "ignores its cancellation" in report.error
    assert "--isolate" in report.error
    assert attempt in caplog.text
    release.set()
    assert (await server.report(await server.put(8))).output == 8
    assert await made.stop()


async def test_threads_that_hang_take_up_places_until_none_is_left(server, worker, caplog):
    release = threading.Event()

    def agent(number):
        release.wait()

    made = await worker(agent, concurrency=2, stuck_patience=0.1)
    ids = [await server.put(n, timeout=0.2) for n in range(2)]
    try:
        for attempt in ids:
            report = await server.report(attempt)
            assert report.cause is Cause.TIMEOUT
            assert "thread cannot be ended" in report.error
        with pytest.raises(Exception, match="--isolate") as raised:
            await made.task
        assert ids[0] in str(raised.value)
    finally:
        release.set()


async def test_code_that_blocks_the_agents_loop_stops_no_heartbeat(server, worker, monkeypatch):
    monkeypatch.setattr(inprocess, "END_SECONDS", 0.3)
    monkeypatch.setattr(inprocess, "_PING_SECONDS", 0.2)
    release = threading.Event()
    entered = threading.Event()

    async def agent(blocks):
        if not blocks:
            await asyncio.sleep(3600)
        entered.set()
        release.wait()

    made = await worker(agent, own_loop=True, concurrency=4)
    innocent = await server.put(False, timeout=1.5)
    await server.until(lambda: innocent in server.beats)
    culprit = await server.put(True, timeout=1.0)
    try:
        await asyncio.to_thread(entered.wait)
        beats = server.beats.get(culprit, 0)
        await server.until(lambda: server.beats.get(culprit, 0) > beats + 3)
        report = await server.report(culprit)
        assert report.cause is Cause.TIMEOUT
        assert "release.wait()" in report.error
        report = await server.report(innocent)
        assert report.cause is Cause.WORKER_ERROR
        assert culprit in report.error
    finally:
        release.set()
    assert (await server.report(await server.put(True))).cause is Cause.SUCCESS
    assert await made.stop()


async def test_a_process_that_a_hanging_agent_waits_for_is_ended(server, worker, marker):
    import subprocess

    started = threading.Event()

    def agent(number):
        child = subprocess.Popen(["sleep", "3600"])
        started.set()
        child.wait()

    made = await worker(agent)
    attempt = await server.put(1, timeout=0.5)
    report = await server.report(attempt)
    assert report.cause is Cause.TIMEOUT
    assert marker() == []
    assert "thread" not in report.error
    assert await made.stop()


async def test_an_output_that_json_cannot_hold_names_its_place(server, worker):
    async def agent(number):
        return {"rows": [1, {"score": float("nan")}]}

    await worker(agent)
    report = await server.report(await server.put(1))
    assert report.cause is Cause.AGENT_ERROR
    assert "`output.rows[1].score`" in report.error


async def test_an_output_over_the_limit_is_the_agents_error(server, worker):
    async def agent(number):
        return "x" * number

    await worker(agent, output_limit=1000)
    assert (await server.report(await server.put(900))).cause is Cause.SUCCESS
    report = await server.report(await server.put(2000))
    assert report.cause is Cause.AGENT_ERROR
    assert "1000" in report.error


async def test_an_output_that_the_server_refuses_is_reported_without_it(server, worker):
    server.refuse_output = True

    async def agent(number):
        return "long"

    await worker(agent)
    report = await server.report(await server.put(1))
    assert (report.cause, report.output) == (Cause.AGENT_ERROR, None)
    assert "too large" in report.error


async def test_each_attempt_has_its_own_scope_in_tasks_and_threads(server, worker, own_loop):
    async def agent(number):
        scopes = await asyncio.gather(
            asyncio.to_thread(lambda: current().attempt),
            asyncio.get_running_loop().run_in_executor(None, lambda: current().attempt),
            asyncio.sleep(0, current().attempt),
        )
        with span("agent", f"agent {number}"):
            await asyncio.sleep(0)
        return scopes

    await worker(agent, own_loop=own_loop)
    ids = [await server.put(n) for n in range(4)]
    for attempt in ids:
        assert (await server.report(attempt)).output == [attempt] * 3
    spans = {s["attempt_id"]: s for s in server.spans}
    assert sorted(spans) == sorted(ids)
    assert all(s["ended_at"] for s in spans.values())
    assert current() is None


async def test_a_sync_agent_sees_its_scope(server, worker):
    def agent(number):
        return current().attempt

    await worker(agent)
    attempt = await server.put(1)
    assert (await server.report(attempt)).output == attempt


async def test_an_agent_that_cancels_itself_has_failed(server, worker):
    async def agent(number):
        raise asyncio.CancelledError

    await worker(agent)
    assert (await server.report(await server.put(1))).cause is Cause.AGENT_ERROR


@pytest.mark.parametrize("ahead", [-3600.0, 3600.0])
async def test_the_deadline_counts_from_the_lease_whatever_the_clocks_say(server, worker, ahead):
    server.clock = ahead

    async def agent(task, context):
        return context.deadline - time.time()

    await worker(agent)
    report = await server.report(await server.put(1, timeout=50))
    assert report.cause is Cause.SUCCESS
    assert 0 < report.output <= 51


async def test_an_agent_may_use_more_threads_than_there_are(server, worker):
    def add(number):
        return number + 1

    async def agent(count):
        results = await asyncio.gather(*(asyncio.to_thread(add, n) for n in range(count)))
        try:
            await asyncio.to_thread(add, "x")
        except TypeError:
            return sum(results)

    await worker(agent, own_loop=True)
    assert (await server.report(await server.put(300))).output == sum(range(1, 301))


async def test_a_background_task_that_exits_does_not_stop_the_others(server, worker, caplog):
    async def leave():
        raise SystemExit(1)

    async def agent(bad):
        if bad:
            task = asyncio.create_task(leave())
            await asyncio.wait([task])
            assert isinstance(task.exception(), SystemExit)
        return "fine"

    await worker(agent, own_loop=True)
    ids = [await server.put(True), await server.put(False)]
    assert [(await server.report(i)).output for i in ids] == ["fine", "fine"]
    assert "left the event loop" in caplog.text
