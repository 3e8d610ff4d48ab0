"""Replies: which choices of a call have tokens that can be trusted, and which of those are learnt from."""

from __future__ import annotations

import math
from array import array
from typing import Final

import msgspec

from lightning_core.learn.rules import SampleRules
from lightning_core.learn.sample import Skipped
from lightning_core.rollout import Mode
from lightning_core.trace import Call, Choice, TokenSource

_SAMPLED_DIALECTS: Final = frozenset({"chat", "completions", "responses", "messages"})
WIDTH: Final = array("I").itemsize
"""Bytes of a packed token id."""


class Candidate(msgspec.Struct, frozen=True):
    """A choice whose tokens have a place in the forest."""

    choice: int
    """Position among the call's choices."""
    sampled: bytes
    """Its packed token ids."""
    skipped: Skipped | None
    """Why it is context only; None where it is learnt from."""


class Read(msgspec.Struct, frozen=True):
    """What a call gives to the forest."""

    prompt: bytes = b""
    """Packed token ids of the prompt."""
    candidates: tuple[Candidate, ...] = ()
    """Its choices that have a place in the forest."""
    skipped: tuple[Skipped, ...] = ()
    """Why it gives nothing to learn from: one reason for each choice that does not, at least one where it has no place
    in the forest."""


def read(call: Call, rules: SampleRules) -> Read:
    """Sort a call's choices: learnt from, context only, or not to be used."""
    refused = _refused(call, rules)
    selected = rules.selects(call)
    if refused is not None:
        # Of an agent that is not trained, nothing else matters.
        reason = refused if selected else Skipped.NOT_SELECTED
        return Read(skipped=(reason,) * max(1, len(call.choices)))
    try:
        prompt = _packed(call.prompt_token_ids or ())
    except (OverflowError, TypeError):
        prompt = b""
    candidates, skipped = [], []
    for position, choice in enumerate(call.choices):
        try:
            sampled = _packed(choice.token_ids or ())
        except (OverflowError, TypeError):
            sampled = b""
        why: Skipped | None = None
        if not selected:
            why = Skipped.NOT_SELECTED
        elif not prompt or not sampled:
            why = Skipped.NO_TOKEN_IDS
        elif rules.stale(call):
            why = Skipped.STALE
        elif not _has_logprobs(choice):
            why = Skipped.LENGTHS_DIFFER
        if why is not None:
            skipped.append(why)
        if prompt and sampled:
            candidates.append(Candidate(position, sampled, why))
    return Read(prompt, tuple(candidates), tuple(skipped))


def _refused(call: Call, rules: SampleRules) -> Skipped | None:
    """Why nothing of the call can have a place in the forest."""
    if call.mode not in (Mode.TRAIN, Mode.VAL):
        return Skipped.OBSERVED
    if call.error is not None or not call.complete:
        return Skipped.FAILED
    if call.dialect not in _SAMPLED_DIALECTS or not call.choices or not call.prompt_token_ids:
        return Skipped.NO_TOKEN_IDS
    if _prompts(call) > 1:
        # The record has one prompt's ids, and not which choices are its.
        return Skipped.NO_TOKEN_IDS
    if call.token_source is TokenSource.RETOKENIZED and not rules.allow_retokenized:
        return Skipped.RETOKENIZED
    return None


def _prompts(call: Call) -> int:
    """How many prompts a text completion has; 1 for any other call."""
    prompt = call.request.get("prompt") if call.dialect == "completions" else None
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return len(prompt)
    return 1


def _packed(ids: tuple[int, ...]) -> bytes:
    """Ids as bytes that compare at the speed of memory; raises OverflowError for what is no id."""
    return array("I", ids).tobytes()


def _has_logprobs(choice: Choice) -> bool:
    ids, logprobs = choice.token_ids or (), choice.logprobs or ()
    return len(ids) == len(logprobs) and all(map(math.isfinite, logprobs))
