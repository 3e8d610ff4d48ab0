"""The example's own data, Spider-shaped data, and the evaluation."""

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

import lightning_core as lc

SPIDER = Path(__file__).parents[4] / "shared" / "data" / "spider"


def own_tasks(made):
    return [task for split in ("train", "val") for task in lc.load_tasks(made / f"{split}.jsonl")]


def test_the_made_data(made):
    tasks = own_tasks(made)
    assert Counter(task.split for task in tasks) == {"train": 40, "val": 20}
    assert len({task.id for task in tasks}) == 60
    assert len({task.input["question"] for task in tasks}) == 60
    kinds = Counter((task.metadata["schema"], task.metadata["hardness"]) for task in tasks)
    assert {schema for schema, _ in kinds} == {"library", "clinic", "railway_shop"}
    assert all(sum(kinds[s, h] for h in ("easy", "medium", "hard")) == 20 for s, _ in kinds)
    for split in ("train", "val"):
        assert {(t.metadata["schema"], t.metadata["hardness"]) for t in tasks if t.split == split} == set(kinds)  # fmt: skip


def test_the_gold_answers_score_one_and_the_constant_answer_none(example, made):
    tasks = own_tasks(made)
    for task in tasks:
        rewards = example.agent.score(task, SimpleNamespace(output=task.expected))
        assert rewards == {"reward": 1.0, "official": 1.0, "runs": 1.0}, task.id
    assert example.evaluate.floor(tasks) == 0.0


def test_no_question_is_answered_by_the_query_of_another(example, made):
    judge = example.execution_match.execution_match
    tasks = own_tasks(made)
    for task in tasks:
        for other in tasks:
            if other is not task and other.input["database"] == task.input["database"]:
                queries = (other.expected["query"], task.expected["query"])
                assert not judge(*queries, task.input["database"]), (other.id, task.id)


def test_making_the_data_again_gives_the_same(example, made, tmp_path):
    example.make_data.make(tmp_path)
    example.make_data.make(tmp_path)
    for path in sorted(made.rglob("*.*")):
        again = tmp_path / path.relative_to(made)
        if path.suffix == ".jsonl":
            assert again.read_text().replace(str(tmp_path), str(made)) == path.read_text()
        elif path.is_file():
            assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("SELECT 1 WHERE 0", "returns no row"),
        ("SELECT nothing FROM book", "gold query fails"),
        ("SELECT genre FROM book ORDER BY genre LIMIT 1, 1 ", None),
        ("SELECT title FROM book LIMIT 1", "order in which rows are read"),
        ("SELECT title FROM book ORDER BY genre", "order in which rows are read"),
    ],
)
def test_a_gold_query_that_settles_nothing_is_refused(example, library, query, says):
    if says is None:
        example.make_data.check(query, library)
    else:
        with pytest.raises(ValueError, match=says):
            example.make_data.check(query, library)


@pytest.fixture
def shaped(tmp_path, database):
    """A folder of Spider's shape with four items, of which two are fit for scoring."""
    folder = tmp_path / "database" / "t"
    folder.mkdir(parents=True)
    database([(1,)]).rename(folder / "t.sqlite")
    base = {"db_id": "t", "question": "?", "query": "SELECT c0 FROM t", "gold_rows": 1}
    items = [
        {**base, "id": "a", "hardness": "easy", "plan_sensitive": False},
        {**base, "id": "b", "gold_rows": 0},
        {**base, "id": "c", "plan_sensitive": True},
        {**base, "id": "d"},
    ]
    lines = "\n".join(map(json.dumps, items))
    (tmp_path / "dev.jsonl").write_text(lines)
    return tmp_path


def test_spider_shaped_data_without_what_cannot_be_scored(example, shaped):
    tasks = example.data.spider_tasks(shaped)
    assert [task.id for task in tasks] == ["a", "d"]
    assert tasks[0] == lc.Task(
        id="a",
        input={"question": "?", "database": str(shaped / "database" / "t" / "t.sqlite")},
        expected={"query": "SELECT c0 FROM t"},
        metadata={"schema": "t", "hardness": "easy"},
        split="val",
    )
    assert [task.id for task in example.data.spider_tasks(shaped, limit=1)] == ["a"]


@pytest.mark.parametrize(
    ("split", "line", "says"),
    [
        ("test", None, "expected one of 'train', 'val', 'dev'"),
        ("train", None, "train.jsonl` does not exist"),
        ("train", {"id": "a", "db_id": "t", "question": "?"}, "line 1: no `query`"),
        ("train", {"id": "a", "db_id": "u", "question": "?", "query": "SELECT 1"}, "u.sqlite` does not exist"),
        ("train", {"id": "a", "db_id": "t", "question": "?", "query": "SELECT 1", "gold_rows": 0}, "no items"),
    ],
)  # fmt: skip
def test_spider_shaped_data_that_will_not_do(example, shaped, split, line, says):
    if line is not None:
        (shaped / "train.jsonl").write_text(json.dumps(line))
    with pytest.raises(ValueError, match=says):
        example.data.spider_tasks(shaped, split)


@pytest.mark.slow
@pytest.mark.parametrize("split", ["train", "val"])
def test_every_spider_gold_scores_one_on_itself(example, split):
    if not SPIDER.exists():
        pytest.skip(f"no Spider data: {SPIDER} is absent")
    tasks = example.data.spider_tasks(SPIDER, split)
    assert len(tasks) > 400
    for task in tasks:
        rewards = example.agent.score(task, SimpleNamespace(output=task.expected))
        assert rewards == {"reward": 1.0, "official": 1.0, "runs": 1.0}, task.id
    assert example.evaluate.floor(tasks) == 0.0
