"""Which releases of its framework a plugin is for: others are left alone, with the command that mends it."""

import subprocess
import sys
from contextlib import contextmanager

import pytest

from lightning_core import AgentGraph, frameworks
from lightning_core.adapter import Adapter
from lightning_core.agents import find_adapter
from lightning_core.errors import AgentError
from lightning_core.instrument import instrument


@pytest.fixture
def distribution(tmp_path, monkeypatch):
    """Make a distribution as if it were installed."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(name, version, *requires):
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        lines = [f"Requires-Dist: {line} ; extra == 'instruments'" for line in requires]
        head = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        extra = ["Provides-Extra: instruments"] if requires else []
        (folder / "METADATA").write_text("\n".join([*head, *extra, *lines]) + "\n")

    return make


class Fake(Adapter):
    name = "fakes"
    distribution = "lightning-fakes"

    def __init__(self):
        self.entered = 0

    def accepts(self, agent):
        return agent == "fake"

    def describe(self, agent):
        return AgentGraph(name="fake")

    @contextmanager
    def instrument(self):
        self.entered += 1
        yield

    async def run(self, agent, task, context):
        return None


def test_what_fits_is_used(distribution):
    distribution("lightning-fakes", "1.0", "fake-agents[all]>=1,<2", "fake-more>=3")
    distribution("fake-agents", "1.9.1")
    adapter = Fake()
    assert frameworks.misfit(adapter) is None  # What is not installed cannot be wrong.
    with instrument([adapter]):
        assert adapter.entered == 1
    assert find_adapter("fake", {"fakes": adapter}) is adapter


@pytest.mark.parametrize("version", ["0.9", "2.0", "2.0.0rc1"])
def test_another_release_is_left_alone_with_one_warning_and_its_agents_are_refused(
    distribution, caplog, version
):
    distribution("lightning-fakes", version, "fake-agents>=1,<2.0.0.dev0")
    distribution("fake-agents", version)
    adapter = Fake()
    why = (
        f"adapter `fakes` of `lightning-fakes` is for `fake-agents>=1,<2.0.0.dev0` but {version} is installed;"
        ' run `pip install "lightning-fakes[instruments]"`'
    )
    for _ in range(2):
        with instrument([adapter]):
            assert adapter.entered == 0
    assert [record.getMessage() for record in caplog.records] == [
        f"{why}; until then its agents' calls are recorded without labels"
    ]
    with pytest.raises(AgentError) as raised:
        find_adapter("fake", {"fakes": adapter})
    assert f"{why}, or give a function that calls the agent" in str(raised.value)


def test_a_requirement_that_cannot_be_read_is_passed_over(distribution):
    distribution("lightning-fakes", "1.0", "fake agents ~ 3")
    assert frameworks.misfit(Fake()) is None
    assert frameworks.installed("fake agents ~ 3") == (None, False)


def test_an_agent_that_only_labels_its_calls_does_not_pay_for_reading_versions():
    code = (
        "import sys, lightning_core.instrument\n"
        "assert not {'packaging', 'importlib.metadata'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
