"""An attempt goes along into threads, executors and child processes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from lightning_core.instrument import ListSink, Scope, attempt, current, propagate, span
from lightning_core.instrument.bootstrap import STARTUP
from lightning_core.instrument.context import PLACEHOLDER_KEY

PATCHED = (
    (threading.Thread, "start"),
    (ThreadPoolExecutor, "submit"),
    (subprocess.Popen, "__init__"),
)


@pytest.fixture
def hook():
    propagate.install()
    yield
    propagate.uninstall()


def scope_of(name: str = "a1", **more) -> Scope:
    return Scope(
        gateway="http://127.0.0.1:9", session="secret", attempt=name, sink=ListSink(), **more
    )


def in_thread(work) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)


def name() -> str | None:
    scope = current()
    return scope and scope.attempt


def test_a_thread_belongs_to_the_attempt_that_starts_it(hook):
    seen = []
    in_thread(lambda: seen.append(name()))
    with attempt(scope_of()), span("node", "n") as opened:
        in_thread(lambda: seen.append((name(), current().span)))
        in_thread(lambda: in_thread(lambda: seen.append(name())))  # A thread of a thread.
        timer = threading.Timer(0, lambda: seen.append(name()))
        timer.start()
        timer.join(30)
    assert seen == [None, ("a1", opened.id), "a1", "a1"]


def test_a_thread_subclass_keeps_its_own_run(hook):
    class Mine(threading.Thread):
        def run(self):
            self.seen = (name(), "run" in vars(self))

    with attempt(scope_of()):
        thread = Mine()
        thread.start()
        thread.join(30)
    assert thread.seen == ("a1", False)


def test_a_thread_that_is_started_twice_fails_as_before(hook):
    with attempt(scope_of()):
        thread = threading.Thread(target=int)
        thread.start()
        thread.join(30)
        with pytest.raises(RuntimeError, match="once"):
            thread.start()
    assert "run" not in vars(thread)


def test_each_job_of_a_pool_belongs_to_the_attempt_that_submits_it(hook):
    with ThreadPoolExecutor(1) as pool:
        with attempt(scope_of("a1")):
            first = pool.submit(name).result(30)  # This starts the pool's only thread.
        with attempt(scope_of("a2")):
            second = list(pool.map(lambda _: name(), range(3)))
        outside = pool.submit(name).result(30)
    assert (first, second, outside) == ("a1", ["a2"] * 3, None)


async def test_executors_of_asyncio_follow(hook):
    loop = asyncio.get_running_loop()
    with attempt(scope_of()):
        assert await loop.run_in_executor(None, name) == "a1"
        assert await asyncio.to_thread(name) == "a1"
    assert await loop.run_in_executor(None, name) is None


SHOW = "import os, json; print(json.dumps(dict(os.environ)))"


def environment(**options) -> dict[str, str]:
    done = subprocess.run([sys.executable, "-S", "-c", SHOW], stdout=subprocess.PIPE, **options)
    return json.loads(done.stdout)


def test_a_child_process_gets_the_attempt_and_the_span(hook):
    with attempt(scope_of(adapters={"m": "a:B"})), span("tool", "shell") as opened:
        child = environment()
    session = json.loads(child["LIGHTNING_CORE_SESSION"])
    assert session == {
        "gateway": "http://127.0.0.1:9",
        "session": "secret",
        "attempt": "a1",
        "span": opened.id,
        "adapters": {"m": "a:B"},
    }
    assert child["PYTHONPATH"].split(os.pathsep)[0] == STARTUP
    assert child["OPENAI_BASE_URL"] == "http://127.0.0.1:9/s/secret/v1"
    assert "LIGHTNING_CORE_SESSION" not in environment()
    assert "LIGHTNING_CORE_SESSION" not in os.environ


@pytest.mark.parametrize("env", [{"MINE": "1"}, {b"MINE": b"1"}])
def test_a_child_with_an_environment_of_its_own_gets_it_too(hook, env):
    given = dict(env)
    with attempt(scope_of(set_key=True)):
        child = environment(env=env)
    assert child["MINE"] == "1"
    assert child["OPENAI_API_KEY"] == PLACEHOLDER_KEY
    assert json.loads(child["LIGHTNING_CORE_SESSION"])["attempt"] == "a1"
    assert "HOME" not in child
    assert env == given


def test_the_environment_may_be_given_by_position(hook):
    with attempt(scope_of()):
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", SHOW],
            -1, None, None, subprocess.PIPE, None, None, True, False, None, {"MINE": "1"},
        )  # fmt: skip
    child = json.loads(process.communicate(timeout=60)[0])
    assert child["MINE"] == "1"
    assert "LIGHTNING_CORE_SESSION" in child


async def test_child_processes_of_asyncio_get_it_too(hook):
    with attempt(scope_of()):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-S", "-c", SHOW, stdout=subprocess.PIPE
        )
    out, _ = await process.communicate()
    assert "LIGHTNING_CORE_SESSION" in json.loads(out)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork is POSIX")
def test_a_fork_keeps_the_attempt(hook):
    reader, writer = os.pipe()
    with attempt(scope_of()):
        pid = os.fork()
        if pid == 0:
            os.write(writer, str(name()).encode())
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(writer)
    assert os.read(reader, 100) == b"a1"
    os.close(reader)


def test_the_last_uninstall_restores_everything():
    before = [vars(owner)[attribute] for owner, attribute in PATCHED]
    propagate.install()
    propagate.install()
    propagate.uninstall()
    assert [vars(owner)[attribute] for owner, attribute in PATCHED] != before
    propagate.uninstall()
    assert [vars(owner)[attribute] for owner, attribute in PATCHED] == before
    with pytest.raises(RuntimeError, match="more often"):
        propagate.uninstall()
