"""Records: frozen, versioned, JSON both ways."""

import inspect
import string
import typing

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from lightning_core import (
    adapter,
    backend,
    errors,
    records,
    reward,
    rollout,
    runs,
    sampling,
    slots,
    strategy,
    task,
    trace,
    wire,
)
from lightning_core.errors import FormatError, FormatVersionError, LightningError, RewardError
from lightning_core.reward import Reward, RewardScope, RewardStatus
from lightning_core.rollout import Cause, Rollout
from lightning_core.task import Task
from lightning_core.trace import Call, Choice, Span, SpanKind, Trace

MODULES = (adapter, backend, reward, rollout, runs, sampling, slots, strategy, task, trace, wire)
RECORDS = sorted(
    {
        cls
        for module in MODULES
        for cls in vars(module).values()
        if inspect.isclass(cls) and issubclass(cls, records.Record) and cls is not records.Record
    },
    key=lambda cls: cls.__name__,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
names = st.text(string.ascii_letters + string.digits + "-_é漢", min_size=1, max_size=12)


@pytest.mark.parametrize("cls", RECORDS, ids=lambda cls: cls.__name__)
def test_every_record_is_frozen_and_every_field_documented(cls):
    assert cls.__struct_config__.frozen
    source = inspect.getsource(cls)
    for name in cls.__struct_fields__:
        documented = [line for line in source.splitlines() if line.startswith(f"    {name}:")]
        following = source.partition(f"\n    {name}:")[2]
        assert documented
        assert '"""' in following.partition("\n    def ")[0], f"{cls.__name__}.{name}"


@given(
    st.builds(
        Task,
        id=names,
        input=json_values,
        expected=json_values,
        metadata=st.dictionaries(names, json_values),
        split=names,
    )
)
def test_a_task_survives_json(one):
    assert Task.from_json(one.to_json()) == one


@given(
    st.builds(
        Call,
        id=names,
        attempt_id=names,
        rollout_id=names,
        index=st.integers(0, 9),
        dialect=st.just("chat"),
        request=st.dictionaries(names, json_values),
        choices=st.lists(
            st.builds(
                Choice,
                message=st.dictionaries(names, json_values),
                token_ids=st.none() | st.lists(st.integers(0, 2**31)).map(tuple),
                logprobs=st.none() | st.lists(st.floats(-100, 0)).map(tuple),
            ),
            max_size=2,
        ).map(tuple),
    )
)
def test_a_call_survives_json(one):
    assert Call.from_json(one.to_json()) == one


def test_a_newer_format_is_refused_by_name():
    data = msgspec.json.encode({"format_version": 99, "id": "t", "input": 1})
    with pytest.raises(FormatVersionError, match="Task: format version 99 is newer than 1"):
        Task.from_json(data)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b'{"id": 3, "input": 1}', b'{"input": 1}', b'{"format_version": "x"}'],
)
def test_what_is_no_record_is_refused(data):
    with pytest.raises(FormatError, match="Task"):
        Task.from_json(data)


def test_unknown_fields_of_the_same_version_are_ignored():
    assert Task.from_json(b'{"id": "t", "input": 1, "later": true}') == Task(id="t", input=1)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None])
def test_a_scored_reward_has_a_finite_number(value):
    with pytest.raises(RewardError, match="finite"):
        Reward(value=value)


def test_an_unscored_reward_has_none():
    with pytest.raises(RewardError, match="has no value"):
        Reward(value=0.0, status=RewardStatus.UNSCORED)


def test_every_cause_but_success_has_a_status_without_a_number():
    for cause in Cause:
        assert (cause.reward_status is RewardStatus.SCORED) == (cause is Cause.SUCCESS)


def _span(id, parent, at):
    return Span(
        id=id, attempt_id="r.1", kind=SpanKind.NODE, name=id, parent_id=parent, started_at=at
    )


def _call(id, span, at):
    return Call(
        id=id,
        attempt_id="r.1",
        rollout_id="r",
        index=0,
        dialect="chat",
        span_id=span,
        started_at=at,
    )


def test_a_call_of_any_format_is_read_as_a_chat():
    said = [{"role": "user", "content": "hi"}]
    tools = [{"type": "function", "function": {"name": "add"}}]
    plain = replace(_call("a", None, 0), request={"messages": said, "tools": tools})
    other = {"dialect": "responses", "request": {"input": "hi", "tools": [{"name": "add"}]}}
    translated = replace(plain, chat_request={"messages": said, "tools": tools}, **other)
    for call in (plain, translated):
        assert (call.messages, call.sent_messages, call.tools) == (said, said, tools)
    sent = [{"role": "system", "content": "Be brief."}, *said]
    for call in (
        replace(plain, overrides={"messages": sent}),
        replace(translated, overrides={"messages": sent}),
        replace(translated, overrides={"instructions": "…"}, chat_sent={"messages": sent}),
    ):
        assert (call.messages, call.sent_messages) == (said, sent)


@pytest.mark.parametrize(
    ("usage", "counts", "total"),
    [
        (None, (None, None), 0),
        ({"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 6}, (3, 2), 6),
        ({"prompt_tokens": 3}, (3, None), 3),
        ({"input_tokens": 3, "output_tokens": 2}, (3, 2), 5),
        ({"input_tokens": 3, "cache_read_input_tokens": 10, "cache_creation_input_tokens": 100, "output_tokens": 2}, (113, 2), 115),
        ({"prompt_tokens": 13, "input_tokens": 3, "completion_tokens": 2, "output_tokens": 2}, (13, 2), 15),
        ({"prompt_tokens": "many"}, (None, None), 0),
    ],
)  # fmt: skip
def test_tokens_are_counted_whatever_the_upstream_calls_them(usage, counts, total):
    call = replace(_call("a", None, 0), usage=usage)
    assert (call.token_counts, call.total_tokens) == (counts, total)


def _trace(spans, calls):
    from lightning_core import Attempt

    attempt = Attempt(
        id="r.1",
        rollout_id="r",
        number=1,
        fence=1,
        worker="w",
        started_at=0,
        deadline=1,
        lease_until=1,
    )
    return Trace(
        rollout=Rollout(id="r", task_id="t"),
        task=Task(id="t", input=1),
        attempt=attempt,
        spans=spans,
        calls=calls,
    )


def shape(nodes):
    return [
        (node.item.id, shape(node.children)) if node.children else node.item.id for node in nodes
    ]


def test_a_trace_is_one_tree_by_time():
    trace = _trace(
        (_span("graph", None, 0), _span("write", "graph", 1), _span("check", "graph", 3)),
        (_call("a", "write", 2), _call("b", "check", 4), _call("stray", "unknown", 5)),
    )
    assert shape(trace.tree()) == [("graph", [("write", ["a"]), ("check", ["b"])]), "stray"]


def test_spans_that_name_each_other_as_parents_are_all_shown():
    trace = _trace((_span("x", "y", 0), _span("y", "x", 1)), ())
    assert {node.item.id for node in trace.tree()} == {"x", "y"}


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.none() | st.sampled_from("abcdefz"), max_size=6)
)
def test_no_span_is_lost_or_shown_twice_whatever_the_parents(parents):
    trace = _trace(tuple(_span(id, parent, 0.0) for id, parent in parents.items()), ())

    def ids(nodes):
        return [i for node in nodes for i in [node.item.id, *ids(node.children)]]

    assert sorted(ids(trace.tree())) == sorted(parents)


def test_a_chain_of_spans_may_be_deeper_than_the_stack():
    spans = tuple(_span(str(n), str(n - 1) if n else None, float(n)) for n in range(5000))
    (node,) = _trace(spans, ()).tree()
    depth = 1
    while node.children:
        (node,) = node.children
        depth += 1
    assert depth == 5000


def test_the_tree_at_the_top_of_errors_is_the_tree():
    classes = [
        c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, LightningError)
    ]
    for cls in classes:
        assert cls.__name__ in errors.__doc__
        assert cls.__doc__


def test_errors_can_be_pickled():
    import pickle

    from lightning_core.errors import WireError

    again = pickle.loads(pickle.dumps(WireError("gone", 410)))
    assert (str(again), again.status) == ("gone", 410)


def test_type_hints_resolve():
    for cls in RECORDS:
        typing.get_type_hints(cls)


def test_a_result_shows_what_came_of_the_run_and_not_its_traces():
    ended = [_trace((), ()) for _ in range(3)]
    result = runs.RunResult(name="mine", folder="runs/mine", traces=tuple(ended))
    assert repr(result) == "<RunResult 'mine': 3 rollouts (none ended), 0 scored, mean reward none>"
    scored = [
        msgspec.structs.replace(
            one,
            attempt=msgspec.structs.replace(one.attempt, cause=cause),
            rewards=rewards,
        )
        for one, cause, rewards in (
            (ended[0], Cause.SUCCESS, (Reward(value=1.0),)),
            (ended[1], Cause.SUCCESS, (Reward(value=0.5),)),
            (ended[2], Cause.TIMEOUT, ()),
        )
    ]
    result = msgspec.structs.replace(result, traces=tuple(scored))
    shown = "<RunResult 'mine': 3 rollouts (2 success, 1 timeout), 2 scored, mean reward 0.750>"
    assert (repr(result), str(result)) == (shown, shown)


@pytest.mark.parametrize(("field", "name"), [("scope", "agent"), ("status", "unscored")])
def test_what_a_reward_is_for_may_be_said_by_name(field, name):
    more = {"target": "writer", "value": 1.0} if field == "scope" else {}
    reward = Reward(**{field: name}, **more)
    kind = {"scope": RewardScope, "status": RewardStatus}[field]
    assert getattr(reward, field) is kind(name)
    assert Reward.from_json(reward.to_json()) == reward


@pytest.mark.parametrize("field", ["scope", "status"])
@pytest.mark.parametrize("name", ["agents", 1, None])
def test_a_name_that_is_none_lists_those_there_are(field, name):
    with pytest.raises(RewardError, match=rf"{field}: expected one of `.*` but got {name!r}"):
        Reward(**{field: name}, value=1.0)
