"""Conformance of adapters: subclass `AdapterConformance` in a test module, and pytest does the rest.

```python
class TestMine(AdapterConformance):
    framework_modules = ("my_framework",)
    labels = (("writer", None), ("critic", None))

    def make_adapter(self):
        return MyAdapter()

    def make_agent(self, base_url):
        return my_framework.Team(client=openai.AsyncOpenAI(base_url=base_url, api_key="k"), ...)
```
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, ClassVar
from urllib.parse import parse_qs

import msgspec
import pytest

from lightning_core import frameworks
from lightning_core.adapter import Adapter, AgentGraph, RolloutContext
from lightning_core.instrument import ListSink, Scope, attempt, instrument
from lightning_core.records import Json
from lightning_core.rollout import Mode
from lightning_core.task import Task
from lightning_core.testing.received import Received
from lightning_core.testing.scripted import ScriptedServer
from lightning_core.worker.outputs import to_json

_CONCURRENT = 8


class AdapterConformance:
    """What every adapter must do. Needs the adapter's framework and the `openai` SDK."""

    framework_modules: ClassVar[tuple[str, ...]]
    """Top-level modules of the framework: importing the adapter must import none of them."""
    labels: ClassVar[tuple[tuple[str | None, str | None], ...]]
    """(agent, node) of each model call of one run, in any order."""
    task_input: ClassVar[Json] = "hello"
    """The input of the task that the agent is run on."""

    def make_adapter(self) -> Adapter:
        """The adapter."""
        raise NotImplementedError

    def make_agent(self, base_url: str) -> object:
        """An agent whose model is at `base_url`, which ends in `/v1` and answers with the last user message.

        Its clients must use the openai SDK. It is run many times, also at once, in one event loop.
        """
        raise NotImplementedError

    def touched(self) -> object:
        """What `instrument` changes in the framework, to be compared before and after. Override it."""
        return None

    async def close(self) -> None:
        """End what `make_agent` opened, such as clients. Called after each test, in the agents' loop."""

    # ---------------------------------------------------------------------------------------------------------

    @pytest.fixture(scope="class")
    @classmethod
    def loop_runner(cls) -> Iterator[asyncio.Runner]:
        """One loop for the class: many clients cannot be used in two."""
        with asyncio.Runner() as runner:
            yield runner

    @pytest.fixture
    def stage(self, loop_runner: asyncio.Runner) -> Iterator[_Stage]:
        """An upstream and a stand-in for the gateway."""
        with (
            ScriptedServer.in_thread(responses=True) as upstream,
            ScriptedServer.in_thread(responses=True) as gateway,
        ):
            yield _Stage(self, loop_runner, upstream, gateway)
            loop_runner.run(self.close())

    def test_adapter_has_a_name(self) -> None:
        """`name` is what `lightning-core plugins` lists."""
        adapter = self.make_adapter()
        assert isinstance(adapter.name, str)
        assert adapter.name

    def test_importing_and_asking_imports_no_framework(self) -> None:
        """`accepts` must not import the framework, nor the adapter's module on import."""
        kind = type(self.make_adapter())
        code = (
            "import importlib, json, sys\n"
            f"adapter = importlib.import_module({kind.__module__!r}).{kind.__qualname__}()\n"
            "assert adapter.accepts(object()) is False, 'it accepts any object'\n"
            f"print(json.dumps([m for m in {list(self.framework_modules)!r} if m in sys.modules]))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == [], "the framework was imported"

    def test_accepts_its_own_and_nothing_else(self, stage: _Stage) -> None:
        """An object of another framework must be left to its adapter."""
        adapter = self.make_adapter()
        assert adapter.accepts(self.make_agent(stage.upstream.base_url)) is True
        for other in (None, "text", 1, object(), {}, [], print, lambda: None, type(self)):
            assert adapter.accepts(other) is False, f"it accepts {other!r}"

    def test_describes_what_is_labelled(self, stage: _Stage) -> None:
        """Every label is the name of something in the graph, and every edge joins two such."""
        graph = self.make_adapter().describe(self.make_agent(stage.upstream.base_url))
        assert isinstance(graph, AgentGraph)
        assert AgentGraph.from_json(graph.to_json()) == graph
        names = {node.name for node in graph.nodes}
        assert {label for labels in self.labels for label in labels if label} <= names
        ends = {end for edge in graph.edges for end in (edge.source, edge.target)}
        assert ends <= names | {"__start__", "__end__"}

    def test_run_returns_an_output_that_json_can_hold(self, stage: _Stage) -> None:
        """The output holds what the model said, which was what the task asked."""
        output = stage.run(stage.scope("a"))
        text = msgspec.json.encode(to_json(output)).decode()
        assert text not in ("null", '""'), f"the output is {output!r}"

    def test_every_call_is_labelled(self, stage: _Stage) -> None:
        """Each call names its agent, node and span, and each span has ended."""
        scope = stage.scope("a")
        with instrument([stage.adapter]):
            stage.run(scope)
        stage.check(scope)

    def test_instrument_may_be_entered_again(self, stage: _Stage) -> None:
        """Contexts may nest and overlap; the calls are labelled once, until the last one has ended."""
        once, again, still = stage.scope("once"), stage.scope("again"), stage.scope("still")
        with instrument([stage.adapter]):
            stage.run(once)
        spans = len(_spans(once))
        first, second = ExitStack(), ExitStack()
        with instrument(), first, second:
            first.enter_context(stage.adapter.instrument())
            second.enter_context(self.make_adapter().instrument())
            stage.run(again)
            first.close()  # Before the second: contexts of two runs overlap so.
            stage.run(still)
        for scope in (again, still):
            assert len(_spans(scope)) == spans
            stage.check(scope)

    def test_instrument_restores_what_it_changed(self, stage: _Stage) -> None:
        """After the last context has ended, the framework is as it was and nothing is labelled."""
        before = self.touched()
        with instrument([stage.adapter]):
            stage.run(stage.scope("a"))
        assert self.touched() == before
        scope = stage.scope("b")
        with instrument():
            stage.run(scope)
        assert _spans(scope) == []
        assert stage.labels(scope) == [(None, None)] * len(self.labels)

    def test_releases_that_it_is_not_for_are_left_alone(
        self, stage: _Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where another release of the framework is installed, nothing is changed, and it says what to do."""
        name = stage.adapter.distribution
        if name is None or not frameworks.requirements(name):
            pytest.skip(
                "no extra `instruments` of its `distribution` says which releases it is for"
            )
        assert frameworks.misfit(stage.adapter) is None
        monkeypatch.setattr(frameworks, "requirements", lambda _: (f"{name}>=9999",))
        assert f'pip install "{name}[instruments]"' in str(frameworks.misfit(stage.adapter))
        before, scope = self.touched(), stage.scope("a")
        with instrument([stage.adapter]):
            assert self.touched() == before
            stage.run(scope)
        assert stage.labels(scope) == [(None, None)] * len(self.labels)

    def test_nothing_happens_outside_an_attempt(self, stage: _Stage) -> None:
        """Calls go where the agent meant them to go, without a header of ours, and the bodies are the same."""
        stage.run(None)
        with instrument([stage.adapter]):
            stage.run(None)
        assert stage.gateway.requests == []
        seen = stage.upstream.requests
        assert not [h for request in seen for h in request.headers if h.startswith("x-lightning")]
        count = len(self.labels)
        assert sorted(r.body for r in seen[:count]) == sorted(r.body for r in seen[count:])

    def test_the_bodies_of_an_attempt_are_the_same(self, stage: _Stage) -> None:
        """Instrumentation must not change what the agent asks of the model."""
        stage.run(None)
        scope = stage.scope("a")
        with instrument([stage.adapter]):
            stage.run(scope)
        bodies = sorted(request.body for request in stage.requests(scope))
        assert bodies == sorted(request.body for request in stage.upstream.requests)

    def test_concurrent_runs_keep_their_labels_apart(self, stage: _Stage) -> None:
        """One agent object, many attempts at once in one loop."""
        scopes = [stage.scope(f"a{number}") for number in range(_CONCURRENT)]
        with instrument([stage.adapter]):
            stage.run(*scopes)
        for scope in scopes:
            stage.check(scope)


class _Stage:
    def __init__(
        self,
        case: AdapterConformance,
        runner: asyncio.Runner,
        upstream: ScriptedServer,
        gateway: ScriptedServer,
    ) -> None:
        self.adapter = case.make_adapter()
        self.upstream = upstream
        self.gateway = gateway
        self._case = case
        self._runner = runner
        self._agent = case.make_agent(upstream.base_url)

    def scope(self, name: str) -> Scope:
        return Scope(
            gateway=self.gateway.url, session=f"token-{name}", attempt=name, sink=ListSink()
        )

    def run(self, *scopes: Scope | None) -> object:
        """Run the agent in each scope at once; gives the last output."""
        return self._runner.run(self._run_all(scopes))

    async def _run_all(self, scopes: tuple[Scope | None, ...]) -> object:
        return (await asyncio.gather(*(self._run_one(scope) for scope in scopes)))[-1]

    async def _run_one(self, scope: Scope | None) -> object:
        task = Task(id="task", input=self._case.task_input)
        context = RolloutContext(
            rollout_id="rollout",
            attempt_id="attempt" if scope is None else scope.attempt,
            mode=Mode.OBSERVE,
            base_url=self.upstream.base_url if scope is None else scope.base_url,
            deadline=time.time() + 600.0,
        )
        if scope is None:
            return await self.adapter.run(self._agent, task, context)
        with attempt(scope):
            return await self.adapter.run(self._agent, task, context)

    def requests(self, scope: Scope) -> list[Received]:
        return [
            r
            for r in self.gateway.requests
            if r.headers.get("x-lightning-session") == scope.session
        ]

    def labels(self, scope: Scope) -> list[tuple[str | None, str | None]]:
        """(agent, node) of each call."""
        found = [_labels(request) for request in self.requests(scope)]
        return [(labels.get("agent"), labels.get("node")) for labels in found]

    def check(self, scope: Scope) -> None:
        """Every call of the attempt has its labels and a span of the attempt; every span has ended."""
        assert sorted(map(str, self.labels(scope))) == sorted(map(str, self._case.labels))
        spans = {span["id"]: span for span in _spans(scope)}
        for request in self.requests(scope):
            assert _labels(request).get("span") in spans, "a call's span is not one of its attempt"
        for span in spans.values():
            assert span["attempt_id"] == scope.attempt
            assert span["ended_at"] is not None, f"span `{span['name']}` has not ended"
            assert span["parent_id"] is None or span["parent_id"] in spans


def _labels(request: Received) -> dict[str, str]:
    pairs = parse_qs(request.headers.get("x-lightning-labels", ""))
    return {name: values[0] for name, values in pairs.items()}


def _spans(scope: Scope) -> list[dict[str, Any]]:
    sink = scope.sink
    assert isinstance(sink, ListSink)
    return sink.spans()
