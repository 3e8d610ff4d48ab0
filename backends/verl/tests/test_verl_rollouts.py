"""What verl's agent loop does, without verl: groups on a real server, graded by the run, cut into rows."""

import asyncio
import time

import msgspec
import pytest

from lightning_core.capability import Capability
from lightning_core.client import Client
from lightning_core.engine import Endpoint
from lightning_core.folder import RunFolder
from lightning_core.learn import LearningRules, build_samples
from lightning_core.learn.credit import BUILT_IN
from lightning_core.optimization import OptimizeConfig
from lightning_core.plugins import load
from lightning_core.reward import RewardStatus
from lightning_core.rollout import Cause, Mode, Rollout, RolloutStatus
from lightning_core.running.launch import LaunchPlan, launched
from lightning_core.runs import RunConfig
from lightning_core.settings import Settings
from lightning_core.task import Task
from lightning_core.wire import ServedPolicy
from lightning_core.worker.callable import CallableAdapter
from lightning_verl.learning import Learning
from lightning_verl.steps import STEP, Steps, renamed
from lightning_verl.stragglers import Stragglers
from lightning_verl.trainer import rollouts as rollouts_module
from lightning_verl.trainer.rollouts import Rollouts
from lightning_verl.trainer.samples import rows_of

TASKS = [Task(id=f"t{n}", input=f"question {n}", expected=f"question {n}") for n in range(2)]
ASKED = OptimizeConfig(backend="verl", steps=1, batch_size=2, group_size=2)


async def two_turns(question):
    """Asks, and asks again with what was said before."""
    from openai import AsyncOpenAI

    if question == "question 1":
        raise ValueError("the agent broke")
    messages = [{"role": "user", "content": question}]
    async with AsyncOpenAI(max_retries=0) as client:
        for _ in range(2):
            reply = await client.chat.completions.create(model="any", messages=messages)
            said = reply.choices[0].message.content
            messages += [
                {"role": "assistant", "content": said},
                {"role": "user", "content": "again"},
            ]
    return said


async def hangs(question):
    if question == "question 1":
        await asyncio.sleep(600)
    return question


async def says_nothing(question):
    return question


def length(task, trace):
    return float(len(trace.output))


@pytest.fixture
def delegated(tmp_path, scripted_server, monkeypatch):
    """A run with a policy of its own, whose rollouts are asked for as the trainer does it."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    def make(agent=two_turns, reward=length, grading_timeout=60.0):
        plan = LaunchPlan(
            config=RunConfig(
                name="run", agent="a", created_at=time.time(), owner="aa", mode=Mode.VAL, optimize=ASKED
            ),
            folder=RunFolder.create(tmp_path, None, hint="run"),
            plugins=load(Settings(), entry_points=[]),
            tasks=TASKS,
            agent=agent,
            adapter=CallableAdapter(),
            reward=reward,
        )  # fmt: skip
        return Delegated(plan, scripted_server.url, grading_timeout)

    return make


class Delegated:
    def __init__(self, plan, url, grading_timeout):
        self.plan, self.url, self.grading_timeout = plan, url, grading_timeout
        self.steps = Steps(Learning.of(ASKED, max_tokens=10_000), BUILT_IN)
        self.listeners = [self.steps]

    async def __aenter__(self):
        self.launch = launched(self.plan)
        run = await self.launch.__aenter__()
        access = run.delegate(lambda trace: [each.add(trace) for each in self.listeners])
        self.client = await Client(access.url, access.token).__aenter__()
        gives = frozenset({Capability.TOKEN_IDS, Capability.LOGPROBS})
        endpoint = Endpoint(base_url=f"{self.url}/v1", model="scripted")
        await self.client.set_policy(
            ServedPolicy(version=4, endpoints=(endpoint,), capabilities=gives), run="run"
        )
        self.rollouts = Rollouts(self.client, "run", grading_timeout=self.grading_timeout)
        return self

    async def __aexit__(self, *error):
        if self.rollouts._following is not None:
            self.rollouts._following.cancel()
        await self.client.__aexit__(*error)
        await self.launch.__aexit__(*error)

    def group(self, task, count=2, step=5):
        stem = f"run:{task.id}:step-{step}.0"
        return [
            Rollout(
                id=f"{stem}:{n}", task_id=task.id, run="run", group=stem, mode=Mode.TRAIN, max_attempts=1,
                metadata={STEP: step},
            )
            for n in range(count)
        ]  # fmt: skip


async def test_each_of_a_group_asks_and_the_group_is_run_once(delegated, scripted_server):
    async with delegated() as run:
        group = run.group(TASKS[0])
        both = await asyncio.gather(run.rollouts.group(group), run.rollouts.group(group))
        assert both[0] is both[1]
        again = await run.rollouts.group(group)
    assert [trace.reward for trace in both[0]] == [5.0, 5.0]
    assert {call.policy_version for trace in both[0] for call in trace.calls} == {4}
    # Asked for again, as after a kill, they are read and not run again.
    assert [trace.reward for trace in again] == [5.0, 5.0]
    assert len(scripted_server.requests) == 2 * 2


async def test_rows_hold_exactly_the_tokens_that_were_recorded(delegated):
    async with delegated() as run:
        traces = await run.rollouts.group(run.group(TASKS[0]))
    trace = traces[0]
    rows = rows_of(traces, LearningRules(version=9), group="g")[trace.rollout.id]
    samples = build_samples(trace).samples
    assert len(rows) == len(samples)
    assert [row.prompt_ids + row.response_ids for row in rows] == [
        list(sample.token_ids) for sample in samples
    ]
    sampled = [token for call in trace.calls for token in call.choices[0].token_ids]
    learnt = [
        token for row in rows for token, mask in zip(row.response_ids, row.response_mask, strict=True) if mask
    ]  # fmt: skip
    assert learnt == sampled
    logprobs = [value for call in trace.calls for value in call.choices[0].logprobs]
    kept = [
        value for row in rows for value, mask in zip(row.response_logprobs, row.response_mask, strict=True) if mask
    ]  # fmt: skip
    assert kept == logprobs
    assert all(row.response_mask[0] == 1 for row in rows), "the cut is at the first sampled token"
    assert {(row.oldest, row.newest) for row in rows} == {(4, 4)}


async def test_a_group_without_a_token_to_learn_from_has_no_rows(delegated):
    async with delegated(says_nothing) as run:
        traces = await run.rollouts.group(run.group(TASKS[0]))
    assert traces[0].reward == float(len("question 0"))
    assert rows_of(traces, LearningRules(version=9), group="g") == {}


async def waits(question):
    if question == "question 1":
        await asyncio.sleep(3)
    return question


async def test_a_rollout_that_waits_long_for_a_worker_is_waited_for(delegated, monkeypatch):
    monkeypatch.setattr(rollouts_module, "_LOOK_SECONDS", 0.1)
    async with delegated(waits) as run:
        first = asyncio.create_task(run.rollouts.group(run.group(TASKS[1], count=8)))
        # All of the worker's places are taken for seconds.
        second = await run.rollouts.group(run.group(TASKS[0]))
        traces = [*await first, *second]
    assert {trace.attempt.cause for trace in traces} == {Cause.SUCCESS}


async def test_a_rollout_that_is_cancelled_while_it_waits_for_a_worker_comes_back_so(
    delegated, monkeypatch
):
    monkeypatch.setattr(rollouts_module, "_LOOK_SECONDS", 0.1)
    async with delegated(hangs) as run:
        blocked = run.group(TASKS[1], count=8)
        await run.client.enqueue(blocked)
        group = run.group(TASKS[0])
        waiting = asyncio.create_task(run.rollouts.group(group))
        while len(await run.client.rollouts(run="run")) < len(blocked) + len(group):
            await asyncio.sleep(0.01)
        for rollout in group:
            await run.client.cancel(rollout.id, "enough of the others had ended")
        async with asyncio.timeout(30):
            traces = await waiting
    assert [trace.attempt.cause for trace in traces] == [Cause.CANCELLED] * 2


async def test_a_rollout_that_failed_comes_back_unscored(delegated):
    async with delegated() as run:
        traces = await run.rollouts.group(run.group(TASKS[1]))
    assert [trace.reward for trace in traces] == [None, None]
    assert {reward.status for trace in traces for reward in trace.rewards} == {
        RewardStatus.UNSCORED
    }


async def test_a_reward_that_never_comes_is_not_waited_for_for_ever(delegated, caplog):
    async with delegated(says_nothing, reward=None, grading_timeout=0.2) as run:
        traces = await run.rollouts.group(run.group(TASKS[0]))
    assert [trace.reward for trace in traces] == [None, None]
    assert caplog.text.count("has no reward 0.2 s after its end") == 2


async def slow(task, trace):
    await asyncio.sleep(1)
    return 1.0


async def test_a_slow_reward_is_waited_for_without_reading_the_trace_meanwhile(
    delegated, monkeypatch
):
    read = []
    trace = Client.trace

    async def counted(self, rollout_id, *rest):
        read.append((self, rollout_id))
        return await trace(self, rollout_id, *rest)

    monkeypatch.setattr(Client, "trace", counted)
    async with delegated(says_nothing, slow) as run:
        group = run.group(TASKS[0])
        traces = await run.rollouts.group(group)
        ours = [rollout_id for client, rollout_id in read if client is run.client]
    assert [trace.reward for trace in traces] == [1.0, 1.0]
    assert sorted(ours) == [rollout.id for rollout in group]


async def test_the_late_rollouts_of_a_step_are_cancelled_once_enough_have_ended(delegated):
    async with delegated(hangs) as run:
        stragglers = Stragglers(msgspec.structs.replace(ASKED, quorum=0.5))
        run.listeners.append(stragglers)
        cancelling = asyncio.create_task(stragglers.cancel(run.client, "run"))
        other_step = run.group(TASKS[1], step=6)
        await run.client.enqueue(other_step)
        async with asyncio.timeout(60):
            late, ended = await asyncio.gather(
                *(run.rollouts.group(run.group(task)) for task in reversed(TASKS))
            )
        (left,) = {(await run.client.trace(each.id)).rollout.status for each in other_step}
        cancelling.cancel()
    assert [trace.attempt.cause for trace in ended] == [Cause.SUCCESS] * 2
    assert [trace.rollout.status for trace in late] == [RolloutStatus.CANCELLED] * 2
    assert not left.ended, "of another step, which has not come that far"


async def test_a_steps_line_has_the_names_that_every_backend_uses(delegated):
    async with delegated() as run:
        for task in TASKS:
            await run.rollouts.group(run.group(task))
        groups = [run.group(task)[0].group for task in TASKS]
        line = run.steps.line(5, groups)
        assert run.steps.line(5, groups)["rollouts/all"] == 0
    assert line["rollouts/all"] == 4
    assert line["rollouts/scored"] == 2
    assert line["reward"] == 5.0
    assert line["groups/equal"] == 1
    assert line["groups/empty"] == 1


def test_verls_numbers_get_our_names_or_keep_theirs_under_a_prefix():
    found = renamed({"actor/pg_loss": 0.5, "perf/mfu/actor": 0.1, "odd name": 1, "nothing": None})
    assert found == {"update/loss": 0.5, "verl/perf/mfu/actor": 0.1, "verl/odd_name": 1}
