"""The documentation says what the code does."""

import contextlib
import inspect
import re
import sqlite3
from pathlib import Path

import pytest
from msgspec.structs import replace

from lightning_core import hookspecs, records, reward, rollout, strategy, task, trace
from lightning_core.learn import sample
from lightning_core.plugins import load
from lightning_core.settings import Settings
from lightning_core.trained import asking, verdict

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


def test_prompts_page_example_holds():
    page = (ROOT / "docs/prompts.md").read_text()
    code = re.search(r"```python\n(.*?)```\n\n`find_prompts", page, re.S)[1]
    assert code.count("assert") == 3
    exec(compile(code, "docs/prompts.md", "exec"), {})


@pytest.mark.parametrize("name", [*sample.Joined, *sample.Skipped], ids=repr)
def test_samples_page_names_every_way_and_reason(name):
    assert f"| `{name}` |" in (ROOT / "docs/samples.md").read_text()


STRATEGY_PAGE = (ROOT / "docs/strategy.md").read_text()
STRATEGY_PARTS = {
    name: cls
    for name, cls in vars(strategy).items()
    if inspect.isclass(cls) and f"\n### {name}\n" in STRATEGY_PAGE
}


def test_strategy_page_describes_every_part_but_messages():
    types = {n for n, cls in vars(strategy).items() if hasattr(cls, "__struct_fields__")}
    assert set(STRATEGY_PARTS) == types - {"Message", "Record"}


@pytest.mark.parametrize("name", sorted(STRATEGY_PARTS))
def test_strategy_page_lists_every_field(name):
    section = STRATEGY_PAGE.partition(f"\n### {name}\n")[2].partition("\n#")[0]
    fields = re.findall(r"^\| `(\w+)` \|", section, re.M)
    assert fields == list(STRATEGY_PARTS[name].__struct_fields__)


@pytest.mark.parametrize("member", [*strategy.Step, *strategy.ErrorHandling])
def test_strategy_page_names_every_step_and_way_to_handle_errors(member):
    assert f"`{member}`" in STRATEGY_PAGE


def test_strategy_page_examples_hold(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```json\n(.*?)```", STRATEGY_PAGE, re.S)
    Path("strategy.json").write_text(example, "utf-8")
    names = {}
    for code in re.findall(r"```python.*?\n(.*?)```", STRATEGY_PAGE, re.S):
        assert "assert" in code
        exec(compile(code, "docs/strategy.md", "exec"), names)


def test_strategy_page_shows_what_a_mistake_and_a_difference_look_like(
    tmp_path, monkeypatch, capsys
):
    from lightning_core.cli import main

    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```json\n(.*?)```", STRATEGY_PAGE, re.S)
    Path("strategy.json").write_text(example.replace("{question}", "{qestion}", 1), "utf-8")
    assert main(["diff", "strategy.json", "strategy.json"]) == 1
    assert capsys.readouterr().err in STRATEGY_PAGE

    tuned = strategy.Strategy.from_json(example)
    write, flow = tuned.prompt_templates["write"], tuned.interaction_patterns["flow"]
    tuned.dump("B.json")
    strategy.Strategy(
        prompt_templates={"write": replace(write, template=write.original, demonstrations=())},
        decision_rules={**tuned.decision_rules, "max_attempts": 2},
        interaction_patterns={"flow": replace(flow, chosen="quick")},
        models={"*": replace(tuned.models["*"], temperature=0.0)},
        provenance=tuned.provenance,
    ).dump("A.json")
    assert main(["diff", "A.json", "B.json"]) == 0
    assert f"```text\n{capsys.readouterr().out}```" in STRATEGY_PAGE


def test_trained_agent_page_examples_hold(tmp_path, monkeypatch, scripted_server):
    page = (ROOT / "docs/trained-agent.md").read_text()
    monkeypatch.chdir(tmp_path)
    with contextlib.closing(sqlite3.connect("users.sqlite")) as connection, connection:
        connection.execute("CREATE TABLE users (name TEXT, age INTEGER)")
        connection.executemany("INSERT INTO users VALUES (?, ?)", [("王", 41), ("Ann", 30)])
    names = {"endpoint": scripted_server.base_url}
    right = "```sql\nSELECT name FROM users WHERE age > 30\n```"
    for code in re.findall(r"```python\n(.*?)```", page, re.S):
        assert "assert" in code
        scripted_server.enqueue("SELECT name FROM user", right, "yes")
        exec(compile(code, "docs/trained-agent.md", "exec"), names)


def test_trained_agent_page_names_every_hole_and_verdict():
    page = (ROOT / "docs/trained-agent.md").read_text()
    for name in asking.fillable(strategy.Step.REWRITE, results=True):
        assert f"`{name}`" in page
    for word in verdict.RIGHT | verdict.WRONG:
        assert f"`{word}`" in page
