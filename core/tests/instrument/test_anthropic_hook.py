"""Model calls of the anthropic SDK go through the gateway, whose place a small server takes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import textwrap
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import anthropic
import openai
import pytest
from anthropic import _base_client
from openai import _base_client as _openai_base_client

from lightning_core.instrument import (
    ListSink,
    Scope,
    attempt,
    child_environment,
    openai_hook,
    postimport,
    span,
)

MESSAGE = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [{"type": "text", "text": "hi"}],
    "stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1},
}  # fmt: skip
EVENTS = [
    {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
    {"type": "message_stop"},
]
BODY: dict[str, Any] = {
    "model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "é"}],
}  # fmt: skip
PARTS = (
    ("BaseClient", "_build_request"),
    ("SyncAPIClient", "request"),
    ("AsyncAPIClient", "request"),
)


def hooked(module: Any) -> list[Any]:
    return [vars(getattr(module, owner))[name] for owner, name in PARTS]


class Server:
    """Answers every call, and keeps what was sent."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.statuses: list[int] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                outer.requests.append((self.path, headers, body))
                status = outer.statuses.pop(0) if outer.statuses else 200
                stream = b'"stream":true' in body.replace(b" ", b"")
                data = json.dumps({"input_tokens": 3, **MESSAGE, "data": []}).encode()
                if stream:
                    lines = [f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in EVENTS]
                    data = "".join(lines).encode()
                self.send_response(status)
                kind = "text/event-stream" if stream else "application/json"
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST

            def log_message(self, *args):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._thread.join(30)
        self._server.server_close()


@pytest.fixture
def gateway():
    with Server() as server:
        yield server


@pytest.fixture
def upstream():
    with Server() as server:
        yield server


@pytest.fixture
def hook():
    openai_hook.install()
    yield
    openai_hook.uninstall()


def scope_at(server: Server, **labels: Any) -> Scope:
    return Scope(gateway=server.url, session="token", attempt="a1", sink=ListSink(), **labels)


def stream(client: Any) -> None:
    with client.messages.stream(**BODY) as events:
        assert events.get_final_text() == "hi"


CALLS = {
    "create": (lambda c: c.messages.create(**BODY), "/v1/messages"),
    "stream": (stream, "/v1/messages"),
    "raw": (lambda c: c.messages.with_raw_response.create(**BODY).parse(), "/v1/messages"),
    "beta": (lambda c: c.beta.messages.create(**BODY), "/v1/messages"),
    "query": (
        lambda c: c.post("/v1/messages?beta=true", body=BODY, cast_to=object),
        "/v1/messages?beta=true",
    ),
    "count": (
        lambda c: c.messages.count_tokens(model="m", messages=BODY["messages"]),
        "/v1/messages/count_tokens",
    ),
    "models": (lambda c: list(c.models.list()), "/v1/models"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_sync_call_goes_through_the_gateway(hook, gateway, call):
    make, path = CALLS[call]
    with anthropic.Anthropic(api_key="mine") as client, attempt(scope_at(gateway)):
        make(client)
    ((sent, headers, _),) = gateway.requests
    assert sent == path
    assert headers["x-lightning-session"] == "token"
    assert headers["x-lightning-target"] == f"https://api.anthropic.com{path}"
    assert headers["x-lightning-retry"] == "0"
    assert headers["authorization"] == "Bearer mine"
    assert headers["host"] == gateway.url.removeprefix("http://")


async def test_an_async_call_goes_through_the_gateway_with_its_labels(hook, gateway):
    async with anthropic.AsyncAnthropic(
        api_key="mine", base_url="https://llm.example/api"
    ) as client:
        with attempt(scope_at(gateway, agent="writer")), span("agent", "w") as opened:
            await asyncio.gather(*(client.messages.create(**BODY) for _ in range(4)))
            async with client.messages.stream(**BODY) as events:
                assert await events.get_final_text() == "hi"
    assert [path for path, _, _ in gateway.requests] == ["/api/v1/messages"] * 5
    for _, headers, _ in gateway.requests:
        assert headers["x-lightning-target"] == "https://llm.example/api/v1/messages"
        labels = {k: v[0] for k, v in parse_qs(headers["x-lightning-labels"]).items()}
        assert labels == {"span": opened.id, "agent": "w"}
    assert len({headers["x-lightning-call"] for _, headers, _ in gateway.requests}) == 5


def test_the_tries_of_one_call_share_its_id(hook, gateway):
    gateway.statuses = [529, 500, 200]
    with anthropic.Anthropic(api_key="k", max_retries=2) as client, attempt(scope_at(gateway)):
        client.messages.create(**BODY)
    headers = [headers for _, headers, _ in gateway.requests]
    assert [h["x-lightning-retry"] for h in headers] == ["0", "1", "2"]
    assert len({h["x-lightning-call"] for h in headers}) == 1


def test_nothing_changes_outside_an_attempt_and_bodies_are_the_same(hook, gateway, upstream):
    with anthropic.Anthropic(api_key="k", base_url=upstream.url) as client:
        client.messages.create(**BODY)
        with attempt(scope_at(gateway)):
            client.messages.create(**BODY)
    ((path, headers, body),) = upstream.requests
    assert path == "/v1/messages"
    assert not [name for name in headers if name.startswith("x-lightning")]
    assert gateway.requests[0][2] == body


def test_what_is_no_model_call_keeps_its_way(hook, gateway, upstream):
    with anthropic.Anthropic(api_key="k", base_url=upstream.url, max_retries=0) as client, attempt(scope_at(gateway)):  # fmt: skip
        client.messages.batches.list()
        client.beta.files.list()
    assert [path.partition("?")[0] for path, _, _ in upstream.requests] == [
        "/v1/messages/batches",
        "/v1/files",
    ]
    assert not gateway.requests


def test_messages_of_openais_threads_keep_their_way(hook, gateway, upstream):
    """Their path ends as Anthropic's does."""
    base = f"{upstream.url}/v1"
    with openai.OpenAI(api_key="k", base_url=base, max_retries=0) as client, attempt(scope_at(gateway)):  # fmt: skip
        client.get("/threads/t/messages", cast_to=object)
    assert len(upstream.requests) == 1
    assert not gateway.requests


def test_a_client_that_the_environment_routed_is_only_labelled(hook, gateway):
    scope = scope_at(gateway, agent="writer")
    base = scope.base_url.removesuffix("/v1")
    with anthropic.Anthropic(api_key="k", base_url=base) as client, attempt(scope):
        client.messages.create(**BODY)
    ((path, headers, _),) = gateway.requests
    assert path == "/v1/messages"
    assert headers["x-lightning-session"] == "token"
    assert "x-lightning-target" not in headers


def test_the_last_uninstall_restores_both_sdks():
    modules = (_base_client, _openai_base_client)
    before = [hooked(module) for module in modules]
    openai_hook.install()
    openai_hook.install()
    for module, originals in zip(modules, before, strict=True):
        assert all(a is not b for a, b in zip(originals, hooked(module), strict=True))
    openai_hook.uninstall()
    openai_hook.uninstall()
    assert [hooked(module) for module in modules] == before
    assert not any(name in postimport._callbacks for name in openai_hook.MODEL_CALLS)


# Programs ------------------------------------------------------------------------------------------------------------


def run(tmp_path, url, code, *, base=None, set_key=False) -> str:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "ANTHROPIC_", "PYTHON"))}  # fmt: skip
    file = tmp_path / "agent.py"
    file.write_text(textwrap.dedent(code))
    environment = child_environment(
        {**inherited, **(base or {})}, gateway=url, session="tok", attempt="r.1", span="parent", adapters={},
        base_url=f"{url}/s/tok/v1", set_key=set_key,
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(file)], env=environment, capture_output=True, text=True, timeout=120, check=False
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


CALL = """
import os
shown = os.environ["ANTHROPIC_BASE_URL"], os.environ["OPENAI_BASE_URL"]
import anthropic
def call(**options):
    with anthropic.Anthropic(max_retries=0, **options) as client:
        body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
        return client.messages.create(**body).content[0].text
"""


def test_a_programs_calls_are_rerouted_and_tagged(tmp_path, gateway):
    base = {"ANTHROPIC_BASE_URL": "https://llm.example", "ANTHROPIC_API_KEY": "mine"}
    code = CALL + "print(call(), *shown, os.environ['ANTHROPIC_BASE_URL'], os.environ['OPENAI_BASE_URL'])"  # fmt: skip
    ours = f"{gateway.url}/s/tok"
    printed = run(tmp_path, gateway.url, code, base=base).split()
    # The other SDK's address stays: who uses it without the SDK is routed by it.
    assert printed == ["hi", ours, f"{ours}/v1", "https://llm.example", f"{ours}/v1"]
    ((path, headers, _),) = gateway.requests
    assert path == "/v1/messages"
    assert headers["x-lightning-session"] == "tok"
    assert headers["x-lightning-target"] == "https://llm.example/v1/messages"
    assert headers["authorization"] == "Bearer mine"
    assert parse_qs(headers["x-lightning-labels"]) == {"span": ["parent"]}


def test_a_program_needs_no_key_where_the_gateway_answers(tmp_path, gateway):
    base = {"ANTHROPIC_AUTH_TOKEN": "mine"}
    assert run(tmp_path, gateway.url, CALL + "print(call())", base=base, set_key=True) == "hi"
    ((_, headers, _),) = gateway.requests
    assert headers["authorization"] == "Bearer lightning-core"


def test_a_program_without_the_sdk_is_routed_by_its_environment(tmp_path, gateway):
    code = """
    import os, urllib.request
    request = urllib.request.Request(
        os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", data=b"{}",
        headers={"x-api-key": os.environ["ANTHROPIC_API_KEY"]},
    )
    urllib.request.urlopen(request).read()
    """
    run(tmp_path, gateway.url, code, set_key=True)
    ((path, headers, _),) = gateway.requests
    assert path == "/s/tok/v1/messages"
    assert headers["x-api-key"] == "lightning-core"
