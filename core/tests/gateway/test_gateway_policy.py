"""Train and val mode: the run's policy answers, under the run's sampling, and its tokens are recorded."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from lightning_core.capability import Capability
from lightning_core.engine import Endpoint
from lightning_core.gateway import GatewayLimits
from lightning_core.rollout import Mode
from lightning_core.sampling import SAMPLING_FIELDS, SamplingPolicy
from lightning_core.trace import CallErrorKind, TokenSource
from lightning_core.wire import ServedPolicy

from .conftest import (
    REQUEST,
    USAGE,
    chunk,
    completion,
    event,
    policy_at,
    reply_with,
    stream_of,
    whole,
)

IDS = frozenset({Capability.TOKEN_IDS, Capability.LOGPROBS})
LIVE = IDS | {Capability.STREAM_TOKEN_IDS}


def with_ids(ids=(5, 6), logprobs=(-0.5, -0.25), text="hello", **message):
    reply = completion(text, prompt_token_ids=[1, 2, 3])
    reply["choices"][0]["message"] |= message
    reply["choices"][0]["token_ids"] = list(ids)
    reply["choices"][0]["logprobs"] = {
        "content": [{"token": "t", "logprob": value, "top_logprobs": []} for value in logprobs]
    }
    return reply


def sse(body: bytes):
    return [
        json.loads(item[6:]) if item != b"data: [DONE]" else "[DONE]"
        for item in body.strip().split(b"\n\n")
    ]


async def test_rollouts_of_a_group_ask_the_same_and_are_sampled_under_seeds_of_their_own(
    site, upstream
):
    site.gateway.policies.set(policy_at(upstream.url, version=1, train=SamplingPolicy(seed=7)))
    upstream.handler = reply_with(whole(completion()))
    for attempt in ("r1.1", "r2.1", "r1.2"):
        site.open(Mode.TRAIN, attempt=attempt, rollout=attempt.partition(".")[0])
        await site.ask(REQUEST, attempt=attempt)
    first, other, again = (received.json["seed"] for received in upstream.received)
    assert first != other
    assert first == again


@pytest.mark.parametrize("stream", [False, True])
async def test_a_reply_that_the_engine_gave_up_is_no_whole_reply(site, upstream, stream):
    """vLLM ends what still runs when it takes new weights, with status 200."""
    site.gateway.policies.set(policy_at(upstream.url, version=1))
    given_up = with_ids(text="hel")
    given_up["choices"][0]["finish_reason"] = "abort"
    session = site.open(Mode.TRAIN)
    upstream.handler = reply_with(whole(given_up))
    status, _, _ = await site.ask({**REQUEST, "stream": stream})
    assert status == 200
    call = await site.call()
    assert (call.text, call.complete, call.error.kind) == ("hel", False, CallErrorKind.CUT)
    assert "abort" in call.error.message
    assert session.last_error.kind is CallErrorKind.CUT


async def test_a_policy_that_is_only_used_is_sampled_as_the_agent_asks(site, upstream):
    served = SamplingPolicy(as_asked=True, temperature=0.0, max_tokens=5)
    site.gateway.policies.set(policy_at(upstream.url, version=1, val=served))
    site.open(Mode.VAL)
    upstream.handler = reply_with(whole(completion()))
    await site.ask({**REQUEST, "temperature": 0.9, "top_p": 0.5, "max_tokens": 100})
    [received] = upstream.received
    assert received.json["temperature"] == 0.9
    assert received.json["top_p"] == 0.5
    assert received.json["max_tokens"] == 5


async def test_the_policy_answers_under_the_runs_sampling(site, upstream):
    sampling = SamplingPolicy(temperature=0.7, top_p=0.9, top_k=50, seed=100, max_tokens=64)
    site.gateway.policies.set(policy_at(upstream.url, version=3, train=sampling))
    site.open(Mode.TRAIN)
    upstream.handler = reply_with(whole(completion()))
    odd = dict.fromkeys(SAMPLING_FIELDS, 1)
    request = {
        **REQUEST,
        **odd,
        "n": 2,
        "max_tokens": 1000,
        "max_completion_tokens": 10,
        "user": "u",
    }
    headers = {
        "Authorization": "Bearer sk-secret",
        "x-lightning-target": "http://elsewhere.example/v1/chat/completions",
    }
    for _ in range(2):
        await site.ask(request, headers=headers)
    first, second = (received.json for received in upstream.received)
    seeds = [received.pop("seed") for received in (first, second)]
    assert first == {
        "model": "policy",
        "messages": REQUEST["messages"],
        "user": "u",
        "n": 2,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 50,
        "max_tokens": 64,
        "max_completion_tokens": 10,
    }
    assert second == first
    assert seeds[1] == seeds[0] + 1 > 100
    assert "authorization" not in upstream.received[0].headers
    call, _ = await site.calls()
    assert call.request == request
    assert call.overrides["model"] == "policy"
    assert call.overrides["temperature"] == 0.7
    assert call.overrides["frequency_penalty"] is None
    assert "n" not in call.overrides
    assert "max_completion_tokens" not in call.overrides
    assert (call.policy_version, call.replica, call.mode) == (3, f"{upstream.url}/v1", "train")
    assert call.target == f"{upstream.url}/v1/chat/completions"


async def test_val_mode_has_its_own_sampling_and_n_can_be_refused(site, upstream):
    val = SamplingPolicy(temperature=0, allow_n=False, max_tokens=7)
    site.gateway.policies.set(policy_at(upstream.url, val=val))
    site.open(Mode.VAL)
    upstream.handler = reply_with(whole(completion()))
    await site.ask({**REQUEST, "n": 4, "temperature": 1.5, "max_completion_tokens": None})
    sent = upstream.received[0].json
    assert (sent["temperature"], sent["max_tokens"]) == (0, 7)
    assert "n" not in sent


async def test_a_replicas_key_is_sent_and_not_recorded(site, upstream):
    endpoint = Endpoint(base_url=f"{upstream.url}/v1/", model="m", api_key="engine-key")
    site.gateway.policies.set(ServedPolicy(version=1, endpoints=(endpoint,)))
    site.open(Mode.TRAIN)
    upstream.handler = reply_with(whole(completion()))
    await site.ask(headers={"Authorization": "Bearer sk-secret", "Cookie": "c=1"})
    assert upstream.received[0].headers["authorization"] == "Bearer engine-key"
    assert "cookie" not in upstream.received[0].headers
    assert b"engine-key" not in (await site.call()).to_json()


async def test_without_a_policy_there_is_no_model(site):
    site.open(Mode.TRAIN)
    status, body, _ = await site.ask()
    assert (status, json.loads(body)["error"]["code"]) == (404, "unknown_model")
    assert (await site.call()).status == 404


async def test_models_are_the_policys(site, upstream):
    site.gateway.policies.set(policy_at(upstream.url, model="org/policy"))
    site.open(Mode.VAL)
    async with site.client.get(f"{site.base()}/models") as response:
        assert [model["id"] for model in (await response.json())["data"]] == ["org/policy"]
    async with site.client.get(f"{site.base()}/models/org/policy") as response:
        assert (await response.json())["id"] == "org/policy"
    async with site.client.get(f"{site.base()}/models/gpt") as response:
        assert response.status == 404
    assert upstream.received == []


async def test_token_ids_are_asked_for_recorded_and_not_shown(site, upstream):
    site.gateway.policies.set(policy_at(upstream.url, capabilities=IDS))
    site.open(Mode.TRAIN)
    upstream.handler = reply_with(whole(with_ids()))
    _, body, _ = await site.ask()
    sent = upstream.received[0].json
    assert (sent["return_token_ids"], sent["logprobs"]) == (True, True)
    assert "top_logprobs" not in sent
    assert json.loads(body) == completion("hello")
    call = await site.call()
    assert call.prompt_token_ids == (1, 2, 3)
    assert call.choices[0].token_ids == (5, 6)
    assert call.choices[0].logprobs == (-0.5, -0.25)
    assert call.token_source is TokenSource.ENGINE
    assert "prompt_token_ids" not in call.reply


async def test_what_the_agent_asked_for_is_shown(site, upstream):
    site.gateway.policies.set(policy_at(upstream.url, capabilities=IDS))
    site.open(Mode.TRAIN)
    upstream.handler = reply_with(whole(with_ids()))
    request = {**REQUEST, "logprobs": True, "top_logprobs": 2, "return_token_ids": True}
    _, body, _ = await site.ask(request)
    assert json.loads(body) == with_ids()
    assert upstream.received[0].json["top_logprobs"] == 2


async def test_logprobs_that_do_not_match_the_ids_are_left_out(site, upstream):
    site.gateway.policies.set(policy_at(upstream.url, capabilities=IDS))
    site.open(Mode.TRAIN)
    upstream.handler = reply_with(whole(with_ids(logprobs=(-0.5,))))
    await site.ask()
    call = await site.call()
    assert call.choices[0].token_ids == (5, 6)
    assert call.choices[0].logprobs is None
    assert "do not match" in call.reply["lightning_note"]


async def test_ids_that_were_promised_and_did_not_come_are_noted(site, upstream):
    site.gateway.policies.set(policy_at(upstream.url, capabilities=IDS))
    site.open(Mode.TRAIN)
    upstream.handler = reply_with(whole(completion()))
    await site.ask()
    call = await site.call()
    assert call.token_source is None
    assert "gave none" in call.reply["lightning_note"]


async def test_completions_ids_and_logprobs(site, upstream):
    site.gateway.policies.set(policy_at(upstream.url, capabilities=IDS))
    site.open(Mode.TRAIN)
    choice = {
        "index": 0,
        "text": "hi",
        "finish_reason": "stop",
        "token_ids": [5],
        "prompt_token_ids": [1, 2],
        "logprobs": {"tokens": ["hi"], "token_logprobs": [-0.5]},
    }
    reply = {"id": "c", "object": "text_completion", "model": "m", "choices": [choice]}
    upstream.handler = reply_with(whole(reply))
    for stream in (False, True):
        body = {"model": "x", "prompt": "p", "stream": stream}
        _, data, _ = await site.ask(body, path="/completions")
        assert b"token_ids" not in data
        assert b"token_logprobs" not in data
        if stream:
            events = sse(data)
            assert "".join(e["choices"][0]["text"] for e in events[:-1]) == "hi"
            assert events[-2]["choices"][0]["finish_reason"] == "stop"
    assert [received.json["logprobs"] for received in upstream.received] == [1, 1]
    for call in await site.calls():
        assert call.prompt_token_ids == (1, 2)
        assert (call.choices[0].token_ids, call.choices[0].logprobs) == ((5,), (-0.5,))


TOOLS = [
    {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
    {"id": "b", "type": "function", "function": {"name": "g", "arguments": '{"x":1}'}},
]


@pytest.mark.parametrize("asked", [False, True])
async def test_a_stream_is_remade_where_the_engine_cannot_stream_ids(site, upstream, asked):
    site.gateway.policies.set(policy_at(upstream.url, capabilities=IDS))
    site.open(Mode.TRAIN)
    upstream.handler = reply_with(whole(with_ids(tool_calls=TOOLS, reasoning_content="hm")))
    request = {**REQUEST, "stream": True}
    if asked:
        request |= {"stream_options": {"include_usage": True}, "logprobs": True}
    status, body, headers = await site.ask(request)
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    sent = upstream.received[0].json
    assert sent["stream"] is False
    assert "stream_options" not in sent
    *events, done = sse(body)
    assert done == "[DONE]"
    assert {e["object"] for e in events} == {"chat.completion.chunk"}
    assert {e["id"] for e in events} == {"chatcmpl-1"}
    if asked:
        assert events.pop() == {**chunk(None), "usage": USAGE}
        assert b'"logprob":-0.5' in body
    else:
        assert b"usage" not in body
        assert b'"logprob":' not in body
    assert b"token_ids" not in body
    deltas = [e["choices"][0]["delta"] for e in events]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert {"reasoning_content": "hm"} in deltas
    assert {"content": "hello"} in deltas
    assert [d["tool_calls"] for d in deltas if "tool_calls" in d] == [
        [{"index": number, **tool}] for number, tool in enumerate(TOOLS)
    ]
    assert [e["choices"][0]["finish_reason"] for e in events] == [None] * (len(events) - 1) + [
        "stop"
    ]
    call = await site.call()
    assert call.choices[0].token_ids == (5, 6)
    assert call.tool_calls == TOOLS
    assert (call.stream, call.complete) == (True, True)


async def test_an_error_of_a_remade_stream_passes_unchanged(site, upstream):
    site.gateway.policies.set(policy_at(upstream.url, capabilities=IDS))
    site.open(Mode.TRAIN)
    upstream.handler = reply_with(whole(b"busy", 429, "text/plain", Retry_After="3"))
    status, body, headers = await site.ask({**REQUEST, "stream": True})
    assert (status, body, headers["retry-after"]) == (429, b"busy", "3")


async def test_a_live_stream_with_ids_is_scrubbed_event_by_event(site, upstream):
    site.gateway.policies.set(policy_at(upstream.url, capabilities=LIVE))
    site.open(Mode.TRAIN)

    def piece(text, token, logprob, **top):
        value = chunk({"content": text}, **top)
        value["choices"][0]["token_ids"] = [token]
        value["choices"][0]["logprobs"] = {"content": [{"token": text, "logprob": logprob}]}
        return event(value)

    upstream.handler = stream_of(
        event(chunk({"role": "assistant"}, prompt_token_ids=[1, 2])),
        piece("he", 5, -0.5) + piece("llo", 6, -0.25),
        event(chunk({}, finish="stop")) + event(chunk(None, usage=USAGE)) + event("[DONE]"),
    )
    _, body, _ = await site.ask({**REQUEST, "stream": True})
    sent = upstream.received[0].json
    assert (sent["stream"], sent["return_token_ids"], sent["logprobs"]) == (True, True, True)
    *events, done = sse(body)
    assert done == "[DONE]"
    assert [e["choices"][0]["delta"] for e in events] == [
        {"role": "assistant"},
        {"content": "he"},
        {"content": "llo"},
        {},
    ]
    assert b"token_ids" not in body
    assert b'"logprob"' not in body
    call = await site.call()
    assert call.prompt_token_ids == (1, 2)
    assert (call.choices[0].token_ids, call.choices[0].logprobs) == ((5, 6), (-0.5, -0.25))
    assert (call.text, call.complete) == ("hello", True)


async def test_a_rollout_sticks_to_one_replica_and_rollouts_spread(site, make_upstream):
    replicas = [await make_upstream() for _ in range(3)]
    for replica in replicas:
        replica.handler = reply_with(whole(completion()))
    site.gateway.policies.set(policy_at(*(replica.url for replica in replicas)))
    used = set()
    for number in range(40):
        attempt = f"r{number}.1"
        site.open(Mode.TRAIN, attempt=attempt, rollout=f"r{number}")
        for _ in range(3):
            await site.ask(attempt=attempt)
        chosen = {call.replica for call in await site.calls(attempt)}
        assert len(chosen) == 1
        used |= chosen
    assert len(used) == 3


async def test_a_dead_replica_is_skipped(site, make_upstream):
    alive = await make_upstream()
    alive.handler = reply_with(whole(completion()))
    breaking = await make_upstream()

    async def close(_, writer):
        writer.close()

    breaking.handler = close
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{taken.getsockname()[1]}"
        site.gateway.policies.set(policy_at(dead, breaking.url, alive.url))
        for number in range(12):
            attempt = f"r{number}.1"
            site.open(Mode.TRAIN, attempt=attempt, rollout=f"r{number}")
            assert (await site.ask(attempt=attempt))[0] == 200
            assert (await site.call(attempt)).replica == f"{alive.url}/v1"
        assert len(breaking.received) <= 2, "a dead replica is asked last for a while"
        site.gateway.policies.set(policy_at(dead, version=2))
        site.open(Mode.TRAIN)
        status, body, _ = await site.ask()
    assert (status, json.loads(body)["error"]["code"]) == (502, "refused")


async def test_pause_drain_resume(site, upstream, make_upstream):
    after = await make_upstream()
    after.handler = reply_with(whole(completion("new")))
    site.gateway.policies.set(policy_at(upstream.url, version=1))
    site.open(Mode.TRAIN)
    site.open(attempt="o.1", rollout="o", upstream=f"{after.url}/v1")
    release = asyncio.Event()

    async def slow(_, writer):
        await release.wait()
        writer.write(whole(completion("old")))

    upstream.handler = slow
    first = asyncio.ensure_future(site.ask())
    await upstream.arrived.wait()
    assert await site.gateway.policies.pause(0.05) is False
    assert site.gateway.policies.default.paused
    assert site.gateway.policies.default.in_flight == 1
    second = asyncio.ensure_future(site.ask())
    assert (await site.ask(attempt="o.1"))[0] == 200  # observed calls go on
    release.set()
    assert b"old" in (await first)[1]
    assert await site.gateway.policies.pause(30) is True
    assert not second.done()
    site.gateway.policies.set(policy_at(after.url, version=2))
    site.gateway.policies.resume()
    assert b"new" in (await second)[1]
    calls = await site.calls()
    assert [call.policy_version for call in calls] == [1, 2]
    assert site.gateway.in_flight == 0


async def test_a_pause_that_lasts_too_long(make_site, upstream):
    site = await make_site(GatewayLimits(max_pause=0.1))
    site.gateway.policies.set(policy_at(upstream.url))
    site.open(Mode.TRAIN)
    assert await site.gateway.policies.pause(1)
    status, body, headers = await site.ask()
    assert (status, json.loads(body)["error"]["code"]) == (503, "paused")
    assert int(headers["retry-after"]) > 0
    assert (await site.call()).error.kind is CallErrorKind.PAUSED
