"""A step: statistics before anything is dropped, advantages, weights that add up to 1, and what the report says."""

import math
import random
import re
import statistics
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core import (
    Attempt,
    Call,
    Cause,
    Choice,
    Mode,
    Reward,
    RewardScope,
    RewardStatus,
    Rollout,
    Task,
    TokenSource,
    Trace,
)
from lightning_core.errors import UsageError
from lightning_core.learn import (
    NO_VERSION,
    Aggregation,
    GroupBy,
    LearningRules,
    Sample,
    SampleRules,
    StepReport,
    make_step,
    parse_credit,
    tasks_to_refill,
)
from lightning_core.learn.aggregation import weights
from lightning_core.learn.credit import BUILT_IN

AGGREGATIONS = list(Aggregation)


def call(rollout, index, prompt, reply, **more):
    return Call(
        id=f"{rollout}.{index}", attempt_id=f"{rollout}.1", rollout_id=rollout, index=index, dialect="chat",
        prompt_token_ids=tuple(prompt), token_source=TokenSource.ENGINE, mode=Mode.TRAIN, complete=True,
        choices=(Choice(token_ids=tuple(reply), logprobs=(-0.5,) * len(reply)),), **more,
    )  # fmt: skip


def chain(rollout, lengths, **more):
    """Calls of one conversation, with replies of these lengths and two tokens of the environment between them."""
    seen, calls = [1, 2, 3], []
    for index, length in enumerate(lengths):
        reply = [100 + index] * length
        calls.append(call(rollout, index, seen, reply, **more))
        seen = [*seen, *reply, 7, 8]
    return calls


def trace(rollout, calls=None, *, reward=None, cause=Cause.SUCCESS, rewards=(), task="t"):
    if reward is not None:
        rewards = (Reward(value=reward), *rewards)
    return Trace(
        rollout=Rollout(id=rollout, task_id=task, group=task),
        task=Task(id=task, input="x"),
        attempt=Attempt(
            id=f"{rollout}.1", rollout_id=rollout, number=1, fence=1, worker="w", started_at=1.0, deadline=2.0,
            lease_until=2.0, cause=cause,
        ),
        calls=tuple(chain(rollout, [2]) if calls is None else calls),
        rewards=tuple(rewards),
    )  # fmt: skip


def group(name, *rewards, lengths=(2,)):
    return [
        trace(f"{name}{i}", chain(f"{name}{i}", lengths), reward=r, task=name)
        for i, r in enumerate(rewards)
    ]


def advantage_by_call(step):
    return {
        segment.call_id: segment.advantage
        for sample in step.samples
        for segment in sample.segments
        if segment.trainable
    }


def total_weight(step):
    return math.fsum(sample.weight * sample.trainable_tokens for sample in step.samples)


def test_with_the_final_reward_it_is_plain_grpo():
    step = make_step([group("a", 1.0, 0.0, 0.0, 0.0, lengths=(2, 3))])
    got = advantage_by_call(step)
    # Each call of a rollout has the rollout's advantage; worked by hand in test_learn_advantage.
    expected = {"a0": 1.5, "a1": -0.5, "a2": -0.5, "a3": -0.5}
    assert got == pytest.approx(
        {f"{r}.{i}": v for r, v in expected.items() for i in (0, 1)}, rel=1e-5
    )
    for sample in step.samples:
        assert set(sample.advantages()) == {0.0, got[f"{sample.rollout_id}.0"]}
        assert sum(a != 0 for a in sample.advantages()) == sample.trainable_tokens == 5


def test_groups_are_compared_within_themselves():
    alone = make_step([group("b", 0.0, 2.0)])
    together = make_step([group("a", 10.0, 30.0), group("b", 0.0, 2.0)])
    both = advantage_by_call(together)
    assert {k: v for k, v in both.items() if k.startswith("b")} == advantage_by_call(alone)


def test_a_rollout_without_tokens_counts_in_its_groups_baseline():
    bare = [msgspec.structs.replace(one, choices=(Choice(),)) for one in chain("a2", [2])]
    with_it = [*group("a", 1.0, 0.0), trace("a2", bare, reward=0.5)]
    step = make_step([with_it], LearningRules(estimator="dr_grpo"))
    assert advantage_by_call(step) == {"a0.0": 0.5, "a1.0": -0.5}
    low = [*group("a", 1.0, 0.0), trace("a2", bare, reward=-1.0)]
    step = make_step([low], LearningRules(estimator="dr_grpo"))
    assert advantage_by_call(step) == {"a0.0": 1.0, "a1.0": 0.0}
    assert total_weight(step) == pytest.approx(1.0)


def test_a_sample_that_the_trainer_cannot_take_is_left_out_whole_and_counted():
    groups = [[*group("a", 1.0, lengths=(2, 2)), *group("b", 0.0, lengths=(2, 9))]]
    short, long = (len(sample.token_ids) for sample in make_step(groups).samples)
    assert short < long
    assert len(make_step(groups, LearningRules(max_tokens=long)).samples) == 2
    step = make_step(groups, LearningRules(max_tokens=long - 1))
    (kept,) = step.samples
    assert kept.rollout_id == "a0"
    assert step.report.too_long == 1
    # What is left out is compared with the others all the same: its reward is known.
    assert set(advantage_by_call(step).values()) == {
        advantage_by_call(make_step(groups))[f"a0.{i}"] for i in (0, 1)
    }
    assert total_weight(step) == pytest.approx(1.0)


def crashed(name, i, cause):
    return trace(
        f"{name}x{i}", cause=cause, task=name, rewards=(Reward(status=cause.reward_status),)
    )


FAILURES = st.sampled_from([c for c in Cause if c is not Cause.SUCCESS])
REWARDS = st.floats(-5, 5).map(lambda x: round(x, 2))


@given(
    survivors=st.lists(st.lists(REWARDS, max_size=6), min_size=1, max_size=4),
    crashes=st.lists(st.tuples(st.integers(0, 3), FAILURES), max_size=6),
    estimator=st.sampled_from(["grpo", "dr_grpo", "rloo", "reinforce_pp_baseline"]),
    seed=st.integers(0, 99),
)
def test_the_statistics_are_those_of_the_survivors(survivors, crashes, estimator, seed):
    rules = LearningRules(estimator=estimator)
    alone = [group(f"g{n}_", *rewards) for n, rewards in enumerate(survivors)]
    among = [list(some) for some in alone]
    generator = random.Random(seed)
    for i, (n, cause) in enumerate(crashes):
        some = among[n % len(among)]
        some.insert(generator.randint(0, len(some)), crashed(f"g{n}_", i, cause))
    one, other = make_step(alone, rules), make_step(among, rules)
    assert one.samples == other.samples
    assert one.report.reward == other.report.reward
    assert (one.report.equal_groups, one.report.groups_of_one, one.report.empty_groups) == (
        other.report.equal_groups, other.report.groups_of_one, other.report.empty_groups,
    )  # fmt: skip
    assert other.report.rollouts == one.report.rollouts + len(crashes)
    assert other.report.unscored + other.report.infra_error == len(crashes)
    assert sum(other.report.failures.values()) == len(crashes)
    assert tasks_to_refill(among, rules) == tasks_to_refill(alone, rules)


@given(
    rewards=st.lists(REWARDS, min_size=1, max_size=6),
    estimator=st.sampled_from(["grpo", "dr_grpo", "rloo", "reinforce_pp_baseline"]),
    data=st.data(),
)
def test_permuting_the_rollouts_of_a_group_permutes_the_advantages(rewards, estimator, data):
    traces = group("a", *rewards)
    rules = LearningRules(estimator=estimator)
    order = data.draw(st.permutations(traces))
    straight, permuted = make_step([traces], rules), make_step([order], rules)
    assert advantage_by_call(permuted) == pytest.approx(
        advantage_by_call(straight), rel=1e-6, abs=1e-9
    )
    assert [s.rollout_id for s in permuted.samples] == [t.rollout.id for t in order]


LENGTHS = st.lists(
    st.lists(st.tuples(REWARDS, st.lists(st.integers(1, 5), min_size=1, max_size=3)), max_size=5),
    min_size=1,
    max_size=3,
)


def of_lengths(shapes):
    return [
        [
            trace(f"g{n}_{i}", chain(f"g{n}_{i}", lengths), reward=reward, task=f"g{n}")
            for i, (reward, lengths) in enumerate(some)
        ]
        for n, some in enumerate(shapes)
    ]


@given(shapes=LENGTHS, aggregation=st.sampled_from(AGGREGATIONS), size=st.integers(1, 4))
def test_the_weights_add_up_to_one_however_a_step_is_split(shapes, aggregation, size):
    step = make_step(of_lengths(shapes), LearningRules(aggregation=aggregation))
    if not step.samples:
        return
    assert total_weight(step) == pytest.approx(1.0)
    losses = {s.rollout_id: [random.Random(f"{s.rollout_id}/{t}").random() for t in range(len(s.mask))]
              for s in step.samples}  # fmt: skip

    def loss(samples):
        return math.fsum(
            sample.weight * value * used
            for sample in samples
            for value, used in zip(losses[sample.rollout_id], sample.mask, strict=True)
        )

    parts = [step.samples[at : at + size] for at in range(0, len(step.samples), size)]
    assert math.fsum(map(loss, parts)) == pytest.approx(loss(step.samples))


@given(shapes=LENGTHS)
def test_aggregations_are_the_means_that_they_are_named_for(shapes):
    groups = of_lengths(shapes)
    for aggregation in AGGREGATIONS:
        step = make_step(groups, LearningRules(aggregation=aggregation))
        by_rollout = {}
        for sample in step.samples:
            value = float(sum(map(ord, sample.rollout_id)))
            weight = sample.weight * sample.trainable_tokens
            by_rollout.setdefault(sample.rollout_id, []).append(
                (value, weight, sample.trainable_tokens)
            )
        rows = [row for some in by_rollout.values() for row in some]
        if not rows:
            continue
        got = math.fsum(value * weight for value, weight, _ in rows)
        if aggregation is Aggregation.TOKEN:
            tokens = [value for value, _, count in rows for _ in range(count)]
            assert got == pytest.approx(statistics.fmean(tokens))
        else:
            # One chain for each rollout here, so that both are means over rollouts.
            assert got == pytest.approx(statistics.fmean(value for value, _, _ in rows))


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        (Aggregation.TOKEN, [1 / 7, 0.0, 1 / 7, 1 / 7]),
        (Aggregation.SEQUENCE, [1 / 6, 0.0, 1 / 3, 1 / 12]),
        (Aggregation.ROLLOUT, [1 / 6, 0.0, 1 / 6, 1 / 8]),
    ],
)
def test_weights_by_hand(aggregation, expected):
    # Two chains of `a`, with 2 and 1 tokens to learn from, one without any; one chain of `b`, with 4.
    masks = [("a", (1, 1, 0)), ("a", (0, 0)), ("a", (0, 1)), ("b", (1, 1, 1, 1))]
    samples = [
        Sample(
            rollout_id=rollout, task_id="t", token_ids=(5,) * len(mask), mask=mask,
            logprobs=(0.0,) * len(mask), versions=(NO_VERSION,) * len(mask),
        )
        for rollout, mask in masks
    ]  # fmt: skip
    assert weights(samples, aggregation) == pytest.approx(expected)
    assert weights(samples[1:2], aggregation) == [0.0]


def two_agents(rollout, rewards, reward):
    calls = [
        call(rollout, 0, [1, 2], [10, 11], agent="writer"),
        call(rollout, 1, [5, 6], [20, 21, 22], agent="critic"),
        call(rollout, 2, [9], [30], agent="writer"),
    ]
    own = tuple(
        Reward(value=value, scope=RewardScope.AGENT, target=agent)
        for agent, value in rewards.items()
    )
    return trace(rollout, calls, reward=reward, rewards=own)


def test_a_rollout_of_many_chains_weighs_as_much_as_one_of_one_chain():
    traces = [two_agents("r0", {}, 1.0), trace("r1", reward=0.0)]
    step = make_step([traces])
    shares = {}
    for sample in step.samples:
        share = sample.weight * sample.trainable_tokens
        shares[sample.rollout_id] = shares.get(sample.rollout_id, 0.0) + share
    assert shares == pytest.approx({"r0": 0.5, "r1": 0.5})
    by_chain = make_step([traces], LearningRules(aggregation=Aggregation.SEQUENCE))
    assert [s.weight * s.trainable_tokens for s in by_chain.samples] == pytest.approx([0.25] * 4)


def test_each_agent_is_compared_with_itself():
    traces = [
        two_agents("r0", {"writer": 1.0, "critic": 0.0}, 0.0),
        two_agents("r1", {"writer": 0.0, "critic": 5.0}, 0.0),
    ]
    rules = LearningRules(
        credit=parse_credit("agent", BUILT_IN), group_by=GroupBy.TASK_AGENT, estimator="dr_grpo"
    )
    got = advantage_by_call(make_step([traces], rules))
    assert got == {
        "r0.0": 0.5, "r0.1": -2.5, "r0.2": 0.5, "r1.0": -0.5, "r1.1": 2.5, "r1.2": -0.5,
    }  # fmt: skip


def test_with_the_task_as_key_a_rollouts_value_is_the_mean_of_its_credits():
    traces = [
        two_agents("r0", {"writer": 1.0, "critic": 0.0}, 0.0),
        two_agents("r1", {"writer": 0.0, "critic": 5.0}, 0.0),
    ]
    rules = LearningRules(credit=parse_credit("agent", BUILT_IN), estimator="dr_grpo")
    got = advantage_by_call(make_step([traces], rules))
    # Means of credits: 2/3 and 5/3, so that the baseline is 7/6.
    expected = {"r0.0": 1, "r0.1": 0, "r0.2": 1, "r1.0": 0, "r1.1": 5, "r1.2": 0}
    assert got == pytest.approx({id_: credit - 7 / 6 for id_, credit in expected.items()}, rel=1e-6)


def test_only_agents_that_are_trained_have_a_part_in_it():
    rules = LearningRules(
        samples=SampleRules(train_agents="writer"), credit=parse_credit("agent", BUILT_IN),
        estimator="dr_grpo",
    )  # fmt: skip
    traces = [
        two_agents("r0", {"writer": 1.0, "critic": 100.0}, 0.0),
        two_agents("r1", {"writer": 0.0, "critic": -7.0}, 0.0),
    ]
    step = make_step([traces], rules)
    assert advantage_by_call(step) == {"r0.0": 0.5, "r0.2": 0.5, "r1.0": -0.5, "r1.2": -0.5}
    assert step.report.agents == {"critic": 46.5, "writer": 0.5}


# A call: which of three agents, tokens, and its own reward or none; its prompt goes on from any earlier call, or from none.
CALLS = st.lists(
    st.tuples(
        st.sampled_from(["writer", "critic", None]), st.integers(1, 4), st.none() | REWARDS, st.integers(0, 9)
    ),
    max_size=6,
)  # fmt: skip


def woven(rollout, shapes):
    """Calls of several agents, in conversations that branch and interleave."""
    calls, rewards, ends = [], [], []
    for index, (agent, length, reward, after) in enumerate(shapes):
        prompt = [1, 2] if after >= len(ends) else [*ends[after], 7]
        reply = [100 + index] * length
        calls.append(call(rollout, index, prompt, reply, agent=agent))
        ends.append([*prompt, *reply])
        if reward is not None:
            scope, target = RewardScope.CALL, f"{rollout}.{index}"
            rewards.append(Reward(value=reward, scope=scope, target=target))
    return trace(rollout, calls, reward=0.0, rewards=rewards)


@given(
    groups=st.lists(st.lists(CALLS, max_size=4), min_size=1, max_size=3),
    estimator=st.sampled_from(["grpo", "dr_grpo", "rloo"]),
    group_by=st.sampled_from(list(GroupBy)),
    agents=st.sampled_from([None, "writer", "writer|critic"]),
)
def test_each_call_has_its_own_advantage_however_calls_are_woven(
    groups, estimator, group_by, agents
):
    rules = LearningRules(
        samples=SampleRules(train_agents=agents), credit=parse_credit("call", BUILT_IN),
        estimator=estimator, group_by=group_by,
    )  # fmt: skip
    step = make_step(
        [
            [woven(f"g{g}r{r}", shapes) for r, shapes in enumerate(some)]
            for g, some in enumerate(groups)
        ],
        rules,
    )
    # The same from the shapes alone: credits by (group, key), then by rollout.
    credits = {}
    for g, some in enumerate(groups):
        for r, shapes in enumerate(some):
            for index, (agent, _, reward, _) in enumerate(shapes):
                selected = agents is None or agent in agents.split("|")
                if reward is not None and selected:
                    key = (g, agent if group_by is GroupBy.TASK_AGENT else "any")
                    credits.setdefault(key, {}).setdefault(r, {})[f"g{g}r{r}.{index}"] = reward
    expected = {}
    for rollouts in credits.values():
        values = {r: statistics.fmean(own.values()) for r, own in rollouts.items()}
        for r, own in rollouts.items():
            others = [value for other, value in values.items() if other != r]
            for id_, credit in own.items():
                if not others or max(values.values()) - min(values.values()) < 1e-8:
                    expected[id_] = 0.0
                elif estimator == "rloo":
                    expected[id_] = credit - statistics.fmean(others)
                else:
                    difference = credit - statistics.fmean(values.values())
                    scale = statistics.stdev(values.values()) + 1e-6 if estimator == "grpo" else 1
                    expected[id_] = difference / scale
    assert advantage_by_call(step) == pytest.approx(expected, rel=1e-5, abs=1e-5)
    learnt = sum(shapes[1] for some in groups for rollout in some for shapes in rollout
                 if shapes[2] is not None and (agents is None or shapes[0] in agents.split("|")))  # fmt: skip
    assert step.report.trainable_tokens == learnt
    assert total_weight(step) == pytest.approx(1.0 if learnt else 0.0)


def test_a_reply_without_credit_becomes_context_and_is_counted():
    calls = chain("r0", [2, 3, 4])
    own = tuple(Reward(value=1.0, scope=RewardScope.CALL, target=f"r0.{i}") for i in (0, 2))
    other = Reward(value=0.0, scope=RewardScope.CALL, target="r1.0")
    groups = [
        [trace("r0", calls, reward=1.0, rewards=own), trace("r1", reward=0.0, rewards=[other])]
    ]
    step = make_step(groups, LearningRules(credit=parse_credit("call", BUILT_IN)))
    assert step.report.credits_missing == 1
    sample = step.samples[0]
    assert [s.trainable for s in sample.segments] == [True, False, True]
    middle = slice(sample.segments[1].start, sample.segments[1].stop)
    assert sample.token_ids[middle] == (101,) * 3
    assert sample.mask[middle] == (0,) * 3
    assert sample.logprobs[middle] == (0.0,) * 3
    assert sample.versions[middle] == (NO_VERSION,) * 3
    assert sample.trainable_tokens == 6
    assert total_weight(step) == pytest.approx(1.0)


def test_a_chain_ends_with_what_is_learnt_from():
    calls = chain("r0", [2, 3])
    own = Reward(value=1.0, scope=RewardScope.CALL, target="r0.0")
    step = make_step(
        [[trace("r0", calls, rewards=[own])]], LearningRules(credit=parse_credit("call", BUILT_IN))
    )
    (sample,) = step.samples
    assert len(sample.token_ids) == sample.segments[0].stop == 5
    assert len(sample.segments) == 1
    assert step.report.scored == 1


def test_a_chain_without_any_credit_is_dropped_and_counted():
    own = Reward(value=1.0, scope=RewardScope.CALL, target="r0.2")
    many = msgspec.structs.replace(two_agents("r0", {}, 1.0), rewards=(Reward(value=1.0), own))
    rules = LearningRules(credit=parse_credit("call", BUILT_IN))
    step = make_step([[many, trace("r1", reward=0.0)]], rules)
    assert [s.segments[0].call_id for s in step.samples] == ["r0.2"]
    assert step.report.dropped == 3
    assert step.report.credits_missing == 3
    assert step.report.silent == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e39])
def test_a_credit_that_is_no_number_leaves_its_rollout_unscored(bad):
    def rule(trace):
        return {c.id: bad if trace.rollout.id == "a1" else trace.reward for c in trace.calls}

    step = make_step([group("a", 1.0, 0.5, 0.0)], LearningRules(credit=rule))
    assert step.samples == make_step([group("a", 1.0, None, 0.0)]).samples
    assert (step.report.scored, step.report.unscored) == (2, 1)
    assert step.report.failures == {"bad_credit": 1}
    assert "rollout `a1`" in step.report.notes[0]
    assert f"but got {bad!r}" in step.report.notes[0]
    StepReport.from_json(step.report.to_json())


def test_a_rule_that_raises_costs_that_rollout_only():
    def rule(trace):
        return {c.id: 1.0 / (trace.reward - 0.5) for c in trace.calls}

    step = make_step([group("a", 1.0, 0.5, 0.0)], LearningRules(credit=rule))
    assert step.report.notes == ("rollout `a1`: credit: ZeroDivisionError: float division by zero",)
    assert {s.rollout_id for s in step.samples} == {"a0", "a2"}


def test_equal_groups_and_groups_of_one_are_counted_and_move_nothing():
    groups = [
        group("a", 1.0, 1.0),
        group("b", 0.0, 1.0),
        group("c", 0.7),
        [],
        [crashed("d", 0, Cause.LOST)],
    ]
    for estimator in ("grpo", "dr_grpo", "rloo", "reinforce_pp_baseline"):
        step = make_step(groups, LearningRules(estimator=estimator))
        got = advantage_by_call(step)
        assert (got["a0.0"], got["a1.0"], got["c0.0"]) == (0.0, 0.0, 0.0)
        assert got["b0.0"] == -got["b1.0"] != 0.0
        report = step.report
        assert (report.groups, report.compared, report.equal_groups) == (5, 1, 1)
        assert (report.groups_of_one, report.empty_groups) == (1, 2)
    assert tasks_to_refill(groups) == [0, 2, 3, 4]


def test_groups_without_a_signal_can_be_left_out():
    groups = [group("a", 1.0, 1.0), group("b", 0.0, 1.0), group("c", 0.7)]
    step = make_step(groups, LearningRules(drop_equal=True))
    assert {s.rollout_id for s in step.samples} == {"b0", "b1"}
    assert total_weight(step) == pytest.approx(1.0)
    assert advantage_by_call(step) == {
        k: v for k, v in advantage_by_call(make_step(groups)).items() if k.startswith("b")
    }


@pytest.mark.parametrize("estimator", ["gae", "none"])
def test_what_is_not_compared_is_not_left_out_for_being_equal(estimator):
    rules = LearningRules(estimator=estimator, drop_equal=True)
    step = make_step([group("a", 1.0, 1.0), group("c", 0.7)], rules)
    assert {s.rollout_id for s in step.samples} == {"a0", "a1", "c0"}


def test_groups_that_are_too_small_give_no_samples():
    groups = [group("a", 1.0, 0.0), group("b", 0.0, 1.0, 0.5)]
    step = make_step(groups, LearningRules(min_group=3))
    assert {s.rollout_id for s in step.samples} == {"b0", "b1", "b2"}
    assert step.report.small_groups == 1


def test_reinforce_pp_is_whitened_over_the_tokens_of_the_step():
    groups = of_lengths([[(1.0, [1]), (0.0, [4])], [(3.0, [2, 2]), (0.0, [1])]])
    step = make_step(groups, LearningRules(estimator="reinforce_pp_baseline"))
    tokens = [
        value
        for sample in step.samples
        for value, used in zip(sample.advantages(), sample.mask, strict=True)
        if used
    ]
    assert len(tokens) == 10
    assert statistics.fmean(tokens) == pytest.approx(0.0, abs=1e-6)
    assert statistics.variance(tokens) == pytest.approx(1.0, abs=1e-6)
    # Centred: .5, -.5 and 1.5, -1.5.
    centred = [0.5] + [-0.5] * 4 + [1.5] * 4 + [-1.5]
    mean, deviation = statistics.fmean(centred), statistics.stdev(centred)
    assert tokens == pytest.approx([(c - mean) / deviation for c in centred], rel=1e-5)


def test_a_group_without_a_signal_is_not_moved_by_the_whitening_of_the_others():
    rules = LearningRules(estimator="reinforce_pp_baseline")
    telling = of_lengths([[(1.0, [1]), (0.0, [4])]])
    equal = [group("e", 1.0, 1.0), group("f", 0.3)]
    alone = advantage_by_call(make_step(telling, rules))
    among = advantage_by_call(make_step(telling + equal, rules))
    assert among == {**alone, "e0.0": 0.0, "e1.0": 0.0, "f0.0": 0.0}


@pytest.mark.parametrize("estimator", ["gae", "none"])
def test_the_advantage_can_be_left_to_the_trainer(estimator):
    step = make_step([group("a", 1.0, 0.0, lengths=(2, 2))], LearningRules(estimator=estimator))
    assert all(s.advantage is None for sample in step.samples for s in sample.segments)
    assert [sum(sample.token_rewards()) for sample in step.samples] == [1.0, 0.0]
    assert step.report.advantage is None
    with pytest.raises(ValueError, match="not computed"):
        step.samples[0].advantages()


def test_discounted_credit_becomes_the_reward_to_come_at_each_call():
    rules = LearningRules(credit=parse_credit("discounted:0.5", BUILT_IN), estimator="gae")
    (sample, _) = make_step([group("a", 1.0, 0.0, lengths=(1, 1, 1))], rules).samples
    rewards = sample.token_rewards()
    assert [sum(rewards[s.start :]) for s in sample.segments] == [0.25, 0.5, 1.0]


def test_the_report_says_what_the_step_was_made_of():
    style = Reward(value=0.5, name="style")
    failed = Reward(
        status=RewardStatus.UNSCORED, details={"error": "reward function `f`: KeyError: 'x'"}
    )
    groups = [
        [
            trace("a0", chain("a0", [2, 4], policy_version=3), reward=1.0, rewards=[style]),
            trace("a1", chain("a1", [6], policy_version=5), reward=0.0),
            trace("a2", rewards=[failed]),
            crashed("a", 0, Cause.TIMEOUT),
        ],
        [crashed("b", 1, Cause.WORKER_ERROR), trace("b0", cause=None)],
    ]
    report = make_step(groups, LearningRules(version=5)).report
    assert (report.rollouts, report.scored, report.unscored, report.infra_error) == (6, 2, 2, 2)
    assert report.causes == {"success": 3, "timeout": 1, "unfinished": 1, "worker_error": 1}
    assert report.failures == {"not_graded": 1, "timeout": 1, "unfinished": 1, "worker_error": 1}
    assert report.notes == ("rollout `a2`: reward function `f`: KeyError: 'x'",)
    assert (report.reward.count, report.reward.mean) == (2, 0.5)
    assert report.rewards == {"style": 0.5}
    assert report.samples == 2
    # a0: a prompt of 3, 2 said, 2 of the environment, 4 said; a1: 3 and 6.
    assert (report.tokens, report.trainable_tokens) == (20, 12)
    assert report.staleness == pytest.approx((6 * 2 + 6 * 0) / 12)
    assert report.staleness_max == 2
    assert (report.prompt.mean, report.prompt.max) == (pytest.approx(13 / 3), 7)
    assert (report.completion.mean, report.completion.max) == (4.0, 6)
    assert report.drift.calls == 7
    assert StepReport.from_json(report.to_json()) == report
    metrics = report.metrics()
    assert metrics["reward"] == 0.5
    assert metrics["failures/timeout"] == 1
    assert metrics["rewards/style"] == 0.5
    assert all(
        isinstance(value, int | float) and math.isfinite(value) for value in metrics.values()
    )


def test_calls_can_be_rewarded_where_the_rollout_is_not():
    groups = [
        [
            trace(
                f"r{i}", rewards=[Reward(value=float(i), scope=RewardScope.CALL, target=f"r{i}.0")]
            )
            for i in (0, 1)
        ]
    ]
    step = make_step(groups, LearningRules(credit=parse_credit("call", BUILT_IN), estimator="rloo"))
    assert advantage_by_call(step) == {"r0.0": -1.0, "r1.0": 1.0}
    assert step.report.reward is None
    assert make_step(groups).report.failures == {"not_graded": 2}


def test_a_failed_rollout_is_not_saved_by_rewards_of_its_calls():
    own = Reward(value=1.0, scope=RewardScope.CALL, target="r0.0")
    failed = trace("r0", cause=Cause.TIMEOUT, rewards=[Reward(status=RewardStatus.UNSCORED), own])
    step = make_step([[failed]], LearningRules(credit=parse_credit("call", BUILT_IN)))
    assert step.samples == ()
    assert step.report.unscored == 1


def test_a_step_of_nothing_is_a_step():
    for groups in ([], [[]], [[crashed("a", 0, Cause.CANCELLED)]]):
        step = make_step(groups)
        assert step.samples == ()
        assert step.report.reward is None
        assert StepReport.from_json(step.report.to_json()) == step.report


@given(LENGTHS)
def test_the_same_traces_make_the_same_step(shapes):
    assert make_step(of_lengths(shapes)) == make_step(of_lengths(shapes))


def test_with_agents_compared_apart_a_group_tells_something_if_any_of_its_agents_does():
    equal = [two_agents(f"r{i}", {"writer": 1.0, "critic": 1.0}, 1.0) for i in (0, 1)]
    telling = [two_agents(f"r{i}", {"writer": 1.0, "critic": float(i)}, 1.0) for i in (2, 3)]
    rules = LearningRules(credit=parse_credit("agent", BUILT_IN), group_by=GroupBy.TASK_AGENT)
    assert tasks_to_refill([equal, telling], rules) == [0]
    assert tasks_to_refill([equal, telling]) == [0, 1]


def test_the_example_of_the_learning_page_runs(capsys):
    page = (Path(__file__).parents[2] / "docs/learning.md").read_text()
    calls = [chain(f"r{i}", [2, 1], agent="write") for i in range(3)]
    best = Reward(value=1.0, scope=RewardScope.CALL, target="r2.1")
    groups = [
        [trace("r0", calls[0], reward=1.0), trace("r1", calls[1], reward=0.0)],
        [trace("r2", calls[2], reward=1.0, rewards=[best])],
    ]
    exec(re.search(r"```python\n(.*?)```", page, re.S)[1], {"groups": groups})
    said = capsys.readouterr().out
    assert said.count("\n") == 5
    assert "'rollouts/scored': 3" in said
    assert "no signal in groups [1]" in said


def test_rules_that_cannot_be_are_refused():
    with pytest.raises(
        UsageError, match="estimator 'gpro': expected one of `dr_grpo`, `gae`, `grpo`"
    ):
        LearningRules(estimator="gpro")
    with pytest.raises(UsageError, match="`min_group`: expected at least 1 but got 0"):
        LearningRules(min_group=0)
