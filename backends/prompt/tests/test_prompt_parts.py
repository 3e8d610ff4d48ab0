"""The small parts of a search: rounds of halving, the split of the tasks, marks for holes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.errors import UsageError
from lightning_core.strategy import Message
from lightning_core.task import Task
from lightning_core.template import Template
from lightning_prompt.demonstrations import draws
from lightning_prompt.halving import rounds
from lightning_prompt.marks import Marks
from lightning_prompt.split import split_tasks


@given(st.integers(1, 40), st.integers(1, 200), st.none() | st.integers(1, 2000))
def test_rounds_keep_fewer_on_more_tasks_and_end_with_one_on_all(strategies, tasks, rollouts):
    made = rounds(strategies, tasks, rollouts)
    kept, counts = [each[0] for each in made], [each[1] for each in made]
    assert (kept[-1], counts[-1]) == (1, tasks)
    assert counts == sorted(set(counts))
    assert kept == sorted(kept, reverse=True)
    cost = sum(left * count for left, count in zip([strategies, *kept], counts, strict=False))
    if rollouts is not None and cost > rollouts:
        assert counts[0] == min(8, tasks)
    if rollouts is None:
        assert counts == [tasks]


def test_the_first_round_has_as_many_tasks_as_the_rollouts_allow():
    assert rounds(9, 48, 9 * 48) == [(1, 48)]
    first = rounds(9, 48, 420)[0][1]
    assert 8 < first < 48
    assert rounds(9, 48, 1)[0] == (3, 8)


def tasks(count, split="train"):
    return [Task(id=f"{split}{n}", input=n, split=split) for n in range(count)]


@given(st.integers(14, 200), st.integers(0, 5))
def test_no_task_is_for_two_things_and_each_is_for_one(count, seed):
    split = split_tasks(tasks(count), [], choose=0.4, held_out=0.3, seed=seed)
    parts = [*split.learn, *split.choose, *split.held_out]
    assert sorted(task.id for task in parts) == sorted(task.id for task in tasks(count))
    assert split == split_tasks(tasks(count), [], choose=0.4, held_out=0.3, seed=seed)
    assert "held out" in split.notes[0]


def test_given_validation_tasks_are_all_held_out_and_none_of_the_others():
    split = split_tasks(tasks(20), tasks(6, "val"), choose=0.4, held_out=0.3, seed=0)
    assert {task.split for task in split.held_out} == {"val"}
    assert (len(split.learn), len(split.choose), len(split.held_out)) == (12, 8, 6)
    assert split.notes == ()


def test_too_few_tasks_are_refused():
    with pytest.raises(UsageError, match="each needs 4 or more"):
        split_tasks(tasks(5), [], choose=0.4, held_out=0.3, seed=0)


@given(st.lists(st.text(alphabet="ab<>{} \n", min_size=1, max_size=6), min_size=1, max_size=4))
def test_a_template_is_read_back_from_its_marks(pieces):
    template = Template.of(tuple(pieces), tuple(f"h{n}" for n in range(len(pieces) - 1)))
    marks = Marks.of(template)
    if not marks.shown.strip():
        return
    assert marks.read(marks.shown) == template


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("  \n", "is empty"),
        ("Write SQL.", "<<question>> is missing"),
        ("<<question>> and <<answer>>", "<<answer>> is not known; there are <<question>>"),
    ],
)
def test_a_prompt_that_lacks_what_is_put_in_is_refused(text, says):
    with pytest.raises(UsageError, match=says):
        Marks.of(Template("Question: {question}")).read(text)


def shown(asked, answer):
    return Message(role="user", content=asked), Message(role="assistant", content=answer)


@given(st.integers(1, 12), st.integers(0, 20))
def test_demonstrations_are_drawn_of_each_kind_of_answer_as_often(size, seed):
    # The name of the tool is what the question does not say, but in some wordings; the argument is the question's.
    pool = [
        shown(f"{asked} {asked[:2]}{number}", f"{tool}({asked[:2]}{number})")
        for tool, asked in (("price", "How much is"), ("price", "What is the price of"), ("weather", "Is it cold in"), ("order", "Where is"))
        for number in range(6 if tool == "price" else 3)
    ]  # fmt: skip
    (made,) = draws({"slot": pool}, [size], 1, seed)
    chosen = [pair[1].content for pair in made["slot"]]
    assert len(set(chosen)) == len(made["slot"]) == size
    counts = [
        sum(each.startswith(tool) for each in chosen) for tool in ("price", "weather", "order")
    ]
    assert sum(counts) == size
    assert max(counts) - min(counts) <= 1 or counts[1:] == [3, 3]
    assert draws({"slot": pool}, [size], 1, seed) == [made]


def test_demonstrations_that_all_differ_are_drawn_at_random():
    pool = [shown(f"q{number}", f"answer {number * 7}") for number in range(10)]
    seen = {pair[1].content for made in draws({"slot": pool}, [3], 30, 1) for pair in made["slot"]}
    assert len(seen) == 10
    assert [len(made["slot"]) for made in draws({"slot": pool}, [20], 1, 1)] == [10]
