"""LiteLLM itself, in the engine's process, against providers that speak their own wire formats."""

import asyncio
import contextlib
import importlib.util
import itertools
import json

import aiohttp
import openai
import pytest
import pytest_asyncio

from lightning_core.errors import EngineError
from lightning_core.litellm_engine import PROVIDERS, LiteLLMEngineFactory

pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(importlib.util.find_spec("litellm") is None, reason="litellm is not there"),
]
MODELS = {
    "anthropic": "anthropic/claude-sonnet-4-5",
    "azure": "azure/gpt-4.1-mini",
    "gemini": "gemini/gemini-2.5-flash",
    "bedrock": "bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0",
}
KEYS = {
    "ANTHROPIC_API_KEY": "sk-ant-0123456789",
    "AZURE_API_KEY": "azure-0123456789",
    "GEMINI_API_KEY": "gemini-0123456789",
    "AWS_ACCESS_KEY_ID": "AKIA0123456789",
    "AWS_SECRET_ACCESS_KEY": "aws-0123456789",
}
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
        },
    },
}
CUT = ("break", "error", "early")
each = pytest.mark.parametrize("name", MODELS)


class Served:
    """The engines, and OpenAI's client for each."""

    def __init__(self, providers, folder, endpoints):
        self.providers = providers
        self.folder = folder
        self.endpoints = endpoints
        self.clients = {
            name: openai.AsyncOpenAI(base_url=e.base_url, api_key=e.api_key, max_retries=0)
            for name, e in endpoints.items()
        }

    async def ask(self, name, word, **more):
        """A reply to a prompt that ends in `word`, and the request that the provider has seen."""
        messages = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": f"Please {word}"},
        ]
        body = {"model": MODELS[name], "messages": messages, "max_tokens": 50, **more}
        return await self.clients[name].chat.completions.create(**body)

    async def post(self, name, body, path="/chat/completions"):
        """Status, headers and body of a reply, as they are."""
        endpoint = self.endpoints[name]
        headers = {"authorization": f"Bearer {endpoint.api_key}"}
        async with (
            aiohttp.ClientSession(headers=headers) as http,
            http.post(endpoint.base_url + path, **body) as response,
        ):
            return response.status, response.headers, await response.text()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(providers, tmp_path_factory):
    folder = tmp_path_factory.mktemp("engines")
    addresses = {
        "ANTHROPIC_API_BASE": f"{providers.url}/anthropic",
        "AZURE_API_BASE": f"{providers.url}/azure",
        "GEMINI_API_BASE": f"{providers.url}/gemini",
        "AWS_BEDROCK_RUNTIME_ENDPOINT": f"{providers.url}/bedrock",
        "AWS_REGION": "us-east-1",
    }
    async with contextlib.AsyncExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            for name in {name for provider in PROVIDERS.values() for name in provider.secrets}:
                patch.setenv(name, "lightning-core")  # What clients of agents are given.
            for name, value in {**KEYS, **addresses}.items():
                patch.setenv(name, value)
            engines = {}
            for name, model in MODELS.items():
                options = {"timeout": "2", "drop_params": "yes"} if name == "gemini" else {}
                engines[name] = LiteLLMEngineFactory().create(
                    model, folder=folder / name, options=options
                )
                stack.push_async_callback(engines[name].stop)
            starts = await asyncio.gather(*(engine.start() for engine in engines.values()))
        endpoints = {name: first for name, (first,) in zip(engines, starts, strict=True)}
        found = Served(providers, folder, endpoints)
        for client in found.clients.values():
            stack.push_async_callback(client.close)
        yield found


@each
async def test_a_reply_has_its_text_usage_and_cost(served, name):
    reply = await served.ask(name, "hello")
    (choice,) = reply.choices
    assert (choice.message.content, choice.finish_reason) == ("Héllo ✓", "stop")
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (10, 5)
    assert 0 < reply.usage.cost < 0.001


@each
async def test_a_stream_says_the_same_and_its_last_event_has_usage_and_cost(served, name):
    whole = await served.ask(name, "hello")
    stream = await served.ask(name, "hello", stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(choice.delta.content or "" for choice in choices) == "Héllo ✓"
    assert len([choice for choice in choices if choice.delta.content]) == 2
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["stop"]
    assert chunks[-1].usage.completion_tokens == 5
    assert chunks[-1].usage.cost == pytest.approx(whole.usage.cost)


@each
@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_is_offered_and_its_call_is_read(served, name, stream):
    if stream:
        async with served.clients[name].chat.completions.stream(
            model=MODELS[name],
            messages=[{"role": "user", "content": "Please tool"}],
            tools=[TOOL],
            max_tokens=50,
        ) as events:
            reply = await events.get_final_completion()
    else:
        reply = await served.ask(name, "tool", tools=[TOOL])
    (choice,) = reply.choices
    (call,) = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls"
    assert call.id
    assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 2, "b": 3})
    assert "Add two numbers." in json.dumps(served.providers.seen[-1][2])


@pytest.mark.parametrize("name", ["anthropic", "gemini"])
async def test_what_a_model_thinks_is_kept_apart(served, name):
    reply = await served.ask(name, "think")
    assert reply.choices[0].message.content == "Héllo ✓"
    assert reply.choices[0].message.reasoning_content == "Hm."
    chunks = [chunk async for chunk in await served.ask(name, "think", stream=True)]
    thoughts = [getattr(c.delta, "reasoning_content", None) for k in chunks for c in k.choices]
    assert "".join(filter(None, thoughts)) == "Hm."


@each
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("400", openai.BadRequestError),
        ("401", openai.AuthenticationError),
        ("429", openai.RateLimitError),
        ("500", openai.InternalServerError),
    ],
)
async def test_a_refusal_is_what_openais_client_expects_and_is_asked_once(
    served, name, stream, word, kind
):
    before = len(served.providers.seen)
    with pytest.raises(kind) as caught:
        await served.ask(name, word, stream=stream)
    assert f"the status is {word}" in caught.value.message
    assert caught.value.type
    assert caught.value.response.headers.get("retry-after") == ("7" if word == "429" else None)
    assert len(served.providers.seen) == before + 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_provider_that_is_silent_is_a_timeout(served, stream):
    body = {"messages": [{"role": "user", "content": "hang"}], "stream": stream}
    status, _, text = await served.post("gemini", {"json": body})
    assert status == (200 if stream else 408)
    assert json.loads(text.rstrip().split("data: ")[-1])["error"]["code"] == "timeout"


@pytest.mark.parametrize(
    ("name", "word"),
    # LiteLLM takes a stream of Gemini's for whole where its connection ends in order.
    [pair for pair in itertools.product(MODELS, CUT) if pair != ("gemini", "early")],
)
async def test_a_stream_that_breaks_off_is_never_taken_for_a_whole_one(served, name, word):
    _, _, body = await served.post(
        name,
        {"json": {"messages": [{"role": "user", "content": word}], "stream": True}},
    )
    *chunks, last = body.replace("data: ", "").split("\n\n")[:-1] if "data: " in body else [body]
    assert json.loads(last)["error"]["message"]
    choices = [choice for chunk in chunks for choice in json.loads(chunk)["choices"]]
    assert "".join(choice["delta"].get("content") or "" for choice in choices) in ("", "Hé")
    assert not any(choice["finish_reason"] for choice in choices)
    with pytest.raises(openai.APIError):
        await _read(served, name, word)


async def _read(served, name, word):
    return [chunk async for chunk in await served.ask(name, word, stream=True)]


@pytest.mark.parametrize("name", sorted(MODELS.keys() - {"gemini"}))
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_takes_the_providers_call_along(served, name, stream):
    served.providers.gone.clear()
    asking = asyncio.ensure_future(served.ask(name, "hang", stream=stream))
    seen = len(served.providers.seen)
    if stream:
        reply = await asking
        await anext(aiter(reply))
        await reply.close()
    else:
        while len(served.providers.seen) == seen:
            await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    async with asyncio.timeout(30):
        await served.providers.gone.wait()


async def test_parameters_go_to_the_provider_in_its_own_terms(served):
    await served.ask("anthropic", "hello", temperature=0.5, stop=["END"], extra_body={"top_k": 3})
    path, headers, body = served.providers.seen[-1]
    assert path == "/anthropic/v1/messages"
    assert headers["x-api-key"] == KEYS["ANTHROPIC_API_KEY"]
    assert body["model"] == "claude-sonnet-4-5"
    assert (body["temperature"], body["stop_sequences"], body["top_k"]) == (0.5, ["END"], 3)
    assert body["max_tokens"] == 50
    assert body["system"][0]["text"] == "Be brief."


async def test_a_placeholder_is_never_taken_for_a_key(served):
    await served.ask("azure", "hello")
    assert served.providers.seen[-1][1]["api-key"] == KEYS["AZURE_API_KEY"]
    await served.ask("bedrock", "hello")
    headers = json.dumps(served.providers.seen[-1][1])
    assert KEYS["AWS_ACCESS_KEY_ID"] in headers
    assert "lightning-core" not in headers


async def test_what_a_provider_does_not_know_is_refused_by_name(served):
    for more in ({"seed": 1}, {"extra_body": {"min_p": 0.1}}):
        before = len(served.providers.seen)
        with pytest.raises(openai.BadRequestError, match=r"seed|min_p") as caught:
            await served.ask("anthropic", "hello", **more)
        assert caught.value.code == "unsupported_parameter"
        assert len(served.providers.seen) == before


async def test_what_a_provider_does_not_know_is_left_out_where_that_is_asked_for(served):
    away = {"min_p": 0.1, "api_base": "http://127.0.0.1:9"}
    reply = await served.ask("gemini", "hello", logit_bias={"50256": -100}, extra_body=away)
    assert reply.choices[0].message.content == "Héllo ✓"
    assert not {"logit_bias", "min_p"} & set(json.dumps(served.providers.seen[-1][2]).split('"'))
    assert "parameter `min_p` is left out" in (served.folder / "gemini" / "engine.log").read_text()


@pytest.mark.parametrize(
    "own",
    [
        {"api_base": "http://127.0.0.1:9/v1"},
        {"base_url": "http://127.0.0.1:9/v1"},
        {"api_key": "other"},
        {"custom_llm_provider": "openai"},
        {"mock_response": "made up"},
        {"extra_headers": {"x-api-key": "other"}},
        {"aws_bedrock_runtime_endpoint": "http://127.0.0.1:9"},
        {"fallbacks": ["gpt-4.1"]},
    ],
)
async def test_an_agent_cannot_turn_the_key_to_another_address(served, own):
    with pytest.raises(openai.BadRequestError, match=f"`{next(iter(own))}` is not known"):
        await served.ask("bedrock", "hello", extra_body=own)


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"data": b"{"}, 400, "expected a JSON object"),
        ({"json": [1]}, 400, "expected a JSON object"),
        ({"json": {"messages": "hello"}}, 400, "expected a list of objects"),
        ({"json": {"model": "gpt-4.1", "messages": []}}, 404, "'gpt-4.1' is not served here"),
        ({"json": {"model": "azure/x", "messages": []}}, 404, "'azure/x' is not served here"),
    ],
)
async def test_a_request_that_is_none_is_refused(served, body, status, says):
    found, _, text = await served.post("anthropic", body)
    assert (found, says in json.loads(text)["error"]["message"]) == (status, True), text


async def test_another_model_of_the_provider_is_answered_as_a_strategy_may_choose_it(served):
    await served.ask("anthropic", "hello", model="anthropic/claude-haiku-4-5")
    assert served.providers.seen[-1][2]["model"] == "claude-haiku-4-5"


async def test_routes_and_the_key(served):
    endpoint = served.endpoints["azure"]
    client = served.clients["azure"]
    assert [model.id async for model in client.models.list()] == [MODELS["azure"]]
    found = await client.embeddings.create(model="azure/e", input="text", encoding_format="float")
    assert found.data[0].embedding == [0.25, -0.5]
    assert (await served.post("azure", {"json": {}}, "/nowhere"))[0] == 404
    async with aiohttp.ClientSession() as stranger:
        for headers in ({}, {"authorization": "Bearer wrong"}):
            async with stranger.get(endpoint.base_url + "/models", headers=headers) as response:
                assert response.status == 401


async def test_logs_hold_neither_keys_nor_content(served):
    with pytest.raises(openai.APIError):
        await _read(served, "anthropic", "break")
    for name in MODELS:
        log = (served.folder / name / "engine.log").read_text()
        assert "completion()" not in log
        assert "Please" not in log
        assert "Héllo" not in log
        assert not [key for key in (*KEYS.values(), served.endpoints[name].api_key) if key in log]


async def test_what_only_the_library_knows_to_be_missing_is_named(tmp_path, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_BEARER_TOKEN_BEDROCK", "GROQ_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))

    async def refused(model):
        engine = LiteLLMEngineFactory().create(model, folder=tmp_path / model[:4], options={})
        with pytest.raises(EngineError) as caught:
            await engine.start()
        return str(caught.value)

    keys, groq, none = await asyncio.gather(
        refused(MODELS["bedrock"]), refused("groq/llama"), refused("no-such-provider/x")
    )
    assert "`AWS_ACCESS_KEY_ID`" in keys
    assert "not set: `GROQ_API_KEY`" in groq
    assert "LiteLLM knows no such provider" in none
