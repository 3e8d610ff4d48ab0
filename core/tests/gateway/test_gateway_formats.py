"""Responses and Messages in observe mode: to whom they go, in which format, with which key; and counts of tokens."""

from __future__ import annotations

import asyncio
import json

import anthropic
import openai
import pytest

from lightning_core.capability import Capability
from lightning_core.engine import Endpoint
from lightning_core.gateway import GatewayLimits
from lightning_core.gateway.strategy import CompiledStrategy
from lightning_core.rollout import Mode
from lightning_core.strategy import Message, ModelChoice, PromptTemplate, Strategy
from lightning_core.testing import ScriptedServer
from lightning_core.trace import CallErrorKind
from lightning_core.wire import ServedPolicy

from .conftest import completion, policy_at, replies, reply_with, whole

ASKED = {"model": "gpt", "input": "hi"}
SAID = {"model": "claude", "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}
MESSAGE = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-1", "stop_reason": "end_turn",
    "stop_sequence": None, "content": [{"type": "text", "text": "hey"}],
    "usage": {"input_tokens": 3, "output_tokens": 2, "cache_read_input_tokens": 10},
}  # fmt: skip


def only_chat(text="hey"):
    """An upstream that knows no path but that of chat completions."""

    async def handler(received, writer):
        known = received.path == "/v1/chat/completions"
        writer.write(whole(completion(text)) if known else whole({"detail": "Not Found"}, 404))
        await writer.drain()

    return handler


@pytest.fixture
def observed(site, upstream):
    """A site whose session goes to the upstream."""

    async def open_(**fields):
        return site.open(upstream=f"{upstream.url}/v1", **fields)

    return open_


async def test_the_providers_own_format_passes_as_it_is(site, upstream, observed):
    await observed()
    upstream.handler = reply_with(whole(MESSAGE))
    headers = {"x-api-key": "sk-ant-1", "anthropic-version": "2023-06-01", "anthropic-beta": "b"}
    body = json.dumps({**SAID, "thinking": {"type": "disabled"}}).encode()
    status, data, _ = await site.ask(body, path="/messages?beta=true", headers=headers)
    assert (status, json.loads(data)) == (200, MESSAGE)
    (sent,) = upstream.received
    assert (sent.path, sent.body) == ("/v1/messages?beta=true", body)
    assert {name: sent.headers.get(name) for name in headers} == headers
    call = await site.call()
    assert (call.dialect, call.text, call.complete, call.total_tokens) == (
        "messages", "hey", True, 15,
    )  # fmt: skip
    assert call.request == json.loads(body)
    assert call.messages == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("upstream_", [None, "https://api.openai.com/v1"])
@pytest.mark.parametrize(
    ("path", "host"), [("/messages", "api.anthropic.com"), ("/responses", "api.openai.com")]
)
async def test_each_format_goes_to_its_own_provider(make_site, path, host, upstream_):
    """As the refusal tells, which names the host."""
    site = await make_site(allow=["127.0.0.1"])
    site.open(upstream=upstream_)
    status, data, _ = await site.ask(SAID, path=path)
    assert status == 403
    assert f"`{host}:443`" in json.loads(data)["error"]["message"]


@pytest.mark.parametrize("kind", ["responses", "messages"])
async def test_an_upstream_that_does_not_know_the_format_is_asked_by_chat_from_then_on(
    site, upstream, observed, kind
):
    await observed()
    upstream.handler = only_chat()
    for _ in range(2):
        status, data, _ = await site.ask(
            {"responses": ASKED, "messages": SAID}[kind], path=f"/{kind}"
        )
        assert status == 200
        assert b"hey" in data
    paths = [received.path for received in upstream.received]
    assert paths == [f"/v1/{kind}", "/v1/chat/completions", "/v1/chat/completions"]
    calls = await site.calls()
    assert [(call.dialect, call.text) for call in calls] == [(kind, "hey")] * 2
    assert calls[0].target == f"{upstream.url}/v1/chat/completions"


async def test_a_refusal_that_means_something_else_is_not_taken_for_a_lack(
    site, upstream, observed
):
    """A model that is unknown is unknown by chat too; and an upstream that has spoken the format speaks it."""
    await observed()
    no_model = whole({"error": {"message": "no model"}}, 404)
    upstream.handler = replies(no_model, no_model, whole(MESSAGE), no_model)
    statuses = [(await site.ask(SAID, path="/messages"))[0] for _ in range(3)]
    assert statuses == [404, 200, 404]
    assert [received.path.rpartition("/")[2] for received in upstream.received] == [
        "messages", "completions", "messages", "messages",
    ]  # fmt: skip


async def test_the_agents_key_goes_along_in_the_form_that_chat_expects(site, upstream, observed):
    await observed()
    upstream.handler = only_chat()
    headers = {"x-api-key": "sk-1", "anthropic-version": "2023-06-01", "x-other": "1"}
    await site.ask(SAID, path="/messages", headers=headers)
    sent = upstream.received[1].headers
    assert (sent["authorization"], sent["x-other"]) == ("Bearer sk-1", "1")
    assert not {"x-api-key", "anthropic-version"} & set(sent)


async def test_an_upstream_that_is_said_to_speak_only_chat_is_not_asked(make_site, upstream):
    site = await make_site(limits=GatewayLimits(chat_only=True))
    site.open(upstream=f"{upstream.url}/v1")
    upstream.handler = only_chat()
    assert (await site.ask(ASKED, path="/responses"))[0] == 200
    assert [received.path for received in upstream.received] == ["/v1/chat/completions"]


async def test_a_target_that_the_call_names_is_asked_by_chat_beside_it(site, upstream):
    site.open()
    upstream.handler = only_chat()
    headers = {"x-lightning-target": f"{upstream.url}/v1/responses?x=1"}
    assert (await site.ask(ASKED, path="/responses", headers=headers))[0] == 200
    assert [received.path for received in upstream.received] == [
        "/v1/responses?x=1",
        "/v1/chat/completions",
    ]


async def test_what_runs_in_the_background_is_kept_for_an_upstream_that_keeps_nothing(
    site, upstream, observed
):
    await observed()
    upstream.handler = only_chat()
    async with openai.AsyncOpenAI(base_url=site.base(), api_key="x", max_retries=0) as client:
        for _ in range(2):
            response = await client.responses.create(**ASKED, background=True)
            assert response.status == "queued"
            while response.status in ("queued", "in_progress"):
                await asyncio.sleep(0.01)
                response = await client.responses.retrieve(response.id)
            assert response.output_text == "hey"
        with pytest.raises(openai.NotFoundError, match="known to this session"):
            await client.responses.retrieve("resp_none")
    assert [call.text for call in await site.calls()] == ["hey", "hey"]


async def test_a_strategy_changes_a_native_prompt(site, upstream, observed):
    slot = PromptTemplate(original="Be kind.", template="Be brief.")
    strategy = Strategy(prompt_templates={"rule": slot})
    await observed(strategy=CompiledStrategy(strategy))
    upstream.handler = reply_with(whole(MESSAGE))
    await site.ask({**SAID, "system": "Be kind."}, path="/messages")
    assert upstream.received[0].json["system"] == "Be brief."
    call = await site.call()
    assert [m["content"] for m in call.messages] == ["Be kind.", "hi"]
    assert [m["content"] for m in call.sent_messages] == ["Be brief.", "hi"]
    assert (call.request["system"], call.overrides) == ("Be kind.", {"system": "Be brief."})


async def test_what_chat_cannot_say_is_recorded_as_far_as_it_can(site, upstream, observed):
    await observed()
    upstream.handler = reply_with(whole(MESSAGE))
    tools = [{"type": "web_search_20250305", "name": "web_search"}]
    assert (await site.ask({**SAID, "tools": tools}, path="/messages"))[0] == 200
    call = await site.call()
    assert (call.messages, call.tools) == ([{"role": "user", "content": "hi"}], [])


# Tokens of sessions --------------------------------------------------------------------------------------------------


async def test_the_session_may_be_anthropics_key(site, upstream, observed):
    await observed()
    upstream.handler = reply_with(whole(MESSAGE))
    async with anthropic.AsyncAnthropic(
        base_url=site.url, api_key=site.token(), max_retries=0
    ) as client:
        assert (await client.messages.create(**SAID)).content[0].text == "hey"
    url, headers = f"{site.url}/v1/messages", {"x-api-key": site.token()}
    async with site.client.post(url, json=SAID, headers=headers) as response:
        assert response.status == 200
    assert not [sent for sent in upstream.received if "x-api-key" in sent.headers]
    assert [call.text for call in await site.calls()] == ["hey", "hey"]


async def test_a_policy_that_speaks_messages_is_told_its_key_as_anthropic_is(site, upstream):
    endpoint = Endpoint(base_url=f"{upstream.url}/v1", model="m", api_key="sk-policy")
    gives = frozenset({Capability.MESSAGES})
    policy = ServedPolicy(version=1, endpoints=(endpoint,), capabilities=gives)
    site.gateway.policies.set(policy)
    site.open(Mode.VAL)
    upstream.handler = reply_with(whole(MESSAGE))
    await site.ask(SAID, path="/messages", headers={"x-api-key": "sk-agents"})
    sent = upstream.received[0].headers
    assert (sent["x-api-key"], sent.get("authorization")) == ("sk-policy", None)


async def test_a_policy_that_is_asked_by_chat_is_told_its_key_as_openai_is(site, upstream):
    endpoint = Endpoint(base_url=f"{upstream.url}/v1", model="m", api_key="sk-policy")
    site.gateway.policies.set(ServedPolicy(version=1, endpoints=(endpoint,)))
    site.open(Mode.VAL)
    upstream.handler = only_chat()
    await site.ask(SAID, path="/messages", headers={"x-api-key": "sk-agents"})
    sent = upstream.received[0].headers
    assert (sent.get("x-api-key"), sent["authorization"]) == (None, "Bearer sk-policy")


@pytest.mark.parametrize("action", ["", "/count_tokens"])
async def test_an_upstream_of_its_own_has_the_calls_of_its_format(site, make_upstream, action):
    for_chat, for_messages = await make_upstream(), await make_upstream()
    for each in (for_chat, for_messages):
        each.handler = reply_with(whole({**completion(), **MESSAGE, "input_tokens": 9}))
    session = {"upstream": f"{for_chat.url}/v1", "upstreams": {"messages": f"{for_messages.url}/a/v1"}}  # fmt: skip
    site.open(**session)
    assert (await site.ask(SAID, path=f"/messages{action}"))[0] == 200
    assert (await site.ask({"model": "gpt", "messages": SAID["messages"]}))[0] == 200
    assert [each.path for each in for_messages.received] == [f"/a/v1/messages{action}"]
    assert [each.path for each in for_chat.received] == ["/v1/chat/completions"]


# Counts of tokens ----------------------------------------------------------------------------------------------------

COUNTED = {name: SAID[name] for name in ("model", "messages")}


async def test_tokens_are_counted_by_the_policys_tokenizer(site, upstream):
    site.gateway.policies.set(policy_at(upstream.url))
    session = site.open(Mode.TRAIN)
    upstream.handler = reply_with(whole({"count": 7, "max_model_len": 100, "tokens": [1] * 7}))
    async with anthropic.AsyncAnthropic(
        base_url=site.base().removesuffix("/v1"), api_key="x", max_retries=0
    ) as client:
        counted = await client.messages.count_tokens(**COUNTED, system="Be kind.")
    assert counted.input_tokens == 7
    (sent,) = upstream.received
    assert (sent.method, sent.path, sent.json["model"]) == ("POST", "/tokenize", "policy")
    assert [m["content"] for m in sent.json["messages"]] == ["Be kind.", "hi"]
    assert session.calls == 0
    assert await site.calls() == []


async def test_tokens_are_counted_by_the_provider(site, upstream, observed):
    await observed()
    upstream.handler = reply_with(whole({"input_tokens": 9}))
    status, data, _ = await site.ask(
        COUNTED, path="/messages/count_tokens", headers={"x-api-key": "sk-1"}
    )
    assert (status, json.loads(data)) == (200, {"input_tokens": 9})
    sent = upstream.received[0]
    assert (sent.path, sent.headers["x-api-key"]) == ("/v1/messages/count_tokens", "sk-1")
    assert await site.calls() == []


async def test_tokens_are_counted_by_an_upstream_that_speaks_only_chat(site, upstream, observed):
    await observed()

    async def handler(received, writer):
        known = received.path == "/tokenize"
        writer.write(whole({"count": 4}) if known else whole({}, 404))
        await writer.drain()

    upstream.handler = handler
    status, data, _ = await site.ask(COUNTED, path="/messages/count_tokens")
    assert (status, json.loads(data)) == (200, {"input_tokens": 4})


LONG = PromptTemplate(
    original="Be {how}.",
    template="Always be {how}, in every reply.",
    demonstrations=((Message(role="user", content="a"), Message(role="assistant", content="b")),),
)
LONGER = CompiledStrategy(
    Strategy(prompt_templates={"long": LONG}, models={"*": ModelChoice(model="big", max_tokens=9)})
)
REWRITTEN = ["Always be kind, in every reply.", "a", "b", "hi"]


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("native", [True, False])
async def test_what_a_strategy_would_send_is_counted(site, upstream, mode, native):
    gives = frozenset({Capability.MESSAGES} if native else ())
    site.gateway.policies.set(policy_at(upstream.url, capabilities=gives))
    site.open(mode, upstream=f"{upstream.url}/v1", strategy=LONGER)

    async def handler(received, writer):
        known = native or received.path == "/tokenize"
        counted = {"input_tokens": 9, "count": 9}
        writer.write(whole(counted) if known else whole({}, 404))
        await writer.drain()

    upstream.handler = handler
    asked = {**COUNTED, "system": "Be kind."}
    status, data, _ = await site.ask(asked, path="/messages/count_tokens")
    assert (status, json.loads(data)["input_tokens"]) == (200, 9)
    sent = upstream.received[-1].json
    system = [] if "system" not in sent else [sent["system"]]
    assert system + [message["content"] for message in sent["messages"]] == REWRITTEN
    assert ("system" in sent, "max_tokens" in sent) == (native, False)
    assert sent["model"] == ("policy" if mode is Mode.TRAIN else "big")


async def test_a_server_that_cannot_count_says_so(site):
    async with ScriptedServer() as model:
        site.gateway.policies.set(policy_at(model.url))
        site.open(Mode.TRAIN)
        status, data, _ = await site.ask(COUNTED, path="/messages/count_tokens")
    said = json.loads(data)
    assert (status, said["type"], said["error"]["type"]) == (404, "error", "not_found_error")
    assert "/tokenize" in said["error"]["message"]
    assert await site.calls() == []


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.TRAIN])
async def test_counts_without_a_policy_or_of_no_request_are_refused(site, upstream, mode):
    site.open(mode, upstream=f"{upstream.url}/v1")
    assert (await site.ask(b"[]", path="/messages/count_tokens"))[0] == 400
    if mode is Mode.TRAIN:
        assert (await site.ask(COUNTED, path="/messages/count_tokens"))[0] == 404


async def test_an_upstream_that_cannot_be_reached_is_an_error_of_the_format(site):
    site.open(upstream="http://127.0.0.1:9/v1")
    status, data, _ = await site.ask(SAID, path="/messages")
    assert (status, json.loads(data)["type"]) == (502, "error")
    assert (await site.call()).error.kind is CallErrorKind.REFUSED
