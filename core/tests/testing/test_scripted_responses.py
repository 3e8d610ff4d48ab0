"""The scripted server's OpenAI Responses, as the SDK sees them."""

import openai
import pytest

from lightning_core.testing import Cut, Error, ScriptedServer, ToolCall, ToolCalls


@pytest.fixture
async def server():
    async with ScriptedServer(responses=True) as server:
        yield server


@pytest.fixture
async def client(server):
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="k", max_retries=0) as client:
        yield client


async def test_a_request_is_kept_as_it_came_and_answered_as_a_chat(server, client):
    server.respond(lambda request: str([m["role"] for m in request.messages]))
    reply = await client.responses.create(model="m", instructions="Be.", input="hi")
    assert reply.output_text == "['system', 'user']"
    (request,) = server.requests
    assert request.path == "/v1/responses"
    assert request.json == {"model": "m", "instructions": "Be.", "input": "hi"}
    assert request.finished


async def test_tool_calls_streams_and_errors(server, client):
    server.enqueue(ToolCalls([ToolCall("add", {"a": 1}, id="c1")]), "one two", Error(429))
    (item,) = (await client.responses.create(model="m", input="hi")).output
    assert (item.type, item.call_id, item.arguments) == ("function_call", "c1", '{"a": 1}')
    async with client.responses.stream(model="m", input="hi") as stream:
        types = [event.type async for event in stream]
        assert (await stream.get_final_response()).output_text == "one two"
    assert types.count("response.output_text.delta") == 2
    with pytest.raises(openai.RateLimitError):
        await client.responses.create(model="m", input="hi")


async def test_a_stream_that_is_cut_has_no_last_event(server, client):
    server.enqueue(Cut(2, "one two three"))
    types = []

    async def read():
        async for event in await client.responses.create(model="m", input="hi", stream=True):
            types.append(event.type)

    with pytest.raises(openai.APIError):
        await read()
    assert "response.output_text.delta" in types
    assert "response.completed" not in types


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_response_is_gone_on_with_by_its_id(server, client, streamed):
    if streamed:
        async with client.responses.stream(model="m", instructions="Be.", input="hi") as stream:
            async for _ in stream:
                pass
            first = await stream.get_final_response()
    else:
        first = await client.responses.create(model="m", instructions="Be.", input="hi")
    server.respond(lambda request: str([m["content"] for m in request.messages]))
    reply = await client.responses.create(model="m", input="on", previous_response_id=first.id)
    assert reply.output_text == "['hi', 'hi', 'on']"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"previous_response_id": "resp_gone"}, "no response 'resp_gone'"),
        ({"tools": [{"type": "web_search"}]}, "web_search"),
    ],
)
async def test_what_it_cannot_answer_is_said(client, body, says):
    with pytest.raises(openai.BadRequestError, match=says):
        await client.responses.create(model="m", input="hi", **body)


async def test_a_server_speaks_it_only_where_it_is_asked_to():
    async with (
        ScriptedServer() as server,
        openai.AsyncOpenAI(base_url=server.base_url, api_key="k", max_retries=0) as client,
    ):
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(model="m", input="hi")
