"""The conformance class passes a right adapter and fails wrong ones, each for its fault."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, nullcontext

import httpx2
import openai
import pytest

from lightning_core.adapter import Adapter, AgentGraph, GraphNode
from lightning_core.instrument import span
from lightning_core.testing.adapter import AdapterConformance, _Stage
from lightning_core.testing.scripted import ScriptedServer


class Team:
    """A framework in a few lines: members that speak at once."""

    current = staticmethod(nullcontext)

    def __init__(self, client: openai.AsyncOpenAI, *names: str):
        self.client = client
        self.names = names

    async def ask(self, text: str) -> list[str]:
        return await asyncio.gather(*(self._speak(name, text) for name in self.names))

    async def _speak(self, name: str, text: str) -> str:
        with Team.current(name):
            reply = await self.client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": text}]
            )
        return reply.choices[0].message.content


users = 0


class TeamAdapter(Adapter):
    name = "team"

    def accepts(self, agent):
        return isinstance(agent, Team)

    def describe(self, agent):
        nodes = tuple(GraphNode(name=name, kind="agent") for name in agent.names)
        return AgentGraph(name="team", nodes=nodes)

    @contextmanager
    def instrument(self):
        global users
        users += 1
        Team.current = staticmethod(lambda name: span("agent", name))
        try:
            yield
        finally:
            users -= 1
            if users == 0:
                Team.current = staticmethod(nullcontext)

    async def run(self, agent, task, context):
        return await agent.ask(task.input)


class TeamConformance(AdapterConformance):
    framework_modules = ("openai",)
    labels = (("ann", None), ("bob", None))
    adapter: type[TeamAdapter] = TeamAdapter

    def make_adapter(self):
        return self.adapter()

    def make_agent(self, base_url):
        self.opened = [*getattr(self, "opened", []), httpx2.AsyncClient()]
        client = openai.AsyncOpenAI(api_key="k", base_url=base_url, http_client=self.opened[-1])
        return Team(client, "ann", "bob")

    async def close(self):
        for client in self.opened:
            await client.aclose()

    def touched(self):
        return vars(Team)["current"].__func__


class TestTeam(TeamConformance):
    @pytest.mark.skip(reason="this framework lives in the test's own module")
    def test_importing_and_asking_imports_no_framework(self):
        pass


class AcceptsAll(TeamAdapter):
    def accepts(self, agent):
        return True


class ForgetsToRestore(TeamAdapter):
    @contextmanager
    def instrument(self):
        Team.current = staticmethod(lambda name: span("agent", name))
        yield


class RestoresTooEarly(TeamAdapter):
    @contextmanager
    def instrument(self):
        Team.current = staticmethod(lambda name: span("agent", name))
        yield
        Team.current = staticmethod(nullcontext)


class LabelsTwice(TeamAdapter):
    @contextmanager
    def instrument(self):
        before = vars(Team)["current"].__func__

        @contextmanager
        def current(name):
            with before(name), span("agent", name):
                yield

        Team.current = staticmethod(current)
        yield
        Team.current = staticmethod(before)


class MixesUp(TeamAdapter):
    @contextmanager
    def instrument(self):
        Team.current = staticmethod(lambda name: span("agent", "ann"))
        yield
        Team.current = staticmethod(nullcontext)


class Deaf(TeamAdapter):
    def instrument(self):
        return nullcontext()


class TalksDifferently(TeamAdapter):
    """Changes what the agent asks, once it is instrumented."""

    @contextmanager
    def instrument(self):
        ask = Team.ask

        async def changed(self, text):
            return await ask(self, text + "!")

        Team.ask = changed
        yield
        Team.ask = ask


class ReturnsAnObject(TeamAdapter):
    async def run(self, agent, task, context):
        await agent.ask(task.input)
        return object()


class DescribesNothing(TeamAdapter):
    def describe(self, agent):
        return AgentGraph(name="team")


@pytest.mark.parametrize(
    ("adapter", "test"),
    [
        (AcceptsAll, "test_accepts_its_own_and_nothing_else"),
        (ForgetsToRestore, "test_instrument_restores_what_it_changed"),
        (RestoresTooEarly, "test_instrument_may_be_entered_again"),
        (LabelsTwice, "test_instrument_may_be_entered_again"),
        (MixesUp, "test_every_call_is_labelled"),
        (MixesUp, "test_concurrent_runs_keep_their_labels_apart"),
        (Deaf, "test_every_call_is_labelled"),
        (TalksDifferently, "test_the_bodies_of_an_attempt_are_the_same"),
        (ReturnsAnObject, "test_run_returns_an_output_that_json_can_hold"),
        (DescribesNothing, "test_describes_what_is_labelled"),
    ],
)
def test_a_wrong_adapter_fails(adapter, test, monkeypatch):
    monkeypatch.setattr(Team, "current", staticmethod(nullcontext))
    case = TeamConformance()
    case.adapter = adapter
    with (
        asyncio.Runner() as runner,
        ScriptedServer.in_thread() as upstream,
        ScriptedServer.in_thread() as gateway,
    ):
        stage = _Stage(case, runner, upstream, gateway)
        try:
            with pytest.raises((AssertionError, ValueError)):
                getattr(case, test)(stage)
        finally:
            runner.run(case.close())
