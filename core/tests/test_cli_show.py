"""A trace on a terminal: what a strategy made of a call."""

import io

import pytest
from rich.console import Console

from lightning_core.cli.render import trace_tree
from lightning_core.rollout import Attempt, Cause, Rollout
from lightning_core.task import Task
from lightning_core.trace import Call, Choice, StrategyUse, Trace


def system(text):
    return {"role": "system", "content": text}


def user(text):
    return {"role": "user", "content": text}


def said(text):
    return {"role": "assistant", "content": text}


ASKED = [system("You write SQL.\nBe brief.\x1b[2J"), user("How many\x9b users?")]
SENT = [
    system("You write SQLite.\nBe brief.\x1b[2J"),
    user("How many cats?"),
    said("SELECT\x07 1"),
    user("How many\x9b users?"),
]


@pytest.fixture
def show():
    """Shows a call that a strategy was applied to."""

    def of(use, *, full=False, sent=None):
        call = Call(
            id="c", attempt_id="x.1", rollout_id="x", index=0, dialect="chat", model="m",
            request={"messages": ASKED}, overrides={} if sent is None else {"messages": sent},
            choices=(Choice(message=said("ok")),), complete=True, strategy=use,
        )  # fmt: skip
        attempt = Attempt(
            id="x.1", rollout_id="x", number=1, fence=1, worker="w", started_at=0, deadline=9, lease_until=9,
            ended_at=1, cause=Cause.SUCCESS,
        )  # fmt: skip
        trace = Trace(
            rollout=Rollout(id="x", task_id="t"),
            task=Task(id="t", input="i"),
            attempt=attempt,
            calls=(call,),
        )
        file = io.StringIO()
        Console(file=file, width=160).print(trace_tree(trace, full=full))
        text = file.getvalue()
        assert not set("\x1b\x07\x9b") & set(text)
        return [line.strip("│├└─ ") for line in text.splitlines()]

    return of


def test_a_call_says_which_strategy_answered_it_and_what_was_applied(show):
    lines = show(StrategyUse(digest="a1" * 32, applied=("write", "fix"), model="*"), sent=SENT)
    assert "strategy a1a1a1a1a1a1  write, fix, model" in lines
    assert "user (after 1 more) How many\ufffd users?" in lines


def test_a_call_says_what_of_the_strategy_did_not_go_in(show):
    use = StrategyUse(
        digest="b" * 64, ambiguous=("fix\x1b[31m",), unmatched=2, left_out=("demonstrations",)
    )
    assert (
        "strategy bbbbbbbbbbbb  nothing of it fits"
        "  [2 texts that no slot fits; ambiguous: fix␛[31m; left out: demonstrations]"
    ) in show(use)


def test_a_call_without_a_strategy_says_nothing_of_one(show):
    assert not any("strategy" in line for line in show(None))


def test_in_full_what_went_upstream_stands_beside_what_the_agent_sent(show):
    lines = show(StrategyUse(digest="a" * 64, applied=("write",)), full=True, sent=SENT)
    at = lines.index("system as it went upstream")
    assert lines[at + 1 : at + 7] == [
        "- You write SQL.",
        "+ You write SQLite.",
        "Be brief.␛[2J",
        "user put in How many cats?",
        "assistant put in SELECT␇ 1",
        "user How many\ufffd users?",
    ]


def test_in_full_what_went_upstream_as_it_was_sent_stands_once(show):
    lines = show(StrategyUse(digest="a" * 64, unmatched=1), full=True)
    assert lines.count("system You write SQL.") == 1
    assert not any("upstream" in line for line in lines)


def test_in_full_a_message_that_did_not_go_upstream_is_told(show):
    use = StrategyUse(digest="a" * 64, applied=("write",))
    assert "system taken out You write SQL." in show(use, full=True, sent=ASKED[1:])
