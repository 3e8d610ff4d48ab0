"""Conversations to learn from: rendered by the model's template as a whole, learnt where the assistant speaks."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from lightning_core.errors import UsageError
from lightning_core.learn.sample import NO_VERSION, Sample
from lightning_local.serve.chat import ChatTemplate
from lightning_local.serve.errors import BadRequest


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation as chat messages."""

    messages: list[dict[str, Any]]
    """Messages in the form of OpenAI's chat completions; the assistant's are learnt."""
    tools: list[dict[str, Any]] = []
    """Tools that were on offer, in the same form."""


def read_conversations(path: Path) -> list[Conversation]:
    """Read JSONL with one `{"messages": [...]}` on each line; `"tools"` may stand beside it.

    Raises:
        UsageError: the file cannot be read, or a line is no conversation with an assistant's turn.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"conversations {str(path)!r} cannot be read: {error}") from error
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{str(path)!r}, line {number}"
        try:
            conversation = msgspec.json.decode(line, type=Conversation)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UsageError(
                f'{where}: {error}; expected an object like {{"messages": [{{"role": …, "content": …}}]}}'
            ) from error
        if not any(message.get("role") == "assistant" for message in conversation.messages):
            raise UsageError(f"{where}: no message has the role `assistant`, so nothing is learnt")
        found.append(conversation)
    if not found:
        raise UsageError(f"{str(path)!r} holds no conversation")
    return found


def to_samples(conversation: Conversation, tokenizer: Any) -> list[Sample]:
    """A conversation as samples, with mask 1 on what the assistant says, up to and with the token that ends its turn.

    The conversation is tokenised as a whole, as the model will see it, and the assistant's turns are found by what
    the template adds for each. One sample holds all of them, but for a turn that the template renders otherwise once
    the conversation goes on (earlier reasoning left out, say): that one is learnt in a sample that ends with it.

    Args:
        conversation: the messages.
        tokenizer: the model's; a fast one, with a chat template.

    Raises:
        UsageError: the template cannot render it, the tokenizer tells no offsets, or no assistant's turn is in it.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise UsageError(
            "the model's tokenizer does not tell where in the text its tokens stand; give a model with a fast one"
            " (`tokenizer.json`)"
        )
    template = ChatTemplate(tokenizer)
    messages, tools = conversation.messages, conversation.tools
    try:
        whole = template.text(messages, tools, reply_follows=False)
        spans: list[tuple[int, int]] = []
        alone: list[tuple[str, tuple[int, int]]] = []
        for place, message in enumerate(messages):
            if message.get("role") != "assistant":
                continue
            before = template.text(messages[:place], tools) if place else ""
            after = template.text(messages[: place + 1], tools, reply_follows=False)
            if not after.startswith(before):
                raise UsageError(
                    f"message {place}: the chat template renders this assistant's turn otherwise than its prompt,"
                    f" which ends in {before[-40:]!r}; nothing can be learnt from it"
                )
            if whole.startswith(after):
                spans.append((len(before), len(after)))
            else:
                alone.append((after, (len(before), len(after))))
    except BadRequest as error:
        raise UsageError(f"conversation: {error}") from error
    if not spans and not alone:
        raise UsageError("conversation: no message has the role `assistant`, so nothing is learnt")
    texts = [(whole, spans)] if spans else []
    texts += [(text, [span]) for text, span in alone]
    return [_sample(text, learnt, tokenizer) for text, learnt in texts]


def _sample(text: str, spans: list[tuple[int, int]], tokenizer: Any) -> Sample:
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    token_ids: list[int] = encoded["input_ids"]
    offsets: list[tuple[int, int]] = encoded["offset_mapping"]
    mask = [0] * len(token_ids)
    for start, stop in spans:
        inside = [i for i, (a, b) in enumerate(offsets) if a >= start and b <= stop and a < b]
        # What the template puts after the token that ends a turn is never sampled.
        last = max((i for i in inside if token_ids[i] == tokenizer.eos_token_id), default=None)
        for i in inside:
            if i and (last is None or i <= last):
                mask[i] = 1
    name = hashlib.sha256(text.encode()).hexdigest()[:12]
    return Sample(
        rollout_id=f"conversation-{name}",
        task_id=f"conversation-{name}",
        token_ids=tuple(token_ids),
        mask=tuple(mask),
        logprobs=(0.0,) * len(token_ids),
        versions=(NO_VERSION,) * len(token_ids),
    )
