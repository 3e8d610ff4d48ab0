"""`lightning-core diff`: what changed from one strategy file to another, in words and scores."""

import json

import pytest

from lightning_core.cli import main
from lightning_core.strategy import (
    InteractionPattern,
    Message,
    ModelChoice,
    PromptTemplate,
    Provenance,
    Step,
    Strategy,
)

ORIGINAL = "You write SQL.\n\nSchema:\n{schema}\nQuestion: {question}"


def shown(question, answer):
    return (
        Message(role="user", content=question),
        Message(role="assistant", content=answer),
    )


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Writes strategies to files, and gives their paths."""
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.chdir(tmp_path)

    def write(**strategies):
        for name, strategy in strategies.items():
            strategy.dump(f"{name}.json")
        return [f"{name}.json" for name in strategies]

    return write


def diff(capsys, *arguments):
    status = main(["diff", *arguments])
    captured = capsys.readouterr()
    assert status == 0, captured.err
    return captured.out


def prompt(template, *, original=ORIGINAL, **fields):
    return Strategy(
        prompt_templates={"write": PromptTemplate(template=template, original=original, **fields)}
    )


def test_a_template_is_shown_by_the_lines_that_changed(files, capsys):
    found = files(
        A=prompt(ORIGINAL),
        B=prompt(ORIGINAL.replace("SQL.", "SQLite; think first.").replace("\nQuestion", "\n\nQuestion")),
    )  # fmt: skip
    assert [line.rstrip() for line in diff(capsys, *found).splitlines()] == [
        "prompt write",
        "  template",
        "  - You write SQL.",
        "  + You write SQLite; think first.",
        "",
        "    Schema:",
        "    {schema}",
        "  +",
        "    Question: {question}",
    ]


def test_lines_far_from_a_change_are_left_out(files, capsys):
    lines = [f"Rule {number}." for number in range(40)]
    new = lines.copy()
    new[3], new[30] = "Rule three.", "Rule thirty."
    text = diff(capsys, *files(A=prompt("\n".join(lines), original=""), B=prompt("\n".join(new), original="")))  # fmt: skip
    assert "- Rule 3.\n  + Rule three." in text
    assert "- Rule 30.\n  + Rule thirty." in text
    assert "…" in text
    assert "Rule 15." not in text


def test_words_that_changed_are_marked_on_a_terminal(files, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    found = files(A=prompt("查询用户表 now", original=""), B=prompt("查询订单表 now", original=""))
    text = diff(capsys, *found)
    assert "查询\x1b[0m\x1b[7;31m用户\x1b[0m\x1b[31m表 now" in text
    assert "查询\x1b[0m\x1b[7;32m订单\x1b[0m\x1b[32m表 now" in text


def test_demonstrations_are_shown_as_they_came_and_went(files, capsys):
    one, two, three = (shown(f"question {n}", f"answer\n{n}") for n in "123")
    found = files(
        A=prompt(ORIGINAL, demonstrations=(one, two)),
        B=prompt(ORIGINAL, demonstrations=(two, three)),
        C=prompt(ORIGINAL, demonstrations=(two, one)),
    )
    text = diff(capsys, *found[:2])
    assert "- user: question 1\n  - assistant: answer 1\n" in text
    assert "+ user: question 3\n  + assistant: answer 3\n" in text
    assert "question 2" not in text
    assert "another order" in diff(capsys, found[0], found[2])


def test_rules_flows_and_models_are_shown_old_and_new(files, capsys):
    quick = (Step.WRITE, Step.EXECUTE)
    found = files(
        A=Strategy(
            decision_rules={"max_attempts": 3, "tone": "dry", "same": 1},
            interaction_patterns={
                "flow": InteractionPattern(chosen="quick", options={"quick": quick})
            },
            models={"write": ModelChoice(model="gpt", temperature=0)},
        ),
        B=Strategy(
            decision_rules={"max_attempts": 5, "strict": True, "same": 1},
            interaction_patterns={
                "flow": InteractionPattern(
                    chosen="checked", options={"quick": quick, "checked": (*quick, Step.CHECK)}
                )
            },
            models={"write": ModelChoice(model="gpt-mini", temperature=0)},
        ),
    )
    text = diff(capsys, *found)
    assert "rule max_attempts  3 → 5\n" in text
    assert "rule tone  'dry' → none\n" in text
    assert "rule strict  none → true\n" in text
    assert "same" not in text
    assert "pattern flow\n  chosen  'quick' → 'checked'\n" in text
    assert "  option checked  none → write, execute, check\n" in text
    assert "option quick" not in text
    assert "model write\n  model  'gpt' → 'gpt-mini'\n" in text
    assert "temperature" not in text


def test_a_slot_that_came_shows_what_it_says_and_nothing_of_its_defaults(files, capsys):
    found = files(A=Strategy(), B=prompt("Say {x}.", original="", role="user"))
    assert diff(capsys, *found) == "prompt write\n  template\n  + Say {x}.\n  role  none → 'user'\n"
    assert "  - Say {x}.\n" in diff(capsys, *reversed(found))


def test_scores_are_shown_before_and_after_with_interval(files, capsys):
    scores = {"before": 0.41, "after": 0.56, "difference": 0.15, "interval": [0.06, 0.24], "tasks": 40, "repeats": 3}  # fmt: skip
    cost = {"rollouts": 300, "usd": 1.25}
    where = Provenance(run="night-7", agent="agent.py:graph", scores=scores, cost=cost)
    found = files(
        A=Strategy(), B=Strategy(decision_rules={"n": 1}, provenance=where), C=Strategy(provenance=where)
    )  # fmt: skip
    text = diff(capsys, *found[:2])
    assert "B.json  run night-7, agent agent.py:graph\n" in text
    assert "held-out tasks 0.410 → 0.560, difference +0.150, 95 % +0.060 to +0.240; tasks 40, repeats 3\n" in text  # fmt: skip
    assert "cost: rollouts 300, usd 1.25\n" in text
    assert diff(capsys, found[0], found[2]).startswith("Nothing differs.\nA.json\nC.json  run night-7")  # fmt: skip


def test_scores_of_another_form_are_shown_as_they_are(files, capsys):
    scores = {"before": None, "after": "unknown", "interval": "none"}
    found = files(A=Strategy(), B=Strategy(provenance=Provenance(scores=scores)))
    assert "null → unknown" in diff(capsys, *found)


def test_nothing_differs_where_nothing_does(files, capsys):
    found = files(A=prompt(ORIGINAL), B=prompt(ORIGINAL))
    assert diff(capsys, *found) == "Nothing differs.\n"
    assert json.loads(diff(capsys, *found, "--json"))["changes"] == []


def test_json_has_every_change_and_both_origins(files, capsys):
    found = files(
        A=prompt("{schema} {question}"),
        B=Strategy(
            prompt_templates=prompt("{question} 表 {schema}").prompt_templates,
            decision_rules={"n": 1},
            provenance=Provenance(run="r"),
        ),
    )
    text = diff(capsys, *found, "--json")
    assert text.count("\n") == 1
    assert json.loads(text) == {
        "changes": [
            {
                "section": "prompt_templates",
                "slot": "write",
                "field": "template",
                "before": "{schema} {question}",
                "after": "{question} 表 {schema}",
            },
            {
                "section": "decision_rules",
                "slot": "n",
                "field": "value",
                "before": None,
                "after": 1,
            },
        ],
        "provenance": {"before": {}, "after": {"run": "r"}},
    }


EVIL = "\x1b[2J\x9b31m\x07\x7f\r[bold]"


def test_no_control_character_and_no_markup_of_an_agents_reaches_the_terminal(files, capsys):
    found = files(
        A=Strategy(),
        B=Strategy(
            prompt_templates={
                EVIL: PromptTemplate(template=EVIL, label=EVIL, demonstrations=(shown(EVIL, EVIL),))
            },
            decision_rules={EVIL: EVIL},
            interaction_patterns={EVIL: InteractionPattern(chosen=EVIL, options={EVIL: ()})},
            models={EVIL: ModelChoice(model=EVIL)},
            provenance=Provenance(
                run=EVIL, agent=EVIL, scores={"before": EVIL, "interval": [EVIL]}, cost={EVIL: EVIL}
            ),
        ),
        C=prompt(f"{EVIL}\na {EVIL}", original=""),
        D=prompt(f"{EVIL}\nb {EVIL}", original=""),
    )
    for arguments in (found[:2], found[2:], [*found[:2], "--json"]):
        text = diff(capsys, *arguments)
        assert [c for c in text if (ord(c) < 32 or 0x7F <= ord(c) < 0xA0) and c != "\n"] == []
        assert text.count("[bold]") >= 2


def test_what_is_no_strategy_file_is_one_error(files, capsys):
    (good,) = files(A=Strategy())
    with open("bad.json", "w") as file:
        file.write('{"prompt_templates": {"w": {"template": "{"}}}')
    assert main(["diff", good, "bad.json"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: strategy file `bad.json`: Strategy: at `$.prompt_templates.w`: `template`, line 1")  # fmt: skip
    assert error.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["A.json"], ["A.json", "none.json"], ["A.json", "A.json", "A.json"]])  # fmt: skip
def test_files_that_are_missing_are_an_error_of_usage(files, capsys, arguments):
    files(A=Strategy())
    assert main(["diff", *arguments]) == 2
    assert "json" in capsys.readouterr().err
