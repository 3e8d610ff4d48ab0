"""Observe mode: calls go where the agent meant them to go, and are recorded."""

from __future__ import annotations

import asyncio
import gzip
import json

import aiohttp
import pytest

from lightning_core.gateway import GatewayLimits
from lightning_core.rollout import Mode
from lightning_core.trace import CallErrorKind

from .conftest import (
    REQUEST,
    USAGE,
    chunk,
    chunked,
    completion,
    event,
    head,
    reply_with,
    stream_of,
    whole,
)


async def test_a_call_passes_and_is_recorded(site, upstream):
    session = site.open(upstream=f"{upstream.url}/v1")
    reply = completion("hello", system_fingerprint="fp")
    upstream.handler = reply_with(whole(reply, X_Request_Id="req-7"))
    headers = {
        "Authorization": "Bearer sk-secret",
        "x-lightning-labels": "span=s1&agent=writer&node=draft&step=2",
        "x-custom": "kept",
    }
    status, body, got = await site.ask(headers=headers)
    assert (status, json.loads(body)) == (200, reply)
    assert got["x-request-id"] == "req-7"
    (received,) = upstream.received
    assert received.path == "/v1/chat/completions"
    assert received.json == REQUEST
    assert received.headers["authorization"] == "Bearer sk-secret"
    assert received.headers["x-custom"] == "kept"
    assert received.headers["accept-encoding"] == "identity"
    assert not [name for name in received.headers if name.startswith("x-lightning")]
    call = await site.call()
    assert call.request == REQUEST
    assert call.choices[0].message == {"role": "assistant", "content": "hello"}
    assert call.choices[0].finish_reason == "stop"
    assert call.usage == USAGE
    assert call.reply["system_fingerprint"] == "fp"
    assert (call.model, call.status, call.complete, call.error) == ("m-1", 200, True, None)
    assert (call.span_id, call.agent, call.node) == ("s1", "writer", "draft")
    assert call.labels == {"step": "2"}
    assert call.target == f"{upstream.url}/v1/chat/completions"
    assert (call.dialect, call.mode, call.index, call.stream) == ("chat", "observe", 0, False)
    assert 0 < call.started_at <= call.first_byte_at <= call.ended_at
    assert (session.calls, session.tokens, session.last_error) == (1, 5, None)
    assert b"sk-secret" not in call.to_json()


async def test_a_stream_passes_and_is_recorded(site, upstream):
    site.open(upstream=f"{upstream.url}/v1")
    pieces = [
        event(chunk({"role": "assistant", "content": ""})),
        event(chunk({"content": "hel"})),
        event(chunk({"content": "lo"})),
        event(chunk({}, finish="stop")),
    ]
    usage = event(chunk(None, usage=USAGE))
    upstream.handler = stream_of(*pieces, usage, event("[DONE]"))
    status, body, headers = await site.ask({**REQUEST, "stream": True})
    assert status == 200
    assert headers["content-type"] == "text/event-stream"
    assert body == b"".join(pieces) + event("[DONE]")
    assert upstream.received[0].json["stream_options"] == {"include_usage": True}
    call = await site.call()
    assert call.text == "hello"
    assert call.usage == USAGE
    assert (call.stream, call.complete, call.error) == (True, True, None)
    assert call.overrides == {"stream_options": {"include_usage": True}}


async def test_a_stream_whose_usage_was_asked_for_is_untouched(site, upstream):
    site.open(upstream=f"{upstream.url}/v1")
    data = event(chunk({"content": "x"}, finish="stop")) + event(chunk(None, usage=USAGE))
    upstream.handler = stream_of(data + event("[DONE]"))
    request = {**REQUEST, "stream": True, "stream_options": {"include_usage": True}}
    _, body, _ = await site.ask(request)
    assert body == data + event("[DONE]")
    assert upstream.received[0].json == request
    call = await site.call()
    assert (call.usage, call.overrides) == (USAGE, {})


async def test_stream_usage_can_be_turned_off(make_site, upstream):
    site = await make_site(GatewayLimits(stream_usage=False))
    site.open(upstream=f"{upstream.url}/v1")
    upstream.handler = stream_of(event(chunk({"content": "x"}, finish="stop")) + event("[DONE]"))
    await site.ask({**REQUEST, "stream": True})
    assert "stream_options" not in upstream.received[0].json
    assert (await site.call()).complete


async def test_azures_first_event_without_choices_is_not_taken_for_usage(site, upstream):
    site.open(upstream=f"{upstream.url}/v1")
    first = event(chunk(None, prompt_filter_results=[{"prompt_index": 0}], usage=None))
    rest = event(chunk({"content": "x"}, finish="stop")) + event("[DONE]")
    upstream.handler = stream_of(first + rest)
    _, body, _ = await site.ask({**REQUEST, "stream": True})
    assert body == first + rest
    assert (await site.call()).reply["prompt_filter_results"] == [{"prompt_index": 0}]


@pytest.mark.parametrize("header", ["Authorization", "api-key"])
async def test_the_session_as_api_key_never_goes_upstream(site, upstream, header):
    site.open(upstream=f"{upstream.url}/v1")
    upstream.handler = reply_with(whole(completion()))
    token = site.token()
    headers = {header: f"Bearer {token}" if header == "Authorization" else token}
    async with site.client.post(
        f"{site.url}/v1/chat/completions", json=REQUEST, headers=headers
    ) as response:
        assert response.status == 200
    (received,) = upstream.received
    assert token not in str(received.headers)
    assert header.lower() not in received.headers
    assert (await site.call()).complete


async def test_the_target_header_wins_and_its_query_is_not_recorded(site, upstream):
    site.open(upstream="http://127.0.0.1:9/v1")
    upstream.handler = reply_with(whole(completion()))
    target = f"{upstream.url}/custom/v7/chat/completions?api-version=2&sig=secret"
    status, _, _ = await site.ask(headers={"x-lightning-target": target})
    assert status == 200
    assert upstream.received[0].path == "/custom/v7/chat/completions?api-version=2&sig=secret"
    assert (await site.call()).target == f"{upstream.url}/custom/v7/chat/completions"


async def test_a_target_that_is_the_session_itself_means_the_default_upstream(site, upstream):
    site.open(upstream=f"{upstream.url}/v1")
    upstream.handler = reply_with(whole(completion()))
    await site.ask(headers={"x-lightning-target": f"{site.base()}/chat/completions"})
    assert (await site.call()).complete
    assert len(upstream.received) == 1


@pytest.mark.parametrize(
    ("allowed", "host", "status"),
    [
        (["127.0.0.1"], None, 200),
        (["example.org"], None, 403),
        (["*.example.org"], "http://evil-example.org/v1/chat/completions", 403),
        (["127.0.0.1:1"], None, 403),
        ([], None, 403),
    ],
)
async def test_only_allowed_targets_are_called(make_site, upstream, allowed, host, status):
    site = await make_site(allow=allowed)
    site.open()
    upstream.handler = reply_with(whole(completion()))
    target = host or f"{upstream.url}/v1/chat/completions"
    got, body, _ = await site.ask(headers={"x-lightning-target": target})
    assert got == status
    if status == 403:
        assert json.loads(body)["error"]["code"] == "target_not_allowed"
        assert upstream.received == []


@pytest.mark.parametrize("target", ["ftp://x/v1", "not a url", "http://", "http://h:99999/"])
async def test_a_target_that_is_no_address_is_refused(site, target):
    site.open()
    status, body, _ = await site.ask(headers={"x-lightning-target": target})
    assert (status, json.loads(body)["error"]["code"]) == (400, "bad_request")


async def test_azure_form(site, upstream):
    site.open(upstream=upstream.url)
    upstream.handler = reply_with(whole({**completion(), "model": None}))
    path = "/openai/deployments/my-gpt/chat/completions?api-version=2024-10-21"
    body = json.dumps({"model": None, "messages": REQUEST["messages"]}).encode()
    url = f"{site.url}/s/{site.token()}{path}"
    headers = {"api-key": "azure-secret", "Content-Type": "application/json"}
    async with site.client.post(url, data=body, headers=headers) as response:
        assert response.status == 200
    (received,) = upstream.received
    assert (received.path, received.body) == (path, body)
    assert received.headers["api-key"] == "azure-secret"
    call = await site.call()
    assert (call.model, call.dialect) == ("my-gpt", "chat")
    assert b"azure-secret" not in call.to_json()


async def test_azure_form_to_an_openai_upstream_names_the_model_in_the_body(site, upstream):
    site.open(upstream=f"{upstream.url}/v1")
    upstream.handler = reply_with(whole(completion()))
    url = f"{site.url}/s/{site.token()}/openai/deployments/my-gpt/chat/completions?api-version=1"
    async with site.client.post(url, json=REQUEST) as response:
        assert response.status == 200
    assert upstream.received[0].path == "/v1/chat/completions"
    assert upstream.received[0].json["model"] == "my-gpt"


async def test_models_pass_through_and_are_no_call(site, upstream):
    site.open(upstream=f"{upstream.url}/v1")
    upstream.handler = reply_with(whole({"object": "list", "data": [{"id": "m"}]}))
    async with site.client.get(f"{site.base()}/models") as response:
        assert (await response.json())["data"] == [{"id": "m"}]
    async with site.client.get(f"{site.base()}/models/org/name") as response:
        assert response.status == 200
    assert [r.path for r in upstream.received] == ["/v1/models", "/v1/models/org/name"]
    assert await site.calls() == []


@pytest.mark.parametrize("mode", list(Mode))
async def test_embeddings_go_where_the_agent_meant_in_every_mode(site, upstream, mode):
    site.open(upstream=f"{upstream.url}/v1", mode=mode)
    reply = {
        "object": "list",
        "data": [{"index": 0, "embedding": [0.5, 1.0]}],
        "model": "emb",
        "usage": {"prompt_tokens": 4, "total_tokens": 4},
    }
    upstream.handler = reply_with(whole(reply))
    _, body, _ = await site.ask({"model": "emb", "input": "x"}, path="/embeddings")
    assert json.loads(body) == reply
    call = await site.call()
    assert (call.dialect, call.reply, call.total_tokens) == ("embeddings", reply, 4)
    assert call.complete


@pytest.mark.parametrize("stream", [False, True])
async def test_completions(site, upstream, stream):
    site.open(upstream=f"{upstream.url}/v1")
    head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m"}
    if stream:
        pieces = [
            event({**head, "choices": [{"index": 0, "text": text, "finish_reason": finish}]})
            for text, finish in [("he", None), ("llo", "stop")]
        ]
        upstream.handler = stream_of(*pieces, event("[DONE]"))
    else:
        choice = {"index": 0, "text": "hello", "finish_reason": "stop"}
        upstream.handler = reply_with(whole({**head, "choices": [choice], "usage": USAGE}))
    body = {"model": "m", "prompt": "p", "stream": stream}
    assert (await site.ask(body, path="/completions"))[0] == 200
    call = await site.call()
    assert call.choices[0].message == {"text": "hello"}
    assert call.messages == [{"role": "user", "content": "p"}]
    assert (call.dialect, call.choices[0].finish_reason, call.complete) == (
        "completions",
        "stop",
        True,
    )


@pytest.mark.parametrize("stream", [False, True])
async def test_a_compressed_reply_passes_as_it_is_and_is_read(make_site, upstream, stream):
    site = await make_site(GatewayLimits(stream_usage=False))
    site.open(upstream=f"{upstream.url}/v1")
    plain = event(chunk({"content": "hello"}, finish="stop")) + event("[DONE]")
    data = gzip.compress(plain if stream else json.dumps(completion("hello")).encode())
    kind = "text/event-stream" if stream else "application/json"
    upstream.handler = reply_with(whole(data, content_type=kind, Content_Encoding="gzip"))
    async with aiohttp.ClientSession(auto_decompress=False) as client:
        url = f"{site.base()}/chat/completions"
        async with client.post(url, json={**REQUEST, "stream": stream}) as response:
            assert await response.read() == data
            assert response.headers["content-encoding"] == "gzip"
    call = await site.call()
    assert (call.text, call.complete) == ("hello", True)


async def test_a_compressed_stream_is_decompressed_where_it_must_be_edited(site, upstream):
    site.open(upstream=f"{upstream.url}/v1")
    shown = event(chunk({"content": "hello"}, finish="stop"))
    data = gzip.compress(shown + event(chunk(None, usage=USAGE)) + event("[DONE]"))
    upstream.handler = reply_with(
        whole(data, content_type="text/event-stream", Content_Encoding="gzip")
    )
    status, body, headers = await site.ask({**REQUEST, "stream": True})
    assert (status, body) == (200, shown + event("[DONE]"))
    assert "content-encoding" not in headers
    assert (await site.call()).usage == USAGE


async def test_a_long_reply_passes_in_pieces(site, upstream):
    site.open(upstream=f"{upstream.url}/v1")
    reply = completion("y" * 3_000_000)
    upstream.handler = reply_with(whole(reply))
    request = {**REQUEST, "messages": [{"role": "user", "content": "x" * 2_000_000}]}
    status, body, _ = await site.ask(request)
    assert (status, json.loads(body)) == (200, reply)
    assert upstream.received[0].json == request
    call = await site.call()
    assert len(call.text) == 3_000_000
    assert call.complete


async def test_a_reply_longer_than_max_reply_passes_and_is_incomplete(make_site, upstream):
    site = await make_site(GatewayLimits(max_reply=1000))
    site.open(upstream=f"{upstream.url}/v1")
    upstream.handler = reply_with(whole(completion("y" * 5000)))
    status, body, _ = await site.ask()
    assert (status, len(json.loads(body)["choices"][0]["message"]["content"])) == (200, 5000)
    call = await site.call()
    assert (call.complete, call.error.kind) == (False, CallErrorKind.UNREADABLE)


async def test_what_only_other_json_writers_write_is_recorded(site, upstream):
    site.open(upstream=f"{upstream.url}/v1")
    reply = b'{"choices": [{"index": 0, "message": {"content": "a\\ud800b"}, "score": NaN}]}'
    upstream.handler = reply_with(whole(reply))
    body = b'{"model": "m", "messages": [{"role": "user", "content": "\\udfff"}]}'
    status, got, _ = await site.ask(body)
    assert (status, got) == (200, reply)
    assert upstream.received[0].body == body
    call = await site.call()
    assert call.text == "a\ufffdb"
    assert call.messages[0]["content"] == "\ufffd"


async def test_parallel_identical_calls_are_all_recorded(site, upstream):
    site.open(upstream=f"{upstream.url}/v1")
    upstream.handler = reply_with(whole(completion()))
    await asyncio.gather(*(site.ask() for _ in range(200)))
    calls = await site.calls()
    assert len({call.id for call in calls}) == 200
    assert [call.index for call in calls] == list(range(200))
    assert all(call.complete for call in calls)


async def test_a_kept_connection_that_the_upstream_closed_is_replaced(site, upstream):
    site.open(upstream=f"{upstream.url}/v1")

    async def answer_once_and_close(received, writer):
        writer.write(whole(completion()))
        await writer.drain()
        if len(upstream.received) == 1:
            writer.close()

    upstream.handler = answer_once_and_close
    assert [(await site.ask())[0] for _ in range(3)] == [200] * 3
    assert all(call.complete for call in await site.calls())


async def test_a_stream_is_live(site, upstream):
    site.open(upstream=f"{upstream.url}/v1")
    seen = asyncio.Event()
    first, second = event(chunk({"content": "a"})), event(chunk({"content": "b"}, finish="stop"))

    async def step_by_step(_, writer):
        writer.write(head(200, "text/event-stream", Transfer_Encoding="chunked"))
        await writer.drain()
        for piece in (first, second + event("[DONE]")):
            await seen.wait()
            seen.clear()
            writer.write(chunked(piece))
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    upstream.handler = step_by_step
    async with site.post({**REQUEST, "stream": True}) as response:
        assert response.status == 200  # the head comes before the first event
        seen.set()
        assert await response.content.readany() == first
        seen.set()
        assert await response.content.read() == second + event("[DONE]")
    assert (await site.call()).text == "ab"


async def test_headers_of_one_connection_do_not_pass(site, upstream):
    site.open(upstream=f"{upstream.url}/v1")
    upstream.handler = reply_with(
        whole(
            completion(),
            Connection="keep-alive, X-Hop",
            X_Hop="1",
            Keep_Alive="timeout=5",
            X_End="2",
        )
    )
    headers = {
        "Connection": "keep-alive, X-Private",
        "X-Private": "1",
        "X-Public": "2",
        "TE": "gzip",
    }
    _, _, got = await site.ask(headers=headers)
    sent = upstream.received[0].headers
    assert sent["x-public"] == "2"
    assert not {"x-private", "te", "connection"} & set(sent)
    assert sent["host"] == upstream.url.removeprefix("http://")
    assert got["x-end"] == "2"
    assert "x-hop" not in got
    assert "keep-alive" not in {name.lower() for name in got}


async def test_a_client_that_waits_for_100_continue_is_told_so(site, upstream):
    site.open(upstream=f"{upstream.url}/v1")
    upstream.handler = reply_with(whole(completion()))
    async with site.post(expect100=True) as response:
        assert response.status == 200
    assert "expect" not in upstream.received[0].headers
    assert (await site.call()).request == REQUEST


async def test_a_redirect_is_passed_on_but_leads_nowhere(site, upstream):
    site.open(upstream=f"{upstream.url}/v1")
    upstream.handler = reply_with(whole(b"", 307, Location="http://elsewhere.example/"))
    status, _, headers = await site.ask(allow_redirects=False)
    # A client that followed it would take the session to another host, past the record.
    assert status == 307
    assert "location" not in headers
    assert len(upstream.received) == 1


async def test_the_session_may_be_named_in_a_header(site, upstream):
    site.open(upstream="http://127.0.0.1:9/v1")
    upstream.handler = reply_with(whole(completion()))
    token = site.token()
    headers = {
        "x-lightning-session": token,
        "x-lightning-target": f"{upstream.url}/any/prefix/chat/completions",
        "Authorization": "Bearer sk-own",
    }
    async with site.client.post(
        f"{site.url}/any/prefix/chat/completions", json=REQUEST, headers=headers
    ) as response:
        assert response.status == 200
    assert upstream.received[0].headers["authorization"] == "Bearer sk-own"
    assert token not in str(upstream.received[0])
    assert (await site.call()).complete


async def test_a_client_that_does_not_keep_its_connection(site, upstream):
    site.open(upstream=f"{upstream.url}/v1")
    upstream.handler = reply_with(whole(completion()))
    status, _, headers = await site.ask(headers={"Connection": "close"})
    assert (status, headers["connection"]) == (200, "close")
    assert (await site.call()).complete


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_of_http_1_0(site, upstream, stream):
    site.open(upstream=f"{upstream.url}/v1")
    data = event(chunk({"content": "x"}, finish="stop")) + event("[DONE]")
    upstream.handler = stream_of(data) if stream else reply_with(whole(completion()))
    body = json.dumps({**REQUEST, "stream": stream}).encode()
    host, port = site.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    path = f"/s/{site.token()}/v1/chat/completions"
    writer.write(
        f"POST {path} HTTP/1.0\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    headers, _, got = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    assert b"chunked" not in headers
    assert got == data if stream else json.loads(got) == completion()
    assert (await site.call()).complete
