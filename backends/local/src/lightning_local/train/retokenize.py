"""Token ids made anew from text, for calls of an engine that gives none (`--allow-retokenized`).

What is made so is marked. Text has several spellings in tokens, so these need not be the ones that were sampled, and
their log-probabilities are those of the policy as it is now, not as it was then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import torch

from lightning_core.trace import Call, Choice, TokenSource, Trace
from lightning_local.serve.chat import ChatTemplate
from lightning_local.serve.errors import BadRequest
from lightning_local.train.options import LocalOptions
from lightning_local.train.policy import Policy
from lightning_local.train.rows import Source, plan

_CHATS: Final = frozenset({"chat", "responses", "messages"})


def retokenized(traces: Sequence[Trace], policy: Policy, options: LocalOptions) -> list[Trace]:
    """The same traces, with ids for every complete chat call that has none and whose replies are plain text.

    Args:
        traces: graded traces.
        policy: tells tokens and log-probabilities.
        options: bounds the passes.
    """
    template = ChatTemplate(policy.tokenizer)
    made: dict[str, Call] = {}
    for trace in traces:
        for call in trace.calls:
            if (again := _with_ids(call, template, policy.tokenizer)) is not None:
                made[call.id] = again
    if made:
        calls = list(made.values())
        _score(calls, policy, options)
        made = {call.id: call for call in calls}
    return [
        msgspec.structs.replace(trace, calls=tuple(made.get(c.id, c) for c in trace.calls))
        for trace in traces
    ]


def _with_ids(call: Call, template: ChatTemplate, tokenizer: Any) -> Call | None:
    """The call with ids of its prompt and replies; None where it has some, or none can be made."""
    lacks = call.prompt_token_ids is None or any(c.token_ids is None for c in call.choices)
    if not lacks or call.dialect not in _CHATS or not call.complete or not call.choices:
        return None
    try:
        prompt = template.encode(call.sent_messages, call.tools)
    except BadRequest:
        return None  # The step's report counts it among the calls without ids.
    choices = []
    for choice in call.choices:
        text = choice.message.get("content")
        if not isinstance(text, str) or not text or choice.message.get("tool_calls"):
            return None
        ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        if choice.finish_reason == "stop":
            ids.append(tokenizer.eos_token_id)
        choices.append(msgspec.structs.replace(choice, token_ids=tuple(ids)))
    return msgspec.structs.replace(
        call,
        prompt_token_ids=tuple(prompt),
        choices=tuple(choices),
        token_source=TokenSource.RETOKENIZED,
    )


def _score(calls: list[Call], policy: Policy, options: LocalOptions) -> None:
    """Put log-probabilities of the replies in place."""
    places = [(at, number) for at, call in enumerate(calls) for number in range(len(call.choices))]
    sources = []
    for at, number in places:
        prompt, ids = calls[at].prompt_token_ids or (), calls[at].choices[number].token_ids or ()
        whole = (*prompt, *ids)
        sources.append(Source(whole, range(len(prompt), len(whole))))
    passes = plan(
        sources,
        budget=options.micro_batch_tokens,
        share=options.share_prefixes and policy.can_share,
        hidden=policy.hidden,
        device=policy.device,
    )
    found: dict[tuple[int, int], tuple[float, ...]] = {}
    with torch.no_grad():
        for micro in passes:
            values = policy.score(micro, entropy=False).logprobs.cpu()
            for row, number in enumerate(micro.samples):
                count = len(sources[number].targets)
                found[places[number]] = tuple(values[row, :count].tolist())
    for at, call in enumerate(calls):
        choices: list[Choice] = [
            msgspec.structs.replace(choice, logprobs=found[at, number])
            for number, choice in enumerate(call.choices)
        ]
        calls[at] = msgspec.structs.replace(call, choices=tuple(choices))
