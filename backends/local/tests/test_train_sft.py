"""Conversations as samples: what is learnt is what the assistant says, as the model will see it."""

import json

import pytest

from lightning_core.errors import UsageError
from lightning_local.serve.chat import ChatTemplate
from lightning_local.train import Conversation, LocalOptions, Trainer, read_conversations
from lightning_local.train.sft import to_samples

TURNS = [
    {"role": "system", "content": "be kind"},
    {"role": "user", "content": "the user says"},
    {"role": "assistant", "content": "that the tool"},
    {"role": "user", "content": "and then"},
    {"role": "assistant", "content": "is there"},
]
THINKING = (
    "{% if tools %}{% endif %}{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' and m.get('reasoning') and loop.last %}[{{ m['reasoning'] }}]{% endif %}"
    "{{ m['content'] }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def learnt(sample, tokenizer):
    """The stretches that are trained, as text."""
    found, stretch = [], []
    for token, one in zip((*sample.token_ids, 0), (*sample.mask, 0), strict=True):
        if one:
            stretch.append(token)
        elif stretch:
            found.append(tokenizer.decode(stretch))
            stretch = []
    return found


def test_every_turn_of_the_assistant_is_learnt_to_its_end_and_nothing_else(tokenizer):
    (sample,) = to_samples(Conversation(messages=TURNS), tokenizer)
    assert learnt(sample, tokenizer) == ["that the tool<|im_end|>", "is there<|im_end|>"]


def test_the_whole_is_tokenised_as_the_template_renders_it(tokenizer):
    (sample,) = to_samples(Conversation(messages=TURNS), tokenizer)
    text = ChatTemplate(tokenizer).text(TURNS, [], reply_follows=False)
    assert list(sample.token_ids) == tokenizer(text, add_special_tokens=False)["input_ids"]


def test_a_turn_begins_where_the_served_prompt_ends(tokenizer):
    """Else the model would learn a reply after a prompt that it never sees."""
    (sample,) = to_samples(Conversation(messages=TURNS), tokenizer)
    for place in (2, 4):
        prompt = ChatTemplate(tokenizer).encode(TURNS[:place], [])
        assert list(sample.token_ids[: len(prompt)]) == prompt
        assert sample.mask[len(prompt)] == 1
        assert sample.mask[len(prompt) - 1] == 0


def test_a_turn_that_the_template_renders_otherwise_later_is_learnt_alone(tokenizer):
    tokenizer.chat_template = THINKING
    turns = [dict(turn) for turn in TURNS]
    turns[2]["reasoning"], turns[4]["reasoning"] = "hm", "so"
    whole, alone = to_samples(Conversation(messages=turns), tokenizer)
    assert learnt(whole, tokenizer) == ["[so]is there<|im_end|>"]
    assert learnt(alone, tokenizer) == ["[hm]that the tool<|im_end|>"]
    assert len(alone.token_ids) < len(whole.token_ids)


def test_tool_calls_are_learnt_in_the_form_that_the_server_reads(tokenizer):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    turns = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "done"},
        {"role": "assistant", "content": "ok"},
    ]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    (sample,) = to_samples(Conversation(messages=turns, tools=tools), tokenizer)
    first, second = learnt(sample, tokenizer)
    assert first.startswith("<tool_call>")
    assert '"name": "f"' in first
    assert first.endswith("<|im_end|>")
    assert second == "ok<|im_end|>"


def test_files_are_read_line_by_line(tmp_path):
    file = tmp_path / "talk.jsonl"
    file.write_text("\n".join([json.dumps({"messages": TURNS}), "", json.dumps({"messages": TURNS[:3]})]))  # fmt: skip
    found = read_conversations(file)
    assert [len(c.messages) for c in found] == [5, 3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1"),
        ('{"messages": "hello"}', "line 1.*messages"),
        ('{"turns": []}', "line 1.*messages"),
        ('{"messages": [{"role": "user", "content": "x"}]}', "line 1.*assistant"),
        ("", "holds no conversation"),
    ],
)
def test_a_file_with_something_else_is_refused(tmp_path, text, message):
    (tmp_path / "talk.jsonl").write_text(text)
    with pytest.raises(UsageError, match=message):
        read_conversations(tmp_path / "talk.jsonl")
    with pytest.raises(UsageError, match="cannot be read"):
        read_conversations(tmp_path / "missing.jsonl")


def test_a_model_without_a_template_is_refused(tokenizer):
    tokenizer.chat_template = None
    with pytest.raises(UsageError, match="no chat template"):
        to_samples(Conversation(messages=TURNS), tokenizer)


def test_fitting_raises_the_likelihood_of_what_the_assistant_said(folders):
    trainer = Trainer(
        str(folders["llama"]), LocalOptions(algorithm="sft", learning_rate=1e-2), temperature=1.0
    )
    reports = [trainer.fit([Conversation(messages=TURNS)]) for _ in range(20)]
    assert reports[-1].loss < reports[0].loss / 4
    assert reports[0].trained_tokens < reports[0].tokens


def test_the_loss_of_a_fit_is_the_mean_over_all_trained_tokens(folders, make_sample):
    """Whatever weights and advantages stand in the samples."""
    samples = [
        make_sample([5, 6], [30], weight=0.0, advantage=None, name="a"),
        make_sample([5, 6, 7], [40, 41, 42], weight=5.0, advantage=-3.0, name="b"),
    ]

    def fitted(*some):
        trainer = Trainer(
            str(folders["llama"]), LocalOptions(micro_batch_tokens=1), temperature=0.5
        )
        return trainer.fit(some).loss

    assert fitted(*samples) == pytest.approx((fitted(samples[0]) + 3 * fitted(samples[1])) / 4)
