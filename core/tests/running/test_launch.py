"""Launching: workers that end are started again within bounds; what is asked is checked first."""

import asyncio

import pytest

from lightning_core.children import Child
from lightning_core.client import WorkerEnd
from lightning_core.errors import AgentError, UsageError, WireError
from lightning_core.running.checks import check_agent, check_resumable, tasks_digest
from lightning_core.running.workforce import Workforce
from lightning_core.runs import RunConfig
from lightning_core.task import Task

DYING = """
import sys
print('{}', flush=True)
print("the last word", file=sys.stderr, flush=True)
sys.exit(9)
"""
LIVING = """
import sys
print('{}', flush=True)
sys.stdin.read()
"""


class Caller:
    """Stands for the run: keeps a journal of what it is told."""

    def __init__(self, held=()):
        self.lost_attempts = 0
        self.suspects = 0
        self.journal = asyncio.Queue()
        self.reasons = []
        self.exit_statuses = set()
        self.held = list(held)
        self.gone = []

    async def worker_holds(self, name):
        return bool(self.held)

    async def worker_gone(self, name):
        assert name not in self.gone
        self.gone.append(name)

    async def worker_lost(self, name, reason, exit_status=None):
        if "ended with status" not in reason:
            assert exit_status is None
            return WorkerEnd(0, 0)
        self.journal.put_nowait(name)
        self.reasons.append(reason)
        self.exit_statuses.add(exit_status)
        assert name in self.gone
        held = self.held.pop(0) if self.held else 0
        return WorkerEnd(held, held)


@pytest.fixture
def modules(tmp_path, monkeypatch):
    (tmp_path / "dying_worker.py").write_text(DYING)
    (tmp_path / "living_worker.py").write_text(LIVING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "logs"


@pytest.mark.slow
async def test_a_worker_that_always_dies_is_given_up_and_the_cause_is_named(modules, caplog):
    run, made = Caller(), []

    def make(number, name, concurrency):
        made.append((name, concurrency))
        return Child(f"worker {number}", "dying_worker", [], log=modules / "w.log")

    async with Workforce(run, make, ("run-worker-0",), 4) as force:
        error = await force.died()
    assert "ended with status 9" in str(error)
    assert "the last word" in str(error)
    assert "`--isolate`" in str(error)
    # Each has a name of its own: one that is told to have ended is refused leases from then on.
    assert made == [(f"run-worker-0{start}", 4) for start in ("", ".2", ".3", ".4")]
    assert run.journal.qsize() == 4
    assert [run.journal.get_nowait() for _ in made] == [name for name, _ in made]
    assert "ended with status 9" in run.reasons[0]
    assert "the last word" in caplog.text
    assert run.exit_statuses == {9}


@pytest.mark.slow
async def test_after_a_death_all_workers_go_one_by_one_before_anything_is_given_back(modules):
    run = Caller(held=[3])
    modules_to_come = ["dying_worker"]

    def make(number, name, concurrency):
        run.journal.put_nowait((number, concurrency))
        module = modules_to_come.pop() if modules_to_come else "living_worker"
        return Child(f"worker {number}", module, [], log=modules / f"{number}.log")

    async def said(count):
        return [await run.journal.get() for _ in range(count)]

    async with Workforce(run, make, ("a", "b"), 4):
        # `a` dies at once; what it held is given back once `b` takes one attempt at a time.
        assert await said(5) == [(0, 4), (1, 4), (1, 1), "a", (0, 1)]
        run.lost_attempts = 3
        assert set(await said(2)) == {(0, 4), (1, 4)}


class CutOff:
    """A worker of a cluster, which ends with all others."""

    exit_status = None

    def __init__(self, cut):
        self.cut = cut

    async def start(self):
        return None

    async def stop(self):
        return None

    async def died(self):
        await self.cut.wait()
        return WireError("worker: the cluster ended")


@pytest.mark.parametrize("slow", [0, 1, 2])
async def test_of_workers_cut_off_together_all_are_refused_leases_before_anything_is_given_back(
    slow,
):
    """Else one that still lives for a moment takes what another held, and loses it once more."""
    told, cuts, names = [], [asyncio.Event(), asyncio.Event()], ("a", "b", "c")
    over = asyncio.Event()

    class Run(Caller):
        async def worker_holds(self, name):
            return name == "a"

        async def worker_gone(self, name):
            if name == names[slow]:
                await asyncio.sleep(0.2)
            told.append(("gone", name))

        async def worker_lost(self, name, reason, exit_status=None):
            told.append(("lost", name))
            if len(told) == 6:
                over.set()
            return WorkerEnd(1, 1)

    def make(number, name, concurrency):
        return CutOff(cuts[name.endswith(".2")])

    async with Workforce(Run(), make, names, 1):
        cuts[0].set()
        await over.wait()
    assert set(told[:3]) == {("gone", name) for name in names}
    assert set(told[3:]) == {("lost", name) for name in names}


def test_an_agent_that_is_there_passes_and_nothing_of_it_is_imported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.py").write_text("raise SystemExit('imported')")
    check_agent("agent.py:graph", ())
    check_agent("agent:graph", ())
    check_agent("json.decoder:JSONDecoder", ())
    check_agent(None, ("sh", "-c", "exit"))
    for spec, command, says in (
        ("agents.py:graph", (), "no file `agents.py`"),
        ("agent.py", (), "expected `path.py:NAME`"),
        ("no_module_of_this_name:x", (), "no module"),
        (None, ("no-program-of-this-name",), "no program"),
    ):
        with pytest.raises(AgentError, match=says):
            check_agent(spec, command)


def test_a_run_goes_on_only_as_what_it_was():
    tasks = [Task(id="a", input="x", expected=1)]

    def config(**fields):
        given = {"name": "r", "agent": "a.py:x", "created_at": 1.0, "tasks": 1}
        return RunConfig(**given | {"tasks_digest": tasks_digest(tasks)} | fields)

    check_resumable(config(), config(created_at=2.0, concurrency=3))
    other = tasks_digest([Task(id="a", input="x", expected=2)])
    for now, says in (
        (config(agent="b.py:x"), "agent `a.py:x` and not `b.py:x`"),
        (config(reward="contains"), "reward none and not `contains`"),
        (config(model="m"), "model none and not `m`"),
        (config(tasks_digest=other), "others of the same number"),
        (config(tasks=2, tasks_digest=other), "1 tasks and not 2"),
    ):
        with pytest.raises(UsageError, match=says):
            check_resumable(config(), now)
