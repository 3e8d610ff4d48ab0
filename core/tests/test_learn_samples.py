"""Agents of every shape in a small world of tokens: their samples against a naive oracle, and what must hold of any."""

import random
import re
import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_core.errors import UsageError
from lightning_core.learn import (
    NO_VERSION,
    Built,
    Joined,
    SampleRules,
    Skipped,
    build_samples,
)
from lightning_core.rollout import Attempt, Mode, Rollout
from lightning_core.task import Task
from lightning_core.trace import Call, CallError, CallErrorKind, Choice, TokenSource, Trace

# The world --------------------------------------------------------------------------------------------------------

ROLES = {"system": 1, "user": 2, "assistant": 3, "tool": 4}
END = 5
SPECIAL = {"<think>": 6, "</think>": 7}
PAIRS = {pair: 1000 + number for number, pair in enumerate(("ab", "cd", '": ', '":'))}


def tokenize(text, merge=True):
    """Ids of a text: the tokenizer joins pairs of letters; a model may also say them one by one."""
    ids = []
    for piece in re.split(r"(</?think>)", text):
        if piece in SPECIAL:
            ids.append(SPECIAL[piece])
            continue
        while piece:
            pair = next((p for p in PAIRS if merge and piece.startswith(p)), piece[0])
            ids.append(PAIRS.get(pair, 100 + ord(pair[0])))
            piece = piece[len(pair) :]
    return ids


def text_of(message):
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return (message.get("content") or "") + "".join(f"{f['name']}({f['arguments']})" for f in calls)


class Template:
    """Renders messages; may drop the reasoning of earlier replies, open it, put a date before everything, or a hint
    before the reply that is to come."""

    def __init__(self, drops_thinking=False, opens_thinking=False, date=0, hint=()):
        self.drops_thinking, self.opens_thinking = drops_thinking, opens_thinking
        self.date, self.hint = date, hint

    def prompt(self, messages):
        ids = [50 + self.date]
        for message in messages:
            text = text_of(message)
            if message["role"] == "assistant" and self.drops_thinking:
                text = text.rpartition("</think>")[2]
            ids += [ROLES[message["role"]], *tokenize(text), END]
        ids += self.hint
        return [*ids, ROLES["assistant"], *([SPECIAL["<think>"]] if self.opens_thinking else [])]


class World:
    """Answers calls and keeps them as a gateway would."""

    def __init__(self, template=None):
        self.template = template or Template()
        self.calls = []

    def ask(self, messages, *replies, length=False, merge=True, **fields):
        """One call; the assistant messages that the agent sees."""
        choices, seen = [], []
        for number, reply in enumerate(replies):
            message = {"role": "assistant", "content": reply, "refusal": None, "tool_calls": None}
            if isinstance(reply, dict):
                message |= {"content": None, "tool_calls": [{"id": "call_1", **reply}]}
            ids = tokenize(text_of(message), merge)
            if self.template.opens_thinking and ids[0] == SPECIAL["<think>"]:
                ids = ids[1:]
            if not length:
                ids.append(END)
            place = 100 * len(self.calls) + 10 * number
            choices.append(
                Choice(
                    index=number,
                    message=message,
                    finish_reason="length" if length else "stop",
                    token_ids=tuple(ids),
                    logprobs=tuple(-(place + i) / 1000 - 0.001 for i in range(len(ids))),
                )
            )
            seen.append({k: v for k, v in message.items() if v is not None})
        index = len(self.calls)
        given = {
            "id": f"call-{index}",
            "attempt_id": "r.1",
            "rollout_id": "r",
            "index": index,
            "dialect": "chat",
            "request": {"messages": list(messages)},
            "choices": tuple(choices),
            "prompt_token_ids": tuple(self.template.prompt(messages)),
            "token_source": TokenSource.ENGINE,
            "mode": Mode.TRAIN,
            "policy_version": 3,
            "complete": True,
        }
        self.calls.append(Call(**(given | fields)))
        return seen

    def trace(self):
        return trace_of(self.calls)


def trace_of(calls):
    return Trace(
        rollout=Rollout(id="r", task_id="t", run="run", group="g"),
        task=Task(id="t", input=None),
        attempt=Attempt(
            id="r.1", rollout_id="r", number=1, fence=1, worker="w", started_at=0, deadline=0,
            lease_until=0,
        ),
        calls=tuple(calls),
    )  # fmt: skip


def system(text="be brief"):
    return {"role": "system", "content": text}


def user(text):
    return {"role": "user", "content": text}


# Any agent --------------------------------------------------------------------------------------------------------

TEXTS = st.sampled_from(["a", "b", "ab", "cab", "abcd", "<think>ca</think>ab", "<think>d</think>"])
AGENTS = st.sampled_from([None, "writer", "critic"])


@st.composite
def agents(draw):
    """A rollout of an agent that starts, continues, forks, compacts and re-orders conversations, in any order."""
    world = World(Template(drops_thinking=draw(st.booleans()), opens_thinking=draw(st.booleans())))
    open_ = []
    for _ in range(draw(st.integers(1, 14))):
        move = draw(
            st.sampled_from(
                [
                    "start",
                    "go on",
                    "go on",
                    "go on",
                    "again",
                    "branch",
                    "compact",
                    "reorder",
                    "date",
                ]
            )
        )
        if move == "start" or not open_:
            open_.append([system(draw(st.sampled_from("pq"))), user(draw(TEXTS))])
            at = len(open_) - 1
        else:
            at = draw(st.integers(0, len(open_) - 1))
        messages = open_[at]
        if move == "branch":
            messages = list(messages)
            open_.append(messages)
        elif move == "compact" and len(messages) > 3:
            keep = draw(st.integers(2, len(messages) - 1))
            messages[1:keep] = [user("sum")] if draw(st.booleans()) else []
        elif move == "reorder" and len(messages) > 3:
            messages[1:] = draw(st.permutations(messages[1:]))
        elif move == "date":
            world.template.date = draw(st.integers(0, 2))
        if move != "again" and messages[-1]["role"] == "assistant":
            messages.append(draw(st.sampled_from([user("c"), {"role": "tool", "content": "ab"}])))
        trouble = draw(
            st.sampled_from([*[{}] * 8, "failed", "cut", "short", "nan", "no ids", "old"])
        )
        fields = {"agent": draw(AGENTS)}
        if trouble == "failed":
            fields |= {"error": CallError(kind=CallErrorKind.CUT)}
        elif trouble == "cut":
            fields |= {"complete": False}
        elif trouble == "no ids":
            fields |= {"prompt_token_ids": None}
        elif trouble == "old":
            fields |= {"policy_version": 1}
        count = draw(st.sampled_from([1, 1, 1, 2, 3]))
        seen = world.ask(
            messages,
            *(draw(TEXTS) for _ in range(count)),
            length=draw(st.booleans()),
            merge=draw(st.booleans()),
            **fields,
        )
        if trouble in ("short", "nan"):
            world.calls[-1] = spoilt(world.calls[-1], draw(st.integers(0, count - 1)), trouble)
        if trouble not in ("failed", "cut"):
            reply = dict(draw(st.sampled_from(seen)))
            if draw(st.integers(0, 5)) == 0:
                reply["content"] = reply["content"].rpartition("</think>")[2]
            messages.append(reply)
    return world.trace()


def spoilt(call, at, how):
    choices = list(call.choices)
    values = choices[at].logprobs
    values = values[:-1] if how == "short" else (*values[:-1], float("nan"))
    choices[at] = msgspec.structs.replace(choices[at], logprobs=values)
    return msgspec.structs.replace(call, choices=tuple(choices))


RULES = st.builds(
    SampleRules,
    train_agents=st.sampled_from([None, "writer", "writer|critic"]),
    oldest_version=st.sampled_from([None, 2]),
)


def good_logprobs(choice):
    return len(choice.logprobs) == len(choice.token_ids) and not any(
        value != value for value in choice.logprobs
    )


def is_learnt(call, choice, rules):
    if call.error or not call.complete or call.prompt_token_ids is None:
        return False
    if rules.train_agents and not re.fullmatch(rules.train_agents, call.agent or ""):
        return False
    if rules.oldest_version and call.policy_version < rules.oldest_version:
        return False
    return good_logprobs(choice)


def oracle(trace, rules):
    """Chains by comparing every prompt with every earlier reply, token by token."""
    chains = []
    for call in trace.calls:
        if call.error or not call.complete or call.prompt_token_ids is None:
            continue
        prompt = list(call.prompt_token_ids)
        fitting = [
            (len(tokens), last, other.agent == call.agent, -order, chain)
            for order, (tokens, last, other, chain) in enumerate(ends(chains))
            if prompt[: len(tokens)] == tokens
        ]
        best = max(fitting, key=lambda entry: entry[:4], default=None)
        home = best[4] if best and best[1] else None
        for number, choice in enumerate(call.choices):
            if number or home is None:
                home = []
                chains.append(home)
            home.append((call, number, prompt + list(choice.token_ids)))
    samples = []
    for chain in chains:
        while chain and not is_learnt(chain[-1][0], chain[-1][0].choices[chain[-1][1]], rules):
            chain.pop()
        if chain:
            samples.append(
                (chain[-1][2], [(call.id, number, len(tokens)) for call, number, tokens in chain])
            )
    return samples


def ends(chains):
    """Every reply's tokens, whether it is the last of its chain, its call and chain, in the order of the calls."""
    found = [
        (tokens, place == len(chain) - 1, call, chain, number)
        for chain in chains
        for place, (call, number, tokens) in enumerate(chain)
    ]
    found.sort(key=lambda entry: (entry[2].index, entry[4]))
    return [entry[:4] for entry in found]


@settings(max_examples=400, deadline=None)
@given(agents(), RULES)
def test_the_chains_are_those_of_the_oracle(trace, rules):
    built = build_samples(trace, rules)
    assert [
        (list(s.token_ids), [(g.call_id, g.choice, g.stop) for g in s.segments])
        for s in built.samples
    ] == oracle(trace, rules)


@settings(max_examples=300, deadline=None)
@given(agents(), RULES)
def test_what_is_learnt_is_what_the_policy_saw_and_said(trace, rules):
    calls = {call.id: call for call in trace.calls}
    learnt = []
    for sample in build_samples(trace, rules).samples:
        length = len(sample.token_ids)
        assert len(sample.mask) == len(sample.logprobs) == len(sample.versions) == length
        assert sample.mask[-1] == 1
        expected = [(0, 0.0, NO_VERSION)] * length
        end = 0
        for segment in sample.segments:
            call = calls[segment.call_id]
            choice = call.choices[segment.choice]
            assert end <= segment.start < segment.stop <= length
            end = segment.stop
            assert sample.token_ids[: segment.start] == call.prompt_token_ids
            assert sample.token_ids[segment.start : segment.stop] == choice.token_ids
            assert (segment.agent, segment.node) == (call.agent, call.node)
            assert segment.trainable == is_learnt(call, choice, rules)
            if segment.trainable:
                learnt.append((segment.call_id, segment.choice))
                assert segment.version == call.policy_version
                expected[segment.start : segment.stop] = [
                    (1, value, call.policy_version) for value in choice.logprobs
                ]
        assert list(zip(sample.mask, sample.logprobs, sample.versions, strict=True)) == expected
        assert (sample.rollout_id, sample.task_id, sample.group) == ("r", "t", "g")
    wanted = [
        (call.id, number)
        for call in trace.calls
        for number, choice in enumerate(call.choices)
        if is_learnt(call, choice, rules)
    ]
    assert sorted(learnt) == sorted(wanted)


@settings(max_examples=150, deadline=None)
@given(agents(), RULES, st.randoms(use_true_random=False))
def test_the_report_counts_every_reply_once_and_the_order_of_the_record_does_not_matter(
    trace, rules, random_
):
    built = build_samples(trace, rules)
    drift = built.drift
    assert drift.calls == len(trace.calls)
    replies = sum(len(call.choices) for call in trace.calls)
    assert sum(drift.joined.values()) + sum(drift.skipped.values()) == replies
    assert drift.tokens == sum(len(sample.token_ids) for sample in built.samples)
    assert drift.trainable_tokens == sum(sum(sample.mask) for sample in built.samples)
    assert Built.from_json(built.to_json()) == built
    shuffled = list(trace.calls)
    random_.shuffle(shuffled)
    assert build_samples(trace_of(shuffled), rules) == built


# Shapes, by name --------------------------------------------------------------------------------------------------


def ways(world):
    return dict(build_samples(world.trace()).drift.joined)


def talk(world, turns=3, first=None, reply="ab", **fields):
    """A conversation that only grows; its messages."""
    messages = first or [system(), user("a")]
    for turn in range(turns):
        if turn:
            messages.append(user("c" * turn))
        messages += world.ask(messages, reply, **fields)
    return messages


def test_a_growing_conversation_is_one_sample():
    world = World()
    talk(world, turns=4)
    (sample,) = build_samples(world.trace()).samples
    assert [segment.call_id for segment in sample.segments] == [f"call-{i}" for i in range(4)]
    assert ways(world) == {Joined.NEW: 1, Joined.EXTENDED: 3}


def test_a_reply_that_ended_by_length_is_joined_and_its_end_is_an_observation():
    world = World()
    talk(world, turns=2, length=True)
    (sample,) = build_samples(world.trace()).samples
    first = sample.segments[0]
    assert sample.token_ids[first.stop] == END
    assert sample.mask[first.stop] == 0
    assert ways(world) == {Joined.NEW: 1, Joined.EXTENDED: 1}


def test_interleaved_conversations_are_kept_apart():
    world = World()
    open_ = [[system(), user(f"c{name}")] for name in "abcd"]
    for _ in range(3):
        for messages in open_:
            messages += world.ask(messages, "ab")
            messages.append(user("d"))
    assert len(build_samples(world.trace()).samples) == 4
    assert ways(world) == {Joined.NEW: 4, Joined.EXTENDED: 8}


def test_parallel_calls_with_one_prompt_are_all_learnt_from():
    world = World()
    messages = [system(), user("a")]
    for reply in ("ab", "cd", "ab"):
        world.ask(messages, reply)
    assert len(build_samples(world.trace()).samples) == 3
    assert ways(world) == {Joined.NEW: 1, Joined.FORKED: 2}


def test_each_of_several_choices_is_learnt_from_and_any_may_go_on():
    world = World()
    messages = [system(), user("a")]
    replies = world.ask(messages, "ab", "cd", "d")
    world.ask([*messages, replies[1], user("c")], "a")
    samples = build_samples(world.trace()).samples
    assert [[(s.call_id, s.choice) for s in sample.segments] for sample in samples] == [
        [("call-0", 0)],
        [("call-0", 1), ("call-1", 0)],
        [("call-0", 2)],
    ]
    assert ways(world) == {Joined.NEW: 1, Joined.EXTENDED: 1, Joined.FORKED: 2}


def test_going_back_forks_and_learns_the_shared_reply_once():
    world = World()
    messages = talk(world, turns=2)
    world.ask([*messages[:3], user("d")], "cd")
    samples = build_samples(world.trace()).samples
    assert [[s.call_id for s in sample.segments] for sample in samples] == [
        ["call-0", "call-1"],
        ["call-2"],
    ]
    assert ways(world)[Joined.FORKED] == 1


def test_equal_replies_are_continued_by_the_agent_that_said_them():
    world = World()
    messages = [system(), user("a")]
    for agent in ("one", "two"):
        world.ask(messages, "ab", agent=agent)
    reply = {"role": "assistant", "content": "ab"}
    world.ask([*messages, reply, user("d")], "cd", agent="two")
    samples = build_samples(world.trace()).samples
    assert [[s.agent for s in sample.segments] for sample in samples] == [["one"], ["two", "two"]]


def test_another_agents_words_are_context():
    world = World()
    messages = [system(), user("a")]
    for agent in ("writer", "critic", "writer", "critic"):
        messages += world.ask(messages, "ab", agent=agent)
        messages.append(user("c"))
    built = build_samples(world.trace(), SampleRules(train_agents="wri.*"))
    (sample,) = built.samples
    assert [segment.trainable for segment in sample.segments] == [True, False, True]
    assert len(sample.token_ids) == sample.segments[-1].stop
    assert built.drift.skipped == {Skipped.NOT_SELECTED: 2}
    assert built.drift.joined == {Joined.NEW: 1, Joined.EXTENDED: 1}
    none = build_samples(world.trace(), SampleRules(train_agents="write"))
    assert none.samples == ()
    assert none.drift.skipped == {Skipped.NOT_SELECTED: 4}


def test_a_node_is_selected_by_its_label():
    world = World()
    world.ask([user("a")], "ab", agent="graph", node="write")
    world.ask([user("b")], "ab", agent="graph", node="check")
    world.ask([user("c")], "ab")
    built = build_samples(world.trace(), SampleRules(train_agents="write|rewrite"))
    assert [s.segments[0].node for s in built.samples] == ["write"]


# Why it did not merge ---------------------------------------------------------------------------------------------

THOUGHT = "<think>xyz cabcabca</think>ab"


@pytest.mark.parametrize("opens", [False, True])
def test_thinking_that_the_template_drops(opens):
    world = World(Template(drops_thinking=True, opens_thinking=opens))
    talk(world, turns=3, reply=THOUGHT)
    assert ways(world) == {Joined.NEW: 1, Joined.THINKING_DROPPED: 2}


def test_thinking_that_the_template_drops_from_the_second_user_message_on():
    world = World()
    messages = [system(), user("a")]
    for _ in range(3):
        messages += world.ask(messages, THOUGHT)
        messages.append({"role": "tool", "content": "d"})
    world.template.drops_thinking = True
    world.ask([*messages[:-1], user("c")], THOUGHT)
    assert ways(world) == {Joined.NEW: 1, Joined.EXTENDED: 2, Joined.THINKING_DROPPED: 1}


def test_thinking_that_the_agent_drops():
    world = World()
    messages = [system(), user("a")]
    world.ask(messages, THOUGHT)
    world.ask([*messages, {"role": "assistant", "content": "ab"}, user("c")], "ab")
    assert ways(world) == {Joined.NEW: 1, Joined.THINKING_DROPPED: 1}


def test_thinking_that_the_engine_put_into_a_field():
    world = World(Template(drops_thinking=True))
    messages = [system(), user("a")]
    world.ask(messages, THOUGHT)
    (choice,) = world.calls[0].choices
    message = {"role": "assistant", "content": "ab", "reasoning_content": "xyz cabcabca"}
    world.calls[0] = msgspec.structs.replace(
        world.calls[0], choices=(msgspec.structs.replace(choice, message=message),)
    )
    world.ask([*messages, message, user("c")], "ab")
    assert ways(world) == {Joined.NEW: 1, Joined.THINKING_DROPPED: 1}


def test_thinking_that_is_kept_but_spelt_otherwise_is_not_dropped():
    world = World()
    talk(world, turns=2, reply=THOUGHT, merge=False)
    assert ways(world) == {Joined.NEW: 1, Joined.RETOKENIZED: 1}


def test_a_report_keeps_the_first_few_examples():
    world = World()
    talk(world, turns=7, reply="cabd", merge=False)
    drift = build_samples(world.trace()).drift
    assert drift.joined[Joined.RETOKENIZED] == 6
    assert drift.examples == {"joined.retokenized": ("call-1", "call-2", "call-3")}


def test_a_hint_that_only_the_newest_reply_has_is_the_templates_change_where_thinking_is_kept():
    world = World(Template(opens_thinking=True, hint=(60,)))
    talk(world, turns=2, reply=THOUGHT)
    assert ways(world) == {Joined.NEW: 1, Joined.TEMPLATE_CHANGED: 1}


def test_white_space_that_the_agent_strips():
    world = World()
    messages = [system(), user("a")]
    world.ask(messages, "d ")
    world.ask([*messages, {"role": "assistant", "content": "d"}, user("c")], "a")
    assert ways(world) == {Joined.NEW: 1, Joined.RETOKENIZED: 1}


def test_text_that_becomes_other_tokens():
    world = World()
    talk(world, turns=3, reply="cabd", merge=False)
    assert ways(world) == {Joined.NEW: 1, Joined.RETOKENIZED: 2}


def test_arguments_that_the_agent_spaces_otherwise():
    world = World()
    messages = [system(), user("a")]
    call = {"type": "function", "function": {"name": "f", "arguments": '{"x":1,"a":2}'}}
    (reply,) = world.ask(messages, call)
    other = {"type": "function", "function": {"name": "f", "arguments": '{"a": 2, "x": 1}'}}
    back = {"role": "assistant", "content": "", "tool_calls": [{"id": "call_1", **other}]}
    world.ask([*messages, reply, {"role": "tool", "content": "d"}], "a")
    world.ask([*messages, back, {"role": "tool", "content": "d"}], "a")
    assert ways(world) == {Joined.NEW: 1, Joined.EXTENDED: 1, Joined.RETOKENIZED: 1}


@pytest.mark.parametrize("repeat", [False, True])
def test_a_template_that_says_the_date(repeat):
    world = World()
    messages = talk(world, turns=1)
    world.template.date = 1
    world.ask(messages[:2] if repeat else [*messages, user("c")], "ab")
    assert ways(world) == {Joined.NEW: 1, Joined.TEMPLATE_CHANGED: 1}


@pytest.mark.parametrize(
    "edit",
    [
        lambda m: [*m[:1], *m[3:]],
        lambda m: [m[0], user("so far: ab"), *m[-3:]],
        lambda m: [m[0], *m[3:5], *m[1:3], m[-1]],
        lambda m: m[3:],
        lambda m: [*m[:2], user("the reply is left out")],
    ],
    ids=["cut", "compacted", "re-ordered", "slid", "reply left out"],
)
def test_a_conversation_that_the_agent_edits(edit):
    world = World()
    messages = [system(), user("a")]
    for text in ("d", "cd", "cab"):
        messages += world.ask(messages, text)
        messages.append(user(f"{text}?"))
    world.ask(edit(messages), "ab")
    assert ways(world) == {Joined.NEW: 1, Joined.EXTENDED: 2, Joined.EDITED: 1}


def test_conversations_that_share_a_system_message_or_examples_are_new():
    world = World()
    shots = [system(), user("x"), {"role": "assistant", "content": "y"}]
    for text in ("a", "b", "c"):
        talk(world, turns=2, first=[*shots, user(text)], reply="ab")
    world.ask([system("another"), user("a"), {"role": "assistant", "content": "ab"}], "cd")
    assert ways(world) == {Joined.NEW: 4, Joined.EXTENDED: 3}


def completion(prompt, ids, text, sampled, index):
    return Call(
        id=f"call-{index}", attempt_id="r.1", rollout_id="r", index=index, dialect="completions",
        request={"prompt": prompt}, prompt_token_ids=tuple(ids), mode=Mode.VAL, complete=True,
        choices=(
            Choice(message={"text": text}, token_ids=tuple(sampled), logprobs=(-1.0,) * len(sampled)),
        ),
    )  # fmt: skip


def test_text_completions():
    calls = [
        completion("Q: 1\nA:", [1, 2], " ab", [3, 4], 0),
        completion("Q: 1\nA: ab\nQ: 2\nA:", [1, 2, 3, 4, 5], " c", [6], 1),
        completion("Q: 1\nA: ab\nQ: 2\nA: c\nQ: 3", [1, 2, 3, 4, 5, 7, 8], "d", [9], 2),
        completion("other", [20], "d", [9], 3),
        completion([20, 9, 5], [20, 9, 5], "d", [9], 4),
        completion(["one", "two"], [30], "d", [9], 5),
    ]
    drift = build_samples(trace_of(calls)).drift
    assert drift.joined == {Joined.NEW: 2, Joined.EXTENDED: 2, Joined.RETOKENIZED: 1}
    assert drift.skipped == {Skipped.NO_TOKEN_IDS: 1}
    assert drift.examples == {
        "joined.retokenized": ("call-2",),
        "skipped.no_token_ids": ("call-5",),
    }


def test_a_prompt_that_goes_on_from_an_earlier_prompt_but_not_from_its_reply_forks():
    calls = [
        completion("Q: 1\nA:", [1, 2], " ab", [3, 4], 0),
        completion("Q: 1\nA: c", [1, 2, 9], "d", [4], 1),
    ]
    assert build_samples(trace_of(calls)).drift.joined == {Joined.NEW: 1, Joined.FORKED: 1}


def test_a_parallel_call_is_not_blamed_for_what_its_twin_was():
    world = World()
    messages = talk(world, turns=1, reply="cabd", merge=False)
    for reply in ("a", "d"):
        world.ask([*messages, user("c")], reply)
    assert ways(world) == {Joined.NEW: 1, Joined.FORKED: 1, Joined.RETOKENIZED: 1}


# Bad input --------------------------------------------------------------------------------------------------------


def with_choice(**fields):
    return lambda call: {"choices": (msgspec.structs.replace(call.choices[0], **fields),)}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda call: {"complete": False}, Skipped.FAILED),
        (lambda call: {"error": CallError(kind=CallErrorKind.TIMEOUT)}, Skipped.FAILED),
        (lambda call: {"complete": False, "choices": ()}, Skipped.FAILED),
        (lambda call: {"mode": Mode.OBSERVE}, Skipped.OBSERVED),
        (lambda call: {"dialect": "embeddings"}, Skipped.NO_TOKEN_IDS),
        (lambda call: {"choices": ()}, Skipped.NO_TOKEN_IDS),
        (lambda call: {"prompt_token_ids": None}, Skipped.NO_TOKEN_IDS),
        (lambda call: {"prompt_token_ids": ()}, Skipped.NO_TOKEN_IDS),
        (lambda call: {"prompt_token_ids": (1, -2)}, Skipped.NO_TOKEN_IDS),
        (with_choice(token_ids=None), Skipped.NO_TOKEN_IDS),
        (with_choice(token_ids=(), logprobs=()), Skipped.NO_TOKEN_IDS),
        (with_choice(token_ids=(2**40,), logprobs=(-1.0,)), Skipped.NO_TOKEN_IDS),
        (with_choice(logprobs=None), Skipped.LENGTHS_DIFFER),
        (with_choice(logprobs=(-1.0,)), Skipped.LENGTHS_DIFFER),
        (with_choice(token_ids=(8, 9), logprobs=(-1.0, float("nan"))), Skipped.LENGTHS_DIFFER),
        (with_choice(token_ids=(8, 9), logprobs=(float("-inf"), -1.0)), Skipped.LENGTHS_DIFFER),
        (lambda call: {"token_source": TokenSource.RETOKENIZED}, Skipped.RETOKENIZED),
    ],
)  # fmt: skip
def test_a_call_that_cannot_be_learnt_from_is_counted_and_the_others_stay(change, reason):
    world = World()
    world.ask([user("a")], "ab")
    world.ask([user("b")], "ab")
    bad = world.calls[1]
    world.calls[1] = msgspec.structs.replace(bad, **change(bad))
    built = build_samples(world.trace())
    assert [sample.segments[0].call_id for sample in built.samples] == ["call-0"]
    assert built.drift.skipped == {reason: 1}
    assert built.drift.examples == {f"skipped.{reason}": ("call-1",)}


def test_retokenized_calls_are_let_in_when_asked_and_counted():
    world = World()
    world.ask([user("a")], "ab", token_source=TokenSource.RETOKENIZED)
    built = build_samples(world.trace(), SampleRules(allow_retokenized=True))
    assert len(built.samples) == 1
    assert built.drift.retokenized == 1


def test_a_stale_call_is_context():
    world = World()
    messages = [system(), user("a")]
    for version in (1, 2, None):
        messages += world.ask(messages, "ab", policy_version=version)
        messages.append(user("c"))
    built = build_samples(world.trace(), SampleRules(oldest_version=2))
    (sample,) = built.samples
    assert [(s.version, s.trainable) for s in sample.segments] == [
        (1, False), (2, True), (NO_VERSION, True),
    ]  # fmt: skip
    assert built.drift.skipped == {Skipped.STALE: 1}


def test_choices_with_one_index_are_told_apart_by_position():
    world = World()
    world.ask([user("a")], "ab", "cd")
    call = world.calls[0]
    world.calls[0] = msgspec.structs.replace(
        call, choices=tuple(msgspec.structs.replace(c, index=0) for c in call.choices)
    )
    samples = build_samples(world.trace()).samples
    assert [s.segments[0].choice for s in samples] == [0, 1]
    assert samples[0].token_ids != samples[1].token_ids


def test_messages_that_are_no_messages_are_borne():
    world = World()
    talk(world, turns=2)
    odd = ["text", {"role": "assistant", "tool_calls": ["x", {"function": None}], "content": 3}, {}]
    for content in (odd, [{"role": "user", "content": [{"type": "text", "text": "a"}, {"b": 1}]}]):
        call = msgspec.structs.replace(
            world.calls[0],
            id=f"call-{len(world.calls)}",
            index=len(world.calls),
            request={"messages": content},
            prompt_token_ids=(77, 78),
        )
        world.calls.append(call)
    assert sum(ways(world).values()) == 4


def test_a_trace_without_calls_gives_nothing():
    assert build_samples(trace_of([])) == Built()


def test_a_pattern_that_is_none_is_named():
    with pytest.raises(UsageError, match=r"`train_agents` 'write\('.*not a regular expression"):
        SampleRules(train_agents="write(")


def test_time_grows_with_the_tokens_alone():
    """Ten times the conversations take at most forty times as long, or the search looks at all of them each time."""

    def seconds(count):
        random_ = random.Random(1)
        calls = []
        for _ in range(count):
            prompt = tuple([7] * 50 + [random_.randrange(1000) for _ in range(20)])
            call = completion(f"one {prompt}", prompt, "x", [3] * 5, len(calls))
            calls.append(call)
        trace = trace_of(calls)
        taken = []
        for _ in range(3):
            start = time.process_time()
            build_samples(trace)
            taken.append(time.process_time() - start)
        return min(taken)

    assert seconds(4000) < 40 * seconds(400)
