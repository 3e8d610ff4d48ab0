"""Of a prompt that a strategy changes, what stays goes up byte for byte, and the record is what went up. Only of an object of
texts, one of which is replaced, the others may be spelled otherwise."""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.gateway import jsontext
from lightning_core.gateway.dialects import dialect_of
from lightning_core.gateway.dialects.base import Fields, Terms
from lightning_core.gateway.reading import read_fields
from lightning_core.gateway.strategy import CompiledStrategy
from lightning_core.strategy import Message, ModelChoice, PromptTemplate, Strategy

from .conftest import completion, reply_with, whole

SHOWN = ("shown 一", "shown 2")
EXAMPLE = tuple(
    Message(role=r, content=c) for r, c in zip(("user", "assistant"), SHOWN, strict=True)
)
ASK = PromptTemplate(
    original="Question: {q}", template="Q: {q}\n", role="user", demonstrations=(EXAMPLE,)
)
ALL = CompiledStrategy(
    Strategy(
        prompt_templates={
            "ask": ASK,
            "rule": PromptTemplate(original="Be {how}.", template="Be {how}, {how}!"),
        },
        models={"*": ModelChoice(model="other")},
    )
)

# Bodies as agents may spell them -----------------------------------------------------------------------------------

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
MATCHING = st.builds(str.format, st.sampled_from(["Question: {}", "Be {}."]), TEXTS)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(-1e9, 1e9) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)


def parts(kind):
    texts = st.fixed_dictionaries({"type": st.just(kind), "text": MATCHING | TEXTS}, optional={"x": VALUES})  # fmt: skip
    return st.lists(texts | st.fixed_dictionaries({"type": st.just("image"), "x": VALUES}), max_size=3)  # fmt: skip


def turns(kind="text"):
    roles = st.sampled_from(["system", "developer", "user", "assistant", "tool"])
    content = MATCHING | TEXTS | st.none() | parts(kind)
    turn = st.fixed_dictionaries({"role": roles, "content": content}, optional={"tool_calls": VALUES})  # fmt: skip
    return st.lists(turn, max_size=4)


OUTPUTS = st.fixed_dictionaries(
    {"type": st.just("function_call_output"), "output": MATCHING | parts("input_text")}
)
BODIES = {
    "/chat/completions": {"messages": turns()},
    "/completions": {"prompt": MATCHING | st.lists(MATCHING | TEXTS, max_size=3)},
    "/messages": {"messages": turns(), "system": MATCHING | parts("text")},
    "/responses": {
        "input": MATCHING | turns("input_text") | st.lists(OUTPUTS, max_size=2),
        "instructions": MATCHING | st.none(),
    },
}


def asked():
    def of(path):
        fields = st.fixed_dictionaries(BODIES[path], optional={"tools": VALUES, "model": TEXTS})
        return st.tuples(st.just(path), fields.flatmap(spelled))

    return st.sampled_from(sorted(BODIES)).flatmap(of)


@st.composite
def spelled(draw, value: Any) -> bytes:
    """JSON of a value with spaces, escapes, forms of numbers, orders of keys and keys given twice as no writer has them."""
    spaces = st.sampled_from(["", "", " ", "\n\t"])

    def text(value: str) -> str:
        how = draw(st.integers(0, 2))
        if how == 2:
            units = value.encode("utf-16-be")
            return '"' + "".join(f"\\u{units[n : n + 2].hex()}" for n in range(0, len(units), 2)) + '"'  # fmt: skip
        return json.dumps(value, ensure_ascii=how == 1).replace("/", "\\/")

    def field(name: str, value: Any) -> str:
        return f"{draw(spaces)}{text(name)}{draw(spaces)}:{draw(spaces)}{of(value)}"

    def of(value: Any) -> str:
        if isinstance(value, str):
            return text(value)
        if isinstance(value, float):
            return draw(st.sampled_from(["{}", "{:.3e}", "{:E}"])).format(value)
        if isinstance(value, list):
            return "[" + ",".join(draw(spaces) + of(item) + draw(spaces) for item in value) + "]"
        if isinstance(value, dict):
            names = draw(st.permutations(list(value)))
            twice = names[: draw(st.integers(0, 8)) == 0]
            given = [field(name, 1) for name in twice] + [field(name, value[name]) for name in names]  # fmt: skip
            return "{" + ",".join(given) + "}"
        return json.dumps(value)

    return of(value).encode()


def has_the_agents_bytes(sent: bytes, read: Any, raw: bytes, own: Any) -> None:
    """Whatever is the agent's own, of all that was read, went up as the agent spelled it."""
    if read is own:
        assert bytes(sent) == bytes(raw)
    elif isinstance(own, dict):
        going, came = (msgspec.json.decode(each, type=Fields) for each in (sent, raw))
        assert list(going) == list(came)
        if all(isinstance(value, str) for value in own.values()):
            assert msgspec.json.decode(sent) == read
            return
        for name, value in own.items():
            has_the_agents_bytes(going[name], read[name], came[name], value)
    elif isinstance(own, list):
        going, came = (msgspec.json.decode(each, type=list[msgspec.Raw]) for each in (sent, raw))
        pairs = [pair for pair in zip(going, read, strict=True) if not is_shown(pair[1])]
        for (part, value), before, agents in zip(pairs, came, own, strict=True):
            has_the_agents_bytes(part, value, before, agents)
    else:
        assert read != own


def is_shown(message: Any) -> bool:
    return isinstance(message, dict) and message.get("content") in SHOWN


def sent_by(path: str, body: bytes) -> Any:
    dialect, request = dialect_of(path), jsontext.exact(body)
    fields = read_fields(body, "application/json")
    applied = ALL.apply(dialect, fields, request, "", chooses=True)
    terms = Terms(prompt=applied.prompt, choice=applied.choice)
    return dialect.prepare(body, fields, terms), request, fields


@given(asked())
def test_what_goes_up_is_what_is_recorded_and_else_what_the_agent_wrote(case):
    path, body = case
    made, request, fields = sent_by(path, body)
    assert json.loads(made.body) == {**request, **made.overrides}
    going = msgspec.json.decode(made.body, type=Fields)
    for name, raw in fields.items():
        read = made.overrides.get(name, request[name])
        has_the_agents_bytes(going[name], read, raw, request[name])


@given(asked())
def test_rewriting_changes_nothing_of_the_request(case):
    path, body = case
    made, request, _ = sent_by(path, body)
    assert request == jsontext.exact(body)
    kept = copy.deepcopy(made.overrides)
    again, _, _ = sent_by(path, body)
    assert (again.body, again.overrides, made.overrides) == (made.body, kept, kept)


# One call ----------------------------------------------------------------------------------------------------------

ODD = b'{"role" : "\\u0061ssistant","content":null,"n":1,"n":2,\n"x":[1.50e+1, -0,10000000000000000000000]}'


@pytest.fixture
def ask(site, upstream, monkeypatch):
    """Make one call under a strategy; the body that went up, and the very Call that was put."""
    put = []
    original = site.store.put

    async def keep(*records, **names):
        put.extend(records)
        await original(*records, **names)

    monkeypatch.setattr(site.store, "put", keep)

    async def one(body, *templates, path="/chat/completions"):
        upstream.handler = reply_with(whole(completion()))
        slots = {str(number): template for number, template in enumerate(templates)}
        strategy = CompiledStrategy(Strategy(prompt_templates=slots))
        site.open(upstream=f"{upstream.url}/v1", strategy=strategy)
        assert (await site.ask(body, path=path))[0] == 200
        await site.call()
        return upstream.received[-1].body, put[-1]

    return one


async def test_unchanged_messages_and_the_rest_of_changed_ones_go_up_byte_for_byte(ask):
    image = b'{ "type":"image_url", "image_url":{"url":"data:\\u002cx"} }'
    changed = b'{"n" : 1e2,"content": [%s,{ "text":"Question: \\u0031","type" : "text" }] ,"role":"us\\u0065r"}'
    body = b'{"stop" : [ ], "messages":[ %s , %s]}' % (ODD, changed % image)
    sent, call = await ask(body, msgspec.structs.replace(ASK, demonstrations=()))
    rest = b'{"n":1e2,"content":[%s,{"text":"Q: 1\\n","type":"text"}],"role":"us\\u0065r"}' % image
    assert sent == b'{"stop":[ ],"messages":[%s,%s]}' % (ODD, rest)
    assert call.overrides == {"messages": json.loads(sent)["messages"]}


async def test_examples_go_in_between_messages_that_keep_their_bytes(ask):
    rule = b'{ "role":"system","content":"Be \\u006bind." }'
    same = PromptTemplate(original="Be {x}.", template="Be {x}.", demonstrations=(EXAMPLE,))
    sent, _ = await ask(b'{"messages":[%s, %s]}' % (rule, ODD), same)
    shown = b",".join(msgspec.json.encode(message) for message in EXAMPLE)
    assert sent == b'{"messages":[%s,%s,%s]}' % (rule, shown, ODD)


async def test_several_prompts_keep_their_spelling_but_for_those_that_are_changed(ask):
    sent, _ = await ask(b'{"prompt":[ "\\u0061", "Question: 1" ,"\\/"]}', ASK, path="/completions")
    assert sent == b'{"prompt":["\\u0061","Q: 1\\n","\\/"]}'


async def test_the_record_shares_what_was_not_changed(ask):
    body = b'{"messages":[%s,{"role":"user","content":"Question: 1","x":[3]}]}' % ODD
    _, call = await ask(body, msgspec.structs.replace(ASK, demonstrations=()))
    asked, sent = call.request["messages"], call.overrides["messages"]
    assert asked[1]["content"] == "Question: 1"
    assert sent[0] is asked[0]
    assert sent[1]["x"] is asked[1]["x"]


# What cannot be read as it is --------------------------------------------------------------------------------------

SAID = b'{"role":"user","content":"Question: 1"}'
CHANGED = b'{"role":"user","content":"Q: 1\\n"}'
PLAIN = msgspec.structs.replace(ASK, demonstrations=())


@pytest.mark.parametrize(
    "odd",
    [
        b'{"role":"user","content":"Question: \xff"}', b'{"role":"user","content":"Question: \xed\xa0\x80"}',
        b'{"role":"us\xffer","content":"Question: 1"}', b'{"role":"user","content":1e999}',
        b'{"role":"user","content":%s}' % (b"1" * 5000), b'{"role":"user","content":{"\xff":1}}',
        b'{"role":"user","content":[{"type":"text","text":"Question: \xff"}, 3]}',
    ],
)  # fmt: skip
async def test_a_text_that_is_not_utf_8_stays_and_others_are_changed(ask, odd):
    sent, _ = await ask(b'{"messages":[%s, %s]}' % (odd, SAID), PLAIN)
    assert sent == b'{"messages":[%s,%s]}' % (odd, CHANGED)


async def test_messages_with_a_key_that_is_not_utf_8_stay(ask):
    body = b'{"messages":[{"role":"user","\xff":1}, %s]}' % SAID
    assert (await ask(body, PLAIN))[0] == body


async def test_a_prompt_that_is_utf_8_is_recorded_although_its_body_is_not(ask):
    sent, call = await ask(b'{"user":"\xff","messages":[%s]}' % SAID, PLAIN)
    assert sent == b'{"user":"\xff","messages":[%s]}' % CHANGED
    assert (call.request, call.overrides) == ({}, {"messages": [json.loads(CHANGED)]})


async def test_what_only_leniency_reads_is_recorded_by_it(ask):
    odd = b'{"role":"user","content":"\xed\xa0\x80"}'
    _, call = await ask(b'{"messages":[%s, %s]}' % (odd, SAID), PLAIN)
    first = {"role": "user", "content": "\ufffd"}
    assert call.request["messages"] == [first, json.loads(SAID)]
    assert call.overrides["messages"] == [first, json.loads(CHANGED)]
