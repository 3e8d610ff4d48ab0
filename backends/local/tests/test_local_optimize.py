"""An optimisation through the whole path: rollouts, samples, updates, new weights, checkpoints, artifact."""

import asyncio
import json

import pytest

from lightning_core.capability import Capability
from lightning_core.errors import CapabilityError, LightningError, UsageError
from lightning_core.folder import RunFolder
from lightning_core.optimization import OptimizeConfig
from lightning_core.reward import Reward, RewardScope
from lightning_core.running.optimize import optimize
from lightning_core.task import Task
from lightning_local import engine

pytestmark = pytest.mark.slow

TASKS = [Task(id=f"t{n}", input=f"the tool {n}") for n in range(4)]
VAL = [Task(id=f"v{n}", input=f"a tool {n}", metadata={"kind": "ab"[n % 2]}) for n in range(4)]
LEARNING = {"learning_rate": "2e-2", "threads": "1", "lora_targets": "all-linear"}


async def ask(question):
    from openai import AsyncOpenAI

    async with AsyncOpenAI() as client:
        reply = await client.chat.completions.create(
            model="any", messages=[{"role": "user", "content": question}]
        )
    return reply.choices[0].message.content


def letters(task, trace):
    """The share of the reply that is small letters, of which random weights give few."""
    return sum(letter.islower() for letter in trace.output) / max(len(trace.output), 1)


def config(**changes):
    settings = {
        "backend": "local",
        "steps": 2,
        "batch_size": 2,
        "group_size": 4,
        "options": LEARNING,
    }
    return OptimizeConfig(**{**settings, **changes})


async def optimized(tmp_path, folders, wanted=None, **options):
    given = {"reward": letters, "model": str(folders["llama"]), "runs": tmp_path, "name": "run",
             "max_tokens": 8, "concurrency": 16, "engine_options": {"threads": "1"}}  # fmt: skip
    return await optimize(ask, TASKS, wanted or config(), **{**given, **options})


def lines(tmp_path):
    found = list(RunFolder(tmp_path / "run").lines())
    steps = [line for line in found if "reward" in line and "step" in line]
    rollouts = [line for line in found if "rollout" in line]
    return steps, rollouts


@pytest.fixture(autouse=True)
def no_key(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


async def test_a_policy_learns_what_is_rewarded(tmp_path, folders):
    result = await optimized(
        tmp_path, folders, config(steps=12, batch_size=4, group_size=8, val_by="kind"), val=VAL
    )
    steps, rollouts = lines(tmp_path)
    assert [line["step"] for line in steps] == list(range(1, 13))
    # Once every rollout of a step is perfect, nothing is learnt, and the policy stays.
    assert [line["version"] for line in steps[:6]] == list(range(1, 7))
    assert len(rollouts) == 12 * 4 * 8 + 2 * len(VAL)
    assert (
        sum(line["reward"] for line in steps[-2:]) > sum(line["reward"] for line in steps[:2]) + 0.3
    )
    val = result.artifact.metrics["val"]
    assert val["after"] > val["before"]
    assert set(result.artifact.metrics["kinds"]) == {"a", "b"}
    assert (tmp_path / "run" / result.artifact.path).is_file()
    kept = json.loads((tmp_path / "run/artifact.json").read_bytes())
    assert kept["kind"] == result.artifact.kind == "lora"


async def test_each_call_is_learnt_from_under_the_version_that_sampled_it(tmp_path, folders):
    await optimized(tmp_path, folders, config(steps=3))
    steps, _ = lines(tmp_path)
    for line in steps:
        assert line["staleness/max"] == 0
        # What the engine recorded is what the trainer computes: the weights that were published are those trained.
        assert line["update/drift_max"] < 1e-3
        assert line["drift/joined/new"] == 8


async def test_rollouts_ahead_of_the_trainer_are_a_version_behind_at_most(tmp_path, folders):
    wanted = config(steps=4, asynchronous=True, max_staleness=1)
    await optimized(tmp_path, folders, wanted)
    steps, rollouts = lines(tmp_path)
    assert [line["step"] for line in steps] == [1, 2, 3, 4]
    assert len(rollouts) == 4 * 2 * 4
    assert max(line["staleness/max"] for line in steps) == 1
    assert all(line.get("drift/skipped/stale", 0) == 0 for line in steps)


async def test_going_on_with_more_steps_takes_up_where_it_ended(tmp_path, folders):
    await optimized(tmp_path, folders, config(steps=2))
    result = await optimized(tmp_path, folders, config(steps=4), resume=True)
    steps, rollouts = lines(tmp_path)
    assert [line["step"] for line in steps] == [1, 2, 3, 4]
    assert [line["version"] for line in steps] == [1, 2, 3, 4]
    assert len(rollouts) == 4 * 2 * 4
    assert steps[2]["update/drift_max"] < 1e-3
    assert result.artifact.metrics["steps"] == 4


async def test_another_algorithm_cannot_take_up_a_run(tmp_path, folders):
    await optimized(tmp_path, folders, config(steps=1))
    with pytest.raises(UsageError, match="has algorithm `grpo` and not `rloo`"):
        await optimized(tmp_path, folders, config(steps=1, algorithm="rloo"), resume=True)


async def test_agents_that_crash_hang_or_say_nothing_leave_the_statistics_and_are_in_the_report(
    tmp_path, folders
):
    async def shaky(question):
        shaky.calls += 1
        fate = shaky.calls % 10
        if fate == 1:
            raise RuntimeError("no")
        if fate == 4:
            await asyncio.sleep(3600)
        said = await ask(question)
        return None if fate == 7 else said

    shaky.calls = 0
    given = {"reward": letters, "model": str(folders["llama"]), "runs": tmp_path, "name": "run",
             "max_tokens": 8, "concurrency": 40, "engine_options": {"threads": "1"}, "timeout": 20.0}  # fmt: skip
    result = await optimize(shaky, TASKS, config(steps=2, batch_size=4, group_size=5), **given)
    steps, rollouts = lines(tmp_path)
    assert len(steps) == 2
    for number, line in enumerate(steps):
        # Each step's 20 rollouts have two of each fate.
        assert line["failures/agent_error"] == line["failures/timeout"] == 2
        assert line["failures/not_graded"] == 2
        assert line["rollouts/scored"] == 14
        scored = [r["reward"] for r in rollouts[20 * number :][:20] if r["reward"] is not None]
        assert line["reward"] == pytest.approx(sum(scored) / 14)
        assert line["update/optimizer_steps"] == 1
    assert result.artifact.metrics["steps"] == 2


async def test_a_step_goes_on_at_a_quorum(tmp_path, folders):
    async def slow(question):
        slow.calls += 1
        if slow.calls % 4 == 0:
            await asyncio.sleep(3600)
        return await ask(question)

    slow.calls = 0
    given = {"reward": letters, "model": str(folders["llama"]), "runs": tmp_path, "name": "run",
             "max_tokens": 8, "concurrency": 16, "engine_options": {"threads": "1"}}  # fmt: skip
    await optimize(slow, TASKS, config(steps=2, quorum=0.75), **given)
    steps, _ = lines(tmp_path)
    assert [line["step"] for line in steps] == [1, 2]
    for line in steps:
        assert line["failures/cancelled"] == line["rollouts/infra_error"] == 2
        assert line["rollouts/scored"] == 6


async def test_groups_of_equal_rewards_are_replaced_within_the_step(tmp_path, folders):
    def easy_or_not(task, trace):
        return 1.0 if task.id in ("t0", "t1") else letters(task, trace)

    wanted = config(steps=3, batch_size=2, refill=2)
    await optimized(tmp_path, folders, wanted, reward=easy_or_not)
    steps, rollouts = lines(tmp_path)
    assert sum(line["groups/refilled"] for line in steps) > 0
    for line in steps:
        assert line["groups/all"] == 2 + line["groups/refilled"]
        assert line["groups/compared"] + line["groups/equal"] == line["groups/all"]
        # Only what tells better from worse is learnt from.
        assert line["samples/all"] == 4 * line["groups/compared"]
    assert len(rollouts) == sum(line["groups/all"] for line in steps) * 4


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("rloo", {"learning_rate": "2e-2"}),
        ("gspo", {}),
        ("reinforce_pp", {}),
        ("ppo", {"value_learning_rate": "1e-2"}),
        ("sft", {}),
    ],
)
async def test_each_algorithm_raises_the_reward(tmp_path, folders, algorithm, options):
    learning = {**LEARNING, "learning_rate": "1e-2", **options}
    wanted = config(algorithm=algorithm, steps=10, batch_size=4, group_size=8, options=learning)
    await optimized(tmp_path, folders, wanted)
    steps, _ = lines(tmp_path)
    first, last = (sum(line["reward"] for line in some) / 3 for some in (steps[:3], steps[-3:]))
    assert last > first + 0.1


async def test_conversations_are_learnt_without_rollouts(tmp_path, folders):
    said = [{"role": "user", "content": "the tool 1"}, {"role": "assistant", "content": "the the"}]
    path = tmp_path / "conversations.jsonl"
    path.write_text(json.dumps({"messages": said}) + "\n")
    learning = {**LEARNING, "conversations": str(path)}
    wanted = config(algorithm="sft", steps=30, batch_size=1, options=learning)
    result = await optimized(tmp_path, folders, wanted, val=VAL)
    losses = [result.steps[step]["update/loss"] for step in sorted(result.steps) if step]
    assert losses[-1] < losses[0] / 4
    assert not [line for line in lines(tmp_path)[1] if line["mode"] == "train"]


async def test_only_the_agent_that_is_chosen_is_trained(tmp_path, folders):
    """Two agents with one model: the letters of one are rewarded, those of the other are not."""
    from langgraph.graph import END, START, StateGraph

    def node(name):
        async def speak(state):
            return {name: await ask(f"{name}: {state['input']}")}

        return speak

    from typing import TypedDict

    class State(TypedDict, total=False):
        input: str
        write: str
        check: str

    builder = StateGraph(State)
    for name in ("write", "check"):
        builder.add_node(f"{name}r", node(name))
    builder.add_edge(START, "writer")
    builder.add_edge("writer", "checkr")
    builder.add_edge("checkr", END)

    def share(text):
        return sum(letter.islower() for letter in text) / max(len(text), 1)

    given = {"model": str(folders["llama"]), "runs": tmp_path, "name": "run", "max_tokens": 8,
             "concurrency": 32, "engine_options": {"threads": "1"}}  # fmt: skip
    wanted = config(steps=10, batch_size=4, group_size=8, train_agents="writer")
    tasks = [{"id": f"t{n}", "input": {"input": f"the tool {n}"}} for n in range(4)]
    await optimize(
        builder.compile(), tasks, wanted, reward=lambda task, trace: share(trace.output["write"]), **given
    )  # fmt: skip
    steps, _ = lines(tmp_path)
    first, last = (sum(line["reward"] for line in some) / 3 for some in (steps[:3], steps[-3:]))
    assert last > first + 0.1
    for line in steps:
        assert line["drift/skipped/not_selected"] == line["drift/joined/new"] == 32


async def test_each_call_is_learnt_from_by_its_own_reward(tmp_path, folders):
    def share(text):
        return sum(letter.islower() for letter in text) / max(len(text), 1)

    async def twice(question):
        return [await ask(question), await ask(f"again: {question}")]

    def each(task, trace):
        calls = [
            Reward(value=share(call.text), scope=RewardScope.CALL, target=call.id)
            for call in trace.calls
        ]
        return [Reward(value=share("".join(trace.output))), *calls]

    given = {"reward": each, "model": str(folders["llama"]), "runs": tmp_path, "name": "run",
             "max_tokens": 8, "concurrency": 32, "engine_options": {"threads": "1"}}  # fmt: skip
    wanted = config(steps=10, batch_size=4, group_size=8, credit="call", algorithm="dr_grpo")
    await optimize(twice, TASKS, wanted, **given)
    steps, _ = lines(tmp_path)
    first, last = (sum(line["reward"] for line in some) / 3 for some in (steps[:3], steps[-3:]))
    assert last > first + 0.1
    assert all(line["samples/credits_missing"] == 0 for line in steps)


async def test_ids_made_anew_are_learnt_from_where_that_is_allowed(tmp_path, folders, monkeypatch):
    """An engine that gives no token ids is refused with the reason; allowed, its calls are marked and counted."""
    monkeypatch.setattr(engine, "GIVES", frozenset({Capability.WEIGHTS_IN_PLACE}))
    with pytest.raises(
        UsageError, match=r"needs `logprobs`, `token_ids` but .* add `--allow-retokenized`"
    ):
        await optimized(tmp_path, folders)

    wanted = config(steps=12, batch_size=4, group_size=8, allow_retokenized=True)
    await optimized(tmp_path, folders, wanted)
    steps, _ = lines(tmp_path)
    assert all(line["drift/retokenized"] == line["drift/calls"] == 32 for line in steps)
    first, last = (sum(line["reward"] for line in some) / 3 for some in (steps[:3], steps[-3:]))
    assert last > first + 0.1


async def test_a_run_that_cannot_be_scored_ends_with_the_reason(tmp_path, folders):
    def broken(task, trace):
        raise KeyError("gold")

    with pytest.raises(
        LightningError,
        match=r"no rollout of the last 3 steps could be scored(.|\n)*KeyError: 'gold'",
    ):
        await optimized(tmp_path, folders, config(steps=9), reward=broken)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": "magic"}, "backend `local` knows `grpo`"),
        ({"group_size": 1}, "a group of one says nothing"),
        ({"options": {"learnig_rate": "1"}}, "no option 'learnig_rate'"),
        (
            {"options": {**LEARNING, "lora_targets": "nope"}},
            "LoRA target 'nope' is no linear module",
        ),
        ({"credit": "fnal"}, "no rule is named `fnal`"),
        ({"sampler": "best"}, "none is named `best`"),
        ({"train_agents": "("}, "no regular expression"),
        ({"quorum": 0.0}, "quorum: expected a share"),
        ({"asynchronous": True}, "max_staleness: with asynchronous"),
    ],
)
async def test_what_cannot_be_is_one_error_that_names_it(tmp_path, folders, changes, message):
    with pytest.raises(UsageError, match=message):
        await optimized(tmp_path, folders, config(**changes))


async def test_an_engine_without_token_ids_is_refused_with_the_reason(tmp_path, folders):
    with pytest.raises(
        CapabilityError, match=r"backend `local` needs `logprobs`, .* but engine `openai` gives"
    ):
        await optimized(tmp_path, folders, model="http://127.0.0.1:1/v1", engine_options={})
