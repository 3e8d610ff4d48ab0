"""Conformance of an engine: subclass `EngineConformance`, say how to make yours, and pytest checks what it claims.

    class TestMyEngine(EngineConformance):
        @classmethod
        def make(cls, folder: Path) -> Engine:
            return MyEngine("some-model", folder=folder)

The engine is started once for the class, and once more for the test of its end. What `gives` does not claim is
skipped. Needs pytest and pytest-asyncio in its auto mode.
"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio

from lightning_core.capability import Capability
from lightning_core.engine import Endpoint, Engine
from lightning_core.errors import EngineError
from lightning_core.testing.processes import descendants

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["a", "b"],
        },
    },
}
"""A tool for the tests to offer."""


class Started(msgspec.Struct, frozen=True):
    """An engine that serves, and how to ask it."""

    engine: Engine
    """The engine."""
    endpoint: Endpoint
    """The first of its replicas."""
    client: aiohttp.ClientSession
    """Sends the endpoint's key."""

    async def post(self, path: str, body: object) -> tuple[int, Any]:
        """Status and decoded body of a POST to `path` under the endpoint's address."""
        async with self.client.post(f"{self.endpoint.base_url}{path}", json=body) as response:
            return response.status, await response.json(content_type=None)

    async def chat(self, **fields: Any) -> dict[str, Any]:
        """The reply to a chat request; `text` is the user's message, the rest are fields of the body."""
        status, reply = await self.post("/chat/completions", self.body(**fields))
        assert status == 200, f"expected 200, got {status}: {reply}"
        assert isinstance(reply, dict)
        return reply

    async def stream(self, **fields: Any) -> list[dict[str, Any]]:
        """The chunks of a streamed chat; fails where the stream has no end mark."""
        chunks: list[dict[str, Any]] = []
        ended = False
        body = {**self.body(**fields), "stream": True}
        url = f"{self.endpoint.base_url}/chat/completions"
        async with self.client.post(url, json=body) as response:
            assert response.status == 200, await response.text()
            assert response.content_type == "text/event-stream"
            async for line in response.content:
                data = line.decode().strip().removeprefix("data:").strip()
                if data == "[DONE]":
                    ended = True
                elif data:
                    assert not ended, "a chunk came after `[DONE]`"
                    chunks.append(json.loads(data))
        assert ended, "the stream has no `[DONE]`"
        return chunks

    def body(self, *, text: str = "Count from one to five.", **fields: Any) -> dict[str, Any]:
        """The body of a chat request: greedy, and short unless `max_tokens` says otherwise."""
        defaults: dict[str, Any] = {
            "model": self.endpoint.model,
            "messages": [{"role": "user", "content": text}],
            "temperature": 0,
            "max_tokens": 12,
        }
        return {**defaults, **fields}


class EngineConformance(ABC):
    """What every engine must hold."""

    @classmethod
    @abstractmethod
    def make(cls, folder: Path) -> Engine:
        """An engine, not yet started, that may write in `folder`. The smaller its model, the better."""

    @classmethod
    def weights(cls, folder: Path) -> tuple[Path, Path] | None:
        """For an engine that takes weights in place: a folder with the weights that `make` serves, and one with others.

        They may be written in `folder`. None skips the test.
        """
        return None

    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    @classmethod
    async def started(cls, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Started]:
        """The engine, serving for all tests of the class."""
        engine = cls.make(tmp_path_factory.mktemp("engine"))
        try:
            endpoint = (await engine.start())[0]
            async with _client(endpoint) as client:
                yield Started(engine, endpoint, client)
        finally:
            await engine.stop()

    # Serving -----------------------------------------------------------------------------------------------------

    @pytest.mark.asyncio(loop_scope="class")
    async def test_the_endpoint_is_an_address_with_a_listed_model(self, started: Started) -> None:
        """`base_url` ends in `/v1`, and `/models` has the endpoint's model."""
        assert started.endpoint.base_url.endswith("/v1")
        async with started.client.get(f"{started.endpoint.base_url}/models") as response:
            assert response.status == 200
            listed = await response.json()
        assert started.endpoint.model in [model["id"] for model in listed["data"]]

    @pytest.mark.asyncio(loop_scope="class")
    async def test_the_key_is_asked_for(self, started: Started) -> None:
        """Where an endpoint has a key, a request without it is refused with 401."""
        if started.endpoint.api_key is None:
            pytest.skip("the endpoint has no key")
        url = f"{started.endpoint.base_url}/chat/completions"
        async with (
            aiohttp.ClientSession() as stranger,
            stranger.post(url, json=started.body()) as response,
        ):
            assert response.status == 401

    @pytest.mark.asyncio(loop_scope="class")
    async def test_a_chat_is_answered(self, started: Started) -> None:
        """The reply has one assistant message, a reason and the usage."""
        reply = await started.chat()
        (choice,) = reply["choices"]
        assert choice["message"]["role"] == "assistant"
        assert isinstance(choice["message"]["content"], str)
        assert choice["finish_reason"] in ("stop", "length")
        usage = reply["usage"]
        assert usage["prompt_tokens"] > 0
        assert 0 < usage["completion_tokens"] <= 12
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]

    @pytest.mark.asyncio(loop_scope="class")
    async def test_max_tokens_is_a_bound(self, started: Started) -> None:
        """One token is one token, and the reason is `length` unless the model had ended."""
        reply = await started.chat(max_tokens=1)
        assert reply["usage"]["completion_tokens"] == 1
        assert reply["choices"][0]["finish_reason"] in ("stop", "length")

    @pytest.mark.asyncio(loop_scope="class")
    async def test_a_stop_text_ends_the_completion(self, started: Started) -> None:
        """The text ends before the stop text, and the reason is `stop`."""
        text = (await started.chat(max_tokens=32))["choices"][0]["message"]["content"]
        if len(text) < 4:
            pytest.skip(f"the model's answer is too short to cut: {text!r}")
        stop = text[len(text) // 2 : len(text) // 2 + 2]
        choice = (await started.chat(max_tokens=32, stop=[stop]))["choices"][0]
        assert choice["message"]["content"] == text[: text.find(stop)]
        assert choice["finish_reason"] == "stop"

    @pytest.mark.asyncio(loop_scope="class")
    async def test_several_choices(self, started: Started) -> None:
        """`n` choices come back, numbered from 0."""
        reply = await started.chat(n=3, temperature=1.0)
        assert sorted(choice["index"] for choice in reply["choices"]) == [0, 1, 2]

    @pytest.mark.asyncio(loop_scope="class")
    async def test_a_stream_says_the_same(self, started: Started) -> None:
        """The pieces of a greedy stream make the text of the greedy reply; the usage is sent when asked for."""
        whole = await started.chat()
        chunks = await started.stream(stream_options={"include_usage": True})
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        text = "".join(choice["delta"].get("content") or "" for choice in choices)
        assert text == whole["choices"][0]["message"]["content"]
        reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
        assert reasons == [whole["choices"][0]["finish_reason"]]
        assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]

    @pytest.mark.asyncio(loop_scope="class")
    async def test_requests_at_once_are_all_answered(self, started: Started) -> None:
        """Sixteen different requests at once each get an answer to their own prompt."""
        texts = [f"Say {'very ' * i}loud" for i in range(16)]
        alone = [(await started.chat(text=text))["usage"]["prompt_tokens"] for text in texts[:2]]
        replies = await asyncio.gather(*(started.chat(text=text) for text in texts))
        prompts = [reply["usage"]["prompt_tokens"] for reply in replies]
        assert prompts[:2] == alone
        assert prompts == sorted(set(prompts))
        assert all(reply["usage"]["completion_tokens"] > 0 for reply in replies)

    # Bad input ---------------------------------------------------------------------------------------------------

    @pytest.mark.asyncio(loop_scope="class")
    async def test_an_unknown_model_is_404(self, started: Started) -> None:
        """Another model's name is refused, with a message."""
        body = started.body(model="no-such-model")
        status, reply = await started.post("/chat/completions", body)
        assert status == 404
        assert "no-such-model" in json.dumps(reply)

    @pytest.mark.asyncio(loop_scope="class")
    async def test_malformed_json_is_400(self, started: Started) -> None:
        """A body that is no JSON is refused, and the engine goes on."""
        url = f"{started.endpoint.base_url}/chat/completions"
        headers = {"content-type": "application/json"}
        async with started.client.post(url, data=b'{"messages": [', headers=headers) as response:
            assert response.status == 400
        await started.chat()

    # Token ids and log-probabilities -----------------------------------------------------------------------------

    @pytest.mark.asyncio(loop_scope="class")
    async def test_token_ids(self, started: Started) -> None:
        """`return_token_ids` gives the prompt's and the completion's ids, as many as the usage says."""
        _needs(started, Capability.TOKEN_IDS)
        reply = await started.chat(return_token_ids=True)
        prompt, sampled = reply["prompt_token_ids"], reply["choices"][0]["token_ids"]
        assert all(isinstance(token, int) for token in prompt + sampled)
        assert len(prompt) == reply["usage"]["prompt_tokens"]
        assert len(sampled) == reply["usage"]["completion_tokens"]
        assert not (await started.chat())["choices"][0].get("token_ids")

    @pytest.mark.asyncio(loop_scope="class")
    async def test_token_ids_of_each_choice(self, started: Started) -> None:
        """Each of `n` choices has ids of its own."""
        _needs(started, Capability.TOKEN_IDS)
        reply = await started.chat(n=2, temperature=1.0, return_token_ids=True)
        sizes = [len(choice["token_ids"]) for choice in reply["choices"]]
        assert all(sizes)
        assert sum(sizes) == reply["usage"]["completion_tokens"]

    @pytest.mark.asyncio(loop_scope="class")
    async def test_logprobs(self, started: Started) -> None:
        """One log-probability for each sampled token; a greedy token is the likeliest."""
        _needs(started, Capability.LOGPROBS)
        reply = await started.chat(logprobs=True, top_logprobs=2, return_token_ids=True)
        entries = reply["choices"][0]["logprobs"]["content"]
        assert len(entries) == reply["usage"]["completion_tokens"]
        for entry in entries:
            assert entry["logprob"] <= 1e-6
            best = max(top["logprob"] for top in entry["top_logprobs"])
            assert entry["logprob"] == pytest.approx(best, abs=1e-3)
        if Capability.TOKEN_IDS in started.engine.gives:
            assert len(entries) == len(reply["choices"][0]["token_ids"])

    @pytest.mark.asyncio(loop_scope="class")
    async def test_token_ids_in_a_stream(self, started: Started) -> None:
        """The first chunk has the prompt's ids, the chunks together the completion's, with their log-probabilities."""
        _needs(started, Capability.STREAM_TOKEN_IDS)
        whole = await started.chat(return_token_ids=True)
        chunks = await started.stream(return_token_ids=True, logprobs=True)
        assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        sampled = [token for choice in choices for token in choice.get("token_ids") or ()]
        assert sampled == whole["choices"][0]["token_ids"]
        if Capability.LOGPROBS in started.engine.gives:
            entries = [
                entry
                for choice in choices
                for entry in (choice.get("logprobs") or {}).get("content") or ()
            ]
            assert len(entries) == len(sampled)

    # Tools -------------------------------------------------------------------------------------------------------

    @pytest.mark.asyncio(loop_scope="class")
    async def test_tools_are_offered(self, started: Started) -> None:
        """A request with tools is answered with text, or with calls whose arguments are a JSON object."""
        _needs(started, Capability.TOOLS)
        choice = (
            await started.chat(text="What is 2 + 3? Use the tool.", tools=[TOOL], max_tokens=48)
        )["choices"][0]
        calls = choice["message"].get("tool_calls") or []
        assert bool(calls) == (choice["finish_reason"] == "tool_calls")
        for call in calls:
            assert call["id"]
            assert call["type"] == "function"
            assert isinstance(json.loads(call["function"]["arguments"]), dict)

    @pytest.mark.asyncio(loop_scope="class")
    async def test_a_tool_result_is_read(self, started: Started) -> None:
        """A conversation with a call and its result goes on; the result is part of the prompt."""
        _needs(started, Capability.TOOLS)
        function = {"name": "add", "arguments": '{"a": 2, "b": 3}'}
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "What is 2 + 3?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "5"},
        ]
        short = await started.chat(messages=messages, tools=[TOOL])
        messages[2] = {**messages[2], "content": "5, that is to say five, no more and no less"}
        longer = await started.chat(messages=messages, tools=[TOOL])
        assert longer["usage"]["prompt_tokens"] > short["usage"]["prompt_tokens"]

    # Weights -----------------------------------------------------------------------------------------------------

    @pytest.mark.asyncio(loop_scope="class")
    async def test_weights_in_place(self, started: Started, tmp_path: Path) -> None:
        """Other weights answer from the next request on; those that do not fit are refused and change nothing."""
        _needs(started, Capability.WEIGHTS_IN_PLACE)
        folders = await asyncio.to_thread(self.weights, tmp_path)
        if folders is None:
            pytest.skip("`weights` gives no folders")
        own, other = folders

        async def likely() -> list[float]:
            reply = await started.chat(logprobs=True, max_tokens=4)
            return [entry["logprob"] for entry in reply["choices"][0]["logprobs"]["content"]]

        before = await likely()
        await started.engine.load_weights(other)
        changed = await likely()
        assert changed != pytest.approx(before, abs=1e-3)
        empty = tmp_path / "empty"
        empty.mkdir()
        with pytest.raises(EngineError):
            await started.engine.load_weights(empty)
        assert await likely() == pytest.approx(changed, abs=1e-3)
        await started.engine.load_weights(own)
        assert await likely() == pytest.approx(before, abs=1e-3)

    # The end -----------------------------------------------------------------------------------------------------

    async def test_stop_leaves_nothing(self, tmp_path: Path) -> None:
        """After `stop`, also a second one, no process that `start` began is left and nobody answers."""
        before = descendants()
        engine = self.make(tmp_path)
        try:
            endpoint = (await engine.start())[0]
            begun = descendants() - before
        finally:
            await engine.stop()
        await engine.stop()
        assert not begun & descendants()
        if begun:  # else it serves elsewhere, and goes on
            async with _client(endpoint) as client:
                with pytest.raises(aiohttp.ClientConnectionError):
                    await client.get(f"{endpoint.base_url}/models")


def _client(endpoint: Endpoint) -> aiohttp.ClientSession:
    key = endpoint.api_key
    return aiohttp.ClientSession(
        headers={"authorization": f"Bearer {key}"} if key else None,
        timeout=aiohttp.ClientTimeout(total=300),
    )


def _needs(started: Started, capability: Capability) -> None:
    if capability not in started.engine.gives:
        pytest.skip(f"the engine does not claim `{capability}`")
