"""ServedRun against real servers: what goes wrong around a rollout does not end the run."""

import asyncio
import logging
import socket
import time

import msgspec
import pytest

from lightning_core.capability import Capability
from lightning_core.client import Client
from lightning_core.engine import Endpoint, Engine, EngineFactory
from lightning_core.engines import ChosenEngine
from lightning_core.errors import (
    CapabilityError,
    EngineError,
    FormatError,
    LightningError,
    UsageError,
    WireError,
)
from lightning_core.folder import RunFolder
from lightning_core.plugins import hookimpl, load
from lightning_core.rollout import Cause, Mode
from lightning_core.running import attendance
from lightning_core.running.launch import LaunchPlan, launched
from lightning_core.runs import RolloutRequest, RunConfig
from lightning_core.server import Server, ServerConfig
from lightning_core.settings import Settings
from lightning_core.task import Task
from lightning_core.testing import Delay, Text
from lightning_core.tokens import Scope
from lightning_core.worker.callable import CallableAdapter
from lightning_core.worker.worker import Worker

TASKS = [Task(id=f"t{n}", input=f"q{n}", expected=f"q{n}") for n in range(6)]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def requests(mode=Mode.OBSERVE, tasks=TASKS):
    return [RolloutRequest(task=task, mode=mode) for task in tasks]


def same(task, trace):
    return float(trace.output == task.expected)


@pytest.fixture
def plan(tmp_path):
    """A plan for a live agent; the agent gives its input back unless told otherwise."""

    def make(agent=None, *, name="run", owner="aa", mode=Mode.OBSERVE, asked=None, **options):
        async def echo(question):
            return question

        config = RunConfig(
            name=name, agent="echo", created_at=time.time(), owner=owner, mode=mode, **(asked or {})
        )
        given = {
            "config": config,
            "folder": RunFolder.create(tmp_path, None, hint=name),
            "plugins": load(Settings(), entry_points=[]),
            "tasks": TASKS,
            "agent": agent or echo,
            "adapter": CallableAdapter(),
            "reward": same,
        }
        return LaunchPlan(**given | options)

    return make


async def test_a_server_that_restarts_under_a_run_loses_nothing(tmp_path, plan):
    port, holding, go_on = free_port(), asyncio.Event(), asyncio.Event()
    notes = set()

    async def agent(question):
        if question == "q3":
            holding.set()
            await go_on.wait()
        return question

    config = ServerConfig(folder=tmp_path / "server", port=port)
    server = Server(config)
    await server.start()
    try:
        one = plan(
            agent,
            server=server.url,
            token=server.token(Scope.ADMIN),
            listener=lambda counts: notes.add(counts.note),
            asked={"concurrency": 2},
        )
        async with launched(one) as run:
            rollouts = asyncio.create_task(run.rollouts(requests()))
            await holding.wait()
            await server.close()
            asking = asyncio.create_task(run.attendance.worker_lost("nobody", "not there"))
            while "waiting for the server" not in notes:
                await asyncio.sleep(0.02)
            server = Server(config)
            await server.start()
            go_on.set()
            groups = await rollouts
            assert await asking == (0, 0)
            assert run.progress.note is None
    finally:
        await server.close()
    assert [trace.reward for (trace,) in groups] == [1.0] * 6
    assert {trace.attempt.cause for (trace,) in groups} == {Cause.SUCCESS}


async def test_a_server_that_stays_away_is_one_clear_error(tmp_path, plan):
    holding = asyncio.Event()

    async def agent(question):
        holding.set()
        await asyncio.sleep(3600)

    server = Server(ServerConfig(folder=tmp_path / "server"))
    await server.start()
    one = plan(agent, server=server.url, token=server.token(Scope.ADMIN), patience=1.0)
    async with launched(one) as run:
        rollouts = asyncio.create_task(run.rollouts(requests()))
        await holding.wait()
        await server.close()
        with pytest.raises(WireError, match=r"cannot be reached.*given up after 1 s.*--resume"):
            await rollouts


class Raising:
    @hookimpl
    def lightning_rollout_finished(self, trace):
        raise RuntimeError("the observer broke")


async def test_a_hook_that_raises_is_named_once_and_ends_nothing(plan, caplog):
    plugins = load(Settings(), entry_points=[])
    plugins._manager.register(Raising(), name="observer")
    one = plan(plugins=plugins)
    async with launched(one) as run:
        groups = await run.rollouts(requests())
    assert [trace.reward for (trace,) in groups] == [1.0] * 6
    said = [r.getMessage() for r in caplog.records if "plugin `observer`" in r.getMessage()]
    assert len(said) == 1
    assert "RuntimeError: the observer broke" in said[0]
    assert len(one.folder.metrics.read_text().splitlines()) == 6, "the other plugins are told"


@pytest.mark.parametrize(
    "fault", [FormatError("Trace: no"), WireError("gone", 404), RuntimeError("bug")]
)
async def test_a_trace_that_cannot_be_read_is_a_counted_failure(plan, monkeypatch, fault):
    whole = Client.trace

    async def trace(self, rollout_id, attempt=None):
        if ":t2:" in rollout_id:
            raise fault
        return await whole(self, rollout_id, attempt)

    monkeypatch.setattr(Client, "trace", trace)
    async with launched(plan()) as run:
        groups = await run.rollouts(requests())
        assert run.progress.ended == 6
        assert run.progress.causes == {Cause.SUCCESS: 5, Cause.WORKER_ERROR: 1}
    (failed,) = groups[2]
    assert "its trace cannot be read" in failed.attempt.error
    assert failed.reward is None
    assert [trace.reward for (trace,) in (*groups[:2], *groups[3:])] == [1.0] * 5


async def test_a_reward_that_the_server_refuses_is_that_rollouts_alone(plan, monkeypatch, caplog):
    whole = Client.reward

    async def reward(self, rollout_id, rewards):
        if ":t2:" in rollout_id:
            raise WireError("too large", 413)
        await whole(self, rollout_id, rewards)

    monkeypatch.setattr(Client, "reward", reward)
    async with launched(plan()) as run:
        groups = await run.rollouts(requests())
    assert [trace.reward for (trace,) in groups] == [1.0] * 6
    assert "does not keep its reward: too large" in caplog.text


async def test_a_listener_that_raises_ends_nothing(plan, caplog):
    def listener(counts):
        raise ValueError("no")

    async with launched(plan(listener=listener)) as run:
        assert len(await run.rollouts(requests())) == 6
    assert caplog.text.count("listener: raised ValueError: no") == 1


async def test_two_runs_of_one_name_on_a_server_do_not_mix(tmp_path, plan):
    async with Server(ServerConfig(folder=tmp_path / "server")) as server:
        where = {"server": server.url, "token": server.token(Scope.ADMIN)}
        async with launched(plan(**where)) as run:
            await run.rollouts(requests())
        async with launched(plan(**where)) as run:
            await run.rollouts(requests())  # The same owner: it has been resumed.
        with pytest.raises(UsageError, match=r"another run has this name.*--name"):
            async with launched(plan(owner="bb", **where)):
                pass


async def test_workers_get_a_workers_token(tmp_path, plan, monkeypatch):
    tokens = []
    whole = Client.lease

    async def lease(self, *args, **options):
        tokens.append(self._token)
        return await whole(self, *args, **options)

    monkeypatch.setattr(Client, "lease", lease)
    async with Server(ServerConfig(folder=tmp_path / "server")) as server:
        admin = server.token(Scope.ADMIN)
        async with launched(plan(server=server.url, token=admin)) as run:
            await run.rollouts(requests())
        assert tokens
        async with Client(server.url, tokens[0]) as client:
            with pytest.raises(WireError) as refused:
                await client.trace("run:t0:0")
        assert refused.value.status == 403


async def test_without_any_worker_the_user_is_told_and_the_run_goes_on(
    tmp_path, plan, monkeypatch, caplog
):
    monkeypatch.setattr(attendance, "_WORKER_SECONDS", 0.2)
    monkeypatch.setattr(attendance, "_LOOK_SECONDS", 0.05)
    told = asyncio.Event()

    def listener(counts):
        if counts.note and "no worker" in counts.note:
            told.set()

    async with Server(ServerConfig(folder=tmp_path / "server")) as server:
        where = {"server": server.url, "token": server.token(Scope.ADMIN)}
        idle = plan(spec="agents.py:agent", asked={"workers": 0}, listener=listener, **where)
        idle = msgspec.structs.replace(idle, agent=None)
        async with launched(idle) as run:
            rollouts = asyncio.create_task(run.rollouts(requests()))
            await told.wait()
            async with Client(server.url, server.token(Scope.WORKER)) as client:
                stop = asyncio.Event()
                worker = Worker(client, lambda question: question)
                working = asyncio.create_task(worker.run(stop))
                groups = await rollouts
                stop.set()
                await working
    assert {trace.attempt.cause for (trace,) in groups} == {Cause.SUCCESS}
    assert caplog.text.count("no worker is at") == 1


async def test_a_runs_own_worker_runs_no_other_runs_rollouts(tmp_path, plan):
    async def one(question):
        return "one"

    async def two(question):
        return "two"

    async with Server(ServerConfig(folder=tmp_path / "server")) as server:
        where = {"server": server.url, "token": server.token(Scope.ADMIN)}
        async with (
            launched(plan(one, name="one", **where)) as left,
            launched(plan(two, name="two", **where)) as right,
        ):
            both = await asyncio.gather(left.rollouts(requests()), right.rollouts(requests()))
    for groups, output in zip(both, ("one", "two"), strict=True):
        assert {trace.output for (trace,) in groups} == {output}
        assert {trace.attempt.number for (trace,) in groups} == {1}


# The engine ------------------------------------------------------------------------------------------------------


class Served(Engine):
    """Serves what a scripted server answers; dies when told."""

    name = "served"
    gives = frozenset({Capability.WEIGHTS_IN_PLACE})

    def __init__(self, url):
        self.url = url
        self.loaded = []
        self.end = asyncio.Event()

    async def start(self):
        return (Endpoint(base_url=self.url, model="scripted"),)

    async def stop(self):
        pass

    async def died(self):
        await self.end.wait()
        return EngineError("engine `served` ended while it served")

    async def load_weights(self, folder):
        self.loaded.append(folder)


class Fixed(Served):
    name = "fixed"
    gives = frozenset()


class Factory(EngineFactory):
    name = "served"

    def __init__(self, engine):
        self.engine = engine

    def accepts(self, model):
        return True

    def create(self, model, *, folder, options):
        return self.engine


async def ask(question):
    from openai import AsyncOpenAI

    async with AsyncOpenAI(max_retries=0) as client:
        reply = await client.chat.completions.create(
            model="any", messages=[{"role": "user", "content": question}]
        )
    return reply.choices[0].message.content


async def test_weights_are_not_loaded_under_a_call(tmp_path, plan, scripted_server):
    scripted_server.enqueue(Delay(3, Text("q0")))
    engine = Served(scripted_server.base_url)
    one = plan(ask, engine=ChosenEngine(Factory(engine), "m"), drain=0.2, mode=Mode.VAL)
    async with launched(one) as run:
        rollouts = asyncio.create_task(run.rollouts(requests(Mode.VAL, TASKS[:1])))
        await scripted_server.wait_for(1)
        with pytest.raises(EngineError, match=r"1 model call runs still after 0\.2 s"):
            await run.publish(tmp_path, version=1)
        assert engine.loaded == []
        ((trace,),) = await rollouts
        assert trace.calls[0].policy_version == 0
        await run.publish(tmp_path, version=1)  # It was resumed, and can be paused again.
        assert engine.loaded == [tmp_path]
        ((trace,),) = await run.rollouts(requests(Mode.VAL, TASKS[1:2]))
        assert trace.calls[0].policy_version == 1


async def test_a_server_that_restarts_is_told_again_where_the_runs_policy_is(
    tmp_path, plan, scripted_server
):
    config = ServerConfig(folder=tmp_path / "server", port=free_port())
    engine = Served(scripted_server.base_url)
    server = Server(config)
    await server.start()
    try:
        where = {"server": server.url, "token": server.token(Scope.ADMIN)}
        chosen = ChosenEngine(Factory(engine), "m")
        async with launched(plan(ask, engine=chosen, mode=Mode.VAL, **where)) as run:
            await run.rollouts(requests(Mode.VAL, TASKS[:1]))
            await run.publish(tmp_path, version=1)
            await server.close()
            server = Server(config)
            await server.start()
            ((trace,),) = await run.rollouts(requests(Mode.VAL, TASKS[1:2]))
            assert (trace.output, trace.calls[0].policy_version) == ("q1", 1)
            assert (await run._client.status()).policies["run"].version == 1
        async with Client(server.url, server.token(Scope.ADMIN)) as client:
            assert (await client.status()).policies == {}, "the run is over, and so is its policy"
    finally:
        await server.close()


async def test_an_engine_that_takes_no_weights_is_refused_before_anything_is_paused(
    tmp_path, plan, scripted_server
):
    engine = Fixed(scripted_server.base_url)
    one = plan(ask, engine=ChosenEngine(Factory(engine), "m"), mode=Mode.VAL)
    async with launched(one) as run:
        with pytest.raises(CapabilityError, match=r"`weights_in_place`.*engine `fixed`"):
            await run.publish(tmp_path, version=1)
        assert engine.loaded == []
        assert not (await run._client.status()).paused


async def test_an_engine_that_dies_ends_the_run_with_its_reason(plan, scripted_server):
    holding = asyncio.Event()

    async def agent(question):
        holding.set()
        await asyncio.sleep(3600)

    engine = Served(scripted_server.base_url)
    async with launched(plan(agent, engine=ChosenEngine(Factory(engine), "m"))) as run:
        rollouts = asyncio.create_task(run.rollouts(requests()))
        await holding.wait()
        engine.end.set()
        with pytest.raises(EngineError, match="`served` ended while it served"):
            await rollouts


async def test_a_fault_of_the_run_itself_is_one_error_of_ours(plan, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG, "lightning_core.run")

    async def events(self, after, **options):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Client, "events", events)
    async with launched(plan()) as run:
        with pytest.raises(LightningError, match="run: ZeroDivisionError: a bug"):
            await run.rollouts(requests())
