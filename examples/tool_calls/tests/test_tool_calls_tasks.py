"""The tasks: always the same, each with its answer, and nothing of the held-out ones is in the training ones."""

import re
from collections import Counter

import pytest

import lightning_core as lc

FILES = ("train", "val", "refunds_train", "refunds_val")


@pytest.fixture(scope="module")
def files(made):
    return {name: lc.load_tasks(made / f"{name}.jsonl") for name in FILES}


@pytest.fixture(scope="module")
def wordings(example):
    """The wordings of each file by name."""
    calls = {
        name: {key: text for of_tool in named.values() for key, text in of_tool.items()}
        for name, named in (
            ("train", example.wordings.CALLS_TRAIN),
            ("val", example.wordings.CALLS_HELD_OUT),
        )
    }
    refunds = {
        "refunds_train": example.wordings.REFUNDS_TRAIN,
        "refunds_val": example.wordings.REFUNDS_HELD_OUT,
    }
    return calls | refunds


def runs_of_words(text, length=4):
    """All runs of words, where every field counts as the same word."""
    words = re.findall(r"\w+", re.sub(r"\{\w+\}", " 0 ", text.lower()))
    return {tuple(words[i : i + length]) for i in range(len(words) - length + 1)}


@pytest.mark.parametrize("family", ["", "refunds_"])
def test_there_are_at_least_fifteen_wordings_of_each_and_none_alike(wordings, family):
    train, held_out = wordings[f"{family}train"], wordings[f"{family}val"]
    assert len(train) >= 15
    assert len(held_out) >= 15
    assert not train.keys() & held_out.keys()
    known = set().union(*map(runs_of_words, train.values()))
    alike = {name: runs_of_words(wording) & known for name, wording in held_out.items()}
    assert {name: shared for name, shared in alike.items() if shared} == {}


def test_every_wording_is_in_its_file_equally_often(files, wordings):
    for name, tasks in files.items():
        counts = Counter(task.metadata["wording"] for task in tasks)
        assert counts.keys() == wordings[name].keys()
        assert len(set(counts.values())) == 1
        assert {task.split for task in tasks} == {name.removeprefix("refunds_")}
        assert len({task.id for task in tasks}) == len(tasks)
        assert len({task.input["request"] for task in tasks}) == len(tasks)
    assert {name: len(tasks) for name, tasks in files.items()} == {
        "train": 120, "val": 80, "refunds_train": 120, "refunds_val": 80,
    }  # fmt: skip


def test_each_request_has_the_argument_once_and_each_tool_comes_equally_often(files, example):
    for name in ("train", "val"):
        calls = [example.agent.parse(task.expected) for task in files[name]]
        for task, (_, argument) in zip(files[name], calls, strict=True):
            assert re.findall(rf"\b{argument}\b", task.input["request"]) == [argument]
        counts = Counter(tool for tool, _ in calls)
        assert counts.keys() == example.tools.TOOLS.keys()
        assert len(set(counts.values())) == 1


def test_no_argument_of_the_training_requests_is_in_the_others(files, example):
    arguments = [
        {example.agent.parse(task.expected)[1] for task in files[name]} for name in ("train", "val")
    ]
    assert not arguments[0] & arguments[1]
    for name, others in (("train", arguments[1]), ("val", arguments[0])):
        words = {word for task in files[name] for word in re.findall(r"\w+", task.input["request"])}
        assert not words & others
    # Two of the five tools take a city.
    assert [len(each) for each in arguments] == [4 * 24, 4 * 16]


def test_half_of_each_wording_s_refunds_are_given_and_the_days_say_which(files, example):
    for name in ("refunds_train", "refunds_val"):
        counts = Counter((task.metadata["wording"], task.expected) for task in files[name])
        for (wording, answer), count in counts.items():
            assert counts[wording, {"yes": "no", "no": "yes"}[answer]] == count
        for task in files[name]:
            (days,) = re.findall(r"\d+", task.input["request"])
            assert task.expected == ("yes" if int(days) <= 30 else "no")


def test_refunds_share_no_article_and_no_number_of_days(files, example):
    values = []
    for name in ("refunds_train", "refunds_val"):
        words = {word for task in files[name] for word in re.findall(r"\w+", task.input["request"])}
        values.append({word for word in words if word.isdigit() or word in example.tools.ARTICLES})
    assert all(len(each) > 30 for each in values)
    assert not values[0] & values[1]


def test_the_same_tasks_come_out_each_time(example, made, tmp_path):
    example.tasks.write_tasks(tmp_path)
    for name in FILES:
        assert (tmp_path / f"{name}.jsonl").read_bytes() == (made / f"{name}.jsonl").read_bytes()


def test_every_tool_knows_what_it_is_asked_about(files, example):
    for task in (*files["train"], *files["val"]):
        tool, argument = example.agent.parse(task.expected)
        assert example.tools.TOOLS[tool].invoke(argument) != example.tools.UNKNOWN
    assert {tool.invoke("nothing") for tool in example.tools.TOOLS.values()} == {
        example.tools.UNKNOWN
    }
