"""Inference from texts: where constant text ends, what is no anchor, how sure it is, what holes are called."""

import itertools
import random
import time

import pytest

from lightning_core.errors import UsageError
from lightning_core.prompts import infer
from lightning_core.template import Misfit, Template

NAMES = (
    "Ada",
    "Bruno Vale",
    "张伟",
    "Dario",
    "Édith",
    "Felix von Marsh",
    "गीता",
    "Hugo",
    "Ines",
    "Jonas",
    "Kim",
    "Lu",
)
DATA = (
    "def f(x):\n    return {x: 1}\n",
    '{"a": [1, 2], "b": "Question: no"}',
    "SELECT * FROM t WHERE a = '{b}';",
    "这是一个测试。\n第二行",
    "Привет мир\n\n",
    "",
    "Question: what?\nAnswer: this",
    "{{braces}} {hole}",
)


def source(texts, known=None):
    return infer(texts, known).template.source


def told(texts, values):
    """What tells of each text what is known to have been filled in: each of its values, and a name."""
    return dict(zip(texts, values, strict=True)).get


def test_holes_hold_code_json_other_scripts_and_text_like_the_template():
    prompt = (
        "You are {{careful}}.\nQuestion: {question}\nContext:\n```json\n{context}\n```\nAnswer: "
    )
    template = Template(prompt)
    values = [{"question": a, "context": b} for a in DATA for b in DATA]
    found = infer([template.fill(each) for each in values])
    assert found.template.source == prompt
    assert list(found.fillings) == values
    assert found.confidence > 0.95


def test_a_piece_that_could_lie_at_two_places_of_many_texts_is_none():
    copies = ["Q: x\nA: z indeed\nA: y indeed\nEnd", "Q: v\nA: u\nA: t indeed\nEnd"]
    texts = [f"Q: {name}\nA: {name[::-1]} indeed\nEnd" for name in NAMES]
    assert source(texts) == "Q: {q}\nA: {a} indeed\nEnd"
    assert source([*texts, *copies]) == "Q: {q} indeed\nEnd"
    # Within a word: as a word of its own it comes but once.
    texts = [f"{number * 37}at: place {number * 53} is" for number in range(1, 13)]
    assert source(texts) == "{text}at: place {text_2} is"
    copies = [f"{number}cat: place 9at: place {number} is" for number in (7, 8)]
    assert source([*texts, *copies]) == "{text} is"


def test_one_text_in_ten_may_copy_a_piece_and_counts_as_one_that_does_not_fit():
    texts = [f"Q: {name}\nA: {name[::-1]} indeed\nEnd" for name in NAMES]
    copy = "Q: x\nA: z indeed\nA: y indeed\nEnd"
    found = infer([*texts, copy])
    assert found.template.source == "Q: {q}\nA: {a} indeed\nEnd"
    assert found.fillings[-1] is None
    assert found.template.match(copy) is Misfit.AMBIGUOUS
    assert None not in found.fillings[:-1]
    assert found.reasons == (
        "13 distinct texts",
        "12 of 13 fit the template of the others when held out",
        "1 can be taken apart in several ways, and would pass unchanged",
    )
    assert found.confidence == pytest.approx(14 / 15 * 13 / 15 + 1 / 15 * 12 / 13)


@pytest.mark.parametrize("count", [1, 4])
def test_texts_that_copy_much_of_the_prompt_do_not_spoil_it(count):
    prompt = "Read the page.\nPage:\n{page}\n\n## Reply in two words:\n{words}\n\nBe brief."
    values = [{"page": f"{name} {n}", "words": f"{n} {name}"} for n in range(4) for name in NAMES]
    for each in values[: 11 * count : 11]:
        each["page"] += " Someone wrote:\n\n## Reply in two words:\nno, in three.\nPage:\nnone"
    found = infer([Template(prompt).fill(each) for each in values])
    assert found.template.source == prompt
    assert found.fillings.count(None) == count
    assert 1 - 3 * count / 48 < found.confidence < 1 - count / 48


def test_a_copy_of_a_later_piece_in_an_earlier_hole_does_no_harm():
    texts = [
        f"{name}\nNow:\n{name[::-1]}\nReply in two words or fewer, please:\n{name}!"
        for name in NAMES
    ]
    copy = "x\nReply in two words or fewer, please:\ny\nNow:\nz\nReply in two words or fewer, please:\nw"
    assert (
        source([*texts, copy])
        == "{text}\nNow:\n{now}\nReply in two words or fewer, please:\n{please}"
    )


def test_pieces_that_change_places_are_not_constant():
    rules = (
        "Be polite.",
        "Use metric units!",
        "Cite the manual: page and line.",
        "Say (yes) or no;",
    )
    orders = list(itertools.permutations(rules))[::2]
    texts = ["You help.\n" + "\n".join(order) + "\nNow: go" for order in orders]
    assert source(texts) == "You help.\n{text}\nNow: go"
    # A phrase that comes here and there in what fills the holes does not make a line of the prompt one of them.
    texts = [f"{name}, see: \n## Reply in two words:\n{name}" for name in NAMES]
    texts += [f"{name} \n## Reply in two words:\n{name}, see: 1" for name in NAMES]
    assert source(texts) == "{text} \n## Reply in two words:\n{words}"


@pytest.mark.parametrize("count", [2, 3, 5, 9])
def test_a_word_that_free_texts_share_is_no_constant_text(count):
    rng = random.Random(count)
    words = [f"{chr(97 + n % 26)}{chr(97 + n // 26)}x" for n in range(300)]
    texts = []
    for _ in range(count):
        some = rng.sample(words, 24)
        some[rng.randrange(3, 9)], some[rng.randrange(10, 20)] = "the", "of the"
        texts.append(" ".join(some))
    assert source(texts) == "{text}"


def test_a_mark_and_a_word_that_are_common_are_no_constant_text():
    texts = [
        "Two men, the old one and the young, went out, and the dog, too, went with the men.",
        "Snow fell on the town, and then, as the wind rose, the mill stood still, they say.",
        "With the spring came boats, so many, and the port, dull in winter, woke, the end!",
    ]
    assert source(texts) == "{text}"


def test_a_phrase_between_free_texts_needs_many_texts():
    texts = [f"{name} is married to {NAMES[index - 1]}" for index, name in enumerate(NAMES)]
    assert source(texts[:4]) == "{text}"
    assert source(texts) == "{text} is married to {text_2}"


def test_an_unusual_line_is_constant_from_two_texts_on():
    texts = ["Ada\n### Reply in one word:\nblue", "Bo and Cy\n### Reply in one word:\nlight green"]
    assert source(texts) == "{text}\n### Reply in one word:\n{word}"


def test_structure_that_the_fillings_have_again_belongs_to_them():
    schemas = [
        "CREATE TABLE author (author_id INTEGER PRIMARY KEY, name TEXT NOT NULL, born INTEGER);\n"
        "CREATE TABLE book (book_id INTEGER PRIMARY KEY, title TEXT, author_id INTEGER REFERENCES author)",
        "CREATE TABLE ward (ward_id INTEGER PRIMARY KEY, floor INTEGER, name TEXT NOT NULL);\n"
        "CREATE TABLE visit (patient TEXT, ward_id INTEGER REFERENCES ward, fee INTEGER, paid INTEGER);\n"
        "CREATE TABLE doctor (doctor_id INTEGER PRIMARY KEY, name TEXT NOT NULL, room TEXT)",
        "CREATE TABLE maker (name TEXT PRIMARY KEY, country TEXT NOT NULL);\n"
        "CREATE TABLE product (product_id INTEGER PRIMARY KEY, price INTEGER, maker TEXT REFERENCES maker)",
    ]
    texts = [f"Use only this schema:\n{schema}\nSay what is wrong." for schema in schemas]
    assert source(texts) == "Use only this schema:\n{schema}\nSay what is wrong."


def test_marks_that_end_questions_are_theirs():
    texts = [f"Question: {name} or {name[::-1]}?\nThink first." for name in NAMES]
    found = infer(texts)
    assert found.template.source == "Question: {question} or {text}\nThink first."
    assert found.fillings[0] == {"question": "Ada", "text": "adA?"}


def test_empty_holes_leave_their_place():
    assert source(["A.\n\nB.", "A.\nx\nB.", "A.\nyes no\nB."]) == "A.\n{text}\nB."


def test_one_text_has_no_holes_and_counts_more_the_more_often_it_comes():
    found = infer(["Be {brief}."])
    assert found.template.source == "Be {{brief}}."
    assert found.fillings == ({},)
    often = infer(["Be {brief}."] * 18)
    assert (found.confidence, often.confidence) == (pytest.approx(1 / 3), pytest.approx(0.95))
    assert often.reasons == ("one text, seen 18 times: its holes cannot be told",)


def test_confidence_is_the_chance_that_another_text_fits():
    found = infer([f"Name: {name}." for name in NAMES])
    assert found.confidence == pytest.approx(13 / 14 * 13 / 14 + 1 / 14)
    assert found.reasons == (
        "12 distinct texts",
        "12 of 12 fit the template of the others when held out",
    )
    odd = infer([*(f"Name: {name}." for name in NAMES[:3]), "Nickname: Lu."])
    assert odd.confidence == pytest.approx(5 / 6 * 4 / 6 + 1 / 6)


def test_texts_that_come_again_and_again_leave_little_to_be_unsure_of():
    texts = ["Name: Ada Vale.", "Name: Ada Holm.", "Name: Bo."]
    assert infer(texts).confidence == pytest.approx(4 / 5 * 3 / 5 + 1 / 5)
    often = infer(texts * 20)
    assert often.confidence == pytest.approx(1 / 62 * 3 / 5 + 61 / 62)
    assert often.reasons == infer(texts).reasons


def test_texts_without_anything_in_common_are_one_hole():
    assert source(NAMES) == "{text}"


def test_no_text_is_refused():
    with pytest.raises(UsageError, match="at least one text"):
        infer([])


@pytest.mark.parametrize(
    ("before", "name"),
    [
        ("Question: ", "question"),
        ("Use the tables of this schema:\n", "schema"),
        ("Query:\n```sql\n", "query"),
        ("<user_input>", "user_input"),
        ("## Known facts\n", "known_facts"),
        ("问题：", "问题"),  # noqa: RUF001
        ("Class: ", "class_"),
        ("1: ", "text"),
        ("Your name is ", "text"),
        ("Größe = ", "größe"),
        ("Answer this. Topic: '", "topic"),
    ],
)  # fmt: skip
def test_holes_are_named_by_what_stands_before_them(before, name):
    found = infer([f"{before}{each}x" for each in ("1", "22", "333")])
    assert found.template.places == (name,)


def test_names_are_unique():
    texts = [f"Value: {name}\nAnd then:\n- Value: {name[::-1]}\nEnd." for name in NAMES]
    assert infer(texts).template.places == ("value", "value_2")


def test_a_value_that_is_known_to_be_filled_in_is_one_hole_with_its_name():
    questions = [f"How many books by {name} are there?" for name in NAMES]
    texts = [f"Answer. How many books by {name} are there? Be brief." for name in NAMES]
    assert source(texts) == "Answer. How many books by {text} are there? Be brief."
    found = infer(texts, told(texts, [{"x": "other", each: "question"} for each in questions]))
    assert found.template.source == "Answer. {question} Be brief."
    assert [each["question"] for each in found.fillings] == questions


def test_what_a_known_value_holds_of_several_holes_is_one():
    queries = [f"SELECT {name} FROM t\nWHERE: {number}" for number, name in enumerate(NAMES)]
    pairs = zip(queries, NAMES, strict=True)
    texts = [f"Query:\n```\n{query}\n```\nSo: {name[::-1]}" for query, name in pairs]
    assert source(texts) == "Query:\n```\nSELECT {text} FROM t\nWHERE: {where}\n```\nSo: {so}"
    known = told(texts, [{query: "write"} for query in queries])
    assert source(texts, known) == "Query:\n```\n{query}\n```\nSo: {so}"


def test_a_known_value_beside_another_hole_is_one_with_it():
    questions = [f"who is {name}?" for name in NAMES]
    values = [{question: "question"} for question in questions]
    texts = [f"Do: {number * 7}; {question} now" for number, question in enumerate(questions)]
    assert source(texts, told(texts, values)) == "Do: {do}; {question} now"
    glued = [text.replace("; ", "") for text in texts]
    assert source(glued) == "Do: {do}who is {text} now"
    assert source(glued, told(glued, values)) == "Do: {do} now"


def test_a_value_that_all_tasks_have_is_constant():
    texts = [f"Answer in English. Town: {name}" for name in NAMES]
    known = told(texts, [{"English": "language", name: "town"} for name in NAMES])
    assert source(texts, known) == "Answer in English. Town: {town}"


def test_known_values_of_few_texts_do_not_move_a_hole():
    questions = [f"How is {name}?" for name in NAMES]
    texts = [f"Question: {each}\nAnswer." for each in questions]
    echoed = [{f"Question: {each}": "reply"} for each in questions]
    assert source(texts, told(texts, [*echoed[:2], *[{}] * 10])) == source(texts)
    assert source(texts, told(texts, echoed)) == "{reply}\nAnswer."
    answers = [
        f"Town: {name}\nAnswer: {('yes', 'no', 'so')[at % 3]}." for at, name in enumerate(NAMES)
    ]
    known = told(answers, [{} if at % 3 else {"Answer: yes": "reply"} for at in range(12)])
    assert source(answers, known) == "Town: {town}\nAnswer: {answer}."
    both = [{**echo, each: "question"} for echo, each in zip(echoed, questions, strict=True)]
    known = told(texts, [*both[:4], *({each: "question"} for each in questions[4:])])
    assert source(texts, known) == "Question: {question}\nAnswer."


def test_what_some_of_many_texts_share_by_chance_is_found_out_by_the_others():
    texts = [f"Name: {'Bo' if number == 1 else 'Ann'} {number}." for number in range(100)]
    assert source(texts) == "Name: {name}."


def test_scripts_without_blanks_are_parted_by_letters():
    assert source([f"请介绍{name}的历史和文化。" for name in NAMES]) == "请介绍{text}的历史和文化。"


def test_the_order_of_texts_does_not_matter():
    texts = [f"Q: {name}\nA: {name[::-1]} indeed\nEnd" for name in NAMES]
    assert source(texts) == source(texts[::-1])


def test_hundreds_of_long_texts_take_time_in_proportion():
    rng = random.Random(1)
    words = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(2, 9))) for _ in range(3000)]

    def free():
        return " ".join(rng.choices(words, k=300))

    texts = [f"Be kind.\nContext: {free()}\nHistory: {free()}\nAnswer now." for _ in range(200)]

    def seconds(count):
        begun = time.perf_counter()
        infer(texts[:count])
        return time.perf_counter() - begun

    assert min(seconds(200) for _ in range(2)) < 16 * min(seconds(50) for _ in range(2))
    found = infer(texts)
    assert found.template.source == "Be kind.\nContext: {context}\nHistory: {history}\nAnswer now."
    assert not any(found.template.match(text) is Misfit.AMBIGUOUS for text in texts)
