"""Runs whose rollouts another process enqueues: graded, told and counted like the run's own."""

import asyncio
import time

import pytest

from lightning_core.backend import Backend
from lightning_core.client import Client
from lightning_core.errors import LightningError, UsageError
from lightning_core.folder import RunFolder
from lightning_core.optimization import OptimizeConfig
from lightning_core.plugins import hookimpl, load
from lightning_core.reward import RewardStatus
from lightning_core.rollout import Mode, Rollout
from lightning_core.running import prepare as preparing
from lightning_core.running.launch import LaunchPlan, launched
from lightning_core.runs import RolloutRequest, RunConfig
from lightning_core.sampling import SamplingPolicy
from lightning_core.server import Server, ServerConfig
from lightning_core.settings import Settings
from lightning_core.task import Task
from lightning_core.tokens import Scope
from lightning_core.worker.callable import CallableAdapter

TASKS = [Task(id=f"t{n}", input=f"q{n}", expected=f"q{n}") for n in range(3)]


async def echo(question):
    if question == "q2":
        raise ValueError("no answer")
    return question


def same(task, trace):
    return float(trace.output == task.expected)


def plan_in(folder, **changes):
    config = RunConfig(name="run", agent="echo", created_at=time.time(), owner="aa")
    given = {
        "config": config,
        "folder": folder,
        "plugins": load(Settings(), entry_points=[]),
        "tasks": TASKS,
        "agent": echo,
        "adapter": CallableAdapter(),
        "reward": same,
    }
    return LaunchPlan(**given | changes)


def foreign(task, number=0):
    return Rollout(
        id=f"run:{task.id}:step-1:{number}", task_id=task.id, run="run", group=f"run:{task.id}:step-1",
        mode=Mode.OBSERVE, max_attempts=1,
    )  # fmt: skip


class Settled:
    """Collects what the run has settled, and lets a test wait for so many."""

    def __init__(self):
        self.traces = []
        self.more = asyncio.Event()

    def __call__(self, trace):
        self.traces.append(trace)
        self.more.set()

    async def count(self, wanted):
        while len(self.traces) < wanted:
            self.more.clear()
            await self.more.wait()


async def ended(client, rollout_id):
    after = 0
    while True:
        for event in await client.events(after):
            after = event.number
            if event.rollout_id == rollout_id and event.kind == "rollout_ended":
                return


async def test_what_another_process_enqueues_is_graded_told_and_counted(tmp_path):
    settled = Settled()
    folder = RunFolder.create(tmp_path, None, hint="run")
    async with launched(plan_in(folder)) as run:
        access = run.delegate(settled)
        async with Client(access.url, access.token) as client:
            await client.enqueue([foreign(task) for task in TASKS])
            await settled.count(3)
            kept = [(await client.trace(foreign(task).id)).rewards for task in TASKS]
        (own,) = await run.rollouts([RolloutRequest(task=TASKS[0], mode=Mode.OBSERVE)])
        assert run.progress.ended == run.progress.total == 4
    rewards = {trace.task.id: trace.reward for trace in settled.traces}
    assert rewards == {"t0": 1.0, "t1": 1.0, "t2": None}
    assert {trace.task.expected for trace in settled.traces} == {"q0", "q1", "q2"}
    assert [[reward.status for reward in each] for each in kept] == [
        [RewardStatus.SCORED], [RewardStatus.SCORED], [RewardStatus.UNSCORED],
    ]  # fmt: skip
    assert own[0].reward == 1.0
    assert len(folder.metrics.read_text().splitlines()) == 4, "plugins are told of each, once"


async def test_a_run_that_goes_on_settles_what_had_ended_unseen_and_nothing_twice(tmp_path):
    folder = RunFolder.create(tmp_path, None, hint="run")
    async with Server(ServerConfig(folder=tmp_path / "server")) as server:
        token = server.token(Scope.ADMIN)
        plan = plan_in(folder, server=server.url, token=token)
        async with Client(server.url, token) as client:
            first, again = Settled(), Settled()
            async with launched(plan) as run:
                run.delegate(first)
                await client.enqueue([foreign(TASKS[0])])
                await first.count(1)
            async with launched(plan):  # Not delegated, so this one ends without being graded.
                await client.enqueue([foreign(TASKS[1])])
                await ended(client, foreign(TASKS[1]).id)
            async with launched(plan) as run:
                run.delegate(again)
                await again.count(1)
    assert [trace.task.id for trace in again.traces] == ["t1"]
    assert again.traces[0].reward == 1.0
    assert len(folder.metrics.read_text().splitlines()) == 2


async def test_what_an_earlier_start_has_told_is_told_once_more_where_it_is_wanted(tmp_path):
    folder = RunFolder.create(tmp_path, None, hint="run")
    async with Server(ServerConfig(folder=tmp_path / "server")) as server:
        token = server.token(Scope.ADMIN)
        plan = plan_in(folder, server=server.url, token=token)
        async with Client(server.url, token) as client:
            first, again = Settled(), Settled()
            async with launched(plan) as run:
                run.delegate(first)
                await client.enqueue([foreign(task) for task in TASKS[:2]])
                await first.count(2)
            async with launched(plan) as run:
                run.delegate(again, again=lambda rollout: rollout.task_id == "t1")
                await client.enqueue([foreign(TASKS[2])])
                await again.count(2)
                assert run.progress.ended == 1, "what was counted before is not counted again"
    assert {trace.task.id: trace.task.expected for trace in again.traces} == {
        "t1": "q1",
        "t2": "q2",
    }
    assert {trace.task.id: trace.reward for trace in again.traces} == {"t1": 1.0, "t2": None}
    assert len(folder.metrics.read_text().splitlines()) == 3, "plugins are told of each, once"


async def test_whoever_waits_for_something_else_hears_that_the_run_failed(tmp_path):
    async with launched(plan_in(RunFolder.create(tmp_path, None, hint="run"))) as run:
        waiting = asyncio.create_task(run.failed())

        async def death():
            return LightningError("the server is gone")

        run.watch(death())
        assert str(await waiting) == "the server is gone"


class Serving(Backend):
    name = "serving"
    serves = True

    async def optimize(self, run):
        raise NotImplementedError


class Plugin:
    @hookimpl
    def lightning_register_backends(self):
        return [Serving()]


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    plugins = load(Settings(), entry_points=[])
    plugins._manager.register(Plugin(), name="serving")
    monkeypatch.setattr(preparing, "installed", lambda: plugins)

    async def prepare(**options):
        return await preparing.prepare(
            echo, TASKS, optimize=OptimizeConfig(backend="serving", batch_size=2), reward=same, runs=tmp_path,
            sampling=SamplingPolicy(), validation=SamplingPolicy(temperature=0.0), **options,
        )  # fmt: skip

    return prepare


async def test_a_backend_that_serves_the_policy_itself_gets_no_engine(prepared):
    plan = await prepared(model="a folder that no engine accepts")
    assert plan.engine is None
    assert plan.config.engine is None
    assert plan.config.mode is Mode.VAL
    assert plan.config.model == "a folder that no engine accepts"


async def test_an_engine_beside_a_backend_that_serves_itself_is_refused(prepared, tmp_path):
    with pytest.raises(UsageError, match=r"`serving` serves the policy itself; leave `--engine`"):
        await prepared(model="m", engine="local")
    with pytest.raises(UsageError, match=r"needs a model.*--model"):
        await prepared()
    assert not list(tmp_path.iterdir())
