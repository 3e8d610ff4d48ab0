"""Anthropic Messages between an agent and an upstream that both speak it: what is changed, and what is recorded."""

from __future__ import annotations

import json

import msgspec
import pytest

from lightning_core.capability import Capability
from lightning_core.gateway.dialects.base import Fields, Rewritten, Terms
from lightning_core.gateway.dialects.messages import MessagesDialect
from lightning_core.gateway.dialects.rewriting import Examples, rewritten
from lightning_core.gateway.refusal import Refusal
from lightning_core.sampling import SamplingPolicy
from lightning_core.strategy import ModelChoice

from .messages_cases import call, said, use

MESSAGES = MessagesDialect()
BODY = {
    "model": "claude", "max_tokens": 100, "temperature": 0.2, "top_k": 5, "stop_sequences": ["END"],
    "stream": True, "system": "s", "messages": [{"role": "user", "content": "hi"}],
}  # fmt: skip


def prepared(body=BODY, **terms):
    data = json.dumps(body).encode()
    made = MESSAGES.prepare(data, msgspec.json.decode(data, type=Fields), Terms(**terms))
    return made, json.loads(made.body), data


def test_an_observed_request_passes_as_it_is():
    made, _, data = prepared(capabilities=frozenset({Capability.TOKEN_IDS, Capability.LOGPROBS}))
    assert made.body is data or made.body == data
    assert made.stream
    assert not made.overrides
    assert not made.remake
    assert MESSAGES.stream_filter(made) is None
    assert MESSAGES.conceal(b"x", made) == b"x"


def test_the_runs_sampling_rules():
    made, sent, _ = prepared(
        model="policy", sampling=SamplingPolicy(temperature=1.0, top_p=0.9, seed=7, max_tokens=50), index=3
    )  # fmt: skip
    assert sent == {
        **{k: v for k, v in BODY.items() if k != "top_k"},
        "model": "policy", "temperature": 1.0, "top_p": 0.9, "max_tokens": 50,
    }  # fmt: skip
    assert made.overrides["top_k"] is None
    assert "seed" not in made.overrides


def test_a_seed_that_the_agent_sent_is_taken_out():
    _, sent, _ = prepared({**BODY, "seed": 1}, sampling=SamplingPolicy())
    assert "seed" not in sent
    _, sent, _ = prepared({**BODY, "seed": 1}, sampling=SamplingPolicy(seed=7))
    assert "seed" not in sent


def test_a_strategys_choice_and_prompt_go_first():
    prompt = Rewritten({"system": "better"}, {"system": "better"})
    choice = ModelChoice(model="haiku", temperature=0.5, max_tokens=20)
    _, sent, _ = prepared(prompt=prompt, choice=choice)
    assert sent == {**BODY, "system": "better", "model": "haiku", "temperature": 0.5, "max_tokens": 20}  # fmt: skip


def test_a_refusal_has_the_formats_shape():
    body = json.loads(MESSAGES.refusal(Refusal(401, "unknown_session", "no session")))
    assert body == {
        "type": "error",
        "error": {"type": "authentication_error", "message": "no session"},
    }


# Rewriting -----------------------------------------------------------------------------------------------------------


class Upper:
    """Replaces texts of some roles, and has examples."""

    def __init__(self, *roles, examples=()):
        self.roles = roles
        raws = [msgspec.Raw(json.dumps(message).encode()) for message in examples]
        self.examples = Examples(raws, list(examples))
        self.asked = []

    def text(self, role, text):
        self.asked.append((role, text))
        return None if text.isupper() else text.upper()

    def has_examples(self):
        return bool(self.examples.sent)


def sent_by(rewriter, data):
    body, fields = json.loads(data), msgspec.json.decode(data, type=Fields)
    made = rewritten(fields, body, MESSAGES.rewrite(body, rewriter), rewriter.examples)
    sent = {name: msgspec.json.encode(value) for name, value in made.sent.items()}
    assert {name: json.loads(value) for name, value in sent.items()} == made.read
    return sent


def made_by(rewriter, body):
    sent = sent_by(rewriter, json.dumps(body).encode())
    return {name: json.loads(value) for name, value in sent.items()}


def test_system_and_messages_are_rewritten_by_role():
    cached = {**said("sys"), "cache_control": {"type": "ephemeral"}}
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [said("ask"), use("c1", "f")]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c1", "content": "out"},
            {"type": "tool_result", "tool_use_id": "c2", "content": [said("put")]}, said("go"),
        ]},
    ]  # fmt: skip
    body = {"system": [cached, said("KEPT")], "messages": turns}
    assert made_by(Upper("system"), body) == {"system": [{**cached, "text": "SYS"}, said("KEPT")]}
    assert made_by(Upper("system"), {**body, "system": "sys"}) == {"system": "SYS"}
    changed = made_by(Upper("user"), body)
    assert list(changed) == ["messages"]
    assert changed["messages"][0] == {"role": "user", "content": "HI"}
    assert changed["messages"][1] == turns[1]
    assert changed["messages"][2]["content"] == [*turns[2]["content"][:2], said("GO")]


def test_what_is_not_rewritten_keeps_its_spelling():
    data = b'{"messages": [{"role": "assistant", "content": [{"input": {"a": 1e5}}]}, {"role": "user", "content": "hi"}]}'
    first, last = (
        b'{"role": "assistant", "content": [{"input": {"a": 1e5}}]}',
        b'{"role":"user","content":"HI"}',
    )
    assert sent_by(Upper("user"), data) == {"messages": b"[" + first + b"," + last + b"]"}


def test_nothing_to_rewrite_changes_nothing():
    assert made_by(Upper("system", "user"), {"system": "S", "messages": [{"role": "user", "content": "HI"}]}) == {}  # fmt: skip
    assert made_by(Upper("user"), {"messages": "x"}) == {}
    assert made_by(Upper("user", "system"), {"messages": [1], "system": 1}) == {}


def test_examples_go_before_the_first_message():
    pair = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    turns = [{"role": "user", "content": "hi"}]
    assert made_by(Upper(examples=pair), {"messages": turns}) == {"messages": [*pair, *turns]}
    assert made_by(Upper("system", examples=pair), {"system": "s", "messages": "x"}) == {"system": "S"}  # fmt: skip
    later = [{"role": "system", "content": "s"}, *turns]
    assert made_by(Upper(examples=pair), {"messages": later})["messages"][1:3] == pair


# Replies -------------------------------------------------------------------------------------------------------------

USAGE = {
    "input_tokens": 3, "cache_creation_input_tokens": 20, "cache_read_input_tokens": 100, "output_tokens": 7,
    "service_tier": "standard",
}  # fmt: skip


def reply(*content, stop="end_turn", **fields):
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x", "content": list(content),
        "stop_reason": stop, "stop_sequence": None, "usage": USAGE, **fields,
    }  # fmt: skip


def read(*content, **fields):
    return MESSAGES.read(json.dumps(reply(*content, **fields)).encode())


def test_a_reply_is_recorded_in_the_form_of_chat():
    found = read(said("I ask."), use("toolu_1", "f", a="é"), stop="tool_use")
    (choice,) = found.choices
    assert choice.message == {
        "role": "assistant",
        "content": "I ask.",
        "tool_calls": [call("toolu_1", "f", '{"a": "é"}')],
    }
    assert choice.finish_reason == "tool_calls"
    assert found.usage == {
        **USAGE,
        "prompt_tokens": 123,
        "completion_tokens": 7,
        "total_tokens": 130,
    }
    assert found.model == "claude-x"
    assert found.reply["stop_reason"] == "tool_use"
    assert "content" not in found.reply
    assert found.complete


@pytest.mark.parametrize(
    ("stop", "finish"),
    [
        ("end_turn", "stop"), ("stop_sequence", "stop"), ("max_tokens", "length"), ("tool_use", "tool_calls"),
        ("refusal", "content_filter"), ("model_context_window_exceeded", "length"),
        ("pause_turn", "pause_turn"), (None, None),
    ],
)  # fmt: skip
def test_stop_reasons_are_finish_reasons(stop, finish):
    assert read(said("x"), stop=stop).choices[0].finish_reason == finish


def test_what_chat_has_no_word_for_is_kept_beside():
    thought = {"type": "thinking", "thinking": "hm", "signature": "EqQBCg"}
    sealed = {"type": "redacted_thinking", "data": "xyz"}
    message = read(thought, sealed, said("42")).choices[0].message
    assert message == {
        "role": "assistant", "content": "42", "reasoning_content": "hm", "blocks": [thought, sealed, said("42")],
    }  # fmt: skip
    cited = {**said("x"), "citations": [{"type": "char_location"}]}
    assert read(cited).choices[0].message["blocks"] == [cited]


def sse(*events):
    return b"".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in events)


def delta(index, **fields):
    return {"type": "content_block_delta", "index": index, "delta": fields}


def begun(index, **block):
    return {"type": "content_block_start", "index": index, "content_block": block}


def done(index):
    return {"type": "content_block_stop", "index": index}


START = {
    "type": "message_start",
    "message": {
        **reply(stop=None), "usage": {**USAGE, "output_tokens": 1},
    },
}  # fmt: skip
STREAM = [
    START,
    begun(0, type="thinking", thinking="", signature=""),
    {"type": "ping"},
    delta(0, type="thinking_delta", thinking="h"),
    delta(0, type="thinking_delta", thinking="m"),
    delta(0, type="signature_delta", signature="Eq"),
    done(0),
    begun(1, type="text", text=""),
    delta(1, type="text_delta", text="I "),
    delta(1, type="text_delta", text="ask."),
    delta(1, type="citations_delta", citation={"type": "char_location"}),
    done(1),
    begun(2, type="tool_use", id="t1", name="f", input={}),
    delta(2, type="input_json_delta", partial_json=""),
    delta(2, type="input_json_delta", partial_json='{"a":'),
    delta(2, type="input_json_delta", partial_json=" 1}"),
    done(2),
    begun(3, type="tool_use", id="t2", name="g", input={}),
    done(3),
    {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use", "stop_sequence": None},
        "usage": {"output_tokens": 7, "input_tokens": None},
    },
    {"type": "some_event_of_tomorrow"},
    {"type": "message_stop"},
]


def test_a_stream_is_recorded_as_the_whole_reply_is():
    found = MESSAGES.read_stream(sse(*STREAM))
    whole = read(
        {"type": "thinking", "thinking": "hm", "signature": "Eq"},
        {**said("I ask."), "citations": [{"type": "char_location"}]},
        use("t1", "f", a=1),
        use("t2", "g"),
        stop="tool_use",
    )
    assert found == whole
    assert found.choices[0].message["tool_calls"] == [call("t1", "f", '{"a": 1}'), call("t2", "g", "{}")]  # fmt: skip


@pytest.mark.parametrize("at", range(1, len(STREAM)))
def test_a_cut_stream_is_recorded_as_far_as_it_came(at):
    data = sse(*STREAM[:at])
    for cut in (data, data[:-5]):
        found = MESSAGES.read_stream(cut)
        assert not found.complete
        assert found.failure is None
    assert MESSAGES.read_stream(data).choices[0].message["role"] == "assistant" if at > 1 else True


def test_a_cut_tool_call_keeps_what_was_said():
    found = MESSAGES.read_stream(sse(*STREAM[:15]))
    assert found.choices[0].message["tool_calls"] == [call("t1", "f", '{"a":')]


def test_an_error_in_mid_stream_is_a_failure():
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    found = MESSAGES.read_stream(sse(*STREAM[:9], error))
    assert found.failure == "Overloaded"
    assert not found.complete
    assert found.choices[0].message["content"] == "I "
    assert MESSAGES.read_stream(sse(error)).failure == "Overloaded"
    assert MESSAGES.read_stream(b"").choices == ()


def test_what_is_not_of_the_format_is_refused():
    for body in (b"[]", b'{"type": "error"}', b"oops"):
        with pytest.raises(ValueError, match=r"no `content`|JSON|malformed|Expecting"):
            MESSAGES.read(body)
    with pytest.raises(ValueError, match=r"JSON|malformed|Expecting"):
        MESSAGES.read_stream(b"data: oops\n\n" + sse(*STREAM))
    with pytest.raises(ValueError, match="which has not begun"):
        MESSAGES.read_stream(sse(START, delta(0, type="text_delta", text="x")))
    with pytest.raises(ValueError, match="no object"):
        MESSAGES.read_stream(b"data: 1\n\n")
