"""The documentation says what the code does."""

import inspect
import re
from pathlib import Path

import pytest

from lightning_core import hookspecs, records, reward, rollout, task, trace
from lightning_core.learn import sample
from lightning_core.plugins import load
from lightning_core.settings import Settings

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("*/*/README.md"),
    ]
)
HOOKS = {
    name: function
    for name, function in vars(hookspecs).items()
    if inspect.isfunction(function) and name.startswith("lightning_")
}


@pytest.mark.parametrize("name", sorted(HOOKS))
def test_each_hook_is_documented_with_its_signature(name):
    arguments = ", ".join(inspect.signature(HOOKS[name]).parameters)
    assert f"\n## {name}({arguments})\n" in (ROOT / "docs/hooks.md").read_text()


def test_no_hook_is_documented_that_does_not_exist():
    headings = re.findall(r"^## (lightning_\w+)\(", (ROOT / "docs/hooks.md").read_text(), re.M)
    assert sorted(headings) == sorted(HOOKS)


@pytest.mark.parametrize("name", sorted(HOOKS))
def test_each_hook_is_tested_by_name(name):
    tests = (ROOT / "core/tests/test_plugins.py").read_text()
    assert f"def test_hook_{name}" in tests


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"


RECORDS = {
    cls.__name__: cls
    for module in (task, reward, rollout, trace)
    for cls in vars(module).values()
    if inspect.isclass(cls) and issubclass(cls, records.Record) and cls is not records.Record
}


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_trace_page_lists_every_field(name):
    page = (ROOT / "docs/trace.md").read_text()
    section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.M) == list(RECORDS[name].__struct_fields__)


def test_hook_page_example_is_a_plugin(tmp_path, monkeypatch):
    page = (ROOT / "docs/hooks.md").read_text()
    code = re.search(r"```python\n(.*?)```", page, re.S)[1]
    package = tmp_path / "lightning_shout"
    package.mkdir()
    (package / "__init__.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    from importlib.metadata import EntryPoint

    plugins = load(
        Settings(), entry_points=[EntryPoint("shout", "lightning_shout", "lightning_core")]
    )
    assert "shout" in plugins.rewards()


def test_samples_page_example_holds():
    page = (ROOT / "docs/samples.md").read_text()
    code = re.search(r"```python\n(.*?)```", page, re.S)[1]
    assert "assert" in code
    exec(compile(code, "docs/samples.md", "exec"), {})


@pytest.mark.parametrize("name", [*sample.Joined, *sample.Skipped], ids=repr)
def test_samples_page_names_every_way_and_reason(name):
    assert f"| `{name}` |" in (ROOT / "docs/samples.md").read_text()
