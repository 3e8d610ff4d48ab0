"""`lightning-core prompts`: the list, JSON, a strategy to edit; from a folder and from a server."""

import asyncio
import json

import pytest

from lightning_core.cli import main
from lightning_core.folder import RunFolder
from lightning_core.prompts import Prompts, find_prompts
from lightning_core.runs import RunConfig
from lightning_core.server import Server, ServerConfig
from lightning_core.store.sqlite import SQLiteStore
from lightning_core.strategy import PromptTemplate, Provenance, Strategy
from lightning_core.template import Template
from lightning_core.tokens import Scope

TOWNS = ("Ashby", "Bergen\x1b[2J", "Como", "Delft", "Évora", "富山")
SOURCE = "Write {{one}} poem.\nTown: {town}\nBe brief.\x1b[0m"


@pytest.fixture
def traces(trace):
    return [
        trace(
            str(number),
            [
                ("write", [f"system: {Template(SOURCE).fill({'town': town})}", f"user: Hello {number}"], {"agent": "poet"}),
                (None, [f"system: {town}"], {"agent": "other"}),
                ("vectors", [], {"dialect": "embeddings"}),
            ],
            f"Hello {number}",
        )
        for number, town in enumerate(TOWNS)
    ]  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch, traces):
    """The folder of the run `demo`, which holds the traces."""
    monkeypatch.setenv("LIGHTNING_CORE_RUNS", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "160")
    made = RunFolder.create(tmp_path, "demo", hint="")
    made.write_config(RunConfig(name="demo", agent="a", created_at=1))

    async def fill():
        async with await SQLiteStore.open(made.store) as store:
            for trace in traces:
                await store.put(trace.task, run="demo")
                await store.put(trace.rollout, trace.attempt, *trace.calls)

    asyncio.run(fill())
    return made


def test_slots_are_listed_with_their_use_and_what_is_none_is_told(folder, capsys):
    assert main(["prompts", "demo"]) == 0
    out = capsys.readouterr().out
    lines = [line.rstrip() for line in out.splitlines()]
    assert "\x1b" not in out
    at = lines.index("write.system  confidence 0.89  6 calls of 6 tasks, by poet/write")
    assert lines[at + 1 : at + 6] == [
        "  6 distinct texts; 6 of 6 fit the template of the others when held out",
        "  │ Write {{one}} poem.",
        "  │ Town: {town}",
        "  │ Be brief.␛[0m",
        "  {town} 6 values, such as Ashby",
    ]
    assert "write.user  input, nothing to tune  6 calls of 6 tasks, by poet/write" in lines
    assert any(
        line.startswith("`other`, system message: no slot, as nothing is constant")
        for line in lines
    )
    assert "6 calls left out: `embeddings` calls are not read" in lines
    assert lines[-1].startswith("1 prompt to tune in 12 calls; fingerprint ")


def test_json_is_the_slots_and_the_fingerprint(folder, capsys, traces):
    assert main(["prompts", "demo", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    found = Prompts.from_json(line)
    assert found == find_prompts(traces)
    assert json.loads(line)["fingerprint"] == found.fingerprint
    assert [prompt.template for prompt in found.prompts] == [SOURCE, "{input}"]


def test_the_strategy_that_is_written_leaves_everything_as_it_is(folder, capsys, tmp_path, traces):
    path = tmp_path / "strategy.json"
    assert main(["prompts", "demo", "--output", str(path)]) == 0
    assert f"wrote {path}" in capsys.readouterr().out.replace("\n", "")
    strategy = Strategy.load(path)
    assert strategy.prompt_templates == {
        "write.system": PromptTemplate(
            template=SOURCE, original=SOURCE, role="system", label="write"
        )
    }
    found = find_prompts(traces)
    assert (strategy.provenance.run, strategy.provenance.fingerprint) == ("demo", found.fingerprint)
    assert strategy == found.strategy(run="demo")


async def test_a_run_is_read_from_a_server_too(folder, capsys, monkeypatch):
    async with Server(ServerConfig(folder=folder.path)) as server:
        monkeypatch.setenv("LIGHTNING_CORE_TOKEN", server.token(Scope.ADMIN))
        assert await asyncio.to_thread(main, ["prompts", "demo", "--server", server.url]) == 0
    assert "write.system  confidence 0.89" in capsys.readouterr().out


def test_a_run_that_is_not_there_is_one_clear_error(folder, capsys):
    assert main(["prompts", "none"]) == 1
    assert "run `none`: not found" in capsys.readouterr().err


def fit(capsys, folder, strategy):
    path = folder.path / "given.json"
    strategy.dump(path)
    assert main(["prompts", "demo", "--strategy", str(path)]) == 0
    return capsys.readouterr().out.splitlines()


def test_a_strategy_of_this_agent_is_said_to_fit(folder, capsys, traces):
    lines = fit(capsys, folder, find_prompts(traces).strategy())
    assert lines[0].startswith("fingerprint ")
    assert lines[0].endswith(": that of this agent's prompts")
    assert lines[1:] == ["`write.system`: fits 6 calls"]


def test_what_of_another_agent_s_strategy_fits_is_told_and_what_does_not(folder, capsys):
    slots = {
        "mine": PromptTemplate(template="{x}!", original="{x}"),
        "write": PromptTemplate(template="Sing!", original="Sing.", label="write"),
        "read": PromptTemplate(template="Hi."),
    }
    given = Strategy(
        prompt_templates=slots,
        decision_rules={"max_attempts": 3},
        provenance=Provenance(agent="singer.py:agent", fingerprint="ab" * 32),
    )
    lines = fit(capsys, folder, given)
    assert lines[0].startswith(f"fingerprint {'ab' * 8}, made for `singer.py:agent`; this agent's")
    assert lines[1:] == [
        "`mine`: fits 12 calls",
        "`write`: fits 0 calls, 6 others of its label not",
        "not found in traffic, as the agent's code reads it by name: `read`, `max_attempts`",
    ]


def test_a_fit_is_not_mixed_with_the_list(folder, capsys):
    assert main(["prompts", "demo", "--strategy", "s.json", "--json"]) == 2
    assert "`--strategy` goes with `--server` alone" in capsys.readouterr().err
