"""New weights between rollouts, through the whole path: run, server, gateway, engine."""

import asyncio
import os
import signal
import time

import msgspec
import pytest

from lightning_core.engines import create_engine
from lightning_core.errors import CapabilityError, EngineError
from lightning_core.folder import RunFolder
from lightning_core.plugins import installed
from lightning_core.rollout import Mode
from lightning_core.running.launch import LaunchPlan, launched
from lightning_core.runs import RolloutRequest, RunConfig
from lightning_core.sampling import SamplingPolicy
from lightning_core.task import Task
from lightning_core.worker.callable import CallableAdapter
from lightning_local import engine as engine_module

pytestmark = pytest.mark.slow

TASKS = [Task(id=f"t{n}", input=f"the tool {n}") for n in range(3)]


async def ask(question):
    from openai import AsyncOpenAI

    async with AsyncOpenAI() as client:
        reply = await client.chat.completions.create(
            model="any", temperature=0.1, messages=[{"role": "user", "content": question}]
        )
    return reply.choices[0].message.content


def plan(tmp_path, model):
    greedy = SamplingPolicy(temperature=0.0, max_tokens=8)
    config = RunConfig(
        name="run",
        agent="ask",
        created_at=time.time(),
        model=str(model),
        sampling=greedy,
        validation=greedy,
    )
    return LaunchPlan(
        config=config,
        folder=RunFolder.create(tmp_path, "run", hint=""),
        plugins=installed(),
        tasks=TASKS,
        agent=ask,
        adapter=CallableAdapter(),
        reward=lambda task, trace: float(len(trace.output)),
        engine=create_engine(str(model), "local", installed()),
        engine_options={"threads": "1"},
    )


async def test_every_call_is_stamped_with_the_version_that_answered_it(
    tmp_path, folders, monkeypatch
):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    requests = [
        RolloutRequest(task=task, count=2, mode=Mode.TRAIN, metadata={"step": 1}) for task in TASKS
    ]
    async with launched(plan(tmp_path, folders["llama"])) as run:
        first = await run.rollouts(requests)
        await run.publish(folders["other"], version=1)
        second = await run.rollouts(requests)
        await run.publish(folders["llama"], version=2)
        third = await run.rollouts(requests)
        run.save({"step": 3})
        assert run.load() == {"step": 3}
        assert [task.id for task in await run.tasks()] == ["t0", "t1", "t2"]

    for groups, version in ((first, 0), (second, 1), (third, 2)):
        assert [len(group) for group in groups] == [2, 2, 2]
        for group in groups:
            assert len({trace.rollout.group for trace in group}) == 1
            for trace in group:
                (call,) = trace.calls
                (choice,) = call.choices
                assert call.policy_version == version
                assert call.overrides["temperature"] == 0.0
                assert len(choice.token_ids) == len(choice.logprobs) > 0
                assert len(call.prompt_token_ids) > 0
                assert trace.reward == len(trace.output)
    outputs = [
        [trace.output for group in groups for trace in group] for groups in (first, second, third)
    ]
    assert outputs[0] != outputs[1]
    assert outputs[0] == outputs[2]
    ids = [
        trace.rollout.id for groups in (first, second, third) for group in groups for trace in group
    ]
    assert len(set(ids)) == len(ids) == 18


async def test_publishing_without_an_engine_is_refused(tmp_path, folders):
    one = msgspec.structs.replace(plan(tmp_path, folders["llama"]), engine=None)
    async with launched(one) as run:
        with pytest.raises(CapabilityError, match="no engine"):
            await run.publish(folders["other"], version=1)


async def test_an_engine_that_is_killed_ends_the_run_with_its_reason(tmp_path, folders):
    holding = asyncio.Event()

    async def hang(question):
        holding.set()
        await asyncio.sleep(3600)

    one = msgspec.structs.replace(plan(tmp_path, folders["llama"]), agent=hang)
    async with launched(one) as run:
        rollouts = asyncio.create_task(
            run.rollouts([RolloutRequest(task=TASKS[0], mode=Mode.TRAIN)])
        )
        await holding.wait()
        os.kill(run.publishing.engine.pid, signal.SIGKILL)
        with pytest.raises(EngineError, match="engine `local` ended while it served"):
            await rollouts


async def test_an_engine_that_hangs_is_one_error_and_not_for_ever(tmp_path, folders, monkeypatch):
    monkeypatch.setattr(engine_module, "STATS_SECONDS", 0.5)
    monkeypatch.setattr(engine_module, "WEIGHTS_SECONDS", 0.5)
    engine = create_engine(str(folders["llama"]), "local", installed()).create(
        folder=tmp_path, options={"threads": "1"}
    )
    await engine.start()
    try:
        os.kill(engine.pid, signal.SIGSTOP)
        with pytest.raises(EngineError, match=r"did not answer GET /stats within 0\.5 s"):
            await engine.stats()
        with pytest.raises(EngineError, match=r"did not answer POST /admin/weights within 0\.5 s"):
            await engine.load_weights(folders["other"])
    finally:
        os.kill(engine.pid, signal.SIGCONT)
        await engine.stop()
