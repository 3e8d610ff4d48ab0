"""Slots: code that opts in reads the strategy in use, and says what may stand there."""

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from lightning_core import strategy
from lightning_core.errors import UsageError
from lightning_core.slots import SlotDeclaration, SlotKind
from lightning_core.strategy import InteractionPattern, PromptTemplate, Provenance, Strategy


def rules(**values):
    return Strategy(decision_rules=values, provenance=Provenance(run="night-7"))


def chosen(name, **options):
    pattern = InteractionPattern(chosen=name, options=options)
    return Strategy(interaction_patterns={"flow": pattern}, provenance=Provenance(run="night-7"))


def test_outside_of_a_run_each_slot_is_its_default():
    assert strategy.prompt("write", "Write SQL for {question}.") == "Write SQL for {question}."
    assert strategy.rule("max_attempts", default=3, low=1, high=5) == 3
    assert strategy.choose("flow", ["quick", "checked"]) == "quick"
    assert strategy.choose("flow", {"quick": 1, "checked": 2}, default="checked") == 2


def test_in_a_run_each_slot_is_what_the_strategy_has_and_afterwards_its_default_again():
    tuned = Strategy(
        prompt_templates={"write": PromptTemplate(template="SQL, please: {question} {{}}")},
        decision_rules={"max_attempts": 5, "careful": True, "weight": 2, "tone": "dry"},
        interaction_patterns={
            "flow": InteractionPattern(chosen="checked", options={"checked": ()})
        },
    )
    with strategy.using(tuned):
        written = strategy.prompt("write", "Write SQL for {question}.")
        assert written.format(question="{all}") == "SQL, please: {all} {}"
        assert strategy.prompt("check", "Is it right?") == "Is it right?"
        assert strategy.rule("max_attempts", 3, low=1, high=5) == 5
        assert strategy.rule("careful", False) is True
        assert strategy.rule("tone", "kind", options=["kind", "dry"]) == "dry"
        assert strategy.rule("other", 1.5) == 1.5
        weight = strategy.rule("weight", 1.0)
        assert (weight, type(weight)) == (2.0, float)
        assert strategy.choose("flow", ["quick", "checked"]) == "checked"
    assert strategy.rule("max_attempts", 3) == 3


def test_a_choice_returns_what_its_option_means():
    with strategy.using(chosen("checked", checked=())):
        assert strategy.choose("flow", {"quick": min, "checked": max}) is max


@pytest.mark.parametrize(
    ("tuned", "read", "message"),
    [
        (rules(n=6), lambda: strategy.rule("n", 3, low=1, high=5),
         "rule `n`: expected int from 1 up to 5 but the strategy of run `night-7` has 6"),
        (rules(n=0), lambda: strategy.rule("n", 3, low=1), "expected int from 1 but .* has 0"),
        (rules(n=1.5), lambda: strategy.rule("n", 1), "expected int but .* has 1.5"),
        (rules(n=True), lambda: strategy.rule("n", 1), "expected int but .* has True"),
        (rules(n=True), lambda: strategy.rule("n", 1.0), "expected float but .* has True"),
        (rules(n=1), lambda: strategy.rule("n", False), "expected bool but .* has 1"),
        (rules(n="1"), lambda: strategy.rule("n", 1), "expected int but .* has '1'"),
        (rules(n=1), lambda: strategy.rule("n", "1"), "expected str but .* has 1"),
        (rules(n=4), lambda: strategy.rule("n", 3, options=[3, 5]), "expected one of 3, 5 but .* has 4"),
        (chosen("slow", slow=()), lambda: strategy.choose("flow", ["quick", "checked"]),
         "choice `flow`: expected one of 'quick', 'checked' but the strategy of run `night-7` has 'slow'"),
    ],
)  # fmt: skip
def test_a_value_that_the_slot_cannot_have_is_an_error(tuned, read, message):
    with strategy.using(tuned), pytest.raises(UsageError, match=message):
        read()


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda: strategy.rule("n", 9, high=5), "rule `n`: its own 9 is not int up to 5"),
        (lambda: strategy.rule("n", 3, low=5, high=1), "its own 3 is not int from 5 up to 1"),
        (lambda: strategy.rule("n", 3, options=[1, 2]), "its own 3 is not one of 1, 2"),
        (lambda: strategy.rule("n", 3, options=[3, "x"]), "its own 'x' is not one of"),
        (lambda: strategy.rule("n", 3, options=[]), "its own 3 is not one of"),
        (lambda: strategy.rule("n", float("nan")), "its own nan is not float"),
        (lambda: strategy.rule("n", True, low=0), "`low` and `high` are for numbers"),
        (lambda: strategy.rule("n", "x", high=0), "`low` and `high` are for numbers"),
        (lambda: strategy.rule("n", None), "expected a default that is a bool, int, float or str"),
        (lambda: strategy.choose("flow", []), r"choice `flow`: expected options, by name, but got \[\]"),
        (lambda: strategy.choose("flow", "quick"), "expected options, by name, but got 'quick'"),
        (lambda: strategy.choose("flow", [1, 2]), r"expected options, by name, but got \[1, 2\]"),
        (lambda: strategy.choose("flow", ["a"], "b"), "its own 'b' is not one of 'a'"),
        (lambda: strategy.prompt("write", '{"sql": 1}'),
         "prompt `write`: default template, line 1, column 1: expected a hole's name"),
        (lambda: strategy.prompt("write", None), "expected a default of type str but got None"),
    ],
)  # fmt: skip
def test_a_declaration_that_contradicts_itself_is_an_error_even_outside_of_a_run(read, message):
    with pytest.raises(UsageError, match=message):
        read()


def test_each_slot_is_told_once_with_its_type_and_range():
    told = []
    with strategy.using(Strategy(), told.append):
        for _ in range(3):
            strategy.rule("n", 3, low=1, high=5)
            strategy.prompt("n", "{x}")
            strategy.choose("n", {"a": min, "b": max}, default="b")
    assert told == [
        SlotDeclaration(name="n", kind=SlotKind.RULE, type="int", default=3, low=1, high=5),
        SlotDeclaration(name="n", kind=SlotKind.PROMPT, type="str", default="{x}"),
        SlotDeclaration(name="n", kind=SlotKind.CHOICE, type="str", default="b", options=("a", "b")),
    ]  # fmt: skip
    assert [SlotDeclaration.from_json(each.to_json()) for each in told] == told


def test_a_slot_is_told_before_its_value_is_found_wrong():
    told = []
    with strategy.using(rules(n="x"), told.append), pytest.raises(UsageError):
        strategy.rule("n", 3)
    assert [each.name for each in told] == ["n"]


def test_a_slot_that_is_declared_twice_differently_is_an_error():
    with strategy.using(Strategy()):
        strategy.rule("n", 1, low=0)
        with pytest.raises(UsageError, match=r"rule `n`: declared as int from 0, default 1, and again as int, default 2"):  # fmt: skip
            strategy.rule("n", 2)
        with pytest.raises(UsageError, match="and again as bool, default True"):
            strategy.rule("n", True)
    with strategy.using(Strategy()):
        assert strategy.rule("n", 2) == 2


def test_an_inner_strategy_stands_before_an_outer_one_until_it_ends():
    with strategy.using(rules(n=1)):
        with strategy.using(rules(n=2)):
            assert strategy.rule("n", 0) == 2
        with pytest.raises(ZeroDivisionError), strategy.using(rules(n=3)):
            _ = 1 / 0
        assert strategy.rule("n", 0) == 1


async def test_tasks_that_run_at_once_read_each_its_own_strategy():
    async def read(number):
        with strategy.using(rules(n=number)):
            for _ in range(5):
                await asyncio.sleep(0)
                assert strategy.rule("n", -1) == number
            return await asyncio.to_thread(strategy.rule, "n", -1)

    assert await asyncio.gather(*(read(number) for number in range(20))) == list(range(20))
    assert strategy.rule("n", -1) == -1


def test_threads_that_share_a_context_tell_of_a_slot_once():
    told = []
    started = threading.Barrier(8)

    def read(context):
        started.wait()
        return context.run(strategy.rule, "n", 0)

    with strategy.using(rules(n=4), told.append), ThreadPoolExecutor(8) as pool:
        contexts = [contextvars.copy_context() for _ in range(8)]
        assert list(pool.map(read, contexts)) == [4] * 8
    assert len(told) == 1
