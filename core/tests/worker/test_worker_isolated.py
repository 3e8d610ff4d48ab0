"""One process per attempt."""

import pytest

from lightning_core.agents import load_agent
from lightning_core.errors import AgentError
from lightning_core.rollout import Cause

AGENT = """
import asyncio, os, subprocess, sys, threading, time
import helper

async def pid(task, context):
    print("thinking")
    return {"pid": os.getpid(), "input": task.input, "attempt": context.attempt_id}

def fails(text):
    raise ValueError("no such table")

def crashes(text):
    print("about to crash", file=sys.stderr)
    os.abort()

def leaves(text):
    os._exit(0)

def hangs(text):
    subprocess.Popen(["sleep", "3600"], start_new_session=True)
    while True:
        time.sleep(1)

def lingers(text):
    threading.Thread(target=time.sleep, args=(3600,), daemon=False).start()
    return helper.ANSWER

async def scope(text):
    from lightning_core.instrument import context
    found = await asyncio.to_thread(context.current)
    return [found.attempt, found.gateway]

def forges(text):
    folder = sys.argv[1]
    with open(folder + "/outcome.json", "w") as file:
        output = "[" * text + "]" * text if isinstance(text, int) else '"' + "x" * 200 + '"'
        error = ', "error": "' + "e" * 100_000 + '"' if text == 1 else ""
        file.write('{"format_version": 1, "cause": "success", "output": ' + output + error + "}")
    os._exit(0)

NOT_AN_AGENT = 3
"""


@pytest.fixture
def spec(tmp_path):
    (tmp_path / "my_agent.py").write_text(AGENT)
    (tmp_path / "helper.py").write_text("ANSWER = 42\n")
    return lambda name: f"{tmp_path / 'my_agent.py'}:{name}"


async def test_each_attempt_has_a_process_of_its_own(server, worker, spec):
    await worker(spec("pid"), isolate=True, concurrency=2)
    ids = [await server.put(n) for n in range(3)]
    reports = [await server.report(i) for i in ids]
    assert [r.cause for r in reports] == ["success"] * 3
    assert [r.output["input"] for r in reports] == [0, 1, 2]
    assert [r.output["attempt"] for r in reports] == ids
    assert len({r.output["pid"] for r in reports}) == 3
    assert reports[0].logs == "thinking\n"


async def test_failures_come_back_and_hurt_no_sibling(server, worker, spec):
    await worker(spec("fails"), isolate=True)
    report = await server.report(await server.put(1))
    assert report.cause is Cause.AGENT_ERROR
    assert report.error.startswith("ValueError: no such table")
    assert "my_agent.py" in report.error


async def test_a_crash_is_the_agents_error_with_the_end_of_its_output(server, worker, spec):
    await worker(spec("crashes"), isolate=True)
    report = await server.report(await server.put(1))
    assert report.cause is Cause.AGENT_ERROR
    assert "SIGABRT" in report.error
    assert "about to crash" in report.error


async def test_a_process_that_leaves_without_outcome_has_failed(server, worker, spec):
    await worker(spec("leaves"), isolate=True)
    report = await server.report(await server.put(1))
    assert report.cause is Cause.AGENT_ERROR
    assert "no outcome" in report.error


async def test_what_its_process_leaves_is_kept_within_bounds(server, worker, spec):
    await worker(spec("forges"), isolate=True)
    for depth in (110, 200_000):
        report = await server.report(await server.put(depth))
        assert report.cause is Cause.AGENT_ERROR
        assert "deep" in report.error
    assert len((await server.report(await server.put(1))).error) <= 16 * 1024


async def test_an_output_of_its_process_over_the_limit_is_the_agents_error(server, worker, spec):
    await worker(spec("forges"), isolate=True, output_limit=100)
    report = await server.report(await server.put("long"))
    assert report.cause is Cause.AGENT_ERROR
    assert "over the limit of 100" in report.error


ADAPTED = """
import contextlib
import lightning_core as lc
from lightning_core.adapter import Adapter, AgentGraph

class Team:
    def work(self, text):
        return text.upper()

class TeamAdapter(Adapter):
    name = "teams"

    def __init__(self, mark="none"):
        self.mark = mark
        self.entered = False

    def accepts(self, agent):
        return isinstance(agent, Team)

    def describe(self, agent):
        return AgentGraph(name="team")

    @contextlib.contextmanager
    def instrument(self):
        self.entered = True
        yield

    async def run(self, agent, task, context):
        return {"said": agent.work(task.input), "mark": self.mark, "instrumented": self.entered}

agent = lc.Adapted(Team(), TeamAdapter(mark="mine"))
"""


@pytest.mark.parametrize("isolate", [True, False])
async def test_an_agent_with_an_adapter_of_its_own(server, worker, tmp_path, isolate):
    (tmp_path / "adapted.py").write_text(ADAPTED)
    agent = f"{tmp_path / 'adapted.py'}:agent"
    await worker(agent if isolate else load_agent(agent), isolate=isolate)
    report = await server.report(await server.put("hi"))
    assert report.output == {"said": "HI", "mark": "mine", "instrumented": True}


async def test_a_sync_agent_that_hangs_is_killed_with_its_children(server, worker, spec, marker):
    made = await worker(spec("hangs"), isolate=True)
    report = await server.report(await server.put(1, timeout=4))
    assert report.cause is Cause.TIMEOUT
    assert marker() == []
    assert await made.stop()


@pytest.mark.slow
async def test_a_thread_that_lingers_does_not_hold_the_attempt_up(server, worker, spec):
    await worker(spec("lingers"), isolate=True)
    report = await server.report(await server.put(1, timeout=60))
    assert (report.cause, report.output) == (Cause.SUCCESS, 42)


async def test_the_attempts_scope_reaches_its_threads(server, worker, spec):
    await worker(spec("scope"), isolate=True)
    attempt = await server.put(1)
    assert (await server.report(attempt)).output == [attempt, server.url]


@pytest.mark.parametrize(
    ("name", "message"), [("nothing", "has no `nothing`"), ("NOT_AN_AGENT", "no adapter accepts")]
)
async def test_a_mistake_in_the_agents_name_ends_the_worker_at_once(
    server, worker, spec, name, message
):
    made = await worker(spec(name), isolate=True)
    with pytest.raises(AgentError, match=message):
        await made.task


async def test_a_live_object_is_refused(server, worker):
    with pytest.raises(AgentError, match=r"path\.py:attr"):
        await worker(lambda text: text, isolate=True)
