"""What is made of a reflection model's replies; those here are of the kinds that SmolLM2-135M gives."""

from types import SimpleNamespace

import pytest

from lightning_prompt.evolution import Evolution

RECORDS = [{"Inputs": {"message": "Hi"}, "Generated Outputs": "Ho", "Feedback": "Score: 0."}]


def proposed(text, *replies):
    """What comes out for a prompt, what was asked, and how many proposals were counted."""
    asked, counted, left = [], [], list(replies)

    def reflect(prompt):
        asked.append(prompt)
        return left.pop(0)

    evolution = Evolution(
        SimpleNamespace(proposed=lambda: counted.append(1)),
        SimpleNamespace(),
        reflect,
        compose=lambda texts: None,
        on_scores=lambda scores: None,
        on_refused=lambda strategy, error: None,
    )
    return evolution.propose(text, RECORDS), asked, len(counted)


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        ("```\nName one tool.\n```", "Name one tool."),
        ("Here it is:\n```text\nName one tool.\n```\nGood luck!", "Name one tool."),
        ("```\nName one", "Name one"),
        ("I'm ready to help.", "I'm ready to help."),
        ('```\nSay {"tool": 1}.\n```', 'Say {{"tool": 1}}.'),
    ],
)
def test_a_reply_is_a_prompt_with_or_without_a_block_around_it(reply, text):
    made, asked, counted = proposed("Answer.", reply)
    assert made == text
    assert (len(asked), counted) == (1, 1)


@pytest.mark.parametrize("reply", ["```", "```\n\n```", ""])
def test_an_empty_prompt_is_asked_for_once_more_with_the_reason(reply):
    made, asked, counted = proposed("Answer.", reply, "```\nName one tool.\n```")
    assert made == "Name one tool."
    assert asked[1] == f"{asked[0]}\n\nYour last answer could not be used: the prompt is empty"
    assert counted == 1


@pytest.mark.parametrize(
    ("old", "reply", "fault"),
    [
        ("Answer.", "```", "the prompt is empty"),
        ("Answer {question}.", "```\nAnswer.\n```", "<<question>> is missing"),
        ("Answer {question}.", "```\nAnswer <<query>>, <<question>>.\n```", "<<query>> is not known"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_twice_leaves_the_old_prompt_and_is_told(old, reply, fault, caplog):
    made, asked, _ = proposed(old, reply, reply)
    assert made == old
    assert len(asked) == 2
    (record,) = caplog.records
    assert fault in record.getMessage()
