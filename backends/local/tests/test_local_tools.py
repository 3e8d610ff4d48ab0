"""Tools: shown to the model, its calls parsed, what is malformed left as text."""

from __future__ import annotations

import json

import pytest
import torch

from lightning_local.serve.chat import ChatTemplate
from lightning_local.serve.errors import BadRequest
from lightning_local.serve.tool_calls import Splitter, parse

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
ASK = [{"role": "user", "content": "1"}]


@pytest.mark.parametrize(
    ("text", "before", "calls"),
    [
        (CALL, "", [("add", {"a": 1})]),
        (f"Sure.\n{CALL}\n{CALL}", "Sure.", [("add", {"a": 1})] * 2),
        ('<tool_call>\n{"name": "f"}\n</tool_call>', "", [("f", {})]),
        ('<tool_call>{"name": "f", "arguments": {}}', "", [("f", {})]),
    ],
)
def test_calls_are_parsed(text, before, calls):
    parsed = parse(text)
    assert parsed is not None
    assert parsed[0] == before
    functions = [call["function"] for call in parsed[1]]
    assert [(f["name"], json.loads(f["arguments"])) for f in functions] == calls
    assert len({call["id"] for call in parsed[1]}) == len(calls)


@pytest.mark.parametrize(
    "text",
    [
        "no call",
        "<tool_call>{not json}</tool_call>",
        '<tool_call>["name"]</tool_call>',
        '<tool_call>{"name": 3}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "x"}</tool_call>',
        f"{CALL} and more",
        f"{CALL}<tool_call>{{</tool_call>",
        "<tool_call>",
    ],
)
def test_what_is_malformed_remains_text(text):
    assert parse(text) is None
    splitter = Splitter()
    shown = "".join(splitter.push(character) for character in text)
    rest, calls = splitter.finish()
    assert shown + rest == text
    assert not calls


@pytest.mark.parametrize("text", [CALL, f" Sure. <tool\n {CALL}\n{CALL}", f"\n {CALL}"])
def test_a_stream_shows_the_text_before_the_calls_and_nothing_of_them(text):
    splitter = Splitter()
    shown = "".join(splitter.push(character) for character in text)
    rest, calls = splitter.finish()
    whole = parse(text)
    assert whole is not None
    assert (shown + rest, len(calls)) == (whole[0], len(whole[1]))


def test_a_template_without_tools_gets_them_as_text(tokenizer):
    template = ChatTemplate(tokenizer)
    assert not template.knows_tools
    messages = [
        {"role": "developer", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "1 + "}, {"type": "text", "text": "1"}],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "function": {"name": "add", "arguments": '{"a": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "2"},
    ]
    text = tokenizer.decode(template.encode(messages, [TOOL]))
    system, user, call, result, answer = text.split("<|im_start|>")[1:]
    assert system.startswith("system\nBe brief.\n\n")
    assert json.dumps(TOOL["function"]) in system
    assert user == "user\n1 + 1<|im_end|>\n"
    assert call == f"assistant\n{CALL}<|im_end|>\n"
    assert result == "user\n<tool_response>2</tool_response><|im_end|>\n"
    assert answer == "assistant\n"
    alone = tokenizer.decode(template.encode(ASK, [TOOL]))
    assert alone.startswith("<|im_start|>system\nYou can call functions.")


def test_a_template_with_tools_gets_them_as_they_are(tokenizer, tool_template):
    tokenizer.chat_template = tool_template
    template = ChatTemplate(tokenizer)
    assert template.knows_tools
    call = {"id": "c", "function": {"name": "add", "arguments": '{"a": 41}'}}
    text = tokenizer.decode(
        template.encode([{"role": "assistant", "content": None, "tool_calls": [call]}], [TOOL])
    )
    assert json.loads(text.split("\n")[1].removesuffix("<|im_end|>")) == [TOOL]
    assert "<tool_call>41</tool_call>" in text


def test_a_template_that_refuses_is_a_bad_request(tokenizer):
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(BadRequest, match="roles must alternate"):
        ChatTemplate(tokenizer).encode(ASK, [])
    tokenizer.chat_template = None
    with pytest.raises(BadRequest, match="completions"):
        ChatTemplate(tokenizer).encode(ASK, [])


@pytest.fixture(scope="module")
def calling_model():
    """A model that was taught to answer everything with a text and a call."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=320, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, eos_token_id=2,
        pad_token_id=2,
    )  # fmt: skip
    return LlamaForCausalLM(config)


@pytest.fixture(scope="module")
def taught(calling_model):
    """Trains `calling_model` on one answer, and returns how: `taught(tokenizer, prompt)`."""

    def teach(tokenizer, prompt):
        answer = tokenizer(f"On it. {CALL}<|im_end|>")["input_ids"]
        ids = torch.tensor([prompt + answer])
        labels = ids.clone()
        labels[:, : len(prompt)] = -100
        optimizer = torch.optim.Adam(calling_model.parameters(), lr=5e-3)
        for _ in range(80):
            loss = calling_model(input_ids=ids, labels=labels).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert loss.item() < 0.05
        return calling_model.eval()

    return teach


async def test_a_model_that_calls_a_tool(serve, build, taught, tokenizer):
    model = taught(tokenizer, ChatTemplate(tokenizer).encode(ASK, [TOOL]))
    async with serve(build(model)) as client:
        body = {"messages": ASK, "tools": [TOOL], "temperature": 0, "max_tokens": 100}
        reply = await client.ok("/v1/chat/completions", **body, return_token_ids=True)
        choice = reply["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] == "On it."
        (call,) = choice["message"]["tool_calls"]
        assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}
        # The text of the call is not lost to a trainer: its tokens are there.
        assert CALL in tokenizer.decode(choice["token_ids"])

        chunks = [
            chunk["choices"][0]
            async for chunk in client.chunks("/v1/chat/completions", **body, return_token_ids=True)
        ]
        assert "".join(c["delta"].get("content", "") for c in chunks) == "On it."
        made = [call for c in chunks for call in c["delta"].get("tool_calls", ())]
        assert [(m["index"], m["function"]) for m in made] == [(0, call["function"])]
        assert chunks[-1]["finish_reason"] == "tool_calls"
        assert [t for c in chunks for t in c.get("token_ids", ())] == choice["token_ids"]

        cut = await client.ok("/v1/chat/completions", **{**body, "max_tokens": 30})
        assert cut["choices"][0]["finish_reason"] == "length"
        assert "tool_calls" not in cut["choices"][0]["message"]
        assert "<tool_call>" in cut["choices"][0]["message"]["content"]
        none = await client.ok("/v1/chat/completions", **body, tool_choice="none")
        assert "tool_calls" not in none["choices"][0]["message"]
