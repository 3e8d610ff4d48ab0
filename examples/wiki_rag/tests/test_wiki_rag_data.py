"""Passages and questions: made, converted, found, and compared."""

from __future__ import annotations

import itertools
import json

import pytest

import lightning_core as lc

MUSIQUE = {
    "id": "2hop__1",
    "question": "Who employs him?",
    "answer": "Charles University",
    "answer_aliases": ["Univerzita Karlova"],
    "answerable": True,
    "paragraphs": [
        {"idx": 0, "title": "Principle", "paragraph_text": "Named after Mach.", "is_supporting": True},
        {"idx": 1, "title": "Elsewhere", "paragraph_text": "Of no use.", "is_supporting": False},
        {"idx": 2, "title": "Mach", "paragraph_text": "He works in Prague.", "is_supporting": True},
    ],
}  # fmt: skip
HOTPOT = {
    "_id": "5a7",
    "question": "Which river?",
    "answer": "Holston",
    "type": "bridge",
    "level": "hard",
    "supporting_facts": [["Chilhowie", 0], ["Longhunter", 1]],
    "context": [
        ["Chilhowie", ["It is a town.", " It lies on a river."]],
        ["Elsewhere", ["Of no use."]],
        ["Longhunter", ["They hunt.", " They start there."]],
    ],
}
POOLED = {"id": "q1", "question": "Where?", "answer": "Here", "supporting": ["p2", "p1"]}
PASSAGES = [{"id": f"p{n}", "title": f"T{n}", "text": f"Text {n}."} for n in range(3)]


def lines(values):
    return "".join(json.dumps(value) + "\n" for value in values)


def read(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture
def convert(example, tmp_path):
    def convert(text, corpus=None):
        (tmp_path / "in").write_text(text)
        if corpus is not None:
            (tmp_path / "corpus").write_text(corpus)
        files = {"train": tmp_path / "in", "val": tmp_path / "in"}
        example.convert_dataset.convert(
            files, tmp_path / "out", None if corpus is None else tmp_path / "corpus"
        )
        return tmp_path / "out"

    return convert


@pytest.mark.parametrize("form", [lines, lambda values: json.dumps(values, indent=1)])
@pytest.mark.parametrize(
    ("item", "name", "answers", "needed"),
    [
        (MUSIQUE, "id", ["Charles University", "Univerzita Karlova"], ["Principle", "Mach"]),
        (HOTPOT, "_id", ["Holston"], ["Chilhowie", "Longhunter"]),
    ],
    ids=["musique", "hotpotqa"],
)
def test_the_paragraphs_of_all_questions_become_one_store(
    convert, form, item, name, answers, needed
):
    out = convert(form([item, {**item, name: "another"}]))
    corpus = read(out / "corpus.jsonl")
    assert len(corpus) == 3
    assert all(passage["text"].count(".") >= 1 for passage in corpus)
    titles = {passage["id"]: passage["title"] for passage in corpus}
    tasks = lc.load_tasks(out / "val.jsonl")
    assert tasks[0].input == item["question"]
    assert tasks[0].expected == answers
    assert [titles[i] for i in tasks[0].metadata["supporting"]] == needed
    assert tasks[0].split == "val"


def test_questions_may_name_the_passages_of_a_corpus(convert):
    out = convert(lines([POOLED]), lines(PASSAGES))
    assert read(out / "corpus.jsonl") == PASSAGES
    (task,) = lc.load_tasks(out / "train.jsonl")
    assert (task.expected, task.metadata) == (["Here"], {"hops": 2, "supporting": ["p2", "p1"]})


@pytest.mark.parametrize(
    ("items", "corpus", "says"),
    [
        ([POOLED, {"question": "Where?"}], PASSAGES, "in`, item 2: expected a question"),
        ([POOLED, 3], PASSAGES, "in`, item 2: expected a question"),
        ([{**MUSIQUE, "answer": None}], None, "in`, item 1: expected a question"),
        ([{**MUSIQUE, "paragraphs": ["text"]}], None, "in`, item 1: expected a question"),
        ([{**HOTPOT, "context": [["title only"]]}], None, "in`, item 1: expected a question"),
        ([POOLED], PASSAGES[:1], "question 1: `.*corpus` has no passage 'p1'"),
        ([POOLED], [{"id": "p1"}], "corpus`, item 1: expected `id`, `title` and `text`"),
    ],
)
def test_a_file_of_another_form_is_one_error(convert, tmp_path, items, corpus, says):
    with pytest.raises(ValueError, match=says):
        convert(lines(items), None if corpus is None else lines(corpus))
    assert not (tmp_path / "out").exists()


def test_the_made_questions_are_answered_by_their_passages_and_share_nothing(example, made):
    texts = {line["id"]: line["text"] for line in read(made / "corpus.jsonl")}
    tasks = {name: lc.load_tasks(made / f"{name}.jsonl") for name in ("train", "val")}
    assert {name: len(found) for name, found in tasks.items()} == {"train": 180, "val": 120}
    for task in (*tasks["train"], *tasks["val"]):
        said = [texts[i] for i in task.metadata["supporting"]]
        assert task.expected in said[-1]
        assert 2 <= len(said) == task.metadata["hops"] <= 3
        # One passage leads to the next.
        for before, after in itertools.pairwise(said):
            assert after.split(",")[0].split(" is ")[0] in before
    books = [{t.metadata["supporting"][0] for t in found} for found in tasks.values()]
    assert not books[0] & books[1]
    assert len({task.id for found in tasks.values() for task in found}) == 300


def test_the_same_come_out_each_time(example, made, tmp_path):
    example.tasks.write_tasks(tmp_path)
    for name in ("corpus.jsonl", "train.jsonl", "val.jsonl"):
        assert (tmp_path / name).read_bytes() == (made / name).read_bytes()


def test_a_search_finds_what_it_names(example, made):
    store = example.passages.load(made / "corpus.jsonl")
    for passage in store.passages:
        assert store.search(f"Who or what is {passage.title}?", 3)[0] == passage
    assert len(store.search("a novel by a town", 2)) == 2
    assert store.search("zzzz", 3) == []
    assert store.search("", 3) == []
    assert store.search("?!", 3) == []


@pytest.mark.parametrize("text", ["", "{}\n", "nothing\n", '{"id": "a", "title": "b"}\n', "[]\n"])
def test_a_broken_corpus_is_one_error(example, tmp_path, text):
    (tmp_path / "corpus.jsonl").write_text(text)
    with pytest.raises(ValueError, match=r"corpus\.jsonl`(, line 1: expected| has no passages)"):
        example.passages.load(tmp_path / "corpus.jsonl")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("The U.S. Marshal", "us marshal", True),
        ("an  apple, a day", "apple day", True),
        ("theory", "ory", False),
        ("Nord Ost", "Ost Nord", False),
    ],
)
def test_answers_are_compared_as_the_official_scorers_do(example, one, other, same):
    normalised = example.scoring.normalised
    assert (normalised(one) == normalised(other)) is same
