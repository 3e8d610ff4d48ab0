"""The scripted server as an OpenAI SDK, a raw client and another process see it."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import openai
import pytest

from lightning_core.testing import (
    END,
    Choices,
    Cut,
    Delay,
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
from lightning_core.testing.replies import logprob

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def server():
    async with ScriptedServer() as server:
        yield server


@pytest.fixture
async def client(server):
    async with openai.AsyncOpenAI(
        base_url=server.base_url, api_key="sk-test", max_retries=0
    ) as client:
        yield client


async def test_echo_and_what_was_recorded(server, client):
    reply = await client.chat.completions.create(
        model="m",
        messages=HI,
        temperature=0.5,
        extra_query={"a": "b"},
        extra_headers={"X-One": "1"},
    )
    assert reply.choices[0].message.content == "hi"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.prompt_tokens == len(prompt_token_ids(HI))
    assert reply.usage.completion_tokens == len(tokenize("hi")) + 1
    (request,) = server.requests
    assert (request.method, request.path, request.query) == (
        "POST",
        "/v1/chat/completions",
        {"a": "b"},
    )
    assert request.headers["x-one"] == "1"
    assert request.api_key == "sk-test"
    assert request.model == "m"
    assert request.messages == HI
    assert request.json["temperature"] == 0.5
    assert not request.stream
    assert request.finished
    assert not request.disconnected


async def test_replies_come_in_order_then_the_responder_then_the_echo(server, client):
    server.enqueue("one", Text("two", finish_reason="length"))
    server.respond(lambda request: f"{request.model}!")
    assert server.pending == 2
    replies = [await client.chat.completions.create(model="m", messages=HI) for _ in range(3)]
    assert [r.choices[0].message.content for r in replies] == ["one", "two", "m!"]
    assert replies[1].choices[0].finish_reason == "length"
    assert server.pending == 0
    server.respond(None)
    reply = await client.chat.completions.create(model="m", messages=HI)
    assert reply.choices[0].message.content == "hi"


async def test_a_responder_may_wait_and_one_that_raises_answers_500(server, client):
    release = asyncio.Event()

    async def held(request):
        await release.wait()
        return "released"

    server.respond(held)
    call = asyncio.create_task(client.chat.completions.create(model="m", messages=HI))
    await server.wait_for(1)
    assert not call.done()
    release.set()
    assert (await call).choices[0].message.content == "released"

    server.respond(lambda request: 1 / 0)
    with pytest.raises(openai.InternalServerError, match="ZeroDivisionError"):
        await client.chat.completions.create(model="m", messages=HI)


async def test_a_stream_has_role_pieces_finish_and_usage(server, client):
    server.enqueue("one two  three\n")
    stream = await client.chat.completions.create(
        model="m", messages=HI, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    pieces = [c.choices[0].delta.content for c in chunks[1:-2]]
    assert len(pieces) > 2
    assert "".join(pieces) == "one two  three\n"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == len(b"one two  three\n") + 1
    assert len({c.id for c in chunks}) == 1


async def test_without_include_usage_no_chunk_speaks_of_usage(server):
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"{server.base_url}/chat/completions", json={"messages": HI, "stream": True}
        ) as reply,
    ):
        assert reply.content_type == "text/event-stream"
        events = [e for e in (await reply.text()).split("\n\n") if e]
    assert events[-1] == "data: [DONE]"
    assert all("usage" not in json.loads(e.removeprefix("data: ")) for e in events[:-1])


@pytest.mark.parametrize("arguments", [{"city": "Bern", "days": 3}, "{broken", ""])
async def test_tool_calls_are_the_same_whole_and_streamed(server, client, arguments):
    calls = ToolCalls([ToolCall("weather", arguments, id="call_a"), ToolCall("stop")], text="Hm.")
    server.enqueue(calls, calls)
    whole = (await client.chat.completions.create(model="m", messages=HI)).choices[0]
    assert whole.finish_reason == "tool_calls"
    assert whole.message.content == "Hm."
    sent = arguments if isinstance(arguments, str) else json.dumps(arguments)
    assert [(c.function.name, c.function.arguments) for c in whole.message.tool_calls] == [
        ("weather", sent),
        ("stop", "{}"),
    ]
    assert whole.message.tool_calls[0].id == "call_a"
    assert whole.message.tool_calls[1].id

    joined: dict[int, list[str]] = {}
    ids = {}
    stream = await client.chat.completions.create(model="m", messages=HI, stream=True)
    async for chunk in stream:
        for delta in chunk.choices[0].delta.tool_calls or ():
            name, args = joined.get(delta.index, ("", ""))
            ids.setdefault(delta.index, delta.id)
            joined[delta.index] = (
                name + (delta.function.name or ""),
                args + delta.function.arguments,
            )
    assert joined == {0: ("weather", sent), 1: ("stop", "{}")}
    assert ids[0] == "call_a"


async def test_n_repeats_one_reply_and_choices_differ(server, client):
    server.enqueue("same", Choices([Text("left a b"), ToolCalls([ToolCall("f")])]))
    same = await client.chat.completions.create(model="m", messages=HI, n=3)
    assert [(c.index, c.message.content) for c in same.choices] == [
        (0, "same"),
        (1, "same"),
        (2, "same"),
    ]
    stream = await client.chat.completions.create(model="m", messages=HI, n=2, stream=True)
    order, texts, ends = [], {}, {}
    async for chunk in stream:
        (choice,) = chunk.choices
        order.append(choice.index)
        texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
        ends.setdefault(choice.index, choice.finish_reason)
        ends[choice.index] = choice.finish_reason or ends[choice.index]
    assert texts[0] == "left a b"
    assert ends == {0: "stop", 1: "tool_calls"}
    assert order != sorted(order), "the choices of a stream come interleaved"


async def test_token_ids_and_logprobs_have_one_length_and_a_turn_extends_the_last(server, client):
    ask = {"model": "m", "logprobs": True, "extra_body": {"return_token_ids": True}}
    reply = await client.chat.completions.create(messages=HI, **ask)
    (choice,) = reply.choices
    assert tuple(reply.prompt_token_ids) == prompt_token_ids(HI)
    assert tuple(choice.token_ids) == (*tokenize("hi"), END)
    values = [entry.logprob for entry in choice.logprobs.content]
    assert values == [logprob(t, i) for i, t in enumerate(choice.token_ids)]
    assert all(value < 0 for value in values)

    longer = [*HI, choice.message.model_dump(exclude_none=True), {"role": "user", "content": "é"}]
    again = await client.chat.completions.create(messages=longer, **ask)
    before = [*reply.prompt_token_ids, *choice.token_ids]
    assert again.prompt_token_ids[: len(before)] == before
    assert tuple(again.choices[0].token_ids) == (*"é".encode(), END)


@pytest.mark.parametrize(
    "reply",
    [
        Text("one two three"),
        Text("cut off", finish_reason="length"),
        ToolCalls([ToolCall("f")]),
        Text(""),
    ],
    ids=["text", "length", "tools", "empty"],
)
async def test_a_stream_carries_the_same_ids_and_logprobs_as_the_whole_reply(server, client, reply):
    server.enqueue(reply, reply)
    ask = {
        "model": "m",
        "messages": HI,
        "logprobs": True,
        "top_logprobs": 1,
        "extra_body": {"return_token_ids": True},
    }
    whole = await client.chat.completions.create(**ask)
    ids, values, prompts = [], [], []
    async for chunk in await client.chat.completions.create(stream=True, **ask):
        prompts.append(getattr(chunk, "prompt_token_ids", None))
        (choice,) = chunk.choices
        ids += choice.token_ids
        if choice.logprobs:
            assert len(choice.logprobs.content) == len(choice.token_ids)
            values += [entry.logprob for entry in choice.logprobs.content]
            assert all(len(entry.top_logprobs) == 1 for entry in choice.logprobs.content)
    assert prompts[0] == whole.prompt_token_ids
    assert not any(prompts[1:])
    assert ids == whole.choices[0].token_ids
    assert values == [entry.logprob for entry in whole.choices[0].logprobs.content]
    assert len(ids) == whole.usage.completion_tokens


async def test_given_token_ids_logprobs_and_usage_go_out_as_they_are(server, client):
    usage = {"prompt_tokens": 1000, "completion_tokens": 3, "total_tokens": 1003}
    text = Text("a b", token_ids=(7, 8, 9), logprobs=(-0.5, -1.5, -2.5), usage=usage)
    server.enqueue(text, text)
    ask = {
        "model": "m",
        "messages": HI,
        "logprobs": True,
        "extra_body": {"return_token_ids": True, "return_tokens_as_token_ids": True},
    }
    whole = await client.chat.completions.create(**ask)
    assert whole.choices[0].token_ids == [7, 8, 9]
    entries = whole.choices[0].logprobs.content
    assert [(e.token, e.logprob) for e in entries] == [
        ("token_id:7", -0.5),
        ("token_id:8", -1.5),
        ("token_id:9", -2.5),
    ]
    assert whole.usage.total_tokens == 1003
    chunks = [c async for c in await client.chat.completions.create(stream=True, **ask)]
    assert [i for c in chunks for i in c.choices[0].token_ids] == [7, 8, 9]


async def test_ids_and_logprobs_come_only_when_asked_for(server, client):
    reply = (await client.chat.completions.create(model="m", messages=HI)).model_dump()
    assert "prompt_token_ids" not in reply
    assert "token_ids" not in reply["choices"][0]
    assert reply["choices"][0]["logprobs"] is None
    async with (
        ScriptedServer(token_ids=False) as plain,
        openai.AsyncOpenAI(base_url=plain.base_url, api_key="k") as other,
    ):
        asked = await other.chat.completions.create(
            model="m", messages=HI, extra_body={"return_token_ids": True}
        )
        assert "prompt_token_ids" not in asked.model_dump()


async def test_extra_message_fields_are_sent_whole_and_streamed(server, client):
    reply = Text("four", message={"reasoning_content": "two and two"})
    server.enqueue(reply, reply)
    whole = await client.chat.completions.create(model="m", messages=HI)
    assert whole.choices[0].message.reasoning_content == "two and two"
    chunks = [
        c async for c in await client.chat.completions.create(model="m", messages=HI, stream=True)
    ]
    deltas = [c.choices[0].delta.model_dump() for c in chunks]
    assert [d["reasoning_content"] for d in deltas if "reasoning_content" in d] == ["two and two"]


async def test_errors_keep_status_body_and_headers(server, client):
    server.enqueue(
        Error(
            429, {"error": {"message": "slow down", "code": "rate"}}, headers={"retry-after": "7"}
        ),
        Error(503, "<html>down</html>"),
        Error(500),
    )
    with pytest.raises(openai.RateLimitError, match="slow down") as limited:
        await client.chat.completions.create(model="m", messages=HI)
    assert limited.value.response.headers["retry-after"] == "7"
    with pytest.raises(openai.InternalServerError) as down:
        await client.chat.completions.create(model="m", messages=HI)
    assert down.value.response.text == "<html>down</html>"
    assert down.value.response.headers["content-type"].startswith("text/plain")
    with pytest.raises(openai.InternalServerError, match="scripted error 500"):
        await client.chat.completions.create(model="m", messages=HI, stream=True)


async def test_the_sdk_retries_after_an_error_and_gets_the_next_reply(server):
    server.enqueue(Error(500, headers={"retry-after-ms": "1"}), "second")
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="k", max_retries=1) as client:
        reply = await client.chat.completions.create(model="m", messages=HI)
    assert reply.choices[0].message.content == "second"
    assert [r.headers["x-stainless-retry-count"] for r in server.requests] == ["0", "1"]


async def test_raw_bytes_break_the_format(server):
    server.enqueue(Raw(b"not json", status=200, headers={"x-a": "b"}))
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{server.base_url}/chat/completions", json={"messages": HI}) as reply,
    ):
        assert (reply.status, reply.content_type) == (200, "application/json")
        assert reply.headers["x-a"] == "b"
        assert await reply.read() == b"not json"


async def test_a_cut_stream_sends_so_many_events_and_no_end(server):
    server.enqueue(Cut(3, "a b c d e"))
    got = b""

    async def read(reply):
        nonlocal got
        async for line in reply.content:
            got += line

    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"{server.base_url}/chat/completions", json={"messages": HI, "stream": True}
        ) as reply,
    ):
        with pytest.raises(aiohttp.ClientPayloadError):
            await read(reply)
    assert got.count(b"data: ") == 3
    assert b"[DONE]" not in got
    assert not server.requests[0].disconnected, "it was the server that hung up"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cut_before_the_first_byte_and_in_the_middle_of_a_body(server, client, stream):
    server.enqueue(Cut(0), Cut(1))

    async def call():
        reply = await client.chat.completions.create(model="m", messages=HI, stream=stream)
        async for _chunk in reply:
            pass

    for _ in range(2):
        with pytest.raises(openai.APIConnectionError):
            await call()
    assert len(server.requests) == 2


@pytest.mark.parametrize("after_chunks", [0, 2])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_gives_up_is_seen(server, client, stream, after_chunks):
    server.enqueue(Hang(after_chunks, "a b c"))

    async def call():
        reply = await client.chat.completions.create(model="m", messages=HI, stream=stream)
        async for _chunk in reply:
            pass

    task = asyncio.create_task(call())
    await server.wait_for(1)
    (request,) = server.requests
    assert not request.disconnected
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(30):
        await request.disconnected
        await request.finished
    assert request.disconnected


async def test_a_client_that_leaves_a_paced_stream_is_seen(server, client):
    server.enqueue("word " * 50, chunk_delay=0.02)
    stream = await client.chat.completions.create(model="m", messages=HI, stream=True)
    async for _ in stream:
        break
    await stream.close()
    async with asyncio.timeout(30):
        await server.requests[0].disconnected


async def test_delays_hold_back_the_reply_and_its_chunks(server, client):
    server.enqueue(Delay(0.05, Text("a b c"), chunk_delay=0.02))
    loop = asyncio.get_running_loop()
    start = loop.time()
    stream = await client.chat.completions.create(model="m", messages=HI, stream=True)
    async for _ in stream:
        pass
    # Role, three words, finish, [DONE]: five gaps.
    assert loop.time() - start >= 0.05 + 5 * 0.02 - 0.01


async def test_text_completions_with_many_prompts_ids_and_logprobs(server, client):
    ask = {"model": "m", "logprobs": 1, "extra_body": {"return_token_ids": True}}
    reply = await client.completions.create(prompt=["ab", "c d"], n=2, **ask)
    assert [c.text for c in reply.choices] == ["ab", "ab", "c d", "c d"]
    assert [tuple(c.prompt_token_ids) for c in reply.choices] == [
        tokenize(p) for p in ("ab", "ab", "c d", "c d")
    ]
    assert tuple(reply.choices[2].token_ids) == (*tokenize("c d"), END)
    assert len(reply.choices[2].logprobs.token_logprobs) == 4

    text, ids, prompts = "", [], []
    async for chunk in await client.completions.create(prompt="c d", stream=True, **ask):
        (choice,) = chunk.choices
        text += choice.text
        ids += choice.token_ids
        prompts.append(getattr(choice, "prompt_token_ids", None))
    assert text == "c d"
    assert ids == reply.choices[2].token_ids
    assert prompts[0] == list(tokenize("c d"))
    assert not any(prompts[1:])


async def test_a_prompt_of_token_ids(server, client):
    reply = await client.completions.create(model="m", prompt=[104, 105])
    assert reply.choices[0].text == "hi"
    assert reply.usage.prompt_tokens == 2


async def test_embeddings_depend_on_the_text_alone(server, client):
    both = await client.embeddings.create(model="m", input=["one", "two"])
    one = await client.embeddings.create(model="m", input="one", encoding_format="float")
    sized = await client.embeddings.create(model="m", input="one", dimensions=3)
    assert both.data[0].embedding == one.data[0].embedding
    assert both.data[1].embedding != one.data[0].embedding
    assert len(one.data[0].embedding) == 8
    assert sized.data[0].embedding == one.data[0].embedding[:3]


async def test_models_are_listed_and_take_nothing_from_the_queue(client, server):
    server.enqueue("kept")
    assert [model.id async for model in client.models.list()] == ["scripted"]
    assert (await client.models.retrieve("scripted")).id == "scripted"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("other")
    server.respond(lambda request: Error(401))
    with pytest.raises(openai.AuthenticationError):
        await client.models.list()
    assert server.pending == 1


async def test_azure_and_prefixed_paths(server):
    async with openai.AsyncAzureOpenAI(
        azure_endpoint=server.url, api_key="azure-key", api_version="2024-06-01"
    ) as azure:
        await azure.chat.completions.create(model="my-deployment", messages=HI)
    request = server.requests[0]
    assert request.path == "/openai/deployments/my-deployment/chat/completions"
    assert request.query == {"api-version": "2024-06-01"}
    assert request.model == "my-deployment"
    assert request.api_key == "azure-key"
    async with openai.AsyncOpenAI(base_url=f"{server.url}/s/x/v1", api_key="k") as prefixed:
        reply = await prefixed.chat.completions.create(model="m", messages=HI)
    assert reply.choices[0].message.content == "hi"


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("chat/completions", b"{", 400),
        ("chat/completions", b"[]", 400),
        ("chat/completions", b'{"messages": []}', 400),
        ("chat/completions", b'{"messages": ["hi"]}', 400),
        ("completions", b"{}", 400),
        ("embeddings", b"{}", 400),
        ("nowhere", b"{}", 404),
    ],
)
async def test_bad_requests_are_refused_recorded_and_take_nothing_from_the_queue(
    server, path, body, status
):
    server.enqueue("kept")
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{server.base_url}/{path}", data=body) as reply,
    ):
        assert reply.status == status
        assert (await reply.json())["error"]["message"].startswith("scripted server: ")
    assert server.requests[0].body == body
    assert server.pending == 1


async def test_a_body_of_twenty_megabytes_is_taken(server, client):
    text = "x" * (20 << 20)
    server.enqueue("fine")
    await client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])
    assert server.requests[0].messages[0]["content"] == text


def test_what_is_no_reply_is_refused_where_it_is_written(scripted_server):
    with pytest.raises(TypeError, match="got 42"):
        scripted_server.enqueue(42)


async def test_mismatched_logprobs_answer_500_with_the_reason(server, client):
    server.enqueue(Text("abc", logprobs=(-1.0,)))
    with pytest.raises(openai.InternalServerError, match=r"as many log-probabilities .* \(4\)"):
        await client.chat.completions.create(model="m", messages=HI)


async def test_closing_ends_held_requests_and_tells_those_who_wait():
    async with ScriptedServer() as server:
        server.enqueue(Hang())
        client = openai.AsyncOpenAI(base_url=server.base_url, api_key="k", max_retries=0)
        call = asyncio.create_task(client.chat.completions.create(model="m", messages=HI))
        await server.wait_for(1)
        more = server.wait_for(5)
    with pytest.raises(openai.APIConnectionError):
        await call
    with pytest.raises(RuntimeError, match="closed after 1 requests; 5 were waited for"):
        await more
    with pytest.raises(RuntimeError, match="had not gone away"):
        await server.requests[0].disconnected
    await client.close()


async def test_a_waiter_that_gives_up_does_not_end_the_wait_of_others(server, client):
    signal_ = server.wait_for(1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.ensure_future(_await(signal_)), 0.01)
    await client.chat.completions.create(model="m", messages=HI)
    await signal_
    assert signal_


async def _await(awaitable):
    await awaitable


def test_sync_clients_and_waiting_in_threads():
    with ScriptedServer.in_thread(models=("a", "b")) as server:
        server.enqueue("one")
        with openai.OpenAI(base_url=server.base_url, api_key="k") as client:
            stream = client.chat.completions.create(model="a", messages=HI, stream=True)
            assert "".join(c.choices[0].delta.content or "" for c in stream) == "one"
            assert [m.id for m in client.models.list()] == ["a", "b"]
        server.wait_for(2).wait(30)
        with pytest.raises(TimeoutError):
            server.wait_for(3).wait(0.01)
        port = int(server.url.rsplit(":", 1)[1])
        with (
            pytest.raises(OSError, match=r"address already in use|in use"),
            ScriptedServer.in_thread(port=port),
        ):
            pass


async def test_the_fixture_serves_async_tests_from_its_own_thread(scripted_server, run_folder):
    async with openai.AsyncOpenAI(base_url=scripted_server.base_url, api_key="k") as client:
        await client.chat.completions.create(model="m", messages=HI)
    await scripted_server.wait_for(1)
    assert list(run_folder.iterdir()) == []


def test_the_command_prints_its_address_serves_and_ends_on_sigterm():
    command = [sys.executable, "-W", "error", "-m", "lightning_core.testing.scripted"]
    with subprocess.Popen(
        [*command, "--reply", "fixed"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            address = process.stdout.readline().strip()
            with openai.OpenAI(base_url=address, api_key="k", max_retries=0) as client:
                reply = client.chat.completions.create(model="m", messages=HI)
            os.kill(process.pid, signal.SIGTERM)
            _, stderr = process.communicate(timeout=60)
        finally:
            process.kill()
    assert reply.choices[0].message.content == "fixed"
    assert (process.returncode, stderr) == (0, "")


def test_the_examples_of_the_documentation_pass(tmp_path):
    page = (Path(__file__).parents[3] / "docs/testing.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(blocks) >= 3
    for number, block in enumerate(blocks):
        (tmp_path / f"test_block_{number}.py").write_text(block)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert int(passed[1]) > len(blocks)


def test_the_fixtures_need_no_other_plugin(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "def test_it(scripted_server, run_folder):\n    assert scripted_server.base_url.endswith('/v1')\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "lightning_core.testing.pytest_plugin"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_the_package_lists_its_names_and_loads_them_late():
    import lightning_core.testing as testing

    for name in testing.__all__:
        assert getattr(testing, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        _ = testing.nonsense
    script = "import lightning_core.testing.pytest_plugin, sys; print('aiohttp' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "False"
