"""Capability: what an engine gives and a backend needs, checked before anything starts."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from lightning_core.errors import CapabilityError


class Capability(StrEnum):
    """An ability that not every plugin has."""

    TOKEN_IDS = "token_ids"
    """Prompt and sampled token ids in the reply (`return_token_ids`)."""
    LOGPROBS = "logprobs"
    """The log-probability of each sampled token."""
    STREAM_TOKEN_IDS = "stream_token_ids"
    """Token ids in the chunks of a stream too; without it the gateway buffers and re-makes the stream."""
    TOOLS = "tools"
    """Replies with tool calls, parsed."""
    RESPONSES = "responses"
    """Speaks OpenAI Responses itself; without it the gateway translates such calls."""
    MESSAGES = "messages"
    """Speaks Anthropic Messages itself; without it the gateway translates such calls."""
    WEIGHTS_IN_PLACE = "weights_in_place"
    """New weights while it serves, without a restart."""
    TRAINS_WEIGHTS = "trains_weights"
    """A backend that changes weights."""
    TUNES_STRATEGY = "tunes_strategy"
    """A backend that changes prompts, rules, patterns or the choice of model."""


def require(needed: Iterable[Capability], given: Iterable[Capability], *, by: str, of: str) -> None:
    """Refuse a combination that cannot work.

    Args:
        needed: what `by` needs.
        given: what `of` has.
        by: who needs it, for the message: "backend `local`".
        of: who should give it, for the message: "engine `openai`".

    Raises:
        CapabilityError: something needed is not given.
    """
    missing = sorted(set(needed) - set(given))
    if missing:
        names = ", ".join(f"`{name}`" for name in missing)
        raise CapabilityError(
            f"{by} needs {names} but {of} gives {', '.join(f'`{g}`' for g in sorted(given)) or 'nothing'};"
            " choose an engine or backend that fits (`lightning-core plugins` lists them)"
        )
