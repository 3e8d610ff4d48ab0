"""Strategies: what a file may say, what it is told of its mistakes, and that the schema says the same."""

import functools
import json
import os
from pathlib import Path

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lightning_core
from lightning_core.errors import FormatError, FormatVersionError, StoreError, UsageError
from lightning_core.strategy import (
    ErrorHandling,
    InteractionPattern,
    Message,
    ModelChoice,
    PromptTemplate,
    Provenance,
    Step,
    Strategy,
)
from lightning_core.strategy_changes import changes
from lightning_core.strategy_schema import strategy_schema
from lightning_core.template import Template

SCHEMA_FILE = Path(lightning_core.__file__).with_name("strategy.schema.json")
WHOLE = {
    "format_version": 1,
    "prompt_templates": {
        "write": {
            "template": "你写 SQLite。\n{schema}\n问题: {question} {{json}}",
            "original": "You write SQL.\n{schema}\nQuestion: {question}",
            "role": "user",
            "label": "write",
            "demonstrations": [
                [
                    {"role": "user", "content": "年龄大于30"},
                    {"role": "assistant", "content": "SELECT *"},
                ]
            ],
        },
        "own": {"template": "Any {hole} will do."},
    },
    "decision_rules": {
        "max_attempts": 3,
        "rewrite_threshold": 0.5,
        "error_handling": "return",
        "strict": True,
        "tone": "dry",
    },
    "interaction_patterns": {
        "flow": {
            "chosen": "checked",
            "options": {"checked": ["write", "execute", "check", "rewrite"], "mine": []},
        }
    },
    "models": {"*": {"model": "gpt-4.1-mini", "temperature": 0, "top_p": 1, "max_tokens": 64}},
    "provenance": {"run": "r", "scores": {"before": 0.1}, "by": "a newer release"},
}


def changed(path, value):
    """`WHOLE` with another value at a path; an Ellipsis takes it away."""
    made = json.loads(json.dumps(WHOLE))
    at = made
    for key in path[:-1]:
        at = at[key]
    if value is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return made


WRITE = ("prompt_templates", "write")
BAD = {
    "unknown placeholder": (
        (*WRITE, "template"),
        "{schema} {qestion} {question}",
        r"at `\$.prompt_templates.write`: `template`: unknown placeholder `\{qestion\}`;"
        r" `original` has `\{schema\}`, `\{question\}`",
    ),
    "missing hole": (
        (*WRITE, "template"),
        "Question: {question}",
        r"at `\$.prompt_templates.write`: `template`: `\{schema\}` of `original` is missing",
    ),
    "unbalanced template": (
        (*WRITE, "template"),
        "{schema}\n{question} {",
        r"at `\$.prompt_templates.write`: `template`, line 2, column 12: `\{` is not closed",
    ),
    "unbalanced original": (
        (*WRITE, "original"),
        "{schema} {question} }",
        r"at `\$.prompt_templates.write`: `original`, line 1, column 21: `\}` closes no hole",
    ),
    "unbalanced without original": (
        ("prompt_templates", "own", "template"),
        '{"a": 1}',
        r"at `\$.prompt_templates.own`: `template`, line 1, column 1: expected a hole's name",
    ),
    "no template": ((*WRITE, "template"), ..., "at `.*write`: .*missing required field `template`"),
    "prompt's role": (
        (*WRITE, "role"),
        "tool",
        r"at `\$.prompt_templates.write`: `role`: expected `system`, `developer`, `user` but got 'tool'",
    ),
    "prompt's misspelt field": (
        (*WRITE, "demonstration"),
        [],
        r"at `\$.prompt_templates.write`: .*unknown field `demonstration`; expected `template`, `original`,",
    ),
    "demonstration's role": (
        (*WRITE, "demonstrations", 0, 0, "role"),
        "system",
        r"`demonstrations\[0\]`: expected messages of the roles `user`, `assistant`, in this order,"
        " but got `system`, `assistant`",
    ),
    "demonstration's order": (
        (*WRITE, "demonstrations", 0),
        [{"role": "assistant", "content": "a"}, {"role": "user", "content": "q"}],
        "but got `assistant`, `user`",
    ),
    "half a demonstration": (
        (*WRITE, "demonstrations", 0),
        [{"role": "user", "content": "q"}],
        "but got `user`",
    ),
    "demonstration's misspelt field": (
        (*WRITE, "demonstrations", 0, 0, "name"),
        "x",
        r"at `\$.prompt_templates.write.demonstrations\[0\]\[0\]`: .*unknown field `name`",
    ),
    "max_attempts": (
        ("decision_rules", "max_attempts"),
        0,
        r"at `\$.decision_rules.max_attempts`: expected a whole number, 1 or more but got 0",
    ),
    "max_attempts true": (("decision_rules", "max_attempts"), True, "but got True"),
    "max_attempts a fraction": (("decision_rules", "max_attempts"), 1.5, "but got 1.5"),
    "rewrite_threshold": (
        ("decision_rules", "rewrite_threshold"),
        1.01,
        r"at `\$.decision_rules.rewrite_threshold`: expected a number from 0 to 1 but got 1.01",
    ),
    "rewrite_threshold true": (("decision_rules", "rewrite_threshold"), True, "but got True"),
    "error_handling": (
        ("decision_rules", "error_handling"),
        "ignore",
        r"at `\$.decision_rules.error_handling`: expected `rewrite`, `return`, `raise` but got 'ignore'",
    ),
    "a rule that is a list": (
        ("decision_rules", "tone"),
        ["dry"],
        r"at `\$.decision_rules.tone`: expected a number, string or boolean but got \['dry'\]",
    ),
    "a rule that is null": (("decision_rules", "tone"), None, "but got None"),
    "unknown step": (
        ("interaction_patterns", "flow", "options", "checked", 1),
        "run",
        r"at `\$.interaction_patterns.flow.options\[...\]\[1\]`: unknown step 'run';"
        " steps are `write`, `execute`, `check`, `rewrite`",
    ),
    "chosen": (
        ("interaction_patterns", "flow", "chosen"),
        "chekced",
        r"at `\$.interaction_patterns.flow`: `chosen`: expected one of the options `checked`, `mine`"
        " but got 'chekced'",
    ),
    "temperature": (
        ("models", "*", "temperature"),
        -0.1,
        r"at `\$.models.\*`: `temperature`: expected 0 or more but got -0.1",
    ),
    "top_p": (("models", "*", "top_p"), 0, "`top_p`: expected above 0 and at most 1 but got 0.0"),
    "top_p above": (("models", "*", "top_p"), 1.1, "`top_p`: .* but got 1.1"),
    "max_tokens": (("models", "*", "max_tokens"), 0, "`max_tokens`: expected 1 or more but got 0"),
    "model": (("models", "*", "model"), "", "`model`: expected a model's name but got ''"),
    "model's misspelt field": (
        ("models", "*", "temprature"),
        1,
        r"at `\$.models.\*`: .*unknown field `temprature`; expected `model`, `temperature`, `top_p`, `max_tokens`",
    ),
    "model that is none": (("models", "*"), "gpt", r"at `\$.models.\*`: Expected `object`, got `str`"),
    "misspelt top level": (
        ("modles",),
        {},
        "Strategy: unknown field `modles`; expected `format_version`, `prompt_templates`, .*`provenance`",
    ),
    "section that is none": (("models",), [], r"Expected `object`, got `array` - at `\$.models`"),
}  # fmt: skip
BEYOND_A_SCHEMA = {
    "unknown placeholder",
    "missing hole",
    "unbalanced template",
    "unbalanced original",
    "unbalanced without original",
    "chosen",
}

few_names = st.sampled_from(["a", "b", "*", "名"])
numbers = st.floats(0, 1) | st.integers(1, 9)
demonstrations = st.tuples(
    st.builds(Message, role=st.just("user"), content=st.text("a\n名🙂")),
    st.builds(Message, role=st.just("assistant"), content=st.text("b")),
)
sources = st.text("ab{}\n名").map(lambda text: Template.of((text, ""), ("x",)).source)
strategies = st.builds(
    Strategy,
    prompt_templates=st.dictionaries(
        few_names,
        st.builds(
            PromptTemplate,
            template=sources,
            original=st.just("") | sources,
            role=st.sampled_from(["system", "user"]),
            label=few_names,
            demonstrations=st.lists(demonstrations, max_size=2).map(tuple),
        ),
    ),
    decision_rules=st.dictionaries(few_names, numbers | st.booleans() | few_names),
    interaction_patterns=st.dictionaries(
        few_names,
        st.builds(
            InteractionPattern,
            chosen=st.just("a"),
            options=st.lists(st.sampled_from(Step)).map(lambda steps: {"b": (), "a": tuple(steps)}),
        ),
    ),
    models=st.dictionaries(
        few_names, st.builds(ModelChoice, temperature=st.none() | numbers, max_tokens=st.just(3))
    ),
    provenance=st.builds(Provenance, run=few_names),
)


@settings(deadline=None)
@given(strategies)
def test_a_strategy_survives_json_and_the_schema_holds_it(strategy):
    assert Strategy.from_json(strategy.to_json()) == strategy
    validator().validate(json.loads(strategy.to_json()))


@settings(deadline=None)
@given(strategy=strategies)
def test_a_strategy_survives_its_file_which_is_the_same_in_whatever_order_it_was_made(
    strategy, tmp_path_factory
):
    path = tmp_path_factory.getbasetemp() / "strategy.json"
    strategy.dump(path)
    first = path.read_bytes()
    assert Strategy.load(path) == strategy
    turned = msgspec.structs.replace(
        strategy,
        decision_rules=dict(reversed(strategy.decision_rules.items())),
        models=dict(reversed(strategy.models.items())),
    )
    turned.dump(path)
    assert path.read_bytes() == first
    assert turned.digest == strategy.digest


@settings(deadline=None)
@given(strategies, strategies)
def test_strategies_have_one_digest_exactly_where_nothing_changed(one, other):
    assert (one.digest == other.digest) == (changes(one, other) == [])
    assert changes(one, one) == []
    assert [(c.slot, c.after, c.before) for c in changes(one, other)] == [
        (c.slot, c.before, c.after) for c in changes(other, one)
    ]


def test_a_file_is_readable_text_in_utf_8_with_the_version_first(tmp_path):
    path = tmp_path / "strategy.json"
    Strategy.from_value(WHOLE).dump(path)
    text = path.read_text("utf-8")
    assert text.startswith('{\n  "format_version": 1,\n  "prompt_templates": {\n    "own": {')
    assert text.endswith("}\n")
    assert "你写 SQLite。" in text
    assert os.listdir(tmp_path) == ["strategy.json"]


def test_a_file_with_a_byte_order_mark_is_read(tmp_path):
    path = tmp_path / "strategy.json"
    path.write_text(json.dumps(WHOLE), "utf-8-sig")
    assert Strategy.load(path) == Strategy.from_value(WHOLE)


def test_what_a_whole_file_says_is_read():
    strategy = Strategy.from_value(WHOLE)
    assert strategy.prompt_templates["write"].demonstrations[0][0].content == "年龄大于30"
    assert strategy.interaction_patterns["flow"].options["checked"][1] is Step.EXECUTE
    assert strategy.models["*"].temperature == 0.0
    assert strategy.decision_rules["error_handling"] == ErrorHandling.RETURN
    assert not strategy.is_empty


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_one_message_that_names_the_file_and_the_place(case, tmp_path):
    where, value, message = BAD[case]
    path = tmp_path / "my.json"
    path.write_text(json.dumps(changed(where, value)))
    with pytest.raises(FormatError, match=rf"my.json`: Strategy: .*{message.removeprefix('Strategy: ')}"):  # fmt: skip
        Strategy.load(path)


@pytest.mark.parametrize("case", BAD)
def test_the_schema_refuses_what_a_schema_can(case):
    where, value, _ = BAD[case]
    assert validator().is_valid(changed(where, value)) == (case in BEYOND_A_SCHEMA)


def test_a_file_of_the_future_asks_for_a_newer_release_whatever_is_in_it(tmp_path):
    path = tmp_path / "my.json"
    path.write_text(json.dumps({"format_version": 2, "moods": {}}))
    with pytest.raises(
        FormatVersionError, match=r"my.json`: .*version 2 is newer .*pip install -U"
    ):
        Strategy.load(path)
    assert not validator().is_valid({"format_version": 2})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "my.json`: Strategy: not JSON"),
        (b"[]", "my.json`: Strategy: Expected `object`, got `array`"),
        (b'{"models": "\xff"}', "my.json`: not UTF-8 at byte 12; save it as UTF-8"),
    ],
)
def test_a_file_that_is_no_strategy_is_said_to_be_none(data, message, tmp_path):
    path = tmp_path / "my.json"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=message):
        Strategy.load(path)


def test_a_file_that_cannot_be_read_or_written_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"none.json`: cannot be read: No such file"):
        Strategy.load(tmp_path / "none.json")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"a.json`: cannot be written: Not a directory"):
        Strategy().dump(tmp_path / "file" / "a.json")


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "strategy.json"
    Strategy(decision_rules={"a": 1}).dump(path)

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="No space left"):
        Strategy(decision_rules={"a": 2}).dump(path)
    assert Strategy.load(path).decision_rules == {"a": 1}
    assert os.listdir(tmp_path) == ["strategy.json"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PromptTemplate(template="a", original="{x}"), "`template`: `{x}` of `original`"),
        (lambda: PromptTemplate(template="{", original=""), "`template`, line 1, column 1"),
        (lambda: PromptTemplate(template="a \ud83d"), "'.ud83d', character 3, half of a surrogate"),
        (
            lambda: PromptTemplate(
                template="a",
                demonstrations=(
                    (
                        Message(role="user", content="q"),
                        Message(role="assistant", content="\udc80"),
                    ),
                ),
            ),
            "'.udc80', character 1",
        ),
        (lambda: InteractionPattern(chosen="a", options={}), "expected one of the options none"),
        (lambda: ModelChoice(temperature=float("nan")), "`temperature`: .* but got nan"),
        (lambda: Strategy(decision_rules={"a": float("inf")}), "expected a finite number"),
        (lambda: Strategy(decision_rules={"max_attempts": "3"}), "but got '3'"),
    ],
)
def test_what_a_file_could_not_say_cannot_be_made_in_code(make, message):
    with pytest.raises(UsageError, match=message):
        make()


def test_an_empty_strategy_is_empty_wherever_it_comes_from():
    assert Strategy(provenance=Provenance(run="r")).is_empty
    assert Strategy().digest == Strategy(provenance=Provenance(run="r")).digest
    for section in ("prompt_templates", "decision_rules", "interaction_patterns", "models"):
        assert not Strategy.from_value({section: WHOLE[section]}).is_empty


def test_a_change_of_one_value_is_one_change_and_true_is_not_1():
    (change,) = changes(Strategy(decision_rules={"a": 1}), Strategy(decision_rules={"a": True}))
    assert (change.section, change.slot, change.field) == ("decision_rules", "a", "value")
    assert (change.before, change.after) == (1, True)
    assert len(changes(Strategy(), Strategy(models={"*": ModelChoice()}))) == 1


def test_the_schema_file_is_what_the_types_say():
    said = json.loads(msgspec.json.encode(strategy_schema()))
    assert json.loads(SCHEMA_FILE.read_text()) == said, (
        "run `python -m lightning_core.strategy_schema > core/src/lightning_core/strategy.schema.json`"
    )


def test_the_schema_is_one_and_holds_a_whole_file():
    jsonschema.Draft202012Validator.check_schema(strategy_schema())
    validator().validate(WHOLE)
    validator().validate({})


def test_the_schema_describes_every_field():
    schema = strategy_schema()
    for described in (schema, *schema["$defs"].values()):
        for name, field in described.get("properties", {}).items():
            assert field.get("description"), name


@functools.cache
def validator():
    return jsonschema.Draft202012Validator(strategy_schema())
