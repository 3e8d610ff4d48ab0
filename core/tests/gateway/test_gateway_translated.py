"""Responses and Messages towards a policy that speaks only chat completions, by the official clients."""

from __future__ import annotations

import asyncio
import itertools
import json

import anthropic
import httpx
import httpx2
import openai
import pytest

from lightning_core.capability import Capability
from lightning_core.gateway.strategy import CompiledStrategy
from lightning_core.learn import build_samples
from lightning_core.rollout import Attempt, Budget, Mode, Rollout
from lightning_core.sampling import SamplingPolicy
from lightning_core.strategy import Message, PromptTemplate, Strategy
from lightning_core.task import Task
from lightning_core.testing import (
    Cut,
    Error,
    Hang,
    Raw,
    ScriptedServer,
    Text,
    ToolCall,
    ToolCalls,
    prompt_token_ids,
    tokenize,
)
from lightning_core.trace import CallErrorKind, TokenSource, Trace

from .conftest import chunk, completion, event, policy_at, reply_with, whole

IDS = frozenset(
    {Capability.TOKEN_IDS, Capability.LOGPROBS, Capability.STREAM_TOKEN_IDS, Capability.TOOLS}
)
TOOL = {
    "type": "function",
    "name": "add",
    "description": "Adds.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "strict": False,
}
CUT = (openai.APIError, anthropic.APIError, httpx.HTTPError, httpx2.HTTPError)
ASKED = {"model": "gpt", "input": "hi"}
SAID = {"model": "claude", "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
async def model():
    async with ScriptedServer() as server:
        yield server


@pytest.fixture
async def train(site, model):
    """A site whose train calls go to the scripted model."""
    policy = policy_at(model.url, capabilities=IDS, train=SamplingPolicy(temperature=1.0))
    site.gateway.policies.set(policy)
    site.open(Mode.TRAIN)
    return site


@pytest.fixture
async def oai(train):
    async with openai.AsyncOpenAI(base_url=train.base(), api_key="x", max_retries=0) as client:
        yield client


@pytest.fixture
async def ant(train):
    base = train.base().removesuffix("/v1")
    async with anthropic.AsyncAnthropic(base_url=base, api_key="x", max_retries=0) as client:
        yield client


async def test_a_response_is_asked_for_by_chat_and_recorded_with_its_token_ids(train, oai, model):
    model.enqueue(Text("hello"))
    response = await oai.responses.create(
        model="gpt", instructions="Be kind.", input="hi", temperature=0.3, max_output_tokens=50
    )
    assert (response.output_text, response.status, response.usage.total_tokens > 0) == (
        "hello", "completed", True,
    )  # fmt: skip
    (asked,) = model.requests
    assert asked.path == "/v1/chat/completions"
    said = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"}]
    assert asked.json["messages"] == said
    assert (asked.json["model"], asked.json["temperature"]) == ("policy", 1.0)
    assert asked.json["return_token_ids"] is True
    call = await train.call()
    assert (call.dialect, call.request["input"], call.model) == ("responses", "hi", "policy")
    assert call.messages == call.sent_messages == said
    assert response.id == f"resp_{call.id}"
    assert call.overrides["temperature"] == 1.0
    assert call.chat_request["temperature"] == 0.3
    assert call.prompt_token_ids == prompt_token_ids(said)
    assert call.choices[0].token_ids[:-1] == tokenize("hello")
    assert len(call.choices[0].logprobs) == len(call.choices[0].token_ids)
    assert (call.token_source, call.complete, call.text) == (TokenSource.ENGINE, True, "hello")


async def test_a_message_is_asked_for_by_chat_and_recorded_with_its_token_ids(train, ant, model):
    model.enqueue(ToolCalls([ToolCall("add", {"a": 1}), ToolCall("add", {"a": 2})], text="Both."))
    message = await ant.messages.create(
        model="claude",
        max_tokens=50,
        system=[{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
        messages=[{"role": "user", "content": "hi"}],
        tools=[{"name": "add", "input_schema": TOOL["parameters"]}],
    )
    assert [block.type for block in message.content] == ["text", "tool_use", "tool_use"]
    assert [block.input for block in message.content[1:]] == [{"a": 1}, {"a": 2}]
    assert message.stop_reason == "tool_use"
    (asked,) = model.requests
    assert not [name for name in asked.headers if name.lower().startswith(("anthropic", "x-api"))]
    call = await train.call()
    said = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"}]
    assert (call.dialect, call.messages, call.complete) == ("messages", said, True)
    assert call.prompt_token_ids == prompt_token_ids(said)
    assert [c["function"]["arguments"] for c in call.tool_calls] == ['{"a": 1}', '{"a": 2}']
    assert call.tools[0]["function"]["name"] == "add"
    assert call.choices[0].token_ids is not None


async def test_a_streamed_response_says_what_a_whole_one_says(train, oai, model):
    reply = ToolCalls([ToolCall("add", {"a": 1}), ToolCall("add", {"a": 2})], text="Both of them.")
    model.enqueue(reply, reply)
    asked = {"model": "gpt", "input": "hi", "tools": [TOOL]}
    plain = await oai.responses.create(**asked)
    async with oai.responses.stream(**asked) as stream:
        kinds = [each.type async for each in stream]
        final = await stream.get_final_response()
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    assert "response.function_call_arguments.delta" in kinds

    def said(response):
        return [
            (item.type, getattr(item, "arguments", None)) for item in response.output
        ], response.output_text

    assert said(final) == said(plain)
    first, second = await train.calls()
    assert (first.stream, second.stream) == (False, True)
    assert second.choices[0].token_ids == first.choices[0].token_ids
    assert second.choices[0].logprobs == first.choices[0].logprobs
    assert second.prompt_token_ids == first.prompt_token_ids is not None
    assert second.usage == first.usage


async def test_a_streamed_message_is_recorded_with_its_token_ids(train, ant, model):
    model.enqueue(Text("hello there"))
    async with ant.messages.stream(**SAID) as stream:
        texts = [text async for text in stream.text_stream]
        final = await stream.get_final_message()
    assert "".join(texts) == "hello there" == final.content[0].text
    assert len(texts) > 1
    call = await train.call()
    assert call.choices[0].token_ids[:-1] == tokenize("hello there")
    assert (final.usage.output_tokens, call.complete) == (len(call.choices[0].token_ids), True)


@pytest.mark.parametrize("kind", ["responses", "messages"])
async def test_ids_are_captured_where_the_upstream_has_none_in_streams(
    site, model, kind, open_client
):
    """The reply is asked for whole and the stream is made of it."""
    gives = frozenset({Capability.TOKEN_IDS, Capability.LOGPROBS})
    site.gateway.policies.set(policy_at(model.url, capabilities=gives))
    site.open(Mode.TRAIN)
    model.enqueue(Text("hello there"))
    client = open_client(kind, site)
    events = [e async for e in await client.create(**_body(kind), stream=True)]
    assert events[-1].type == {"responses": "response.completed", "messages": "message_stop"}[kind]
    assert "stream" not in model.requests[0].json or model.requests[0].json["stream"] is False
    call = await site.call()
    assert call.choices[0].token_ids[:-1] == tokenize("hello there")


@pytest.mark.parametrize("named", ["stop_reason", "matched_stop"])
async def test_a_stream_that_is_made_of_a_whole_reply_says_which_text_ended_it(
    site, upstream, named, open_client
):
    site.gateway.policies.set(
        policy_at(upstream.url, capabilities=frozenset({Capability.TOKEN_IDS}))
    )
    site.open(Mode.TRAIN)
    reply = completion("hello")
    reply["choices"][0] |= {named: "END", "token_ids": [1, 2]}
    upstream.handler = reply_with(whole(reply))
    client = open_client("messages", site)
    asked = {**SAID, "stop_sequences": ["END"]}
    plain = await client.create(**asked)
    async with client.stream(**asked) as stream:
        final = await stream.get_final_message()
    for message in (plain, final):
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "END")
    _, call = await site.calls()
    assert (call.stream, call.choices[0].token_ids) == (True, (1, 2))


@pytest.fixture
async def open_client():
    """Makes the `responses` or `messages` of a client."""
    clients = []

    def open_(kind, site, **options):
        if kind == "responses":
            client = openai.AsyncOpenAI(
                base_url=site.base(), **{"api_key": "x", "max_retries": 0, **options}
            )
        else:
            base = site.base().removesuffix("/v1")
            client = anthropic.AsyncAnthropic(
                base_url=base, **{"api_key": "x", "max_retries": 0, **options}
            )
        clients.append(client)
        return getattr(client, kind)

    yield open_
    for client in clients:
        await client.close()


def _body(kind):
    return ASKED if kind == "responses" else SAID


@pytest.mark.parametrize("kind", ["responses", "messages"])
async def test_events_arrive_before_the_upstream_ends(train, model, kind, open_client):
    model.enqueue(Hang(after_chunks=2, reply=Text("one two")))
    stream = await open_client(kind, train).create(**_body(kind), stream=True)
    async for each in stream:
        if each.type.endswith("delta"):
            break
    assert not model.requests[0].finished.happened
    await stream.close()
    call = await train.call()
    assert call.error.kind is CallErrorKind.CLIENT_GONE
    assert call.choices[0].token_ids


async def test_several_turns_by_id_make_one_sample(train, oai, model):
    """The prompt of each call begins with the ids of the one before and what was sampled after it."""
    model.enqueue(ToolCalls([ToolCall("add", {"a": 1}, id="c1")]), Text("Two."), Text("Bye."))
    rules = {"model": "gpt", "instructions": "Be kind.", "tools": [TOOL]}
    first = await oai.responses.create(**rules, input="What is 1 + 1?")
    answer = {"type": "function_call_output", "call_id": "c1", "output": "2"}
    second = await oai.responses.create(**rules, previous_response_id=first.id, input=[answer])
    third = await oai.responses.create(**rules, previous_response_id=second.id, input="Thanks!")
    assert third.output_text == "Bye."
    calls = await train.calls()
    for before, after in itertools.pairwise(calls):
        told = before.prompt_token_ids + before.choices[0].token_ids
        assert after.prompt_token_ids[: len(told)] == told
    assert [m["role"] for m in calls[2].messages] == [
        "system", "user", "assistant", "tool", "assistant", "user",
    ]  # fmt: skip
    assert calls[2].request["input"] == "Thanks!"
    made = build_samples(
        Trace(
            rollout=Rollout(id="r1", task_id="t", run="run", mode=Mode.TRAIN),
            task=Task(id="t", input="x"),
            attempt=Attempt(
                id="r1.1",
                rollout_id="r1",
                number=1,
                fence=1,
                worker="w",
                started_at=0.0,
                deadline=1.0,
                lease_until=1.0,
            ),
            calls=tuple(calls),
        )
    )
    assert len(made.samples) == 1
    assert len([s for s in made.samples[0].segments if s.trainable]) == 3


async def test_instructions_hold_for_one_request_alone(train, oai, model):
    first = await oai.responses.create(**ASKED, instructions="Be kind.")
    await oai.responses.create(model="gpt", input="more", previous_response_id=first.id)
    _, second = await train.calls()
    assert [m["content"] for m in second.messages] == ["hi", "hi", "more"]


async def test_a_conversation_goes_on_after_the_session_has_forgotten_it(train, oai, model):
    """As after a restart: the store has it."""
    first = await oai.responses.create(**ASKED, instructions="Be kind.")
    await train.gateway.end("r1.1", grace=30)
    train.open(Mode.TRAIN)
    await oai.responses.create(model="gpt", input="more", previous_response_id=first.id)
    _, second = await train.calls()
    assert [m["content"] for m in second.messages] == ["hi", "hi", "more"]


async def test_no_session_reads_anothers_conversation(train, oai, model):
    first = await oai.responses.create(**ASKED)
    train.open(Mode.TRAIN, attempt="r2.1", rollout="r2")
    body = {"model": "gpt", "input": "more", "previous_response_id": first.id}
    status, said, _ = await train.ask(body, path="/responses", attempt="r2.1")
    assert (status, json.loads(said)["error"]["code"]) == (400, "previous_response_not_found")


async def test_an_unknown_response_is_refused_and_recorded(train, oai, model):
    with pytest.raises(openai.BadRequestError) as caught:
        await oai.responses.create(**ASKED, previous_response_id="resp_none")
    assert caught.value.code == "previous_response_not_found"
    assert caught.value.param == "previous_response_id"
    assert not model.requests
    call = await train.call()
    assert (call.status, call.error.kind, call.complete) == (400, CallErrorKind.BAD_REQUEST, False)


async def test_what_chat_cannot_say_is_refused_by_name(train, oai, ant, model):
    with pytest.raises(openai.BadRequestError, match="web_search"):
        await oai.responses.create(**ASKED, tools=[{"type": "web_search"}])
    with pytest.raises(anthropic.BadRequestError, match="mcp_servers"):
        await ant.messages.create(**SAID, extra_body={"mcp_servers": [{"name": "x"}]})
    assert not model.requests


async def test_the_upstreams_errors_have_the_form_of_the_agents_format(train, oai, ant, model):
    model.enqueue(*[Error(429, headers={"retry-after": "7"})] * 2, Raw(b"<b>", 503, "text/html"))
    with pytest.raises(openai.RateLimitError, match="scripted error") as of_openai:
        await oai.responses.create(**ASKED)
    with pytest.raises(anthropic.RateLimitError, match="scripted error") as caught:
        await ant.messages.create(**SAID)
    assert caught.value.body["error"]["type"] == "rate_limit_error"
    for error in (of_openai, caught):
        assert error.value.response.headers["retry-after"] == "7"
    with pytest.raises(anthropic.InternalServerError) as caught:
        await ant.messages.create(**SAID)
    assert caught.value.body["type"] == "error"
    assert caught.value.response.headers["content-type"] == "application/json"
    calls = await train.calls()
    assert [call.status for call in calls] == [429, 429, 503]
    assert calls[2].reply == {"text": "<b>"}


async def test_the_gateways_own_errors_have_the_form_of_the_agents_format(site, model, open_client):
    site.gateway.policies.set(policy_at(model.url))
    site.open(Mode.TRAIN, budget=Budget(calls=0))
    with pytest.raises(anthropic.RateLimitError) as caught:
        await open_client("messages", site).create(**SAID)
    assert caught.value.body["error"]["type"] == "rate_limit_error"
    assert caught.value.response.headers["x-should-retry"] == "false"
    with pytest.raises(openai.RateLimitError) as refused:
        await open_client("responses", site).create(**ASKED)
    assert refused.value.code == "budget"
    url = f"{site.url}/s/lc1.none/v1/messages"
    async with site.client.post(url, json=SAID) as response:
        assert response.status == 401
        assert (await response.json())["error"]["type"] == "authentication_error"


async def test_a_reply_that_is_no_completion_is_an_error(train, oai, model):
    model.enqueue(Raw(b'{"ok": true}'))
    with pytest.raises(openai.InternalServerError, match="no chat completion"):
        await oai.responses.create(**ASKED)
    call = await train.call()
    assert (call.status, call.error.kind) == (502, CallErrorKind.UNREADABLE)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_reply_in_an_encoding_that_nobody_knows_is_an_error(train, model, stream):
    kind = "text/event-stream" if stream else "application/json"
    model.enqueue(Raw(b"\x1b\x2c", content_type=kind, headers={"content-encoding": "zstd"}))
    status, data, _ = await train.ask({**SAID, "stream": stream}, path="/messages")
    assert (status, json.loads(data)["type"]) == (502, "error")
    assert (await train.call()).error.kind is CallErrorKind.UNREADABLE


@pytest.mark.parametrize("kind", ["responses", "messages"])
async def test_a_server_that_does_not_stream_is_streamed_for(train, model, kind, open_client):
    reply = {
        "id": "c", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hey"}}],
    }  # fmt: skip
    model.enqueue(Raw(json.dumps(reply).encode()))
    events = await open_client(kind, train).create(**_body(kind), stream=True)
    kinds = [each.type async for each in events]
    assert kinds[-1] in ("response.completed", "message_stop")
    assert (await train.call()).text == "hey"


@pytest.mark.parametrize("asks", [False, True])
async def test_log_probabilities_are_shown_to_an_agent_that_asks_alone(train, oai, model, asks):
    include = {"include": ["message.output_text.logprobs"]} if asks else {}
    whole_one = await oai.responses.create(**ASKED, **include)
    async with oai.responses.stream(**ASKED, **include) as stream:
        deltas = [e async for e in stream if e.type == "response.output_text.delta"]
        streamed = await stream.get_final_response()
    for response in (whole_one, streamed):
        assert bool(response.output[0].content[0].logprobs) is asks
    assert any(delta.logprobs for delta in deltas) is asks
    for call in await train.calls():
        assert len(call.choices[0].logprobs) == len(tokenize("hi")) + 1


async def test_a_last_event_without_its_blank_line_is_heard(train, model):
    said = event(chunk({"role": "assistant", "content": "hey"}))
    last = event(chunk({}, finish="stop")).rstrip()
    model.enqueue(Raw(said + last, content_type="text/event-stream"))
    _, data, _ = await train.ask({**ASKED, "stream": True}, path="/responses")
    assert b"event: response.completed" in data


@pytest.mark.parametrize("kind", ["responses", "messages"])
async def test_a_stream_that_is_cut_has_no_end(train, model, kind, open_client):
    model.enqueue(Cut(after_chunks=2, reply=Text("one two three")))
    kinds = []
    stream = await open_client(kind, train).create(**_body(kind), stream=True)
    with pytest.raises(CUT):  # noqa: PT012 - the loop is what raises
        async for each in stream:
            kinds.append(each.type)
    assert kinds
    assert not {"response.completed", "message_stop"} & set(kinds)
    call = await train.call()
    assert (call.complete, call.error.kind, call.text) == (False, CallErrorKind.CUT, "one ")


@pytest.mark.parametrize("kind", ["responses", "messages"])
async def test_of_a_stream_that_ends_early_the_agent_is_told(train, model, kind, open_client):
    """The upstream ends it as if all were well; an SDK may take what came for the whole reply."""
    said = event(chunk({"role": "assistant", "content": "one "}))
    model.enqueue(Raw(said, content_type="text/event-stream"))
    told = []
    stream = await open_client(kind, train).create(**_body(kind), stream=True)
    try:
        async for each in stream:
            told.append(each)
        assert told[-1].type == "response.failed"
        told.append(told[-1].response.error.message)
    except anthropic.APIStatusError as error:
        told.append(error.message)
    assert "ended before its reply" in told[-1]
    call = await train.call()
    assert (call.complete, call.text) == (False, "one ")


@pytest.mark.parametrize("kind", ["responses", "messages"])
async def test_a_strategy_changes_what_goes_upstream(site, model, kind, open_client):
    slot = PromptTemplate(
        label="",
        role="system",
        original="Be kind.",
        template="Be brief.",
        demonstrations=(
            (Message(role="user", content="q"), Message(role="assistant", content="a")),
        ),
    )
    site.gateway.policies.set(policy_at(model.url, capabilities=IDS))
    strategy = CompiledStrategy(Strategy(prompt_templates={"rule": slot}))
    site.open(Mode.TRAIN, strategy=strategy)
    rule = {"responses": "instructions", "messages": "system"}[kind]
    await open_client(kind, site).create(**_body(kind), **{rule: "Be kind."})
    call = await site.call()
    assert [m["content"] for m in call.messages] == ["Be kind.", "hi"]
    assert [m["content"] for m in call.sent_messages] == ["Be brief.", "q", "a", "hi"]
    assert call.request[rule] == "Be kind."
    assert model.requests[0].json["messages"] == call.sent_messages
    assert call.strategy.applied == ("rule",)


@pytest.mark.parametrize("path", ["/responses", "/messages"])
async def test_what_cannot_be_decoded_is_not_translated(train, model, path):
    status, said, _ = await train.ask(b'{"model": "m", "input": "\xff"}', path=path)
    assert (status, b"utf-8" in said, model.requests) == (400, True, [])
    call = await train.call()
    assert (call.request, call.error.kind) == ({}, CallErrorKind.BAD_REQUEST)


async def test_a_retry_is_given_the_same_response_again(train, oai, model):
    body, headers = ASKED, {"x-lightning-call": "k"}
    first = await train.ask(body, path="/responses", headers=headers)
    again = await train.ask(body, path="/responses", headers={**headers, "x-lightning-retry": "1"})
    assert first[:2] == again[:2]
    assert len(model.requests) == 1
    assert len((await train.call()).tries) == 1


async def test_a_policy_that_speaks_the_format_is_asked_in_it(site, make_upstream):
    upstream = await make_upstream()
    upstream.handler = reply_with(
        whole(
            {
                "id": "msg_1", "type": "message", "role": "assistant", "model": "m",
                "content": [{"type": "text", "text": "hey"}], "stop_reason": "end_turn",
                "usage": {"input_tokens": 3, "output_tokens": 2},
            }
        )
    )  # fmt: skip
    policy = policy_at(upstream.url, capabilities=frozenset({Capability.MESSAGES}))
    site.gateway.policies.set(policy)
    site.open(Mode.VAL)
    status, body, _ = await site.ask(SAID, path="/messages")
    assert (status, json.loads(body)["content"][0]["text"]) == (200, "hey")
    assert upstream.received[0].path == "/v1/messages"
    call = await site.call()
    assert call.messages == [{"role": "user", "content": "hi"}] == call.sent_messages
    assert (call.text, call.total_tokens, call.complete) == ("hey", 5, True)


async def test_eight_sessions_at_once_have_their_own_conversations(site, model):
    site.gateway.policies.set(policy_at(model.url, capabilities=IDS))

    async def one(number):
        site.open(Mode.TRAIN, attempt=f"r{number}.1", rollout=f"r{number}")
        base = site.base(f"r{number}.1")
        async with openai.AsyncOpenAI(base_url=base, api_key="x") as client:
            before = None
            for turn in range(4):
                response = await client.responses.create(
                    model="gpt", input=f"{number}-{turn}", previous_response_id=before
                )
                before = response.id

    await asyncio.gather(*map(one, range(8)))
    for number in range(8):
        calls = await site.calls(f"r{number}.1")
        users = [m["content"] for m in calls[-1].messages if m["role"] == "user"]
        assert users == [f"{number}-{turn}" for turn in range(4)]
