"""The worker against the real server: calls recorded under their attempts, nothing lost."""

import asyncio
import contextlib
import json
import sys
import time

import pytest

from lightning_core.agents import Command
from lightning_core.client import Client
from lightning_core.plugins import installed
from lightning_core.rollout import Cause, Mode, Rollout, RolloutStatus
from lightning_core.server.app import Server, ServerConfig
from lightning_core.task import Task
from lightning_core.testing import Error, ScriptedServer, Text
from lightning_core.tokens import Claims, Scope, TokenSigner
from lightning_core.worker import Worker

openai = pytest.importorskip("openai")


class Site:
    """A server, its admin client, and workers."""

    def __init__(self, url, client, token):
        self.url = url
        self.client = client
        self.token = token

    async def enqueue(self, *values, timeout=60.0, mode=Mode.OBSERVE, **options):
        tasks = [Task(id=f"t{n}", input=value, expected="secret") for n, value in enumerate(values)]
        await self.client.put_tasks("run", tasks)
        rollouts = [
            Rollout(id=f"r{t.id}", task_id=t.id, run="run", timeout=timeout, mode=mode, **options)
            for t in tasks
        ]
        await self.client.enqueue(rollouts)
        return [r.id for r in rollouts]

    async def ended(self, ids):
        """The traces of rollouts, once all have ended."""
        after, waiting = 0, set(ids)
        while waiting:
            for event in await self.client.events(after):
                after = event.number
                if event.kind == "rollout_ended":
                    waiting.discard(event.rollout_id)
        return [await self.client.trace(i) for i in ids]

    @contextlib.asynccontextmanager
    async def worker(self, agent, **options):
        stop = asyncio.Event()
        async with Client(self.url, self.token) as client:
            adapters = tuple(installed().adapters().values())
            task = asyncio.create_task(
                Worker(client, agent, adapters=adapters, **options).run(stop)
            )
            try:
                yield
            finally:
                stop.set()
                await task


@pytest.fixture
async def site(run_folder):
    async with (
        Server(ServerConfig(folder=run_folder, lease_seconds=1.5)) as server,
        Client(server.url, server.token(Scope.ADMIN)) as client,
    ):
        yield Site(server.url, client, server.token(Scope.WORKER))


@pytest.mark.parametrize("own_loop", [False, True])
async def test_concurrent_agents_in_one_process_have_their_own_calls(
    site, scripted_server, own_loop
):
    scripted_server.respond(
        lambda received: Text(f"re: {received.json['messages'][-1]['content']}")
    )
    client = openai.AsyncOpenAI(api_key="user", base_url=scripted_server.base_url, max_retries=0)
    barrier = asyncio.Barrier(8)

    async def agent(text):
        await barrier.wait()
        reply = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": text}]
        )
        if await barrier.wait() == 0:
            await client.close()
        return reply.choices[0].message.content

    async with site.worker(agent, own_loop=own_loop):
        ids = await site.enqueue(*(f"question {n}" for n in range(8)))
        traces = await site.ended(ids)
    for number, trace in enumerate(traces):
        assert trace.attempt.cause is Cause.SUCCESS
        assert trace.output == f"re: question {number}"
        assert [c.messages[-1]["content"] for c in trace.calls] == [f"question {number}"]
        assert trace.calls[0].attempt_id == trace.attempt.id


async def test_commands_are_recorded_too_with_the_users_own_address(
    site, scripted_server, monkeypatch
):
    scripted_server.respond(lambda received: Text("fine"))
    monkeypatch.setenv("OPENAI_API_KEY", "user")
    code = f"""
import json, openai
client = openai.OpenAI(base_url={scripted_server.base_url!r})
reply = client.chat.completions.create(model="m", messages=[{{"role": "user", "content": "hi"}}])
print(json.dumps(reply.choices[0].message.content))
"""
    async with site.worker(Command((sys.executable, "-c", code))):
        (trace,) = await site.ended(await site.enqueue("x"))
    assert (trace.attempt.cause, trace.output) == (Cause.SUCCESS, "fine"), trace.attempt.error
    assert [c.text for c in trace.calls] == ["fine"]


async def test_isolated_agents_are_recorded_and_never_see_what_is_expected(
    site, scripted_server, tmp_path
):
    scripted_server.respond(lambda received: Text("fine"))
    (tmp_path / "isolated_agent_z.py").write_text(f"""
import openai
from lightning_core.instrument import span
client = openai.AsyncOpenAI(api_key="user", base_url={scripted_server.base_url!r})
from lightning_core import Task
async def agent(task: Task):
    with span("agent", "asker"):
        reply = await client.chat.completions.create(
            model="m", messages=[{{"role": "user", "content": "hi"}}])
    return [reply.choices[0].message.content, task.expected]
""")
    async with site.worker(f"{tmp_path / 'isolated_agent_z.py'}:agent", isolate=True):
        (trace,) = await site.ended(await site.enqueue("x"))
    assert (trace.attempt.cause, trace.output) == (Cause.SUCCESS, ["fine", None]), trace.attempt
    assert [(c.text, c.agent) for c in trace.calls] == [("fine", "asker")]
    assert [s.name for s in trace.spans] == ["asker"]
    assert trace.calls[0].span_id == trace.spans[0].id


async def test_a_model_that_fails_is_the_cause_and_is_tried_again(site, scripted_server):
    replies = iter([Error(500), Text("fine")])
    scripted_server.respond(lambda received: next(replies))
    client = openai.AsyncOpenAI(api_key="user", base_url=scripted_server.base_url, max_retries=0)

    async def agent(text):
        reply = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": text}]
        )
        return reply.choices[0].message.content

    async with site.worker(agent):
        (trace,) = await site.ended(await site.enqueue("hi", max_attempts=2))
    await client.close()
    assert trace.rollout.status is RolloutStatus.SUCCEEDED
    assert trace.attempt.number == 2
    first = await site.client.trace(trace.rollout.id, attempt=1)
    assert first.attempt.cause is Cause.MODEL_ERROR
    assert "InternalServerError" in first.attempt.error


async def test_cancelling_a_rollout_ends_its_agent(site, monkeypatch):
    begun, ended = asyncio.Event(), asyncio.Event()

    async def agent(text):
        begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    async with site.worker(agent):
        ids = await site.enqueue("hi")
        await begun.wait()
        await site.client.cancel(ids[0], "enough")
        (trace,) = await site.ended(ids)
    assert trace.rollout.status is RolloutStatus.CANCELLED
    assert trace.attempt.cause is Cause.CANCELLED
    assert ended.is_set()


async def _serve(folder, port=0):
    """A server process: itself and its address."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "lightning_core.server"),
        *("--folder", str(folder), "--port", str(port)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    return process, json.loads(await process.stdout.readline())["url"]


async def test_a_server_that_is_killed_and_started_again_loses_nothing(run_folder):
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def agent(text):
        begun.set()
        await go_on.wait()
        return text

    process, url = await _serve(run_folder)
    signer = TokenSigner.from_file(run_folder / "server.key")
    admin, worker = (
        signer.sign(Claims(scope=scope, expires_at=time.time() + 600))
        for scope in (Scope.ADMIN, Scope.WORKER)
    )
    try:
        async with Client(url, admin) as client:
            site = Site(url, client, worker)
            async with site.worker(agent):
                ids = await site.enqueue("one")
                await begun.wait()
                process.kill()
                await process.wait()
                go_on.set()  # The agent ends while nobody listens.
                await asyncio.sleep(0.3)
                process, _ = await _serve(run_folder, int(url.rpartition(":")[2]))
                (trace,) = await site.ended(ids)
        assert (trace.attempt.cause, trace.output) == (Cause.SUCCESS, "one")
        assert trace.attempt.number == 1
    finally:
        process.kill()
        await process.wait()


async def test_a_langgraph_agent_runs_in_a_process_of_its_own(site, scripted_server, tmp_path):
    pytest.importorskip("lightning_langgraph")
    scripted_server.respond(lambda received: Text("fine"))
    (tmp_path / "graph_agent_z.py").write_text(f"""
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
model = ChatOpenAI(model="m", api_key="user", base_url={scripted_server.base_url!r})
async def write(state):
    return {{"messages": [await model.ainvoke(state["messages"])]}}
builder = StateGraph(MessagesState)
builder.add_node("write", write)
builder.add_edge(START, "write")
graph = builder.compile()
""")
    async with site.worker(f"{tmp_path / 'graph_agent_z.py'}:graph", isolate=True):
        (trace,) = await site.ended(await site.enqueue("hi"))
    assert trace.attempt.cause is Cause.SUCCESS, trace.attempt.error
    assert [c.node for c in trace.calls] == ["write"]
    assert "fine" in json.dumps(trace.output)


async def test_each_format_of_an_observed_program_goes_where_it_went(
    site, scripted_server, monkeypatch
):
    """A program that is not hooked knows the addresses alone."""
    async with ScriptedServer() as other:
        monkeypatch.setenv("OPENAI_BASE_URL", scripted_server.base_url)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", f"{other.url}/")
        ask = (
            'ask() { curl -s "$1" -H "content-type: application/json" -H "x-api-key: own" -d "$2"; };'
            ' said=\'"model": "m", "messages": [{"role": "user", "content": "hi"}]\';'
            ' ask "$ANTHROPIC_BASE_URL/v1/messages" "{\\"max_tokens\\": 9, $said}";'
            ' ask "$OPENAI_BASE_URL/chat/completions" "{$said}"'
        )
        async with site.worker(Command(("sh", "-c", ask))):
            (trace,) = await site.ended(await site.enqueue("x"))
        assert [call.dialect for call in trace.calls] == ["messages", "chat"]
        assert [call.target for call in trace.calls] == [
            f"{each.base_url}/chat/completions" for each in (other, scripted_server)
        ]
    assert trace.attempt.upstreams == {"messages": other.base_url}
