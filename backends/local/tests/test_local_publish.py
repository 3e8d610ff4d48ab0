"""New weights between rollouts, through the whole path: run, server, gateway, engine."""

import time

import pytest

from lightning_core.engines import create_engine
from lightning_core.errors import CapabilityError
from lightning_core.folder import RunFolder
from lightning_core.launch import LaunchPlan, launched
from lightning_core.plugins import installed
from lightning_core.rollout import Mode
from lightning_core.runs import RolloutRequest, RunConfig
from lightning_core.sampling import SamplingPolicy
from lightning_core.task import Task
from lightning_core.worker.callable import CallableAdapter

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
    import msgspec

    one = msgspec.structs.replace(plan(tmp_path, folders["llama"]), engine=None)
    async with launched(one) as run:
        with pytest.raises(CapabilityError, match="no engine"):
            await run.publish(folders["other"], version=1)
