"""What `python -m bench prompt` tells of a search, on scripted models and made-up rewards."""

import json
from io import StringIO

import pytest
from bench import prompt
from bench.prompt_ours import Outcome, optimize
from bench.results import row
from rich.console import Console

from lightning_core.testing.scripted import ScriptedServer


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """The files of tasks to search with, and of those held out."""
    return prompt.write_tasks(tmp_path_factory.mktemp("tasks"))


def test_the_tasks_are_two_of_each_wording_and_none_is_in_both_files(tasks):
    search, held_out = map(prompt.read, tasks)
    for some, wordings in ((search, 30), (held_out, 20)):
        named = [task["metadata"]["wording"] for task in some]
        assert len(set(named)) == wordings
        assert {named.count(wording) for wording in named} == {2}
    assert not {task["input"]["request"] for task in search} & {
        task["input"]["request"] for task in held_out
    }


def searched(tasks, folder, answer, *options):
    """The outcome of a search against a model that answers so."""
    with ScriptedServer.in_thread() as server:
        server.respond(answer)
        return optimize(
            folder, server.base_url, *tasks, rollouts=200, seed=0, options=options
        )  # fmt: skip


@pytest.mark.slow
def test_a_search_is_told_by_its_best_strategy_on_the_tasks_that_it_has_not_seen(tasks, tmp_path):
    known = {t["input"]["request"]: t["expected"] for path in tasks for t in prompt.read(path)}

    def answer(got):
        right = len(got.messages or ()) > 2  # once it is shown how
        return known[got.messages[-1]["content"]] if right else "Hello!"

    outcome = searched(tasks, tmp_path, answer, "--set", "demonstrations=expected")
    held_out = {task["id"] for task in prompt.read(tasks[1])}
    assert outcome.rewards == dict.fromkeys(held_out, 1.0)
    assert outcome.before == dict.fromkeys(held_out, 0.0)
    assert 60 < outcome.rollouts <= 200


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ("--set", "demonstrations=traces"),
        ("--set", "demonstrations=none", "--reflection-model", "scripted@{address}"),
    ],
)
def test_a_search_that_has_nothing_to_go_by_leaves_the_agent_as_it_is(tasks, tmp_path, options):
    outcome = searched(tasks, tmp_path, lambda got: "Hello!", *options)
    assert outcome.rewards == outcome.before
    assert not any(outcome.rewards.values())
    assert outcome.rollouts >= 60


@pytest.mark.slow
def test_a_search_that_fails_is_an_error_with_what_the_command_said(tasks, tmp_path):
    with pytest.raises(RuntimeError, match="knows `demonstrations`"):
        searched(tasks, tmp_path, lambda got: "Hello!", "--set", "demonstration=expected")


def test_the_table_has_means_over_seeds_and_differences_to_ours_by_wording(monkeypatch):
    monkeypatch.setattr(
        prompt, "METHODS", {"ours-expected": prompt.Method("ours"), "gepa": prompt.Method("peer")}
    )
    kinds = {f"{wording}-{number}": wording for wording in "abcdefgh" for number in (1, 2)}
    as_it_is = dict.fromkeys(kinds, 0.0)
    ours = [Outcome(dict.fromkeys(kinds, value), 204, 9.0, as_it_is) for value in (0.4, 0.6)]
    peer = [Outcome(dict.fromkeys(kinds, 0.25), 240, 7.0), Outcome({}, 60, 5.0)]
    told = StringIO()
    console = Console(file=told, width=150)
    console.print(prompt.table({"ours-expected": ours, "gepa": peer}, kinds))
    lines = [" ".join(line.split()) for line in told.getvalue().splitlines()[1:]]
    assert lines == [
        "the agent as it is 0.000 0.00 to 0.00 0.00 0.00 +0.500 +0.50 to +0.50 0 0 0",
        "ours 0.500 0.50 to 0.50 0.40 0.60 204 204 9",
        "peer 0.125 0.12 to 0.12 0.25 0.00 +0.375 +0.38 to +0.38 240 60 6",
    ]


def test_a_peer_that_failed_is_told_and_its_seed_counts_on_neither_side(monkeypatch):
    methods = {"ours-expected": "ours", "gepa": "one", "mipro": "none"}
    monkeypatch.setattr(prompt, "METHODS", {key: prompt.Method(it) for key, it in methods.items()})
    kinds = {f"{wording}-{number}": wording for wording in "abcdefgh" for number in (1, 2)}
    as_it_is = dict.fromkeys(kinds, 0.0)
    ours = [Outcome(dict.fromkeys(kinds, value), 204, 9.0, as_it_is) for value in (0.4, 0.6)]
    failed = Outcome({}, 0, 5.0, failed="no JSON")
    one = [Outcome(dict.fromkeys(kinds, 0.25), 240, 7.0), failed]
    told = StringIO()
    console = Console(file=told, width=150)
    found = {"ours-expected": ours, "gepa": one, "mipro": [failed, failed]}
    console.print(prompt.table(found, kinds))
    lines = [" ".join(line.split()) for line in told.getvalue().splitlines()[3:]]
    assert lines == [
        "one 0.250 0.25 to 0.25 0.25 failed +0.150 +0.15 to +0.15 240 0 6",
        "none failed failed",
    ]


def test_a_row_against_nothing_has_no_ratio_and_still_holds_or_not():
    better = row("bench", 0.5, 0.0, goal=1.0, side="at least")
    assert (better["ratio"], better["holds"]) == (None, True)
    assert row("bench", 0.0, 0.5, goal=1.0, side="at least")["holds"] is False
    assert row("bench", 0.5, 0.0, goal=1.0)["holds"] is False
    assert json.loads(json.dumps(better)) == better
