"""Templates: what fills their holes is read from a text, and only where there is one way to read it."""

import json
import pickle
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lightning_core.errors import UsageError
from lightning_core.template import Misfit, Template, _place

FEW = "ab"
"""Of few letters pieces and values overlap in every way there is."""
few = st.text(FEW, max_size=3)
names = st.sampled_from(["x", "y", "z", "é_1"])
anything = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('{}\n"\\ '))


@st.composite
def templates(draw, letters=few):
    holes = draw(st.lists(names, max_size=4))
    inner = [draw(letters.filter(bool)) for _ in holes[1:]]
    ends = (draw(letters), draw(letters)) if holes else (draw(letters),)
    return Template.of((ends[0], *inner, *ends[1:]), holes)


def ways(template, text, place=0, values=None):
    """Every way to take a text apart, found by trying all."""
    values = values or {}
    piece = template.pieces[place]
    if not text.startswith(piece):
        return []
    rest = text[len(piece) :]
    if place == len(template.places):
        return [] if rest else [values]
    name = template.places[place]
    return [
        way
        for end in range(len(rest) + 1)
        if values.get(name, rest[:end]) == rest[:end]
        for way in ways(template, rest[end:], place + 1, {**values, name: rest[:end]})
    ]


@settings(deadline=None)
@given(templates(), st.text(FEW, max_size=9))
def test_a_match_is_the_only_way_to_take_the_text_apart(template, text):
    every = ways(template, text)
    expected = {0: Misfit.OTHER, 1: every[0] if every else None}.get(len(every), Misfit.AMBIGUOUS)
    assert template.match(text) == expected


stretched = st.text(FEW, max_size=9).map(lambda text: "".join(letter * 20 for letter in text))


@example("a", "a" * 80 + "b" * 20, 0, 400)
@given(st.text(FEW, max_size=9), stretched, st.integers(0, 9), st.integers(60, 400))
def test_a_long_piece_is_found_where_it_first_stands(before, piece, at, end):
    for text in (before, f"{before}{piece}{before}", f"{before}{piece[:-1]}{before}{piece}"):
        assert _place(text, piece, at, end) == text.find(piece, at, end)


@settings(deadline=None)
@given(templates(), st.data())
def test_a_match_of_a_filled_template_is_what_filled_it_unless_there_is_another_way(template, data):
    values = {name: data.draw(st.text(FEW, max_size=2)) for name in template.holes}
    text = template.fill(values)
    every = ways(template, text)
    assert values in every
    assert template.match(text) == (values if len(every) == 1 else Misfit.AMBIGUOUS)


@settings(deadline=None)
@given(templates(anything), st.data())
def test_what_is_matched_fills_to_the_same_text_whatever_is_in_it(template, data):
    values = {name: data.draw(anything) for name in template.holes}
    text = template.fill(values)
    found = template.match(text)
    assert found is not Misfit.OTHER
    if isinstance(found, dict):
        assert found == values
        assert template.fill(found) == text
        assert list(found) == list(template.holes)


@settings(deadline=None)
@given(st.lists(st.text("<>", min_size=1), min_size=2, max_size=4), st.data())
def test_values_that_share_no_letter_with_the_constant_text_always_come_back(pieces, data):
    template = Template.of(pieces, [f"hole_{i}" for i in range(len(pieces) - 1)])
    letters = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<>"))
    values = {name: data.draw(letters) for name in template.holes}
    assert template.match(template.fill(values)) == values


@settings(deadline=None)
@given(templates(anything))
def test_source_pieces_and_places_give_the_same_template(template):
    assert Template(template.source) == template == Template.of(template.pieces, template.places)
    assert hash(Template(template.source)) == hash(template)
    assert eval(repr(template), {"Template": Template}) == template
    assert pickle.loads(pickle.dumps(template)) == template


@settings(deadline=None)
@given(anything)
def test_of_escapes_every_brace(text):
    template = Template.of((text,), ())
    assert template.holes == ()
    assert template.fill({}) == text
    assert template.match(text) == {}
    assert template.match(text + "x") is Misfit.OTHER


@pytest.mark.parametrize(
    "value",
    [
        "",
        "two\nlines\n\nand a third",
        json.dumps({"a": [1, {"b": "{question}"}]}, indent=2),
        "def f():\n    return {'{{': '}}'}",
        "查询用户表中年龄大于30的记录 🙂",
        "Schema: {schema}\nQuestion",
        "{question}",
    ],
)
def test_a_value_may_be_anything(value):
    template = Template("Schema: {schema}\nQuestion: {question}\nReply as {{'sql': …}}.")
    text = template.fill({"schema": "t(a)", "question": value})
    assert template.match(text) == {"schema": "t(a)", "question": value}
    assert text == f"Schema: t(a)\nQuestion: {value}\nReply as {{'sql': …}}."


def test_a_value_that_repeats_the_constant_text_is_told_as_ambiguous():
    template = Template("Schema: {schema}\nQuestion: {question}\n")
    text = template.fill({"schema": "t(a)", "question": "What is\nQuestion: for?"})
    assert template.match(text) is Misfit.AMBIGUOUS


def test_a_hole_with_several_places_has_one_value_which_may_tell_the_way():
    template = Template("{x} and {x}")
    assert template.match("a and b and a and b") == {"x": "a and b"}
    assert template.match("a and b") is Misfit.OTHER
    assert template.match("a and b and c and d") is Misfit.OTHER
    assert Template("{x},{y},{x}").match("1,1,1,1,1") is Misfit.AMBIGUOUS


def test_too_many_ways_to_try_are_ambiguous_and_end_soon():
    template = Template("{x},{y},{z},{x},{y},{z}")
    assert template.match("1," * 3000) is Misfit.AMBIGUOUS


def test_matching_takes_time_in_proportion_to_the_text():
    template = Template(
        "Write SQL. " * 100 + "\nSchema:\n{schema}\nQuestion: {question}\nError: {error}"
    )

    def seconds(rows):
        schema = "create table t(a int);\n" * rows
        values = {"schema": schema, "question": "How many?", "error": "none"}
        text = template.fill(values)
        times = []
        for _ in range(100):
            started = time.perf_counter()
            assert template.match(text) == values
            times.append(time.perf_counter() - started)
        return min(times)

    assert seconds(4000) < 40 * seconds(400)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a\nbc {question", r"line 2, column 4: `\{` is not closed"),
        ("a {b {c}", r"line 1, column 3: `\{` is not closed"),
        ("{{a}", r"line 1, column 4: `\}` closes no hole"),
        ("{a}}", r"line 1, column 4: `\}` closes no hole"),
        ("{}", "line 1, column 1: expected a hole's name, an identifier .* but got ''"),
        ('\n\n{"sql": 1}', "line 3, column 1: expected a hole's name, .* but got '\"sql\": 1'"),
        ("{0}", "but got '0'"),
        ("{a.b}", "but got 'a.b'"),
        ("{a:>3}", "but got 'a:>3'"),
        ("{" + "long " * 20 + "}", "but got 'long long long long long long long long…'; a brace"),
        ("{a}{b}", "line 1, column 4: hole `b` follows hole `a` at once"),
    ],
)
def test_a_template_that_is_none_says_where(source, message):
    with pytest.raises(UsageError, match=message):
        Template(source)


def test_doubled_braces_beside_a_hole_are_text():
    template = Template("{{{x}}}")
    assert template.pieces == ("{", "}")
    assert template.match("{1}") == {"x": "1"}


@pytest.mark.parametrize(
    ("pieces", "holes", "message"),
    [
        (("a",), ("x",), "one piece more than holes but got 1 pieces and 1 holes"),
        (("a", "b"), ("1x",), "expected a hole's name, .* but got '1x'"),
        (("", "", ""), ("x", "y"), "hole `y` follows hole `x` at once"),
    ],
)
def test_pieces_and_holes_that_make_no_template_are_refused(pieces, holes, message):
    with pytest.raises(UsageError, match=message):
        Template.of(pieces, holes)


def test_a_hole_without_value_is_named_with_what_was_given():
    with pytest.raises(UsageError, match="no value for hole `y`; values given: `x`, `z`"):
        Template("{x} {y}").fill({"x": "1", "z": "2"})


def test_a_template_cannot_be_changed():
    with pytest.raises(AttributeError):
        Template("{x}").source = "{y}"
