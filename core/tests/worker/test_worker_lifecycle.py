"""Leases, heart-beats, reports: what happens when the server, the run or the user interferes."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from lightning_core.agents import Command
from lightning_core.client import Client
from lightning_core.errors import WireError
from lightning_core.instrument import span
from lightning_core.rollout import Cause
from lightning_core.worker import Worker, work

CHILDREN = "sleep 3600 & setsid sleep 3600 & (setsid sleep 3600 &) ; wait"


async def test_a_cancelled_attempt_is_ended_and_reported(server, worker):
    ended = asyncio.Event()

    async def agent(number):
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    await worker(agent)
    attempt = await server.put(1)
    await server.until(lambda: attempt in server.beats)
    server.cancelled.add(attempt)
    report = await server.report(attempt)
    assert report.cause is Cause.CANCELLED
    assert ended.is_set()


async def test_a_cancelled_command_is_killed_whole(server, worker, marker):
    await worker(Command(("sh", "-c", CHILDREN)))
    attempt = await server.put(1)
    await server.until(lambda: attempt in server.beats)
    server.cancelled.add(attempt)
    assert (await server.report(attempt)).cause is Cause.CANCELLED
    assert marker() == []


async def test_a_fenced_attempt_is_ended_and_not_reported(server, worker, caplog):
    ended = asyncio.Event()

    async def agent(number):
        if number == 1:
            try:
                await asyncio.sleep(3600)
            finally:
                ended.set()
        return number

    await worker(agent)
    attempt = await server.put(1)
    await server.until(lambda: attempt in server.beats)
    server.fenced.add(attempt)
    await ended.wait()
    assert (await server.report(await server.put(2))).output == 2
    assert attempt not in server.reports
    assert f"`{attempt}`: is no longer ours" in caplog.text


async def test_a_report_that_comes_too_late_is_dropped(server, worker, caplog):
    server.heartbeat = 60.0
    go_on = asyncio.Event()
    begun = asyncio.Event()

    async def agent(number):
        begun.set()
        await go_on.wait()
        return number

    made = await worker(agent)
    attempt = await server.put(1)
    await begun.wait()
    server.fenced.add(attempt)
    go_on.set()
    await server.until(lambda: f"report of {attempt}" in server.fenced)
    assert await made.stop()
    assert server.reports == {}


async def test_a_server_that_restarts_in_the_middle_loses_nothing(server, worker):
    go_on = asyncio.Event()

    async def agent(number):
        await go_on.wait()
        return number

    await worker(agent)
    attempt = await server.put(5)
    await server.until(lambda: attempt in server.beats)
    await server.stop()
    go_on.set()  # The agent ends while nobody listens.
    await asyncio.sleep(0.5)
    await server.start()
    report = await server.report(attempt)
    assert (report.cause, report.output) == (Cause.SUCCESS, 5)
    assert (await server.report(await server.put(6))).output == 6


@pytest.mark.parametrize("away", [True, False])
async def test_an_agent_that_fails_while_the_server_is_away_failed_because_of_that(
    server, worker, away
):
    go_on = asyncio.Event()

    async def agent(number):
        await go_on.wait()
        raise ConnectionError("no gateway")

    await worker(agent)
    attempt = await server.put(5)
    await server.until(lambda: attempt in server.beats)
    if away:
        await server.stop()
    go_on.set()
    if away:
        await asyncio.sleep(0.5)
        await server.start()
    report = await server.report(attempt)
    assert report.cause is (Cause.WORKER_ERROR if away else Cause.AGENT_ERROR)
    assert "no gateway" in report.error
    assert ("could not be reached" in report.error) is away


async def test_spans_wait_for_a_server_that_is_away(server, worker):
    go_on = asyncio.Event()

    async def agent(number):
        await go_on.wait()
        for n in range(1200):
            with span("node", f"node {n}"):
                pass

    await worker(agent)
    attempt = await server.put(5)
    await server.until(lambda: attempt in server.beats)
    await server.stop()
    go_on.set()
    await asyncio.sleep(0.3)
    await server.start()
    assert (await server.report(attempt)).cause is Cause.SUCCESS
    assert {s["name"] for s in server.spans} == {f"node {n}" for n in range(1200)}


async def test_an_agent_goes_on_while_the_server_is_away(server, worker):
    go_on = asyncio.Event()

    async def agent(number):
        await go_on.wait()
        return number

    await worker(agent)
    attempt = await server.put(5)
    await server.until(lambda: attempt in server.beats)
    await server.stop()
    await asyncio.sleep(0.3)
    await server.start()
    beats = server.beats[attempt]
    await server.until(lambda: server.beats[attempt] > beats + 2)
    go_on.set()
    assert (await server.report(attempt)).output == 5


async def test_a_report_is_given_up_when_the_lease_has_long_lapsed(server, worker, caplog):
    server.lease_seconds = 0.2
    go_on = asyncio.Event()

    async def agent(number):
        await go_on.wait()

    made = await worker(agent, report_patience=0.2)
    attempt = await server.put(5)
    await server.until(lambda: attempt in server.beats)
    await server.stop()
    go_on.set()
    while "is given up" not in caplog.text:
        await asyncio.sleep(0.05)
    assert await made.stop()


async def test_stopping_ends_and_reports_what_runs_and_leases_no_more(server, worker):
    async def agent(number):
        await asyncio.sleep(3600)

    made = await worker(agent)
    ids = [await server.put(n) for n in range(3)]
    await server.until(lambda: len(server.beats) == 3)
    assert await made.stop()
    assert {server.reports[i].cause for i in ids} == {Cause.CANCELLED}
    later = await server.put(4)
    await asyncio.sleep(0.2)
    assert later not in server.reports


async def test_cancelling_the_worker_is_stopping_it(server, worker):
    async def agent(number):
        await asyncio.sleep(3600)

    made = await worker(agent)
    attempt = await server.put(1)
    await server.until(lambda: attempt in server.beats)
    made.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await made.task
    assert server.reports[attempt].cause is Cause.CANCELLED


async def test_a_refused_token_ends_the_worker(server):
    async with Client(f"{server.url}/elsewhere", "token") as client:
        with pytest.raises(WireError):
            await Worker(client, lambda text: text).run()


async def test_work_loads_an_agent_by_name_and_stops_when_told(server, tmp_path):
    (tmp_path / "twice.py").write_text("def twice(text):\n    return text * 2\n")
    stop, ready = asyncio.Event(), asyncio.Event()
    working = asyncio.create_task(
        work(f"{tmp_path / 'twice.py'}:twice", url=server.url, token="t", stop=stop, ready=ready)
    )
    await ready.wait()
    assert (await server.report(await server.put("ab"))).output == "abab"
    stop.set()
    assert await working


def _start(server, *arguments, **variables):
    process = subprocess.Popen(
        [sys.executable, "-m", "lightning_core.worker", "--server", server.url, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **variables},
    )
    process.stdin.write(b'"token"\n')
    process.stdin.flush()
    return process


HANGING = """
import asyncio, os, subprocess, time

def sync(text):
    subprocess.Popen(["sleep", "3600"])
    os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "3600")  # Unknown to the instrumentation.
    while True:
        time.sleep(1)

async def stubborn(text):
    subprocess.Popen(["sleep", "3600"], start_new_session=True)
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM", "SIGKILL", "parent gone"])
@pytest.mark.parametrize("kind", ["command", "isolated", "sync", "stubborn"])
async def test_no_process_is_left_behind(server, marker, tmp_path, how, kind):
    if how == "SIGKILL" and kind in ("sync", "stubborn"):
        pytest.skip("what an agent starts within a worker that is killed is nobody's to end")
    (tmp_path / "hanging.py").write_text(HANGING)
    spec = str(tmp_path / "hanging.py")
    arguments = {
        "command": ["--", "sh", "-c", CHILDREN],
        "isolated": ["--isolate", "--agent", f"{spec}:sync"],
        "sync": ["--agent", f"{spec}:sync"],
        "stubborn": ["--agent", f"{spec}:stubborn"],
    }[kind]
    files = tmp_path / "files"
    files.mkdir()
    process = _start(server, *arguments, TMPDIR=str(files))
    try:
        assert await asyncio.to_thread(process.stdout.readline) == b"{}\n"
        attempt = await server.put(1)
        await server.until(lambda: server.beats.get(attempt, 0) > 20)
        assert len(marker()) > 1
        if how == "parent gone":
            process.stdin.close()
        else:
            process.send_signal(getattr(signal, how))
        await asyncio.to_thread(process.wait, 60)
        if how == "SIGKILL":
            while marker():  # The supervisors notice by themselves.
                await asyncio.sleep(0.05)
            assert list(files.iterdir()) == []
        assert marker() == []
        if how != "SIGKILL":
            assert server.reports[attempt].cause is Cause.CANCELLED
            assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


async def test_a_worker_process_says_why_it_cannot_start(server):
    process = _start(server, "--agent", "no_such_module_here:agent")
    with process.stdin, process.stdout:
        line = await asyncio.to_thread(process.stdout.readline)
        assert b"no_such_module_here" in line
        assert await asyncio.to_thread(process.wait, 60) == 1
