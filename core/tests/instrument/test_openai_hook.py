"""Model calls of the openai SDK go through the gateway, whose place a scripted server takes."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import parse_qs

import httpx
import httpx2
import openai
import pytest
from openai import _base_client

from lightning_core.instrument import ListSink, Scope, attempt, label, openai_hook, span
from lightning_core.testing import Error, ScriptedServer, Text

HOOKED = (
    (_base_client.BaseClient, "_build_request"),
    (_base_client.SyncAPIClient, "request"),
    (_base_client.AsyncAPIClient, "request"),
)
MESSAGES = [{"role": "user", "content": "hello"}]


def hooked() -> list[Any]:
    return [vars(owner)[name] for owner, name in HOOKED]


@pytest.fixture
def gateway():
    with ScriptedServer.in_thread() as server:
        yield server


@pytest.fixture
def upstream():
    with ScriptedServer.in_thread() as server:
        yield server


@pytest.fixture
def hook():
    openai_hook.install()
    yield
    openai_hook.uninstall()


def scope_at(server: ScriptedServer, name: str = "a1", **labels: Any) -> Scope:
    return Scope(
        gateway=server.url, session=f"token-{name}", attempt=name, sink=ListSink(), **labels
    )


def labels_of(request: Any) -> dict[str, str]:
    return {k: v[0] for k, v in parse_qs(request.headers["x-lightning-labels"]).items()}


def chat(client: Any, **options: Any) -> Any:
    return client.chat.completions.create(model="scripted", messages=MESSAGES, **options)


def stream(client: Any) -> None:
    with chat(client, stream=True) as chunks:
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "hello"


def stream_helper(client: Any) -> None:
    with client.chat.completions.stream(model="scripted", messages=MESSAGES) as events:
        assert list(events)


def with_streaming_response(client: Any) -> None:
    with client.chat.completions.with_streaming_response.create(
        model="scripted", messages=MESSAGES
    ) as reply:
        assert reply.json()["choices"]


SYNC_CALLS = {
    "chat": (chat, "/v1/chat/completions"),
    "stream": (stream, "/v1/chat/completions"),
    "stream-helper": (stream_helper, "/v1/chat/completions"),
    "raw": (
        lambda c: c.chat.completions.with_raw_response.create(model="m", messages=MESSAGES).parse(),
        "/v1/chat/completions",
    ),
    "streaming-response": (with_streaming_response, "/v1/chat/completions"),
    "completions": (lambda c: c.completions.create(model="m", prompt="p"), "/v1/completions"),
    "embeddings": (lambda c: c.embeddings.create(model="m", input="p"), "/v1/embeddings"),
    "models": (lambda c: list(c.models.list()), "/v1/models"),
    "with-options": (lambda c: chat(c.with_options(timeout=30)), "/v1/chat/completions"),
}


@pytest.mark.parametrize("call", SYNC_CALLS)
def test_a_sync_call_goes_through_the_gateway(hook, gateway, call):
    make, path = SYNC_CALLS[call]
    with openai.OpenAI(api_key="mine") as client, attempt(scope_at(gateway)):
        make(client)
    (request,) = gateway.requests
    assert request.path == path
    assert request.headers["x-lightning-session"] == "token-a1"
    assert request.headers["x-lightning-target"] == f"https://api.openai.com{path}"
    assert request.headers["x-lightning-retry"] == "0"
    assert request.headers["authorization"] == "Bearer mine"
    assert request.headers["host"] == gateway.url.removeprefix("http://")


async def achat(client: Any) -> None:
    await chat(client)


async def astream(client: Any) -> None:
    async with await chat(client, stream=True) as chunks:
        assert [c async for c in chunks]


async def araw(client: Any) -> None:
    await client.chat.completions.with_raw_response.create(model="m", messages=MESSAGES)


async def aembeddings(client: Any) -> None:
    await client.embeddings.create(model="m", input="p")


@pytest.mark.parametrize("call", [achat, astream, araw, aembeddings])
async def test_an_async_call_goes_through_the_gateway(hook, gateway, call):
    async with openai.AsyncOpenAI(api_key="mine") as client:
        with attempt(scope_at(gateway)):
            await call(client)
    (request,) = gateway.requests
    assert request.path.startswith("/v1/")
    assert request.headers["x-lightning-session"] == "token-a1"
    assert request.headers["x-lightning-target"].startswith("https://api.openai.com/v1/")


def test_responses_are_sent_to_the_gateway_too(hook, gateway):
    with openai.OpenAI(api_key="k", max_retries=0) as client, attempt(scope_at(gateway)):
        # The scripted server has no such route, but it was it that answered: nobody else can here.
        with pytest.raises(openai.NotFoundError):
            client.responses.create(model="m", input="hello")
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve("resp_1")


def clients() -> dict[str, Any]:
    azure = {"azure_endpoint": "https://mine.openai.azure.com", "api_version": "2024-06-01"}
    deployment = "https://mine.openai.azure.com/openai/deployments/scripted/chat/completions"
    return {
        "base_url": (
            lambda: openai.OpenAI(api_key="k", base_url="https://llm.example/some/api/v1/"),
            "/some/api/v1/chat/completions",
            "https://llm.example/some/api/v1/chat/completions",
        ),
        "no-such-port": (
            lambda: openai.OpenAI(api_key="k", base_url="http://127.0.0.1:9/v1"),
            "/v1/chat/completions",
            "http://127.0.0.1:9/v1/chat/completions",
        ),
        "httpx2-client": (
            lambda: openai.OpenAI(api_key="k", http_client=httpx2.Client(timeout=30)),
            "/v1/chat/completions",
            "https://api.openai.com/v1/chat/completions",
        ),
        "httpx-client": (
            lambda: openai.OpenAI(api_key="k", http_client=httpx.Client(timeout=30)),
            "/v1/chat/completions",
            "https://api.openai.com/v1/chat/completions",
        ),
        "query": (
            lambda: openai.OpenAI(api_key="k", default_query={"a": "b c", "é": "1"}),
            "/v1/chat/completions",
            "https://api.openai.com/v1/chat/completions?a=b+c&%C3%A9=1",
        ),
        "azure": (
            lambda: openai.AzureOpenAI(api_key="k", **azure),
            "/openai/deployments/scripted/chat/completions",
            f"{deployment}?api-version=2024-06-01",
        ),
    }


@pytest.mark.parametrize("kind", clients())
@pytest.mark.filterwarnings("ignore:.*httpx.*:DeprecationWarning")  # The SDK's on legacy clients.
def test_any_client_is_rerouted_whenever_it_was_built(gateway, kind):
    build, path, target = clients()[kind]
    before = build()
    openai_hook.install()
    try:
        after = build()
        with attempt(scope_at(gateway)):
            chat(before)
            chat(after)
    finally:
        openai_hook.uninstall()
        before.close()
    after.close()
    assert [r.path for r in gateway.requests] == [path] * 2
    assert [r.headers["x-lightning-session"] for r in gateway.requests] == ["token-a1"] * 2
    assert [r.headers["x-lightning-target"] for r in gateway.requests] == [target] * 2
    if kind == "azure":
        assert gateway.requests[0].query == {"api-version": "2024-06-01"}
        assert gateway.requests[0].headers["api-key"] == "k"


async def test_an_async_azure_client_is_rerouted(hook, gateway):
    async with openai.AsyncAzureOpenAI(
        api_key="k", azure_endpoint="https://mine.openai.azure.com", api_version="1"
    ) as client:
        with attempt(scope_at(gateway)):
            await chat(client)
    assert gateway.requests[0].path.startswith("/openai/deployments/scripted/")


def test_the_tries_of_one_call_share_its_id(hook, gateway):
    gateway.enqueue(Error(500), Error(429), Text("good"), Text("next"))
    with openai.OpenAI(api_key="k", max_retries=2) as client, attempt(scope_at(gateway)):
        assert chat(client).choices[0].message.content == "good"
        chat(client)
    ids = [r.headers["x-lightning-call"] for r in gateway.requests]
    assert [r.headers["x-lightning-retry"] for r in gateway.requests] == ["0", "1", "2", "0"]
    assert len(set(ids[:3])) == 1
    assert ids[3] != ids[0]


async def test_parallel_calls_have_ids_of_their_own(hook, gateway):
    gateway.respond(lambda request: Text("ok"))
    async with openai.AsyncOpenAI(api_key="k") as client:
        with attempt(scope_at(gateway)):
            await asyncio.gather(*(chat(client) for _ in range(10)))
    assert len({r.headers["x-lightning-call"] for r in gateway.requests}) == 10


def test_nothing_changes_outside_an_attempt(hook, gateway, upstream):
    with openai.OpenAI(api_key="k", base_url=upstream.base_url) as client:
        chat(client)
        with attempt(scope_at(gateway)):
            chat(client)
        chat(client)
    assert [r.path for r in upstream.requests] == ["/v1/chat/completions"] * 2
    assert not [h for r in upstream.requests for h in r.headers if h.startswith("x-lightning")]
    assert len(gateway.requests) == 1


def test_bodies_are_the_same(hook, gateway, upstream):
    def calls(client: Any) -> None:
        chat(client, temperature=0.5, n=2, tools=[{"type": "function", "function": {"name": "f"}}])
        stream(client)
        client.completions.create(model="m", prompt="é\u2028")
        client.embeddings.create(model="m", input=["a", "b"])

    with openai.OpenAI(api_key="k", base_url=upstream.base_url) as client:
        calls(client)
        with attempt(scope_at(gateway)):
            calls(client)
    assert [r.body for r in gateway.requests] == [r.body for r in upstream.requests]


def test_other_services_of_the_sdk_keep_their_way(hook, upstream):
    # Nothing listens where this gateway should be: a call that went there would fail to connect.
    nowhere = Scope(gateway="http://127.0.0.1:9", session="s", attempt="a", sink=ListSink())
    with openai.OpenAI(api_key="k", base_url=upstream.base_url, max_retries=0) as client:
        with attempt(nowhere), pytest.raises(openai.NotFoundError):
            client.files.list()
        with attempt(nowhere), pytest.raises(openai.NotFoundError):
            client.images.generate(prompt="p")


def test_a_client_that_the_environment_routed_is_only_labelled(hook, gateway):
    scope = scope_at(gateway, agent="writer")
    with openai.OpenAI(api_key="k", base_url=scope.base_url) as client, attempt(scope):
        chat(client)
    (request,) = gateway.requests
    assert request.path == "/v1/chat/completions"
    assert request.headers["x-lightning-session"] == "token-a1"
    assert "x-lightning-target" not in request.headers
    assert labels_of(request) == {"agent": "writer"}


def test_a_client_of_an_earlier_attempt_uses_the_session_of_this_one(hook, gateway):
    earlier, now = scope_at(gateway, "a1"), scope_at(gateway, "a2")
    with openai.OpenAI(api_key="k", base_url=earlier.base_url) as client, attempt(now):
        chat(client)
    assert gateway.requests[0].path == "/v1/chat/completions"
    assert gateway.requests[0].headers["x-lightning-session"] == "token-a2"


def test_labels_and_the_span_travel_as_one_safe_header(hook, gateway):
    with openai.OpenAI(api_key="k") as client, attempt(scope_at(gateway)):
        with span("agent", "wríter & co\r\nx: y") as opened, label(node="n=1", step="2"):
            chat(client)
        chat(client)
    inside, outside = gateway.requests
    assert labels_of(inside) == {
        "span": opened.id,
        "agent": "wríter & co\r\nx: y",
        "node": "n=1",
        "step": "2",
    }
    assert outside.headers["x-lightning-labels"] == ""


def test_a_label_takes_so_much_room_and_no_more(hook, gateway):
    with (
        openai.OpenAI(api_key="k") as client,
        attempt(scope_at(gateway)),
        label(agent="é" * 10_000, step="x" * 512),
    ):
        chat(client)
    assert labels_of(gateway.requests[0]) == {"agent": "é" * 512, "step": "x" * 512}


def test_attempts_in_threads_stay_apart(hook, gateway):
    gateway.respond(lambda request: Text("ok"))
    barrier = threading.Barrier(8)

    def work(number: int) -> None:
        with attempt(scope_at(gateway, f"a{number}", agent=f"agent{number}")):
            barrier.wait(30)
            for _ in range(5):
                chat(client)

    with openai.OpenAI(api_key="k") as client, ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    for number in range(8):
        session = f"token-a{number}"
        own = [r for r in gateway.requests if r.headers["x-lightning-session"] == session]
        assert [labels_of(r) for r in own] == [{"agent": f"agent{number}"}] * 5


def test_the_last_uninstall_restores_the_sdk():
    before = hooked()
    openai_hook.install()
    openai_hook.install()
    inside = hooked()
    assert all(a is not b for a, b in zip(before, inside, strict=True))
    openai_hook.uninstall()
    assert hooked() == inside
    openai_hook.uninstall()
    assert hooked() == before
    with pytest.raises(RuntimeError, match="more often"):
        openai_hook.uninstall()


def test_a_wrapper_that_came_later_survives_and_ours_sleeps(gateway, upstream, monkeypatch):
    before = _base_client.BaseClient._build_request
    openai_hook.install()
    ours = _base_client.BaseClient._build_request

    def theirs(self: Any, options: Any, **kwargs: Any) -> Any:
        return ours(self, options, **kwargs)

    monkeypatch.setattr(_base_client.BaseClient, "_build_request", theirs)
    openai_hook.uninstall()
    assert _base_client.BaseClient._build_request is theirs
    client = openai.OpenAI(api_key="k", base_url=upstream.base_url)
    with client, attempt(scope_at(gateway)):
        chat(client)
    assert len(upstream.requests) == 1
    monkeypatch.setattr(_base_client.BaseClient, "_build_request", before)
