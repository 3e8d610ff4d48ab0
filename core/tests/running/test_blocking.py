"""Async functions for code that is not async."""

import asyncio
import contextvars
import multiprocessing
import signal
import subprocess
import sys
import threading

import pytest

from lightning_core import run_sync
from lightning_core.errors import UsageError
from lightning_core.running.blocking import blocking


async def answer(text, *, times=1):
    await asyncio.sleep(0)
    if not times:
        raise ValueError(text)
    return text * times


async def running_loop():
    return asyncio.get_running_loop()


def test_what_the_function_returns_and_raises_comes_through():
    assert blocking(answer, "ab", times=2) == "abab"
    with pytest.raises(ValueError, match="ab") as caught:
        blocking(answer, "ab", times=0)
    assert caught.value.__context__ is None


async def test_within_a_running_loop_nothing_begins_and_the_way_to_go_is_told():
    with pytest.raises(
        UsageError,
        match=r"^answer_sync: .* in this thread already; use `await lightning_core\.answer",
    ):
        blocking(answer, "ab")


def test_all_calls_of_a_thread_share_a_loop_and_its_end_closes_it():
    def work(found):
        found += [blocking(running_loop), blocking(running_loop)]

    first, second = [], []
    for found in (first, second):
        thread = threading.Thread(target=work, args=(found,))
        thread.start()
        thread.join()
        assert found[0] is found[1]
        assert found[0].is_closed()
    assert first[0] is not second[0]
    assert blocking(running_loop) not in (first[0], second[0])


def test_a_call_has_the_context_of_its_caller():
    async def read():
        return number.get()

    number = contextvars.ContextVar("number")
    for value in range(2):
        number.set(value)
        assert blocking(read) == value


def test_a_client_that_an_agent_holds_can_be_used_in_several_runs(
    scripted_server, tmp_path, monkeypatch
):
    """Its connections are of the loop in which it was first used."""
    openai = pytest.importorskip("openai")
    monkeypatch.setenv("LIGHTNING_CORE_RUNS", str(tmp_path))
    client = openai.AsyncOpenAI(base_url=scripted_server.base_url, api_key="own", max_retries=0)

    async def agent(question):
        reply = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": question}]
        )
        return reply.choices[0].message.content

    assert blocking(agent, "before") == "before"
    for number in range(3):
        done = run_sync(agent, [{"input": f"q{number}"}])
        (trace,) = done.traces
        assert (trace.attempt.error, trace.output) == (None, f"q{number}")
        assert [call.complete for call in trace.calls] == [True]
    blocking(client.close)


def test_the_threads_own_loop_is_left_to_the_user():
    def work(found):
        blocking(answer, "ab")
        with pytest.raises(RuntimeError, match="no current event loop"):
            asyncio.get_event_loop()
        asyncio.run(answer("ab"))
        found.append(blocking(answer, "ab"))

    found = []
    thread = threading.Thread(target=work, args=(found,))
    thread.start()
    thread.join()
    assert found == ["ab"]


def test_an_exit_within_a_call_leaves_nothing_of_it_running():
    ended = []

    async def work():
        try:
            asyncio.get_running_loop().call_soon(sys.exit, 3)
            await asyncio.sleep(3600)
        finally:
            ended.append(True)

    before = blocking(running_loop)
    with pytest.raises(SystemExit):
        blocking(work)
    assert ended == [True]
    assert before.is_closed()
    assert blocking(answer, "ab") == "ab"


def _forked(queue):
    queue.put((blocking(answer, "ab"), id(blocking(running_loop))))


def test_a_process_that_was_forked_has_a_loop_of_its_own():
    loop = blocking(running_loop)
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=_forked, args=(queue,))
    process.start()
    text, other = queue.get()
    process.join()
    assert (text, process.exitcode) == ("ab", 0)
    assert other != id(loop)
    assert blocking(running_loop) is loop


HELD = """
import asyncio, socket, sys
from lightning_core.running.blocking import blocking

async def agent():
    ours, others = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=ours)

    async def wait():
        try:
            await asyncio.sleep(3600)
        finally:
            others.close()
            writer.close()
            print("left in order", flush=True)
    held.append(asyncio.create_task(wait()))
    held.append(numbers())
    await held[-1].__anext__()
    await asyncio.to_thread(str)

async def numbers():
    try:
        yield 1
    finally:
        await asyncio.sleep(0)
        print("closed", flush=True)

held = []
for _ in range(2):
    blocking(agent)
sys.stdout.flush()
"""


def test_what_is_left_at_the_end_of_the_process_ends_without_a_warning():
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", HELD],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == ["closed"] * 2 + ["left in order"] * 2


INTERRUPTED = """
import asyncio, os, signal
from lightning_core.running.blocking import blocking

async def work():
    try:
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
        await asyncio.sleep(3600)
    finally:
        await asyncio.sleep(0)
        print("cleaned up", flush=True)

async def answer():
    return "again"

for _ in range(2):
    try:
        blocking(work)
    except KeyboardInterrupt:
        print(blocking(answer), flush=True)
blocking(work)
"""


def test_ctrl_c_breaks_a_call_off_and_another_can_be_made():
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", INTERRUPTED],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["cleaned up", "again"] * 2 + ["cleaned up"]
    assert done.returncode == -signal.SIGINT
    assert done.stderr.strip().endswith("KeyboardInterrupt")
