"""What `make compat` runs, without the environments that it makes."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


@pytest.fixture
def compat(monkeypatch):
    spec = importlib.util.spec_from_file_location("compat", ROOT / "tests/compat.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "compat", module)  # Its dataclasses look there.
    spec.loader.exec_module(module)
    return module


def test_every_plugin_is_found_and_says_both_ends_of_what_it_supports(compat):
    found = compat.plugins()
    assert {"autogen", "langgraph"} <= set(found)
    for plugin in found.values():
        assert list((plugin / "tests").glob("test_*.py")), plugin
        for requirement in compat.framework(plugin):
            bounds = {specifier.operator for specifier in requirement.specifier}
            assert bounds == {">=", "<"}, requirement


@pytest.fixture
def index(compat, monkeypatch):
    """What pip finds of a package."""

    def have(*versions):
        said = json.dumps({"versions": versions})
        done = subprocess.CompletedProcess([], 0, stdout=said)
        monkeypatch.setattr(compat.subprocess, "run", lambda *_, **__: done)

    return have


def test_the_oldest_release_is_the_lowest_within_the_range(compat, index):
    index("2.0.0", "1.10.0", "1.2.0", "1.2.0rc1", "0.9")
    assert str(compat.lowest(Requirement("any>=1,<2"))) == "1.2.0"


def test_a_range_without_a_release_is_an_error(compat, index):
    index("0.9", "2.0.0")
    with pytest.raises(RuntimeError, match="no release of `any` lies within `any<2,>=1`"):
        compat.lowest(Requirement("any>=1,<2"))


def test_a_failed_test_is_counted_and_shown(compat, tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "def test_good(): pass\n"
        "def test_bad(): assert 0\n"
        "def test_left_out(): pytest.skip('why')\n"
        "@pytest.fixture\n"
        "def broken(): raise KeyError\n"
        "def test_worse(broken): pass\n"
    )
    report = tmp_path / "report.xml"
    assert compat._counts(report) == {}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", "test_it.py"],
        cwd=tmp_path, capture_output=True,
    )  # fmt: skip
    counts = compat._counts(report)
    assert counts == {"passed": 1, "failed": 2, "skipped": 1}
    outcome = compat.Outcome("any", "oldest", {"any": "1.2.0"}, counts, done.returncode, report)
    assert [list(column.cells)[-1] for column in compat.table([outcome]).columns] == [
        "any", "oldest", "any 1.2.0", "1", "2", "1",
    ]  # fmt: skip
