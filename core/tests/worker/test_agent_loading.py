"""Finding agents and their adapters."""

import contextlib
import functools
import pickle
import sys

import pytest

from lightning_core.adapter import Adapter, AgentGraph, RolloutContext
from lightning_core.agents import (
    Adapted,
    Command,
    agent_name,
    find_adapter,
    load_agent,
    load_object,
    unwrapped,
)
from lightning_core.errors import AgentError, RewardError
from lightning_core.rollout import Mode
from lightning_core.task import Task
from lightning_core.worker.callable import CallableAdapter

CONTEXT = RolloutContext(
    rollout_id="r", attempt_id="r.1", mode=Mode.OBSERVE, base_url="http://x/v1", deadline=0.0
)
TASK = Task(id="t", input="question")


@pytest.fixture(autouse=True)
def _imports(tmp_path, monkeypatch):
    """Take back what loading does to the import system."""
    monkeypatch.chdir(tmp_path)
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def test_a_file_finds_its_siblings_and_is_loaded_once(tmp_path):
    folder = tmp_path / "deep"
    folder.mkdir()
    (folder / "sibling_x.py").write_text("import agent_x\nVALUE = 3\n")
    (folder / "agent_x.py").write_text(
        "LOADED = []\nimport sibling_x\ndef graph(text): return sibling_x.VALUE\ndef score(t, tr): return 1.0\n"
    )
    graph = load_agent("deep/agent_x.py:graph")
    score = load_object("deep/agent_x.py:score", what="reward", error=RewardError)
    assert graph("x") == 3
    assert graph.__globals__ is score.__globals__
    assert sys.modules["sibling_x"].agent_x.graph is graph
    assert pickle.loads(pickle.dumps(graph)) is graph


def test_files_of_one_name_do_not_shadow_one_another_or_the_standard_library(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same_name_x.py").write_text(f"def agent(text): return {folder!r}\n")
    (tmp_path / "json.py").write_text("def agent(text): return 'mine'\n")
    first, second = (load_agent(f"{f}/same_name_x.py:agent") for f in "ab")
    assert (first(""), second("")) == ("a", "b")
    assert load_agent("json.py:agent")("") == "mine"
    assert hasattr(sys.modules["json"], "dumps")
    assert pickle.loads(pickle.dumps(second)) is second


def test_a_module_and_a_dotted_attribute(tmp_path):
    (tmp_path / "module_x.py").write_text(
        "class Team:\n    def run(self, text): ...\nteam = Team()\n"
    )
    assert load_agent("module_x:team.run").__name__ == "run"


def test_commands_and_live_objects():
    assert load_agent(None, ["node", "my agent.js"]) == Command(("node", "my agent.js"))
    assert agent_name(load_agent(None, ["node", "my agent.js"])) == "node 'my agent.js'"
    live = object()
    assert load_agent(live) is live
    with pytest.raises(AgentError, match="both given"):
        load_agent("a:b", ["node"])
    with pytest.raises(AgentError, match="no agent is given"):
        load_agent()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("missing.py:graph", r"no file `missing.py`.*`agent_y.py`"),
        ("missing_module_y:graph", "no module `missing_module_y`"),
        ("agent_y:nope", r"it defines `graph`, `helper`"),
        ("agent_y.py:grahp", "did you mean `graph`"),
        ("agent_y.py", r"expected `agent_y.py:NAME`; it defines `graph`"),
        ("broken_y.py:graph", r"(?s)ZeroDivisionError.*broken_y.py.*1 / 0"),
        ("syntax_y.py:graph", r"(?s)SyntaxError.*syntax_y.py"),
        ("exits_y.py:graph", "SystemExit"),
        ("wants_y:graph", "not_installed_y"),
    ],
)
def test_what_cannot_be_loaded_is_named(tmp_path, spec, message):
    (tmp_path / "agent_y.py").write_text(
        "import os\nfrom functools import partial\ndef graph(x): ...\ndef helper(x): ...\n"
    )
    (tmp_path / "broken_y.py").write_text("def f():\n    1 / 0\nf()\n")
    (tmp_path / "syntax_y.py").write_text("def f(:\n")
    (tmp_path / "exits_y.py").write_text("import sys\nsys.exit(1)\n")
    (tmp_path / "wants_y.py").write_text("import not_installed_y\n")
    with pytest.raises(AgentError, match=message) as raised:
        load_agent(spec)
    assert spec in str(raised.value)
    assert "importlib" not in str(raised.value)


class Team:
    name = "team"

    def __call__(self, text):
        return text


class TeamAdapter(Adapter):
    name = "teams"

    def accepts(self, agent):
        return isinstance(agent, Team)

    def describe(self, agent):
        return AgentGraph(name="team")

    def instrument(self):
        return contextlib.nullcontext()

    async def run(self, agent, task, context):
        return agent


class OtherAdapter(TeamAdapter):
    name = "others"


class BrokenAdapter(TeamAdapter):
    name = "broken"

    def accepts(self, agent):
        raise RuntimeError("boom")


def test_the_one_adapter_that_accepts_is_found():
    adapters = {"callable": CallableAdapter(), "teams": TeamAdapter()}
    assert find_adapter(Team(), adapters) is adapters["teams"]
    assert find_adapter(len, adapters) is adapters["callable"]
    assert isinstance(find_adapter(len, {}), CallableAdapter)


def test_no_two_and_broken_adapters_are_named():
    with pytest.raises(AgentError, match="`others` and `teams`"):
        find_adapter(Team(), {"teams": TeamAdapter(), "others": OtherAdapter()})
    with pytest.raises(AgentError, match=r"`builtins.int`.*installed: `teams`"):
        find_adapter(3, {"teams": TeamAdapter()})
    with pytest.raises(AgentError, match="give an instance"):
        find_adapter(Team, {"teams": TeamAdapter()})
    with pytest.raises(AgentError, match=r"`broken` raised RuntimeError: boom"):
        find_adapter(Team(), {"broken": BrokenAdapter()})


def test_an_agent_with_an_adapter_of_its_own():
    own = TeamAdapter()
    team = Team()
    assert find_adapter(Adapted(team, own), {"teams": TeamAdapter()}) is own
    assert unwrapped(Adapted(team, own)) is team
    assert agent_name(Adapted(team, own)) == agent_name(team)
    with pytest.raises(
        AgentError, match=r"`TeamAdapter` does not accept an agent of type `builtins\.int`"
    ):
        find_adapter(Adapted(3, own), {})
    with pytest.raises(AgentError, match="expected an adapter"):
        find_adapter(Adapted(team, len), {})
    with pytest.raises(AgentError, match="`BrokenAdapter` raised"):
        find_adapter(Adapted(team, BrokenAdapter()), {})


async def test_a_callable_gets_what_its_signature_asks_for():
    async def of_input(text, mood="calm"):
        return (text, mood)

    def of_task(task: Task):
        return task

    def of_quoted(wanted: "lc.Task"):  # noqa: F821 - a text, as under `from __future__ import annotations`
        return wanted

    def of_input_named_task(task):
        return task

    def of_both(task, context):
        return (task, context)

    def of_two(t, c):
        return (t, c)

    async def of_named(*, task):
        return task

    class Object:
        async def __call__(self, text):
            return text

    adapter = CallableAdapter()
    cases = [
        (of_input, ("question", "calm")),
        (of_task, TASK),
        (of_quoted, TASK),
        (of_input_named_task, "question"),
        (of_both, (TASK, CONTEXT)),
        (of_two, (TASK, CONTEXT)),
        (of_named, TASK),
        (functools.partial(of_input, mood="sad"), ("question", "sad")),
        (Object(), "question"),
        (lambda text: of_input(text), ("question", "calm")),
        (lambda *args: args, ("question",)),
        (str.upper, "QUESTION"),
    ]
    for agent, expected in cases:
        assert adapter.accepts(agent)
        assert await adapter.run(agent, TASK, CONTEXT) == expected


@pytest.mark.parametrize("agent", [lambda: 1, lambda a, b, c: 1, lambda text, *, key: 1])
async def test_a_signature_that_does_not_fit_is_refused(agent):
    with pytest.raises(AgentError, match=r"expected `\(input\)`"):
        await CallableAdapter().run(agent, TASK, CONTEXT)


def test_names():
    assert agent_name(Team()) == "team"
    assert agent_name(test_names) == "test_names"
    assert agent_name(functools.partial(test_names, 1)) == "test_names"
