"""The conformance class for engines finds the faults that it is there for."""

from __future__ import annotations

import json

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from lightning_core.capability import Capability
from lightning_core.engine import Endpoint, Engine
from lightning_core.testing.engine import EngineConformance, Started


class Elsewhere(Engine):
    name = "elsewhere"
    gives = frozenset(Capability)

    async def start(self):
        raise NotImplementedError

    async def stop(self):
        raise NotImplementedError

    async def load_weights(self, folder):
        """Says yes and does nothing."""


class Conformance(EngineConformance):
    @classmethod
    def make(cls, folder):
        return Elsewhere()

    @classmethod
    def weights(cls, folder):
        return folder, folder


def shorten_ids(reply, body):
    reply["choices"][0].get("token_ids", [0]).pop()


def shorten_logprobs(reply, body):
    if body.get("logprobs"):
        reply["choices"][0]["logprobs"]["content"].pop()


def forget_prompt_ids(reply, body):
    reply["prompt_token_ids"] = []


def shout(reply, body):
    message = reply["choices"][0]["message"]
    message["content"] = message["content"] + "!"


def drop_choice(reply, body):
    reply["choices"] = reply["choices"][:1]


def unlikely(reply, body):
    for entry in (reply["choices"][0]["logprobs"] or {}).get("content", ()):
        entry["logprob"] -= 1.0


def claim_call(reply, body):
    reply["choices"][0]["finish_reason"] = "tool_calls"


def count_wrong(reply, body):
    reply["usage"]["prompt_tokens"] = 7
    reply["usage"]["total_tokens"] = 7 + reply["usage"]["completion_tokens"]


async def run(serve, tamper, test, *arguments):
    """Run one conformance test against a server whose whole replies are tampered with."""
    async with serve() as client:

        async def relay(request):
            data = await request.read()
            async with client.client.request(
                request.method,
                request.path,
                data=data,
                headers={"content-type": "application/json"},
            ) as response:
                answer = await response.read()
                kind = response.content_type
                if response.status == 200 and kind == "application/json" and tamper is not None:
                    body, reply = json.loads(data), json.loads(answer)
                    tamper(reply, body)
                    answer = json.dumps(reply).encode()
                return web.Response(body=answer, status=response.status, content_type=kind)

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", relay)
        async with TestServer(app) as server, aiohttp.ClientSession() as session:
            endpoint = Endpoint(base_url=str(server.make_url("/v1")), model="tiny")
            started = Started(Elsewhere(), endpoint, session)
            await getattr(Conformance(), test)(started, *arguments)


FAULTS = [
    (shorten_ids, "test_token_ids"),
    (shorten_ids, "test_token_ids_of_each_choice"),
    (shorten_ids, "test_token_ids_in_a_stream"),
    (forget_prompt_ids, "test_token_ids"),
    (forget_prompt_ids, "test_token_ids_in_a_stream"),
    (shorten_logprobs, "test_logprobs"),
    (unlikely, "test_logprobs"),
    (shout, "test_a_stream_says_the_same"),
    (shout, "test_a_stop_text_ends_the_completion"),
    (drop_choice, "test_several_choices"),
    (claim_call, "test_tools_are_offered"),
    (count_wrong, "test_requests_at_once_are_all_answered"),
    (count_wrong, "test_a_tool_result_is_read"),
]


@pytest.mark.parametrize("test", sorted({test for _, test in FAULTS}))
async def test_a_true_server_passes(serve, test):
    await run(serve, None, test)


@pytest.mark.parametrize(("tamper", "test"), FAULTS)
async def test_a_fault_is_found(serve, tamper, test):
    with pytest.raises(AssertionError):
        await run(serve, tamper, test)


async def test_weights_that_are_not_taken_are_found(serve, tmp_path):
    with pytest.raises(AssertionError):
        await run(serve, None, "test_weights_in_place", tmp_path)
