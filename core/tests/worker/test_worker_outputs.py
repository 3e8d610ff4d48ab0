"""Outputs become JSON, or are refused with their place."""

import dataclasses
import datetime
import decimal
import enum
import pathlib
import uuid

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.worker.outcome import bounded, raised
from lightning_core.worker.outputs import OutputError, read_json, to_json


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Row:
    name: str
    tags: set


class Pair(msgspec.Struct):
    left: object
    right: object


class Model:
    def model_dump(self, *, mode):
        assert mode == "json"
        return {"type": "human", "content": "hi"}


class Broken:
    def model_dump(self, *, mode):
        raise TypeError("cannot")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("é", "é"),
        (2**70, 2**70),
        ((1, 2.5, True), [1, 2.5, True]),
        ({"b", "a"}, ["a", "b"]),
        ({1: "a", Colour.RED: "b"}, {"1": "a", "red": "b"}),
        (Row("n", frozenset([3, 1, 2])), {"name": "n", "tags": [1, 2, 3]}),
        (Pair(Colour.RED, pathlib.PurePosixPath("/a/b")), {"left": "red", "right": "/a/b"}),
        ({"messages": [Model()]}, {"messages": [{"type": "human", "content": "hi"}]}),
        (datetime.datetime(2026, 1, 2, 3, 4, tzinfo=datetime.UTC), "2026-01-02T03:04:00+00:00"),
        (datetime.timedelta(minutes=1), 60.0),
        (decimal.Decimal("1.10"), "1.10"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    ],
)
def test_what_json_can_hold(value, expected):
    assert to_json(value) == expected


def test_numpy_and_pydantic_and_langchain():
    numpy = pytest.importorskip("numpy")
    pydantic = pytest.importorskip("pydantic")
    messages = pytest.importorskip("langchain_core.messages")

    class Answer(pydantic.BaseModel):
        when: datetime.date
        values: tuple[int, ...]

    value = {
        "scalar": numpy.float32(0.5),
        "array": numpy.arange(3),
        "answer": Answer(when=datetime.date(2026, 1, 2), values=(1, 2)),
        "message": messages.HumanMessage("hello"),
    }
    result = to_json(value)
    assert result["scalar"] == 0.5
    assert result["array"] == [0, 1, 2]
    assert result["answer"] == {"when": "2026-01-02", "values": [1, 2]}
    assert result["message"]["content"] == "hello"
    with pytest.raises(OutputError, match=r"`output.x`: JSON cannot hold nan"):
        to_json({"x": numpy.float64("nan")})


def test_what_json_cannot_hold_is_named():
    cycle = []
    cycle.append(cycle)
    for value, message in [
        ({"a": [object()]}, r"`output.a\[0\]`: JSON cannot hold a `object`"),
        ({"a": float("inf")}, "`output.a`: JSON cannot hold inf"),
        (Row("n", {b"x"}), r"`output.tags\{…\}`.*`bytes`"),
        ({("a", "b"): 1}, r"expected text as keys.*`tuple`"),
        ({1: "a", "1": "b"}, "two keys read '1'"),
        (Row, "`.*Row`"),
        (cycle, "hold itself"),
        ({"m": Broken()}, r"`output.m`.*model_dump` raised TypeError: cannot"),
        ("\ud800", "UTF-8"),
    ]:
        with pytest.raises(OutputError, match=message):
            to_json(value)


def test_the_limit_counts_bytes_of_json():
    assert to_json("é" * 4, limit=10) == "é" * 4
    with pytest.raises(OutputError, match="12 bytes of JSON are over the limit of 11"):
        to_json("é" * 5, limit=11)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
)  # fmt: skip


@given(json_values)
def test_json_stays_as_it_is(value):
    assert to_json(value) == value


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=400), st.integers(100, 300))
def test_bounded_text_keeps_its_ends_within_the_limit(text, limit):
    result = bounded(text, limit)
    assert len(result.encode()) <= limit
    if len(text.encode()) <= limit:
        assert result == text
    else:
        assert text.startswith(result[:3])
        assert text.endswith(result[-5:])


def test_json_that_is_nested_too_deep_is_refused_with_its_depth():
    assert read_json(b"[" * 100 + b"]" * 100) is not None
    for depth in (102, 100_000):
        with pytest.raises(OutputError, match="deeper than 100"):
            read_json(b"[" * depth + b"]" * depth)
    with pytest.raises(msgspec.DecodeError):
        read_json(b"{nope")


def test_long_keys_do_not_make_long_messages():
    with pytest.raises(OutputError) as caught:
        to_json({"k" * 10_000: {"l" * 10_000: object()}})
    assert len(str(caught.value)) < 500
    assert "`output.kkk" in str(caught.value)


def test_an_exception_whose_text_raises_is_an_outcome_too():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    outcome = raised(Mute())
    assert outcome.error.startswith("Mute, whose text raised RuntimeError")
