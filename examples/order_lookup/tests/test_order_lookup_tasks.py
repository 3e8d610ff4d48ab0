"""The tasks: solvable, always the same, and nothing of the held-out ones is in the training ones."""

import re
from collections import Counter

import pytest

import lightning_core as lc


@pytest.fixture(scope="module")
def splits(made):
    return {split: lc.load_tasks(made / f"{split}.jsonl") for split in ("train", "val")}


def runs_of_words(text, length=4):
    """All runs of words, where every number counts as the same word."""
    words = re.findall(r"\w+", re.sub(r"\{\w+\}|[\d.]*\d", " 0 ", text.lower()))
    return {tuple(words[i : i + length]) for i in range(len(words) - length + 1)}


def test_there_are_at_least_fifteen_wordings_of_each_and_none_alike(example):
    train, held_out = example.wordings.TRAIN, example.wordings.HELD_OUT
    assert len(train) >= 15
    assert len(held_out) >= 15
    assert not train.keys() & held_out.keys()
    seen = [*train.values(), *(message for message, _ in example.agent.EXAMPLES)]
    known = set().union(*map(runs_of_words, seen))
    alike = {name: runs_of_words(wording) & known for name, wording in held_out.items()}
    assert {name: shared for name, shared in alike.items() if shared} == {}


def test_each_wording_has_the_order_number_once_and_another_number(example):
    for name, wording in {**example.wordings.TRAIN, **example.wordings.HELD_OUT}.items():
        fields = re.findall(r"\{(\w+)\}", wording)
        assert fields.count("order") == 1, name
        assert set(fields) - {"order"}, name


def test_no_order_number_is_used_twice_nor_shown_as_something_else(splits, example):
    everything = [*splits["train"], *splits["val"]]
    orders = Counter(task.expected["number"] for task in everything)
    assert max(orders.values()) == 1
    others = {number for _, number in example.agent.EXAMPLES}
    for task in everything:
        found = re.findall(r"(?<!\d)\d{5}(?!\d)", task.input["message"])
        assert found.count(task.expected["number"]) == 1
        others.update(number for number in found if number != task.expected["number"])
    assert not others & orders.keys()


def test_every_wording_is_in_its_split_equally_often(splits, example):
    for split, wordings in (("train", example.wordings.TRAIN), ("val", example.wordings.HELD_OUT)):
        counts = Counter(task.metadata["wording"] for task in splits[split])
        assert counts.keys() == wordings.keys()
        assert len(set(counts.values())) == 1
        assert {task.split for task in splits[split]} == {split}
        assert len({task.id for task in splits[split]}) == len(splits[split])
    assert len(splits["val"]) >= 64


def test_the_same_tasks_come_out_each_time(example, made, tmp_path):
    example.tasks.write_tasks(tmp_path)
    for name in ("train.jsonl", "val.jsonl"):
        assert (tmp_path / name).read_bytes() == (made / name).read_bytes()


def test_every_order_is_in_the_book(splits, example):
    tool = example.agent.look_up_order
    for task in (*splits["train"], *splits["val"]):
        assert tool.invoke({"number": task.expected["number"]}) in example.agent.STATES
    assert tool.invoke({"number": "my order"}) == "no such order"


def test_the_simple_rule_solves_a_part_only(splits):
    """`README.md` says which."""

    def rule(message):
        match = re.search(
            r"order\w*\W+(?:(?:number|no|id|with|is)\W+)*(\d{5})(?!\d)", message.lower()
        )
        return match and match[1]

    shares = {
        split: sum(rule(t.input["message"]) == t.expected["number"] for t in tasks) / len(tasks)
        for split, tasks in splits.items()
    }
    assert shares == pytest.approx({"train": 22 / 30, "val": 0.65})
