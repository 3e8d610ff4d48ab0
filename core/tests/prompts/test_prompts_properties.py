"""Inference on random templates with random fillings."""

import random
import string

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lightning_core.prompts import infer
from lightning_core.prompts.align import align
from lightning_core.template import Misfit, Template

WORDS = (
    "schema", "query", "result", "answer", "context", "json", "the", "of", "and", "to", "in", "is", "a", "user", "system",
    "tool", "code", "error", "table", "row", "value", "find", "check", "write", "plan", "step", "note", "vérité", "größe",
    "вопрос", "ответ", "схема", "ερώτηση", "問", "題", "答", "表", "质", "询", "ライン", "한", "국",
)  # fmt: skip
SNIPPETS = (
    '{"rows": [{"id": 1, "name": "x"}, {"id": 2}], "ok": true}',
    "def f(x):\n    return {x: [1, 2]}\n",
    "SELECT name FROM t WHERE a = 'b' -- {none}",
    "```sql\nSELECT 1\n```",
    "<b>bold</b> & {{braces}} }{",
    "これは質問です。\n二行目。",
    "Это вопрос?\n\n",
    "a\r\nb\tc  d\n\n\n",
    "😀🏽 café",
)
EDGES = range(100, 1000)
"""What texts' fillings begin and end with, so that they share nothing there."""
marks = st.sampled_from(
    ["\n", ": ", ":\n", " - ", "\n## ", " {", "} ", "\n```\n", "\n\n", "。", "\n<"]
)
word = st.sampled_from(WORDS)


@st.composite
def constants(draw, words=2):
    """Text such as prompts are made of; braces and line breaks in it."""
    parts = draw(st.lists(st.tuples(marks, word), min_size=words, max_size=8))
    return "".join(mark + each for mark, each in parts) + draw(marks)


@st.composite
def pieces(draw):
    holes = draw(st.integers(1, 4))
    between = draw(st.lists(constants(), min_size=holes - 1, max_size=holes - 1, unique=True))
    ends = st.one_of(st.just(""), constants(0))
    return [draw(ends), *between, draw(ends)]


def filling(rng, pieces, edge, ends=("", "")):
    """Free text, code, JSON, other scripts, pieces of the template; between edges that no other text has there, and `ends`
    that all may have."""
    kind = rng.randrange(6)
    if kind == 0:
        return f"{ends[0]}{edge}{ends[1]}"
    if kind == 1:
        body = rng.choice(SNIPPETS)
    elif kind == 2:
        piece = rng.choice(pieces)
        start = rng.randrange(len(piece) + 1)
        body = piece[start : start + rng.randrange(1, 12)]
    else:
        body = " ".join(rng.choices((*WORDS, *string.punctuation), k=rng.randrange(1, 30)))
    return f"{ends[0]}{edge}{body}{edge}{ends[1]}"


def made(rng, pieces, count, edges, ends=()):
    """Texts of the template with what fills each hole, those left out that can be taken apart in several ways."""
    template = Template.of(pieces, [f"h{hole}" for hole in range(len(pieces) - 1)])
    ends = dict(zip(template.holes, ends, strict=False))
    texts = {}
    for _ in range(count):
        values = {
            name: filling(rng, pieces, edges.pop(), ends.get(name, ("", "")))
            for name in template.holes
        }
        text = template.fill(values)
        if template.match(text) is not Misfit.AMBIGUOUS:
            texts[text] = values
    return texts


@settings(max_examples=100, deadline=None)
@given(pieces(), st.integers(0, 2**32))
def test_a_template_comes_back_from_its_texts(pieces, seed):
    rng = random.Random(seed)
    edges = rng.sample(EDGES, len(EDGES))
    texts = made(rng, pieces, 14, edges)
    assume(len(texts) >= 10)
    found = infer(list(texts))
    assert found.template.pieces == tuple(pieces)
    for values, expected in zip(found.fillings, texts.values(), strict=True):
        assert list(values.values()) == list(expected.values())
    for text, values in made(rng, pieces, 10, edges).items():
        assert list(found.template.match(text).values()) == list(values.values())


@settings(max_examples=100, deadline=None)
@given(
    pieces(),
    st.lists(st.tuples(st.one_of(st.just(""), constants()), st.one_of(st.just(""), constants())), min_size=4, max_size=4),
    st.integers(0, 2**32),
)  # fmt: skip
def test_a_template_comes_back_where_what_is_known_to_fill_its_holes_begins_and_ends_alike(
    pieces, ends, seed
):
    rng = random.Random(seed)
    edges = rng.sample(EDGES, len(EDGES))
    texts = made(rng, pieces, 20, edges, ends)
    assume(len(texts) >= 14)
    # Agents change some of what they fill in; and now and then a value stands somewhere by accident.
    known = {
        text: {value: name for name, value in values.items() if rng.random() < 0.8}
        | {text[:9]: "x"}
        for text, values in texts.items()
    }
    found = infer(list(texts), known.get)
    assert found.template.pieces == tuple(pieces)
    for text, values in made(rng, pieces, 10, edges).items():
        assert list(found.template.match(text).values()) == list(values.values())


@settings(max_examples=100, deadline=None)
@given(pieces(), st.integers(1, 4), st.integers(0, 2**32))
def test_a_template_comes_back_where_a_few_texts_copy_pieces_of_it(pieces, copies, seed):
    assume(len(pieces) > 2)
    rng = random.Random(seed)
    edges = rng.sample(EDGES, len(EDGES))
    texts = made(rng, pieces, 60, edges)
    assume(len(texts) >= 50)
    template = Template.of(pieces, [f"h{hole}" for hole in range(len(pieces) - 1)])
    odd = []
    while len(odd) < copies:
        values = {name: filling(rng, pieces, edges.pop()) for name in template.holes}
        values[rng.choice(template.holes)] += rng.choice(pieces[1:-1]) + str(edges.pop())
        odd.append(template.fill(values))
    assume(all(template.match(text) is Misfit.AMBIGUOUS for text in odd))
    every = [*texts, *odd]
    rng.shuffle(every)
    found = infer(every)
    assert found.template.pieces == tuple(pieces)
    assert [text for text, values in zip(every, found.fillings, strict=True) if values is None] == [
        text for text in every if text in odd
    ]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.one_of(st.just(""), constants(0)), min_size=2, max_size=5),
    st.lists(
        st.lists(
            st.one_of(
                st.sampled_from(("", "\n", " ", *SNIPPETS)), st.text(max_size=30), constants(0)
            ),
            min_size=4,
            max_size=4,
        ),
        min_size=1,
        max_size=12,
    ),
)
def test_whatever_the_texts_the_template_takes_each_apart_and_makes_it_again(pieces, fillings):
    texts = ["".join(a + b for a, b in zip(pieces, [*row, ""], strict=False)) for row in fillings]
    found = infer(texts)
    assert 0 < found.confidence < 1
    assert 10 * len({text for text, values in zip(texts, found.fillings, strict=True) if values is None}) <= len(set(texts))  # fmt: skip
    for text, values in zip(texts, found.fillings, strict=True):
        if values is None:
            assert found.template.match(text) is Misfit.AMBIGUOUS
            continue
        assert found.template.match(text) == values
        assert found.template.fill(values) == text
    assert found == infer(texts)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(max_size=60), min_size=1, max_size=8))
def test_pieces_stand_in_each_text_in_order(texts):
    for text in texts:
        at = 0
        for piece in align(texts):
            place = text.find(piece, at)
            assert place >= 0
            at = place + len(piece)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 30), st.integers(0, 2**32))
def test_free_text_is_one_hole(count, seed):
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdefgh", k=5)) for _ in range(60)]
    texts = [
        f"{edge} " + " ".join(rng.choices([*words, "the", "of", "a"], k=30)) + f" {edge}"
        for edge in rng.sample(EDGES, count)
    ]
    assert infer(texts).template.pieces == ("", "")
