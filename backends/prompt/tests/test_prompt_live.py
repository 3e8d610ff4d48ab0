"""What a search shows while it runs."""

import io

import pytest
from rich.console import Console

from lightning_prompt.budget import Budget, Spent
from lightning_prompt.live import LiveSearch
from lightning_prompt.scored import Scored

BUDGET = Budget.parse("300 rollouts, 2 USD")


def console(*, terminal: bool, width: int = 120) -> Console:
    return Console(
        file=io.StringIO(), force_terminal=terminal, width=width, height=40, highlight=False,
        color_system=None,
    )  # fmt: skip


def scored(number, mean, **more):
    return Scored(
        name=f"c{number}", phase="reflection", rollouts=number * 20, mean=mean, tasks=20, repeats=3, **more
    )  # fmt: skip


def shown(search: LiveSearch, width: int = 120) -> str:
    out = console(terminal=False, width=width)
    out.print(search.render())
    return out.file.getvalue()


def test_elsewhere_than_on_a_terminal_there_is_a_line_for_each_thing_that_happens():
    out = console(terminal=False, width=20)
    search = LiveSearch(BUDGET, out)
    search.begin("baseline")
    search.add(scored(1, 0.5))
    search.spend(Spent(rollouts=40, usd=0.41))
    search.note("asked again in 3 s")
    search.note("asked again in 3 s")
    search.note(None)
    search.add(scored(2, 0.612, low=0.5, high=0.71))
    search.add(scored(3, None))
    search.compare({"a": "x"}, {"a": "y"})
    assert out.file.getvalue().splitlines() == [
        "baseline  0 of 300 rollouts, 0 of 2 USD",
        "reflection  c1  reward 0.500  20 tasks x 3  0 of 300 rollouts, 0 of 2 USD",
        "asked again in 3 s",
        "reflection  c2  reward 0.612 (0.50 to 0.71)  20 tasks x 3  40 of 300 rollouts, 0.41 of 2 USD  best so far",
        "reflection  c3  reward not scored  20 tasks x 3  40 of 300 rollouts, 0.41 of 2 USD",
    ]


def test_what_a_user_should_know_stays_and_the_oldest_of_it_goes():
    search = LiveSearch(BUDGET, console(terminal=True))
    for number in range(6):
        search.say(f"said {number}\x1b[2J")
    assert [line for line in shown(search).splitlines() if "said" in line] == [
        f"said {number}␛[2J" for number in range(2, 6)
    ]


def test_the_table_has_the_first_the_best_and_the_latest():
    search = LiveSearch(BUDGET, console(terminal=True))
    for number, mean in enumerate([0.3, 0.2, 0.9, *[0.4] * 20]):
        search.add(scored(number, mean))
    lines = [line.split() for line in shown(search).splitlines() if line.startswith("reflection")]
    assert [line[1] for line in lines] == ["c0", "c2", *(f"c{n}" for n in range(16, 23))]
    assert [line[1] for line in lines if line[-1] == "best"] == ["c2"]
    assert lines[1] == ["reflection", "c2", "0.900", "20", "x", "3", "40", "best"]


def test_the_budget_the_note_and_what_changed_in_the_best_prompts_are_shown():
    search = LiveSearch(BUDGET, console(terminal=True))
    search.begin("reflection")
    search.spend(Spent(rollouts=212, usd=0.41))
    search.note("it is busy")
    search.compare(
        {"write": "You write SQL.\nBe brief.", "same": "s", "gone": "old"},
        {"write": "You write SQLite.\nBe brief.\n-- end", "same": "s", "new": "text"},
    )
    assert [line.rstrip() for line in shown(search).splitlines()] == [
        "reflection  212 of 300 rollouts, 0.41 of 2 USD",
        "it is busy",
        "gone: best against original",
        "  - old",
        "  +",
        "new: best against original",
        "  -",
        "  + text",
        "write: best against original",
        "  - You write SQL.",
        "  … 2 lines more",
    ]


@pytest.mark.parametrize("width", [20, 60, 120])
def test_text_of_models_cannot_move_the_cursor_or_fill_the_screen(width):
    search = LiveSearch(BUDGET, console(terminal=True))
    evil = "\x1b[2J\x1b[31m\r\x07[bold]" + "z" * 500
    search.begin(evil)
    search.note(evil[:30])
    search.add(Scored(name=evil, phase=evil, rollouts=1, mean=0.5))
    search.compare({evil: ""}, {evil: "\n".join([evil] * 100)})
    text = shown(search, width)
    assert not {"\x1b", "\x07", "\r"} & set(text)
    assert "␛[2J" in text
    assert len(text.splitlines()) < 30


def test_without_bounds_what_was_spent_is_shown():
    search = LiveSearch(Budget(), console(terminal=True))
    search.spend(Spent(rollouts=3))
    assert "3 rollouts" in shown(search)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_on_a_narrow_terminal_names_give_way_and_no_number_is_cut(width):
    search = LiveSearch(BUDGET, console(terminal=True))
    name = "gpt-4.1-mini-2025-04-14 for write_query"
    search.add(
        Scored(
            name=name,
            phase="models for `write_query`",
            rollouts=1284,
            mean=0.4,
            low=0.1,
            high=0.7,
            tasks=48,
        )
    )
    search.add(scored(2, 0.3))
    head, line, _ = shown(search, width).splitlines()[:3]
    assert head.split()[2:] == ["reward", "tasks", "rollouts"]
    assert line.split()[-7:] == ["0.400", "(0.10", "to", "0.70)", "48", "1,284", "best"]
    assert (name in line) == (width == 120)
