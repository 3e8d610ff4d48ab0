"""A strategy changes the calls that match it, and nothing else; what it did to each is recorded."""

from __future__ import annotations

import asyncio
import json
import time

import msgspec
import pytest

from lightning_core.gateway.dialects import dialect_of
from lightning_core.gateway.reading import read_fields
from lightning_core.gateway.strategy import CompiledStrategy
from lightning_core.gateway.tally import Tally
from lightning_core.rollout import Budget, Mode
from lightning_core.sampling import SamplingPolicy
from lightning_core.strategy import Message, ModelChoice, PromptTemplate, Strategy
from lightning_core.testing import ScriptedServer
from lightning_core.trace import StrategyUse

from .conftest import completion, policy_at, replies, reply_with, whole

WRITE = PromptTemplate(
    original="You write SQL.\nTables: {tables}\nBe brief.",
    template="你是数据库专家 🗄️.\nSchema:\n{tables}\nAnswer with SQL alone; {{}} is no hole. ({tables})",
)
ASK = PromptTemplate(original="Question: {question}", template="Q: {question}\nA:", role="user")
SYSTEM = "You write SQL.\nTables: {users}\n[a, b] é\nBe brief."
REWRITTEN = "你是数据库专家 🗄️.\nSchema:\n{users}\n[a, b] é\nAnswer with SQL alone; {} is no hole. ({users}\n[a, b] é)"
EXAMPLE = (
    Message(role="user", content="一?"),
    Message(role="assistant", content="SELECT 1"),
)
SHOWN = [{"role": message.role, "content": message.content} for message in EXAMPLE]


def strategy(models=None, **templates):
    return CompiledStrategy(Strategy(prompt_templates=templates, models=models or {}))


def said(*messages, **fields):
    """A request of messages, given as role and content in turn."""
    pairs = zip(messages[::2], messages[1::2], strict=True)
    return {"model": "gpt", "messages": [{"role": r, "content": c} for r, c in pairs], **fields}


def contents(body):
    return [message["content"] for message in body["messages"]]


@pytest.fixture
def ask(site, upstream):
    """Make one call under a strategy; what came upstream, and its record."""

    async def one(applied, body, *, labels="", mode=Mode.OBSERVE, path="/chat/completions"):
        upstream.handler = reply_with(whole(completion()))
        site.open(mode, upstream=f"{upstream.url}/v1", strategy=applied)
        headers = {"x-lightning-labels": labels} if labels else {}
        status, _, _ = await site.ask(body, path=path, headers=headers)
        assert status == 200
        return upstream.received[-1].json, await site.call()

    return one


async def test_a_matching_prompt_is_replaced_with_its_holes_and_both_are_recorded(ask):
    applied = strategy(write=WRITE, ask=ASK)
    body = said("system", SYSTEM, "user", "Question: {x}?", temperature=0.5)
    body["messages"][1]["name"] = "me"
    sent, call = await ask(applied, body)
    assert contents(sent) == [REWRITTEN, "Q: {x}?\nA:"]
    assert sent == {**body, "messages": sent["messages"]}
    assert sent["messages"][1]["name"] == "me"
    assert call.request == body
    assert call.overrides == {"messages": sent["messages"]}
    assert call.sent_messages == sent["messages"]
    assert call.messages == body["messages"]
    assert call.strategy == StrategyUse(digest=applied.digest, applied=("write", "ask"))


async def test_what_goes_upstream_is_utf_8_and_not_escaped(ask, upstream):
    await ask(strategy(write=WRITE), said("system", SYSTEM))
    assert "你是数据库专家 🗄️" in upstream.received[-1].body.decode()
    assert b"\\u" not in upstream.received[-1].body


async def test_a_call_that_matches_nothing_goes_on_byte_for_byte_and_is_counted(ask, upstream):
    body = b'{"messages" :[{"role":"system","content":"Other \\u00e9"},{"role":"user","content":"hi"}]}'
    _, call = await ask(strategy(write=WRITE), body)
    assert upstream.received[-1].body == body
    assert call.overrides == {}
    assert call.strategy.applied == ()
    assert call.strategy.unmatched == 1


async def test_an_ambiguous_text_passes_unchanged_unless_another_slot_fits_it(ask):
    loose = PromptTemplate(original="a {x} b {y} c", template="{y} {x}")
    text = "a 1 b 2 b 3 c"
    sent, call = await ask(strategy(loose=loose), said("system", text))
    assert contents(sent) == [text]
    assert call.strategy.ambiguous == ("loose",)
    assert (call.strategy.applied, call.strategy.unmatched) == ((), 1)


async def test_another_slot_may_fit_what_one_finds_ambiguous(ask):
    loose = PromptTemplate(original="a {x} b {y} c", template="{y} {x}")
    tight = PromptTemplate(original="a 1 b {y} b 3 c", template="<{y}>")
    sent, call = await ask(strategy(loose=loose, tight=tight), said("system", "a 1 b 2 b 3 c"))
    assert contents(sent) == ["<2>"]
    assert (call.strategy.applied, call.strategy.ambiguous) == (("tight",), ())


@pytest.mark.parametrize(
    ("labels", "expected"),
    [("", "any"), ("agent=writer", "of the agent"), ("agent=writer&node=check", "of the node")],
)
async def test_a_slot_of_the_very_label_goes_before_one_of_any(ask, labels, expected):
    slots = {
        "a": PromptTemplate(original="{x}!", template="any{x}"),
        "b": PromptTemplate(original="{x}!", template="of the agent{x}", label="writer"),
        "c": PromptTemplate(original="{x}!", template="of the node{x}", label="check"),
        "d": PromptTemplate(original="{x}!", template="of others{x}", label="other"),
    }
    sent, _ = await ask(strategy(**slots), said("system", "!"), labels=labels)
    assert contents(sent) == [expected]


async def test_a_role_is_only_matched_by_slots_of_it(ask):
    slots = {role: PromptTemplate(original="same", template=role, role=role)
             for role in ("system", "developer", "user")}  # fmt: skip
    body = said("user", "same", "developer", "same", "assistant", "same", "system", "same", "tool", "same")  # fmt: skip
    sent, call = await ask(strategy(**slots), body)
    assert contents(sent) == ["user", "developer", "same", "system", "same"]
    assert call.strategy.applied == ("user", "developer", "system")


@pytest.mark.parametrize(("role", "other"), [("system", "developer"), ("developer", "system")])
async def test_system_and_developer_are_names_of_one_thing(ask, role, other):
    slot = PromptTemplate(original="{x}, same", template="other {x}", role=other)
    sent, call = await ask(strategy(slot=slot), said(role, "1, same", "user", "2, same"))
    assert contents(sent) == ["other 1", "2, same"]
    assert (call.strategy.applied, call.strategy.unmatched) == (("slot",), 0)


@pytest.mark.parametrize(("role", "other"), [("system", "developer"), ("developer", "system")])
async def test_a_slot_of_the_very_role_goes_first(ask, role, other):
    longer = PromptTemplate(original="{x}, same", template="other {x}", role=other)
    own = PromptTemplate(original="{x}e", template="own {x}", role=role)
    sent, _ = await ask(strategy(longer=longer, own=own), said(role, "1, same"))
    assert contents(sent) == ["own 1, sam"]


def test_a_slot_is_listed_once():
    assert strategy(write=WRITE, ask=ASK).slots("") == ["write", "ask"]


async def test_each_text_among_the_parts_of_a_message_is_looked_at(ask):
    image = {"type": "image_url", "image_url": {"url": "data:,x"}}
    parts = [{"type": "text", "text": "Question: a"}, image,
             {"type": "text", "text": "Question: b", "cache_control": {"type": "ephemeral"}},
             {"type": "text", "text": "else"}]  # fmt: skip
    sent, call = await ask(strategy(ask=ASK), said("user", parts))
    (content,) = contents(sent)
    assert [part.get("text") for part in content] == ["Q: a\nA:", None, "Q: b\nA:", "else"]
    assert content[1] == image
    assert content[2]["cache_control"] == {"type": "ephemeral"}
    assert call.strategy.applied == ("ask",)


@pytest.mark.parametrize(
    "messages",
    [None, "Question: a", [], ["Question: a"], {"role": "user"}, [{"content": "Question: a"}],
     [{"role": 3, "content": "Question: a"}], [{"role": "user", "content": None}],
     [{"role": "user"}], [{"role": "user", "content": [{"type": "text", "text": 3}]}],
     [{"role": "user", "content": ["Question: a"]}], [{"role": "user", "content": {"text": "Question: a"}}]],
    ids=str,
)  # fmt: skip
async def test_messages_of_another_form_are_for_the_upstream_to_refuse(ask, messages):
    body = {"model": "gpt", "messages": messages}
    sent, call = await ask(strategy(ask=ASK), body)
    assert sent == body
    assert call.strategy.applied == ()


async def test_a_lone_surrogate_in_a_hole_becomes_the_character_for_unknown_ones(ask):
    body = b'{"messages":[{"role":"user","content":"Question: \\ud800"}]}'
    sent, call = await ask(strategy(ask=ASK), body)
    assert contents(sent) == ["Q: \ufffd\nA:"]
    assert call.overrides == sent


async def test_a_message_that_cannot_be_read_leaves_the_others_to_be_matched(site, upstream):
    body = (
        b'{"messages" : [ {"role" : {"a": 1}}, {"role":"user","content": "\xff"}, {"content": 1},'
        b' {"role":[],"content":[3]}, {"role": "user", "content" :  "Question: 1"} ]}'
    )
    upstream.handler = reply_with(whole(completion()))
    site.open(upstream=f"{upstream.url}/v1", strategy=strategy(ask=with_examples(ASK)))
    assert (await site.ask(body))[0] == 200
    call = await site.call()
    sent = json.loads(upstream.received[-1].body.decode("latin-1"))["messages"]
    assert sent[-1] == {"role": "user", "content": "Q: 1\nA:"}
    assert [message.get("role") for message in sent] == [
        "user", "assistant", {"a": 1}, "user", None, [], "user",
    ]  # fmt: skip
    assert call.strategy.applied == ("ask",)
    # What is not UTF-8 cannot be recorded.
    assert (call.request, call.overrides) == ({}, {})


# Demonstrations --------------------------------------------------------------------------------------------------


def with_examples(template, *examples):
    return msgspec.structs.replace(template, demonstrations=examples or (EXAMPLE,))


async def test_demonstrations_come_before_the_first_message_of_a_conversation(ask):
    body = said("system", SYSTEM, "developer", "d", "user", "Question: 1", "assistant", "SELECT 2",
                "user", "Question: 3")  # fmt: skip
    sent, call = await ask(strategy(write=with_examples(WRITE)), body)
    assert sent["messages"][1] == body["messages"][1]
    assert sent["messages"][2:4] == SHOWN
    assert sent["messages"][4:] == body["messages"][2:]
    assert call.overrides["messages"] == sent["messages"]


async def test_demonstrations_are_never_sent_twice_in_one_call(ask):
    other = (Message(role="user", content="o"), Message(role="assistant", content="p"))
    applied = strategy(ask=with_examples(ASK), write=with_examples(WRITE, other, EXAMPLE, other))
    body = said("system", SYSTEM, "user", "Question: 1", "assistant", "2", "user", "Question: 3")
    sent, _ = await ask(applied, body)
    assert contents(sent)[1:5] == ["o", "p", "一?", "SELECT 1"]
    assert len(sent["messages"]) == 8


async def test_demonstrations_go_in_although_the_text_stays(ask):
    same = PromptTemplate(original="Be {x}.", template="Be {x}.", demonstrations=(EXAMPLE,))
    sent, call = await ask(strategy(same=same), said("system", "Be kind."))
    assert sent["messages"] == [{"role": "system", "content": "Be kind."}, *SHOWN]
    assert call.strategy.applied == ("same",)


async def test_without_a_match_there_are_no_demonstrations(ask):
    body = said("system", "Other", "user", "hi")
    sent, _ = await ask(strategy(write=with_examples(WRITE)), body)
    assert sent == body


# Formats ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize(
    ("path", "asked", "expected"),
    [
        ("/chat/completions", said("system", "x", "user", "Question: 一"), "Q: 一\nA:"),
        ("/completions", {"model": "gpt", "prompt": "Question: 一"}, "Q: 一\nA:"),
    ],
)
async def test_every_format_and_mode_whole_or_streamed(site, mode, stream, path, asked, expected):
    async with ScriptedServer() as server:
        site.gateway.policies.set(policy_at(server.base_url.removesuffix("/v1")))
        site.open(mode, upstream=server.base_url, strategy=strategy(ask=ASK))
        async with site.post({**asked, "stream": stream}, path=path) as response:
            body = (await response.read()).decode()
        call = await site.call()
        (request,) = server.requests
        sent = request.json.get("prompt") or contents(request.json)[-1]
        assert (response.status, sent) == (200, expected)
        # The scripted server echoes what it was asked.
        assert call.text == expected
        assert (call.complete, call.stream, stream) == (True, stream, "data: [DONE]" in body)
        assert call.request == {**asked, "stream": stream}
        assert call.sent_messages[-1] == {"role": "user", "content": expected}
        assert call.strategy.applied == ("ask",)


async def test_a_text_completion_says_that_demonstrations_could_not_go_in(ask):
    sent, call = await ask(strategy(ask=with_examples(ASK)), {"prompt": "Question: 1"}, path="/completions")  # fmt: skip
    assert sent == {"prompt": "Q: 1\nA:"}
    assert call.overrides == {"prompt": "Q: 1\nA:"}
    assert call.strategy.left_out == ("demonstrations",)


async def test_several_prompts_of_one_text_completion(ask):
    body = {"prompt": ["Question: 1", "other", "Question: 2"]}
    sent, _ = await ask(strategy(ask=ASK), body, path="/completions")
    assert sent == {"prompt": ["Q: 1\nA:", "other", "Q: 2\nA:"]}


@pytest.mark.parametrize("prompt", [None, [1, 2], [[1], [2]], {"a": 1}, "other", [], 3])
async def test_a_prompt_that_is_no_text_passes_as_it_came(ask, prompt):
    sent, call = await ask(strategy(ask=ASK), {"prompt": prompt}, path="/completions")
    assert sent == {"prompt": prompt}
    assert call.strategy.applied == ()


async def test_embeddings_are_left_alone(ask):
    body = {"model": "e", "input": "Question: 1"}
    choice = {"*": ModelChoice(model="other", temperature=0.0)}
    sent, call = await ask(strategy(choice, ask=ASK), body, path="/embeddings")
    assert sent == body
    assert call.strategy is None


# Models ----------------------------------------------------------------------------------------------------------

CHOICES = {
    "write": ModelChoice(model="big", temperature=0.25, max_tokens=50),
    "*": ModelChoice(model="small", top_p=0.5),
}


async def test_a_model_is_chosen_by_label_and_else_by_the_star(ask):
    sent, call = await ask(strategy(CHOICES), said("user", "hi", temperature=1, top_p=1), labels="node=write")  # fmt: skip
    assert sent == said("user", "hi", temperature=0.25, top_p=1, max_tokens=50) | {"model": "big"}
    assert call.overrides == {"model": "big", "temperature": 0.25, "max_tokens": 50}
    assert (call.strategy.model, call.strategy.left_out) == ("write", ())


async def test_the_star_is_for_all_others(ask):
    sent, call = await ask(strategy(CHOICES), said("user", "hi"), labels="agent=other")
    assert sent == said("user", "hi", top_p=0.5) | {"model": "small"}
    assert call.strategy.model == "*"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_the_bound_goes_where_the_agent_put_its_own(ask, name):
    choice = {"*": ModelChoice(max_tokens=50)}
    sent, _ = await ask(strategy(choice), said("user", "hi", **{name: 9}))
    assert sent == said("user", "hi", **{name: 50})


async def test_in_val_mode_the_choice_goes_before_the_runs_sampling(site, ask, upstream):
    policy = policy_at(upstream.url, val=SamplingPolicy(temperature=0.0, top_p=0.9, max_tokens=7))
    site.gateway.policies.set(policy)
    sent, call = await ask(strategy(CHOICES, ask=ASK), said("user", "Question: 1"), labels="node=write", mode=Mode.VAL)  # fmt: skip
    assert sent == said("user", "Q: 1\nA:", temperature=0.25, top_p=0.9, max_tokens=50) | {"model": "big"}  # fmt: skip
    assert call.strategy.model == "write"


async def test_in_train_mode_the_prompts_alone_are_applied(site, ask, upstream):
    site.gateway.policies.set(policy_at(upstream.url, train=SamplingPolicy(max_tokens=7)))
    sent, call = await ask(strategy(CHOICES, ask=ASK), said("user", "Question: 1"), labels="node=write", mode=Mode.TRAIN)  # fmt: skip
    assert sent == said("user", "Q: 1\nA:", temperature=1.0, max_tokens=7) | {"model": "policy"}
    assert (call.strategy.applied, call.strategy.model) == (("ask",), None)


async def test_a_model_that_the_path_names_cannot_be_chosen_and_it_is_said(site, upstream):
    upstream.handler = reply_with(whole(completion()))
    site.open(upstream=f"{upstream.url}/openai", strategy=strategy(CHOICES))
    async with site.client.post(
        f"{site.url}/s/{site.token()}/openai/deployments/mine/chat/completions", json=said("user", "hi")
    ) as response:  # fmt: skip
        assert response.status == 200
    assert upstream.received[0].json == said("user", "hi", top_p=0.5)
    call = await site.call()
    assert (call.strategy.model, call.strategy.left_out) == ("*", ("model",))


async def test_a_deployment_that_becomes_a_model_can_be_chosen(site, upstream):
    upstream.handler = reply_with(whole(completion()))
    site.open(upstream=f"{upstream.url}/v1", strategy=strategy(CHOICES))
    url = f"{site.url}/s/{site.token()}/openai/deployments/mine/chat/completions"
    async with site.client.post(url, json=said("user", "hi")) as response:
        assert response.status == 200
    assert upstream.received[0].json["model"] == "small"
    assert (await site.call()).strategy.left_out == ()


# Sessions --------------------------------------------------------------------------------------------------------


async def test_parallel_sessions_each_see_their_own_strategy(site):
    async with ScriptedServer() as server:
        for name in ("a", "b", "none"):
            template = PromptTemplate(
                original="Question: {q}", template=f"{name}: {{q}}", role="user"
            )
            own = None if name == "none" else strategy(ask=template)
            site.open(attempt=name, rollout=name, upstream=server.base_url, strategy=own)

        async def one(name, number):
            body = said("user", f"Question: {number}", stream=number % 2 == 0)
            async with site.post(body, attempt=name) as response:
                await response.read()

        await asyncio.gather(*(one(name, n) for n in range(40) for name in ("a", "b", "none")))
        for name in ("a", "b", "none"):
            calls = await site.calls(name)
            texts = sorted(call.text for call in calls)
            begins = "Question" if name == "none" else name
            assert texts == sorted(f"{begins}: {n}" for n in range(40))
            assert all((call.strategy is None) == (name == "none") for call in calls)


async def test_tries_of_one_call_are_one_call_under_one_strategy(site, upstream):
    tally = Tally(applied := strategy(ask=ASK, write=WRITE))
    failure = whole(b'{"error": {"message": "boom"}}', 500)
    upstream.handler = replies(failure, failure, whole(completion()))
    site.open(upstream=f"{upstream.url}/v1", budget=Budget(calls=1), strategy=applied, tally=tally)
    for number in range(4):
        headers = {"x-lightning-call": "c", "x-lightning-retry": str(number)}
        status, _, _ = await site.ask(said("user", "Question: 1"), headers=headers)
        assert status == (500 if number < 2 else 200)
    # The last is answered from memory.
    assert [contents(each.json) for each in upstream.received] == [["Q: 1\nA:"]] * 3
    call = await site.call()
    assert (call.strategy.applied, len(call.tries)) == (("ask",), 3)
    assert tally.calls == 1
    assert (tally.slots["ask"].matched, tally.slots["ask"].missed) == (1, 0)
    assert (tally.slots["write"].matched, tally.slots["write"].missed) == (0, 1)


async def test_a_tally_counts_a_slot_in_calls_of_its_label_alone(site, upstream):
    labelled = msgspec.structs.replace(ASK, label="writer")
    tally = Tally(applied := strategy(ask=labelled))
    upstream.handler = reply_with(whole(completion()))
    site.open(upstream=f"{upstream.url}/v1", strategy=applied, tally=tally)
    for labels, text in (("agent=writer", "Question: 1"), ("agent=writer", "x"), ("agent=b", "x")):
        await site.ask(said("user", text), headers={"x-lightning-labels": labels})
    assert tally.calls == 3
    assert (tally.slots["ask"].matched, tally.slots["ask"].missed) == (1, 1)


def test_strategies_of_one_digest_do_the_same_whatever_the_order_of_their_slots():
    slots = {name: PromptTemplate(original="{x}!", template=f"{name}{{x}}") for name in "ab"}
    asked = said("system", "!")
    made = [strategy(**slots), strategy(**dict(reversed(slots.items())))]
    fields = read_fields(msgspec.json.encode(asked), "application/json")
    dialect = dialect_of("/chat/completions")
    first, second = [each.apply(dialect, fields, asked, "", chooses=True) for each in made]
    assert made[0].digest == made[1].digest
    assert (first.use, first.prompt) == (second.use, second.prompt)


def test_prompts_that_code_reads_by_name_are_no_business_of_the_gateways():
    own = PromptTemplate(template="anything")
    assert strategy(own=own).slots("") == []


# Plain traffic ---------------------------------------------------------------------------------------------------


async def test_without_a_plain_session_a_call_that_names_none_is_refused(site):
    headers = {"authorization": "Bearer sk-own"}
    async with site.client.post(f"{site.url}/v1/chat/completions", json=said("user", "x"), headers=headers) as got:  # fmt: skip
        assert got.status == 401


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/openai/deployments/gpt/chat/completions"]
)
async def test_a_plain_call_goes_to_the_fixed_upstream_with_the_agents_own_key(
    site, upstream, path
):
    upstream.handler = reply_with(whole(completion()))
    site.open(upstream=f"{upstream.url}/v1", strategy=strategy(ask=ASK))
    site.gateway.plain = "r1.1"
    # Whoever reaches the gateway must not send its calls anywhere else.
    headers = {"authorization": "Bearer sk-own", "x-lightning-target": "http://127.0.0.1:9/v1/x"}
    async with site.client.post(f"{site.url}{path}", json=said("user", "Question: 1"), headers=headers) as got:  # fmt: skip
        assert got.status == 200
    (received,) = upstream.received
    assert received.path == "/v1/chat/completions"
    assert received.headers["authorization"] == "Bearer sk-own"
    assert contents(received.json) == ["Q: 1\nA:"]
    assert (await site.call()).strategy.applied == ("ask",)


async def test_the_models_of_the_fixed_upstream_are_listed_to_plain_agents(site):
    async with ScriptedServer(models=["one"]) as server:
        site.open(upstream=server.base_url)
        site.gateway.plain = "r1.1"
        headers = {"x-lightning-target": "http://127.0.0.1:9/v1/models"}
        async with site.client.get(f"{site.url}/v1/models", headers=headers) as got:
            assert [model["id"] for model in (await got.json())["data"]] == ["one"]


# Cost ------------------------------------------------------------------------------------------------------------


def test_the_cost_of_a_prompt_grows_with_its_length_and_no_faster():
    def cost(size):
        text = "Question: " + "word é\n" * (size // 8)
        asked = said("system", SYSTEM, "user", text)
        applied, dialect = strategy(write=WRITE, ask=ASK), dialect_of("/chat/completions")
        fields = read_fields(msgspec.json.encode(asked), "application/json")
        times = []
        for _ in range(30):
            begun = time.perf_counter()
            applied.apply(dialect, fields, asked, "", chooses=True)
            times.append(time.perf_counter() - begun)
        return min(times)

    assert cost(128_000) < 32 * cost(16_000)
