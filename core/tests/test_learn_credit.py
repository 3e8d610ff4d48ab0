"""Credit: which reward goes to which call, and how rules are named and mixed."""

import re
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from lightning_core import (
    Attempt,
    Call,
    Cause,
    Choice,
    Reward,
    RewardScope,
    RewardStatus,
    Rollout,
    Task,
    Trace,
    plugins,
)
from lightning_core.errors import UsageError
from lightning_core.learn import parse_credit
from lightning_core.learn.credit import BUILT_IN
from lightning_core.settings import Settings

ROOT = Path(__file__).parents[2]


def call(index, agent=None, node=None, *, choices=1, dialect="chat"):
    return Call(
        id=f"c{index}", attempt_id="r.1", rollout_id="r", index=index, dialect=dialect, agent=agent,
        node=node, choices=tuple(Choice(index=n) for n in range(choices)), complete=True,
    )  # fmt: skip


def trace(calls, *rewards):
    return Trace(
        rollout=Rollout(id="r", task_id="t"),
        task=Task(id="t", input="x"),
        attempt=Attempt(
            id="r.1", rollout_id="r", number=1, fence=1, worker="w", started_at=1.0, deadline=2.0,
            lease_until=2.0, cause=Cause.SUCCESS,
        ),
        calls=tuple(calls),
        rewards=tuple(rewards),
    )  # fmt: skip


def final(value):
    return Reward(value=value)


def of_call(id_, value, **more):
    return Reward(value=value, scope=RewardScope.CALL, target=id_, **more)


def of_agent(label, value, **more):
    return Reward(value=value, scope=RewardScope.AGENT, target=label, **more)


def rule(spec):
    return parse_credit(spec, BUILT_IN)


def test_final_credits_every_call_with_the_rollouts_reward():
    assert rule("final")(trace([call(0), call(1)], final(0.5))) == {"c0": 0.5, "c1": 0.5}


def test_final_is_the_reward_that_is_optimised_not_one_beside_it():
    other = Reward(value=9.0, name="style")
    assert rule("final")(trace([call(0)], other, final(0.25))) == {"c0": 0.25}


def test_without_a_number_nobody_is_credited():
    unscored = Reward(status=RewardStatus.UNSCORED)
    for spec in ("final", "discounted:0.9", "agent", "call"):
        assert rule(spec)(trace([call(0)], unscored)) == {}
        assert rule(spec)(trace([call(0)])) == {}


def test_discounted_gives_the_last_call_all_and_earlier_ones_less():
    credits = rule("discounted:0.5")(trace([call(0), call(1), call(2)], final(2.0)))
    assert credits == {"c0": 0.5, "c1": 1.0, "c2": 2.0}


def test_a_call_without_a_reply_is_no_step_of_the_discount():
    calls = [call(0), call(1, choices=0), call(2)]
    assert rule("discounted:0.5")(trace(calls, final(1.0))) == {"c0": 0.5, "c2": 1.0}


@pytest.mark.parametrize("gamma", ["0", "1"])
def test_the_discounts_ends_are_allowed(gamma):
    credits = rule(f"discounted:{gamma}")(trace([call(0), call(1)], final(1.0)))
    assert credits == {"c0": float(gamma), "c1": 1.0}


def test_agent_gives_each_agent_its_own_reward():
    calls = [call(0, "writer"), call(1, "critic"), call(2, "writer"), call(3, "router")]
    credits = rule("agent")(
        trace(calls, final(1.0), of_agent("writer", 0.2), of_agent("critic", 0.8))
    )
    assert credits == {"c0": 0.2, "c1": 0.8, "c2": 0.2}


def test_a_nodes_own_reward_comes_before_its_graphs():
    calls = [call(0, "graph", "write"), call(1, "graph", "check")]
    credits = rule("agent")(trace(calls, of_agent("graph", 0.1), of_agent("write", 0.9)))
    assert credits == {"c0": 0.9, "c1": 0.1}


def test_an_unlabelled_call_is_nobodys():
    assert rule("agent")(trace([call(0)], of_agent("writer", 1.0))) == {}


def test_call_gives_each_call_its_own_reward_and_the_others_nothing():
    calls = [call(0), call(1), call(2)]
    credits = rule("call")(trace(calls, final(1.0), of_call("c0", 0.3), of_call("c2", 0.0)))
    assert credits == {"c0": 0.3, "c2": 0.0}


def test_a_reward_that_comes_late_counts_once_the_trace_has_it():
    early = trace([call(0)], final(1.0))
    assert rule("call")(early) == {}
    assert rule("call")(trace([call(0)], *early.rewards, of_call("c0", 0.7))) == {"c0": 0.7}


def test_rewards_beside_the_one_that_is_optimised_credit_nothing():
    assert rule("call")(trace([call(0)], of_call("c0", 1.0, name="length"))) == {}
    assert rule("agent")(trace([call(0, "a")], of_agent("a", 1.0, name="length"))) == {}


def test_a_mixture_adds_up():
    calls = [call(0), call(1)]
    credits = rule("0.7*final+0.3*call")(trace(calls, final(1.0), of_call("c1", 0.5)))
    assert credits == pytest.approx({"c0": 0.7, "c1": 0.85})


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (" final + call ", 3.0),
        ("final+final", 2.0),
        ("2*final + -1*call", 0.0),
        ("1e-1*final+.5*call", 1.1),
        ("0.5 * discounted:0.5", 0.5),
        ("-1*final", -1.0),
    ],
)
def test_specs_are_read_as_they_look(spec, expected):
    assert rule(spec)(trace([call(0)], final(1.0), of_call("c0", 2.0))) == {
        "c0": pytest.approx(expected)
    }


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("", "cannot be read from ''"),
        ("final+", "cannot be read from ''"),
        ("final call", "cannot be read from 'final call'"),
        ("final+0.3 call", "cannot be read from '0.3 call'"),
        ("final*0.3", "cannot be read"),
        ("discounted:", "cannot be read"),
        ("discounted:x", "cannot be read"),
        ("fianl", "no rule is named `fianl`; there are `agent`, `call`, `discounted`, `final`"),
        ("final+fianl", "no rule is named `fianl`"),
        ("discounted", "rule `discounted`: expected a discount from 0 to 1"),
        ("discounted:1.5", "but got 1.5"),
        ("discounted:-1", "but got -1.0"),
        ("final:2", "rule `final`: takes no number, but got 2.0"),
    ],
)
def test_a_spec_that_is_wrong_is_one_clear_error(spec, says):
    with pytest.raises(UsageError) as raised:
        rule(spec)
    assert str(raised.value).startswith(f"credit {spec!r}: ")
    assert says in str(raised.value)


def test_the_rule_of_the_hooks_page_mixes_with_ours(tmp_path, monkeypatch):
    page = (ROOT / "docs/hooks.md").read_text()
    section = page.partition("## lightning_register_credit()")[2]
    code = re.search(r"```python\n(.*?)```", section, re.S)[1]
    (tmp_path / "credit_of_the_page.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("page", "credit_of_the_page", plugins.GROUP)
    registered = plugins.load(Settings(), entry_points=[point]).credit()
    credits = parse_credit("0.5*final+0.5*last", registered)(trace([call(0), call(1)], final(1.0)))
    assert credits == {"c0": 0.5, "c1": 1.0}
