"""Plugins: found one by one, each fault named, built-ins through the same hooks."""

import importlib.metadata
import subprocess
import sys
import textwrap

import pytest

from lightning_core import plugins
from lightning_core.adapter import Adapter
from lightning_core.errors import PluginError
from lightning_core.settings import Settings


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Write a plugin module; give its entry point."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, code: str, *, module: str | None = None) -> importlib.metadata.EntryPoint:
        module = module or f"plugin_{tmp_path.name.replace('-', '_')}_{name}"
        text = "from lightning_core import hookimpl\n" + textwrap.dedent(code)
        (tmp_path / f"{module}.py").write_text(text)
        return importlib.metadata.EntryPoint(name, module, plugins.GROUP)

    return write


def load(*points, settings=None, write=None):
    return plugins.load(settings or Settings(), entry_points=points, write=write)


def test_hook_lightning_register_adapters(plugin):
    point = plugin(
        "one",
        """
        from contextlib import nullcontext
        from lightning_core import Adapter, AgentGraph

        class Mine(Adapter):
            name = "mine"
            def accepts(self, agent): return False
            def describe(self, agent): return AgentGraph(name="x")
            def instrument(self): return nullcontext()
            async def run(self, agent, task, context): return None

        @hookimpl
        def lightning_register_adapters(): return [Mine()]
        """,
    )
    adapters = load(point).adapters()
    assert set(adapters) == {"callable", "mine"}
    assert all(isinstance(adapter, Adapter) for adapter in adapters.values())


def test_hook_lightning_register_backends(plugin):
    point = plugin(
        "one",
        """
        from lightning_core import Artifact, Backend

        class Mine(Backend):
            name = "mine"
            async def optimize(self, run): return Artifact(kind="strategy", path="x", apply="y")

        @hookimpl
        def lightning_register_backends(): return [Mine()]
        """,
    )
    assert list(load(point).backends()) == ["mine"]


def test_hook_lightning_register_engines():
    assert list(load().engines()) == ["litellm", "openai"]


def test_hook_lightning_register_executors(plugin):
    point = plugin(
        "one",
        """
        from contextlib import nullcontext
        from lightning_core.executor import Executor

        class Mine(Executor):
            name = "mine"
            def opened(self, address, *, server, logs): return nullcontext()

        @hookimpl
        def lightning_register_executors(): return [Mine()]
        """,
    )
    assert list(load(point).executors()) == ["mine", "process"]


def test_hook_lightning_register_rewards():
    assert list(load().rewards()) == ["contains", "exact_match", "numeric", "token_f1"]


def test_hook_lightning_rollout_finished(plugin, tmp_path):
    point = plugin(
        "one",
        """
        SEEN = []
        @hookimpl
        def lightning_rollout_finished(folder): SEEN.append(folder)
        """,
    )
    from lightning_core import Attempt, Rollout, Task, Trace

    trace = Trace(
        rollout=Rollout(id="r", task_id="t"),
        task=Task(id="t", input="x"),
        attempt=Attempt(
            id="r.1", rollout_id="r", number=1, fence=1, worker="w", started_at=1.0, deadline=2.0,
            lease_until=2.0,
        ),
    )  # fmt: skip
    load(point).hook.lightning_rollout_finished(folder=tmp_path, trace=trace)
    seen = sys.modules[point.value].SEEN
    assert seen == [tmp_path]
    assert '"rollout":"r"' in (tmp_path / "metrics.jsonl").read_text()


def test_hook_lightning_register_credit(plugin):
    point = plugin(
        "one",
        """
        @hookimpl
        def lightning_register_credit(): return {"mine": lambda parameter: lambda trace: {}}
        """,
    )
    assert list(load(point).credit()) == ["agent", "call", "discounted", "final", "mine"]


def test_hook_lightning_register_samplers(plugin):
    point = plugin(
        "one",
        """
        @hookimpl
        def lightning_register_samplers(): return {"mine": lambda tasks, seed, argument: None}
        """,
    )
    assert list(load(point).samplers()) == ["difficulty", "mine", "shuffled", "success"]


def test_hook_lightning_step_finished(plugin, tmp_path):
    good = plugin(
        "good",
        """
        SEEN = []
        @hookimpl
        def lightning_step_finished(step, metrics): SEEN.append((step, metrics["reward"]))
        """,
    )
    bad = plugin(
        "bad",
        """
        @hookimpl
        def lightning_step_finished(folder): raise OSError(f"{folder.name} is full")
        """,
    )
    failed = load(bad, good).tell_step(folder=tmp_path, step=3, metrics={"reward": 0.5})
    assert sys.modules[good.value].SEEN == [(3, 0.5)]
    ((name, error),) = failed
    assert name == "bad"
    assert str(error) == f"{tmp_path.name} is full"


def test_a_broken_plugin_is_named_with_the_fix_and_the_others_load(plugin):
    good = plugin(
        "good", "@hookimpl\ndef lightning_register_rewards(): return {'mine': lambda t, r: 1.0}"
    )
    bad = plugin("bad", "import no_such_module_anywhere")
    loaded = load(bad, good)
    assert "mine" in loaded.rewards()
    (broken,) = loaded.broken
    assert broken.name == "bad"
    assert "no_such_module_anywhere" in broken.error
    assert "pip install" in broken.error


def test_a_broken_plugin_that_was_asked_for_is_an_error(plugin):
    with pytest.raises(PluginError, match="plugin `bad`"):
        load(plugin("bad", "1 / 0"), settings=Settings(plugins=("bad",)))


def test_a_plugin_that_is_asked_for_and_not_installed_is_an_error(plugin):
    with pytest.raises(PluginError, match=r"`absent`.*installed are `good`"):
        load(plugin("good", ""), settings=Settings(plugins=("absent",)))


def test_narrowing_loads_only_what_is_named(plugin):
    one = plugin("one", "@hookimpl\ndef lightning_register_rewards(): return {'one': print}")
    two = plugin("two", "raise SystemError('must not be imported')")
    loaded = load(one, two, settings=Settings(plugins=("one",)))
    assert [info.name for info in loaded.found] == ["one"]


def test_a_misspelt_hook_is_an_error(plugin):
    with pytest.raises(PluginError, match=r"plugin `one`.*lightning_register_adaptors"):
        load(plugin("one", "@hookimpl\ndef lightning_register_adaptors(): return []"))


def test_two_things_of_one_name_are_an_error_that_names_both(plugin):
    code = "@hookimpl\ndef lightning_register_rewards(): return {'mine': print}"
    with pytest.raises(
        PluginError, match="reward `mine` is registered by plugin `one` and by plugin `two`"
    ):
        load(plugin("one", code), plugin("two", code)).rewards()


def test_two_plugins_of_one_name_are_an_error(plugin):
    first = plugin("one", "", module="first_of_two")
    second = plugin("one", "", module="second_of_two")
    with pytest.raises(PluginError, match="plugin `one` comes from"):
        load(first, second)


def test_a_hook_that_raises_names_its_plugin(plugin):
    point = plugin("one", "@hookimpl\ndef lightning_register_rewards(): return 1 / 0")
    with pytest.raises(
        PluginError,
        match="plugin `one`: hook `lightning_register_rewards` raised ZeroDivisionError",
    ):
        load(point).rewards()


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("def lightning_register_adapters(): return [3]", "expected `Adapter` objects but got 3"),
        ("def lightning_register_adapters(): return {}", "a list of `Adapter` objects but got {}"),
        ("def lightning_register_rewards(): return 7", "a dict of functions by name but got 7"),
        (
            "def lightning_register_rewards(): return {'x': 7}",
            "a function for reward `x` but got 7",
        ),
        ("def lightning_register_credit(): return []", "a dict of functions by name but got []"),
        (
            "def lightning_register_samplers(): return {'x': 7}",
            "a function for sampler `x` but got 7",
        ),
    ],
)
def test_a_hook_that_returns_something_else_names_its_plugin(plugin, code, says):
    loaded = load(plugin("one", f"@hookimpl\n{code}"))
    with pytest.raises(PluginError) as raised:
        loaded.adapters(), loaded.rewards(), loaded.credit(), loaded.samplers()
    assert str(raised.value).startswith("plugin `one`: hook `lightning_register_")
    assert says in str(raised.value)


def test_an_argument_that_a_hook_does_not_have_is_named(plugin):
    (broken,) = load(plugin("one", "@hookimpl\ndef lightning_rollout_finished(wrong): ...")).broken
    assert "{'wrong'}" in broken.error
    assert "tell its authors" in broken.error


def test_tracing_prints_each_hook_call(plugin):
    lines = []
    loaded = load(
        plugin("one", "@hookimpl\ndef lightning_register_rewards(): return {'mine': print}"),
        settings=Settings(trace_plugins=True),
        write=lines.append,
    )
    loaded.rewards()
    text = "".join(lines)
    assert "lightning_register_rewards" in text
    assert "mine" in text


def test_listing_plugins_imports_no_framework():
    code = """
        import sys
        from lightning_core.cli import main
        status = main(["plugins"])
        heavy = {"torch", "transformers", "langgraph", "langchain_core", "openai", "litellm", "opentelemetry", "httpx", "httpx2", "pydantic"}
        print(sorted(heavy & set(sys.modules)), status)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.splitlines()[-1] == "[] 0", done.stdout + done.stderr
