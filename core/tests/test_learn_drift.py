"""Drift reports add up and say everything."""

import pytest

from lightning_core.learn import Drift, Joined, Skipped
from lightning_core.learn.drift import EXAMPLES, apart, lines, merge_drift

ONE = Drift(
    calls=4,
    joined={Joined.NEW: 1, Joined.RETOKENIZED: 2},
    skipped={Skipped.RETOKENIZED: 1},
    tokens=100,
    trainable_tokens=40,
    examples={"joined.retokenized": ("a", "b"), "skipped.retokenized": ("c",)},
)
TWO = Drift(
    calls=3,
    joined={Joined.RETOKENIZED: 2},
    skipped={Skipped.FAILED: 1},
    tokens=10,
    trainable_tokens=5,
    retokenized=1,
    examples={"joined.retokenized": ("d", "e"), "skipped.failed": ("f",)},
)


def test_reports_add_up():
    total = merge_drift([ONE, TWO])
    assert total == Drift(
        calls=7,
        joined={Joined.NEW: 1, Joined.RETOKENIZED: 4},
        skipped={Skipped.FAILED: 1, Skipped.RETOKENIZED: 1},
        tokens=110,
        trainable_tokens=45,
        retokenized=1,
        examples={
            "joined.retokenized": ("a", "b", "d"),
            "skipped.failed": ("f",),
            "skipped.retokenized": ("c",),
        },
    )
    assert len(total.examples["joined.retokenized"]) == EXAMPLES
    assert merge_drift([]) == Drift()
    assert apart(total) == 4


def test_a_report_is_json_and_back():
    assert Drift.from_json(ONE.to_json()) == ONE


@pytest.mark.parametrize("kind", [*Joined, *Skipped], ids=repr)
def test_every_way_and_reason_is_said_in_words_with_its_examples(kind):
    joined = isinstance(kind, Joined)
    key = f"{'joined' if joined else 'skipped'}.{kind}"
    drift = Drift(
        calls=2,
        joined={kind: 2} if joined else {},
        skipped={} if joined else {kind: 2},
        examples={key: ("x", "y")},
    )
    head, line = lines(drift, lambda id_: f"call {id_}")
    assert f"not merged {apart(drift)}" in head
    assert line.split()[0] == "2"
    assert "(such as call x, call y)" in line
    assert line.startswith("       2  not learnt from") is not joined


def test_calls_with_re_made_ids_are_said():
    assert any("re-made" in line for line in lines(Drift(calls=1, retokenized=1)))
