"""OpenAI Responses where the upstream speaks it: what is changed on the way there, and what is read of its replies."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.capability import Capability
from lightning_core.gateway.dialects.base import Reply, Terms
from lightning_core.gateway.dialects.responses import ResponsesDialect
from lightning_core.gateway.dialects.responses_translation import ResponsesTranslator
from lightning_core.gateway.reading import read_fields
from lightning_core.gateway.strategy import CompiledStrategy
from lightning_core.sampling import SamplingPolicy
from lightning_core.strategy import Message, ModelChoice, PromptTemplate, Strategy

from .responses_cases import CASES, Case

DIALECT = ResponsesDialect()
WHOLE = [case for case in CASES if case.body is not None]
FILTERED = {"abort": None, None: "stop"}


def prepared(body: dict[str, Any], **terms: Any) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    data = json.dumps(body).encode()
    made = DIALECT.prepare(data, read_fields(data, "application/json"), Terms(**terms))
    return json.loads(made.body), made.overrides, made.body


def native(case: Case) -> tuple[bytes, bytes]:
    """A case as an upstream that speaks the format sends it: whole, and streamed."""
    begun = ResponsesTranslator().begin({"model": "m", "input": "hi", **case.request}, "c0ffee")
    sieve = begun.sieve()
    whole = begun.reply(case.body) if case.body is not None else b""
    return whole, sieve.feed(case.stream) + sieve.close()


# Requests ----------------------------------------------------------------------------------------------------------


def test_a_body_that_needs_no_change_keeps_its_bytes():
    data = b'{ "model":"m" , "input":"h\\u0069","stream" :true}'
    made = DIALECT.prepare(data, read_fields(data, "application/json"), Terms())
    assert (made.body, made.overrides, made.stream) == (data, {}, True)
    ids = frozenset({Capability.TOKEN_IDS, Capability.LOGPROBS})
    made = DIALECT.prepare(data, read_fields(data, "application/json"), Terms(capabilities=ids))
    assert (made.body, made.hides, made.hide_usage, made.remake) == (data, False, False, False)


def test_the_policys_sampling_goes_by_the_formats_names():
    asked = {
        "model": "gpt",
        "input": "hi",
        "temperature": 0.1,
        "top_p": 0.2,
        "seed": 3,
        "max_output_tokens": 99,
    }
    policy = SamplingPolicy(temperature=1.0, top_k=20, seed=7, max_tokens=64)
    sent, overrides, _ = prepared(asked, model="policy", sampling=policy, index=2)
    assert sent == {"model": "policy", "input": "hi", "temperature": 1.0, "max_output_tokens": 64}
    # What was not sent is said.
    assert overrides["top_k"] is overrides["seed"] is overrides["top_p"] is None
    assert (
        prepared({"input": "hi", "max_output_tokens": 9}, sampling=policy)[0]["max_output_tokens"]
        == 9
    )
    assert prepared({"input": "hi"}, sampling=policy)[0]["max_output_tokens"] == 64
    assert prepared(asked, sampling=SamplingPolicy(as_asked=True))[0] == asked


def test_a_strategys_choice_goes_before_the_policy():
    choice = ModelChoice(model="big", temperature=0.3, max_tokens=5)
    sent, _, _ = prepared({"model": "m", "input": "hi"}, sampling=SamplingPolicy(), choice=choice)
    assert sent == {"model": "big", "input": "hi", "temperature": 0.3, "max_output_tokens": 5}


def test_values_that_are_left_keep_their_bytes():
    data = b'{"model":"m","input":[ {"role":"user","content":"h\\u0069"} ],"x":1e2}'
    made = DIALECT.prepare(data, read_fields(data, "application/json"), Terms(model="n"))
    assert b'"input":[ {"role":"user","content":"h\\u0069"} ],"x":1e2' in made.body


# Strategies --------------------------------------------------------------------------------------------------------


def rewritten(body: dict[str, Any], role: str = "system", examples: bool = False) -> dict[str, Any]:
    shown = (Message(role="user", content="1+1"), Message(role="assistant", content="2"))
    template = PromptTemplate(
        role=role,
        original="You are {name}.",
        template="Be {name}!",
        demonstrations=(shown,) * examples,
    )
    strategy = CompiledStrategy(Strategy(prompt_templates={"who": template}))
    fields = {name: msgspec.Raw(json.dumps(value).encode()) for name, value in body.items()}
    prompt = strategy.apply(DIALECT, fields, body, "", chooses=True).prompt
    assert json.loads(msgspec.json.encode(prompt.sent)) == prompt.read
    return dict(prompt.read)


SHOWN = [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}]


def test_instructions_are_the_system_text():
    body = {"instructions": "You are Ada.", "input": "You are Bob."}
    assert rewritten(body) == {"instructions": "Be Ada!"}
    assert rewritten({"instructions": "Hello.", "input": "You are Bob."}) == {}


def test_a_bare_input_is_a_users_text():
    body = {"instructions": "You are Ada.", "input": "You are Bob."}
    assert rewritten(body, role="user") == {"input": "Be Bob!"}


def test_messages_are_rewritten_by_role_and_other_items_stay():
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "You are Ada."}
    items = [
        {"role": "system", "content": "You are Ada."},
        {"type": "message", "role": "system", "content": [
            {"type": "input_text", "text": "You are Bob.", "x": 1}, {"type": "input_image", "image_url": "u"}]},
        {"role": "user", "content": "You are Cyd."},
        call,
        {"type": "function_call_output", "call_id": "c", "output": "You are Dan."},
    ]  # fmt: skip
    made = rewritten({"input": items})["input"]
    assert made[0] == {"role": "system", "content": "Be Ada!"}
    assert made[1]["content"] == [
        {"type": "input_text", "text": "Be Bob!", "x": 1},
        items[1]["content"][1],
    ]
    assert made[2:] == items[2:]


@pytest.mark.parametrize("kind", ["input_text", "output_text"])
@pytest.mark.parametrize("role", ["developer", "system"])
def test_a_developers_text_is_rewritten_by_slots_of_either_leading_role(kind, role):
    items = [{"role": "developer", "content": [{"type": kind, "text": "You are Ada."}]}]
    expected = [{"role": "developer", "content": [{"type": kind, "text": "Be Ada!"}]}]
    assert rewritten({"input": items}, role=role) == {"input": expected}
    assert rewritten({"input": items}, role="user") == {}


def test_examples_come_after_the_leading_items():
    leading = [{"role": "system", "content": "You are Ada."}, {"role": "developer", "content": "x"}]
    rest = [{"role": "user", "content": "hi"}, {"role": "system", "content": "y"}]
    made = rewritten({"input": [*leading, *rest]}, examples=True)["input"]
    assert made == [{"role": "system", "content": "Be Ada!"}, leading[1], *SHOWN, *rest]
    made = rewritten({"input": "hi", "instructions": "You are Ada."}, examples=True)
    assert made == {"instructions": "Be Ada!", "input": [*SHOWN, rest[0]]}


@pytest.mark.parametrize("name", ["previous_response_id", "conversation"])
def test_examples_are_sent_once_in_a_conversation_that_the_upstream_keeps(name):
    body = {"input": "hi", "instructions": "You are Ada.", name: "x_1"}
    assert rewritten(body, examples=True) == {"instructions": "Be Ada!"}
    assert "input" in rewritten({**body, name: None}, examples=True)


@pytest.mark.parametrize(
    "body", [{}, {"input": 3}, {"input": [3]}, {"input": None, "instructions": 5},
             {"input": [{"role": 3, "content": "You are Ada."}, {"content": [3]}]},
             {"input": [{"role": {}, "content": "You are Ada."}, {"content": "You are Bob."}]}],
)  # fmt: skip
def test_a_body_of_another_form_stays(body):
    assert rewritten(body) == {}


# Replies -----------------------------------------------------------------------------------------------------------


def check(reply: Reply, case: Case) -> None:
    (choice,) = reply.choices
    assert choice.message == case.said
    calls = bool(case.message.get("tool_calls"))
    expected = FILTERED.get(case.finish_reason, case.finish_reason)
    assert choice.finish_reason == ("tool_calls" if calls and expected == "stop" else expected)
    assert choice.token_ids is None
    expected_logprobs = case.logprobs and tuple(item["logprob"] for item in case.logprobs)
    assert choice.logprobs == expected_logprobs
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert (reply.usage or {}).get(name) == (case.usage or {}).get(name)
    assert reply.model == "m-1"
    assert reply.reply["id"] == "resp_c0ffee"
    assert not {"output", "usage", "tools", "instructions"} & set(reply.reply)


@pytest.mark.parametrize("case", WHOLE, ids=lambda case: case.name)
def test_a_reply_is_read_whole_and_streamed(case: Case) -> None:
    whole, stream = native(case)
    for reply in (DIALECT.read(whole), DIALECT.read_stream(stream)):
        check(reply, case)
        assert reply.complete == (case.status != "failed")
        assert (reply.failure is None) == (case.status != "failed")


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.error is not None], ids=lambda case: case.name
)
def test_a_stream_that_failed_says_why(case: Case) -> None:
    reply = DIALECT.read_stream(native(case)[1])
    assert not reply.complete
    assert case.error is not None
    assert case.error in (reply.failure or "")
    if case.message:
        assert reply.choices[0].message == case.said


def test_an_event_of_an_error_is_a_failure():
    _, stream = native(CASES[0])
    begun = stream[: stream.index(b"event: response.output_text.done")]
    for error in ({"message": "oh"}, {"error": {"message": "oh"}}):
        data = json.dumps({"type": "error", "sequence_number": 9, **error}).encode()
        reply = DIALECT.read_stream(begun + b"event: error\ndata: " + data + b"\n\n")
        assert (reply.complete, reply.failure) == (False, "oh")
        assert reply.choices[0].message == CASES[0].said


@given(st.sampled_from(WHOLE), st.integers(0, 100_000))
def test_a_stream_that_was_cut_is_read_as_far_as_it_came(case: Case, at: int) -> None:
    _, stream = native(case)
    kept = stream[: at % len(stream)]
    # The very end of an event may be missing.
    ended = stream.startswith(kept + b"\n" * (len(stream) - len(kept)))
    reply = DIALECT.read_stream(kept)
    assert reply.complete == (ended and case.status != "failed")
    if case.in_order and reply.choices:
        message = reply.choices[0].message
        for name in ("content", "refusal", "reasoning_content", "reasoning"):
            assert (case.said.get(name) or "").startswith(message.get(name) or "")
        sent = case.said.get("tool_calls") or []
        for made, call in zip(message.get("tool_calls") or [], sent, strict=False):
            assert call["function"]["arguments"].startswith(made["function"]["arguments"])


def test_a_stream_cut_within_its_text_has_the_text():
    _, stream = native(CASES[0])
    reply = DIALECT.read_stream(stream[: stream.index(b"event: response.output_text.done")])
    assert reply.choices[0].message["content"] == "Hi there"
    assert not reply.complete
    assert reply.reply["status"] == "in_progress"


def test_a_summary_cut_short_is_reasoning():
    events = [
        {"type": "response.created", "response": {"id": "r", "status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0,
         "item": {"type": "reasoning", "id": "rs_1", "summary": []}},
        *({"type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": n, "delta": text}
          for n, text in ((0, "a"), (0, "b"), (1, "c"))),
    ]  # fmt: skip
    stream = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    assert DIALECT.read_stream(stream).choices[0].message["reasoning_content"] == "ab\n\nc"


def test_a_last_event_without_its_output_is_filled_in():
    _, stream = native(CASES[0])
    *events, last, _ = stream.split(b"\n\n")
    name, _, data = last.partition(b"\ndata: ")
    value = json.loads(data)
    value["response"]["output"] = []
    said = b"\n\n".join([*events, name + b"\ndata: " + json.dumps(value).encode(), b""])
    check(DIALECT.read_stream(said + b"data: [DONE]\n\n"), CASES[0])


def test_what_no_message_can_say_is_kept_as_it_is():
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    odd = {"type": "message", "role": "assistant", "content": [{"type": "hologram"}]}
    hidden = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
    text = {"type": "message", "content": [{"type": "output_text", "text": "hi"}]}
    value = {"id": "r", "status": "completed", "output": [search, odd, hidden, text]}
    reply = DIALECT.read(json.dumps(value).encode())
    assert reply.choices[0].message == {"role": "assistant", "content": "hi"}
    assert reply.reply["output"] == [search, odd, hidden]


@pytest.mark.parametrize("status", ["queued", "in_progress"])
def test_a_response_that_has_yet_to_run_says_nothing(status):
    reply = DIALECT.read(json.dumps({"id": "r", "status": status, "output": []}).encode())
    assert (reply.choices, reply.complete, reply.failure) == ((), False, None)
    assert reply.reply == {"id": "r", "status": status}


@pytest.mark.parametrize("body", [b"", b"no", b"[]", b"{}", b'{"output":{}}', b'{"output":[1]}'])
def test_what_is_no_reply_is_an_error(body):
    with pytest.raises(ValueError, match=r"output|object|Expecting"):
        DIALECT.read(body)


@pytest.mark.parametrize("stream", [b"data: no\n\ndata: {}\n\n", b"data: []\n\n"])
def test_what_is_no_event_is_an_error(stream):
    with pytest.raises(ValueError, match=r"object|Expecting"):
        DIALECT.read_stream(stream)


def test_an_empty_stream_is_not_complete():
    assert not DIALECT.read_stream(b"").complete


def test_the_agent_sees_all():
    whole, _ = native(CASES[0])
    data = b'{"input":"hi","stream":true}'
    made = DIALECT.prepare(data, read_fields(data, "application/json"), Terms())
    assert DIALECT.conceal(whole, made) is whole
    assert DIALECT.stream_filter(made) is None
