"""The confidence holds: it is the share of fresh calls that fit, or less, over random templates and random traffic."""

import random
import statistics

import pytest

from lightning_core.prompts import infer
from lightning_core.template import Misfit, Template

WORDS = ("schema", "query", "result", "answer", "context", "the", "of", "and", "user", "system", "tool", "größe", "ответ",
         "code", "error", "table", "row", "value", "find", "check", "write", "plan", "step", "note", "вопрос", "схема")  # fmt: skip
MARKS = ("\n", ": ", ":\n", "\n## ", "\nResult: ", "\n```\n")
COUNTS = (2, 3, 4, 6, 8, 10, 14, 20, 30, 50)
"""Calls that were seen."""
FRESH = 60


def words(rng, count):
    return " ".join(rng.choices(WORDS, k=count))


def source(rng):
    """A function that gives what fills a hole: free text, mostly beginning alike, mostly the same, one of a few, or at
    times with constant text in it."""

    def free():
        return words(rng, rng.randint(2, 9)) + str(rng.randrange(1000))

    kind, often = rng.randrange(6), rng.choice([0.7, 0.8, 0.9, 0.95])
    usual, few = free(), [free() for _ in range(rng.choice([2, 3, 8, 30]))]
    made = {
        0: free,
        1: lambda: f"{usual} {free()}" if rng.random() < often else free(),
        2: lambda: usual if rng.random() < often else free(),
        3: lambda: rng.choices(few, [1 / number for number in range(1, len(few) + 1)])[0],
        4: lambda: free() + ("" if rng.random() < often else f"\nResult: {free()}"),
        5: lambda: str(rng.randrange(10)),
    }
    return made[kind]


def said_and_true(seed):
    """The confidence that is said of a template, and the share of fresh texts that fit it."""
    rng = random.Random(seed)
    sources = [source(rng) for _ in range(rng.randint(1, 3))]
    pieces = [words(rng, 3) + rng.choice(MARKS) for _ in sources]
    template = Template.of([*pieces, "\nend."], [f"h{number}" for number in range(len(sources))])

    def text():
        return template.fill({f"h{number}": each() for number, each in enumerate(sources)})

    found = infer([text() for _ in range(rng.choice(COUNTS))])
    fresh = [found.template.match(text()) for _ in range(FRESH)]
    return found.confidence, sum(not isinstance(each, Misfit) for each in fresh) / FRESH


@pytest.fixture(scope="module")
def measured():
    return [said_and_true(seed) for seed in range(400)]


def between(measured, low, high):
    return [pair for pair in measured if low <= pair[0] < high]


def test_templates_said_to_be_sure_fit_nine_in_ten_fresh_calls(measured):
    sure = between(measured, 0.9, 1)
    assert len(sure) > len(measured) / 4
    assert statistics.mean(true for _, true in sure) >= 0.9
    assert sum(true >= 0.9 for _, true in sure) >= 0.9 * len(sure)


@pytest.mark.parametrize(
    ("low", "high"), [(0, 0.7), (0.7, 0.8), (0.8, 0.9), (0.9, 0.95), (0.95, 1)]
)
def test_no_more_is_said_than_is_true(measured, low, high):
    said, true = zip(*between(measured, low, high), strict=True)
    assert len(said) > 10
    assert statistics.mean(said) <= statistics.mean(true) + 0.01


def test_what_is_said_tells_good_templates_from_bad_ones(measured):
    bad = [said for said, true in measured if true < 0.9]
    good = [said for said, true in measured if true > 0.98]
    assert statistics.mean(good) > statistics.mean(bad) + 0.1
