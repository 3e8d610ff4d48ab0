"""Responses that the server keeps: in the background, polled, cancelled, deleted."""

from __future__ import annotations

import asyncio
import json

import openai
import pytest

from lightning_core.capability import Capability
from lightning_core.rollout import Budget, Mode
from lightning_core.testing import Error, Hang, ScriptedServer, Text, ToolCall, ToolCalls, tokenize
from lightning_core.trace import CallErrorKind

from .conftest import completion, policy_at, replies, reply_with, stream_of, whole

IDS = frozenset({Capability.TOKEN_IDS, Capability.LOGPROBS, Capability.STREAM_TOKEN_IDS})
ASKED = {"model": "gpt", "input": "hi", "background": True}


@pytest.fixture
async def model():
    async with ScriptedServer() as server:
        yield server


@pytest.fixture
async def train(site, model):
    site.gateway.policies.set(policy_at(model.url, capabilities=IDS))
    site.open(Mode.TRAIN)
    return site


@pytest.fixture
async def client(site):
    async with openai.AsyncOpenAI(base_url=site.base(), api_key="x", max_retries=0) as client:
        yield client.responses


async def _polled(client, response):
    while response.status in ("queued", "in_progress"):
        await asyncio.sleep(0.01)
        response = await client.retrieve(response.id)
    return response


async def test_a_response_in_the_background_is_queued_runs_and_is_kept(train, client, model):
    go_on = asyncio.Event()

    async def wait(_):
        await go_on.wait()
        return "hello"

    model.respond(wait)
    queued = await client.create(**ASKED, instructions="Be kind.", metadata={"a": "b"})
    assert (queued.status, queued.output, queued.background) == ("queued", [], True)
    running = await client.retrieve(queued.id)
    assert (running.status, running.metadata, running.id) == ("in_progress", {"a": "b"}, queued.id)
    items = await client.input_items.list(queued.id)
    assert [item.content[0].text for item in items.data] == ["hi"]
    go_on.set()
    done = await _polled(client, running)
    assert (done.output_text, done.status, done.background) == ("hello", "completed", True)
    assert done.instructions == "Be kind."
    again = await client.retrieve(queued.id)
    assert again == done
    call = await train.call()
    assert (queued.id, call.text, call.complete) == (f"resp_{call.id}", "hello", True)
    assert call.choices[0].token_ids[:-1] == tokenize("hello")


async def test_what_ran_in_the_background_can_be_gone_on_with(train, client, model):
    model.enqueue(ToolCalls([ToolCall("add", {"a": 1}, id="c1")]))
    done = await _polled(client, await client.create(**ASKED))
    assert done.output[0].call_id == "c1"
    answer = {"type": "function_call_output", "call_id": "c1", "output": "2"}
    more = await client.create(model="gpt", input=[answer], previous_response_id=done.id)
    assert more.status == "completed"
    _, call = await train.calls()
    assert [m["role"] for m in call.messages] == ["user", "assistant", "tool"]


async def test_what_is_gone_on_with_has_none_of_the_reply_s_empty_fields(site, client, upstream):
    site.gateway.policies.set(policy_at(upstream.url))
    site.open(Mode.TRAIN)
    text, calling = completion("hello"), completion(None)
    text["choices"][0]["message"] |= {"refusal": None, "audio": None, "tool_calls": []}
    tool = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    calling["choices"][0]["message"] |= {"tool_calls": [tool], "reasoning": None}
    upstream.handler = replies(whole(text), whole(calling), whole(completion("bye")))
    first = await client.create(model="gpt", input="hi")
    second = await client.create(model="gpt", input="more", previous_response_id=first.id)
    answer = {"type": "function_call_output", "call_id": "c1", "output": "2"}
    await client.create(model="gpt", input=[answer], previous_response_id=second.id)
    assert upstream.received[-1].json["messages"] == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "more"},
        {"role": "assistant", "content": None, "tool_calls": [tool]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ]


async def test_a_response_in_the_foreground_is_kept_too(train, client, model):
    model.enqueue(ToolCalls([ToolCall("add", {"a": 1})], text="Adding."))
    said = await client.create(model="gpt", input="hi")
    kept = await client.retrieve(said.id)
    assert kept.output == said.output
    assert (kept.usage, kept.created_at, kept.model) == (said.usage, said.created_at, said.model)


async def test_a_response_that_is_cancelled_ends(train, client, model):
    model.enqueue(Hang())
    queued = await client.create(**ASKED)
    await model.wait_for(1)
    ended = await client.cancel(queued.id)
    assert ended.status == "cancelled"
    assert (await client.retrieve(queued.id)).status == "cancelled"
    await model.requests[0].disconnected
    call = await train.call()
    assert (call.complete, call.error.kind) == (False, CallErrorKind.CLIENT_GONE)


async def test_a_response_in_the_background_may_fail(train, client, model):
    model.enqueue(Error(500))
    ended = await _polled(client, await client.create(**ASKED))
    assert (ended.status, ended.error.message) == ("failed", "scripted error 500")
    call = await train.call()
    # The agent was told that it is to run.
    assert (call.status, call.error.kind, call.error.status) == (200, CallErrorKind.STATUS, 500)


async def test_a_response_in_the_background_whose_upstream_is_away_was_still_answered(site, client):
    site.gateway.policies.set(policy_at("http://127.0.0.1:9", capabilities=IDS))
    site.open(Mode.TRAIN)
    assert (await _polled(client, await client.create(**ASKED))).status == "failed"
    call = await site.call()
    assert (call.status, call.error.kind, call.error.status) == (200, CallErrorKind.REFUSED, 502)


async def test_what_cannot_be_asked_is_refused_before_it_is_queued(train, client, model):
    with pytest.raises(openai.BadRequestError, match="web_search"):
        await client.create(**ASKED, tools=[{"type": "web_search"}])
    with pytest.raises(openai.BadRequestError) as caught:
        await client.create(**ASKED, previous_response_id="resp_none")
    assert caught.value.code == "previous_response_not_found"


async def test_the_end_of_the_session_ends_what_runs_in_the_background(train, client, model):
    model.enqueue(Hang())
    await client.create(**ASKED)
    await model.wait_for(1)
    await train.gateway.end("r1.1")
    (call,) = await train.store.calls("r1.1")
    assert (call.complete, call.error.kind) == (False, CallErrorKind.CLIENT_GONE)


async def test_the_session_waits_for_what_runs_in_the_background(train, client, model):
    model.enqueue(Text("hello"))
    await client.create(**ASKED)
    assert (await train.call()).text == "hello"


async def test_a_stop_before_the_work_has_begun_is_recorded(train, model):
    """The gateway's answer is on its way and the task has not had its turn."""
    model.enqueue(Hang())
    session = train.open(Mode.TRAIN)
    asking = asyncio.create_task(train.ask(ASKED, path="/responses"))
    while not session.jobs:
        await asyncio.sleep(0)
    await train.gateway.end("r1.1")
    assert (await asking)[0] == 200
    (call,) = await train.store.calls("r1.1")
    assert (call.error.kind, session.jobs) == (CallErrorKind.CLIENT_GONE, {})


async def test_budget_and_deadline_hold_in_the_background(site, client, model):
    site.gateway.policies.set(policy_at(model.url, capabilities=IDS))
    site.open(Mode.TRAIN, budget=Budget(calls=1), seconds=1)
    model.enqueue(Hang())
    queued = await client.create(**ASKED)
    with pytest.raises(openai.RateLimitError):
        await client.create(**ASKED)
    ended = await _polled(client, queued)
    assert "deadline" in ended.error.message


async def test_a_response_that_was_deleted_is_unknown(train, client, model):
    said = await client.create(model="gpt", input="hi")
    await client.delete(said.id)
    with pytest.raises(openai.NotFoundError):
        await client.retrieve(said.id)
    with pytest.raises(openai.BadRequestError):
        await client.create(model="gpt", input="more", previous_response_id=said.id)
    first, _ = await train.calls()
    assert first.text == "hi"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "", 404),
        ("DELETE", "", 404),
        ("POST", "/cancel", 404),
        ("GET", "/input_items", 404),
        ("POST", "/other", 404),
    ],
)
async def test_a_response_that_nobody_knows_is_not_found(train, method, path, status):
    url = f"{train.base()}/responses/resp_none{path}"
    async with train.client.request(method, url) as response:
        assert response.status == status
        assert (await response.json())["error"]["message"]
    assert await train.calls() == []


async def test_what_cannot_be_given_is_said(train, client, model):
    said = await client.create(model="gpt", input="hi")
    with pytest.raises(openai.BadRequestError, match="without `stream`"):
        await client.retrieve(said.id, stream=True)
    with pytest.raises(openai.BadRequestError, match="background"):
        await client.cancel(said.id)


async def test_a_paused_policy_does_not_keep_the_agent_waiting(train, client, model):
    await train.gateway.policies.pause(0)
    queued = await client.create(**ASKED)
    assert (await client.retrieve(queued.id)).status == "in_progress"
    train.gateway.policies.resume()
    assert (await _polled(client, queued)).output_text == "hi"


def _native(status, text=None, **extra):
    content = [{"type": "output_text", "text": text or "", "annotations": []}]
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": content}  # fmt: skip
    return {
        "id": "resp_native", "object": "response", "created_at": 1, "status": status, "model": "m-1",
        "background": True, "error": None, "output": [] if text is None else [item],
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
        "usage": None if text is None else {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5},
        **extra,
    }  # fmt: skip


async def test_polls_of_an_upstream_that_keeps_responses_bring_the_one_calls_end(
    site, client, upstream
):
    session = site.open(upstream=f"{upstream.url}/v1")
    upstream.handler = replies(
        whole(_native("queued")), whole(_native("in_progress")), whole(_native("completed", "hey"))
    )
    done = await _polled(client, await client.create(**ASKED))
    assert done.output_text == "hey"
    assert [(r.method, r.path) for r in upstream.received] == [
        ("POST", "/v1/responses"),
        ("GET", "/v1/responses/resp_native"),
        ("GET", "/v1/responses/resp_native"),
    ]
    call = await site.call()
    assert (call.text, call.complete, call.error, call.total_tokens) == ("hey", True, None, 5)
    assert session.tokens == 5


async def test_a_response_that_an_upstream_never_ended_is_incomplete(site, client, upstream):
    site.open(upstream=f"{upstream.url}/v1")
    upstream.handler = reply_with(whole(_native("queued")))
    await client.create(**ASKED)
    await client.retrieve("resp_native")
    call = await site.call()
    assert (call.complete, call.error, call.choices) == (False, None, ())


async def test_a_response_that_an_upstream_cancelled_has_failed(site, client, upstream):
    site.open(upstream=f"{upstream.url}/v1")
    upstream.handler = replies(whole(_native("queued")), whole(_native("cancelled")))
    await client.create(**ASKED)
    await client.cancel("resp_native")
    assert upstream.received[1].path == "/v1/responses/resp_native/cancel"
    call = await site.call()
    assert (call.complete, call.error.kind) == (False, CallErrorKind.CLIENT_GONE)


async def test_a_poll_of_an_earlier_servers_call_brings_its_end(site, client, upstream):
    site.open(upstream=f"{upstream.url}/v1")
    upstream.handler = replies(whole(_native("queued")), whole(_native("completed", "hey")))
    await client.create(**ASKED)
    earlier = await site.calls()
    site.open(upstream=f"{upstream.url}/v1", earlier=earlier)
    await client.retrieve("resp_native")
    assert (await site.call()).text == "hey"


async def test_a_response_that_failed_at_the_upstream_has_its_message_in_the_record(
    site, client, upstream
):
    site.open(upstream=f"{upstream.url}/v1")
    failed = _native("failed", error={"code": "server_error", "message": "out of memory"})
    upstream.handler = replies(whole({**failed, "background": False}), whole(_native("queued")), whole(failed))  # fmt: skip
    await client.create(model="gpt", input="hi")
    await client.create(**ASKED)
    await client.retrieve("resp_native")
    for call in await site.calls():
        assert (call.complete, call.status, call.error.kind, call.error.message) == (
            False, 200, CallErrorKind.CUT, "out of memory",
        )  # fmt: skip


async def test_the_prompt_of_a_native_call_is_recorded_whole(site, client, upstream):
    """The id passes through; what it stands for is known from the call before."""
    site.open(upstream=f"{upstream.url}/v1")
    first = _native("completed", "hey", background=False)
    second = {**_native("completed", "ho", background=False), "id": "resp_2"}
    third = {**second, "id": "resp_3"}
    upstream.handler = replies(whole(first), whole(second), whole(third))
    await client.create(model="gpt", input="hi", instructions="Be kind.")
    await client.create(model="gpt", input="more", previous_response_id="resp_native")
    for before in ("resp_unknown", "resp_3"):
        await client.create(model="gpt", input="else", previous_response_id=before)
    assert json.loads(upstream.received[1].body)["previous_response_id"] == "resp_native"
    calls = await site.calls()
    assert [m["content"] for m in calls[1].messages] == ["hi", "hey", "more"]
    assert "lightning_note" not in calls[1].reply
    for call in calls[2:]:
        assert [m["content"] for m in call.messages] == ["else"]
        assert "previous_response_id" in call.reply["lightning_note"]


async def test_a_native_stream_passes_as_it_is(site, upstream):
    site.open(upstream=f"{upstream.url}/v1")
    done = _native("completed", "hey", background=False)
    pieces = [
        b"event: response.created\ndata: "
        + json.dumps({"type": "response.created", "response": _native("in_progress")}).encode()
        + b"\n\n",
        b"event: response.completed\ndata: "
        + json.dumps({"type": "response.completed", "response": done}).encode()
        + b"\n\n",
    ]
    upstream.handler = stream_of(*pieces)
    _, body, _ = await site.ask({"model": "gpt", "input": "hi", "stream": True}, path="/responses")
    assert body == b"".join(pieces)
    call = await site.call()
    assert (call.text, call.complete, call.stream) == ("hey", True, True)
