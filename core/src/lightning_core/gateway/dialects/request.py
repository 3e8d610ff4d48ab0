"""What the terms of a call change in its request."""

from __future__ import annotations

from typing import Any

import msgspec

from lightning_core.gateway.dialects.base import Fields, Terms
from lightning_core.sampling import SAMPLING_FIELDS, SamplingPolicy
from lightning_core.strategy import ModelChoice


def sampling_changes(fields: Fields, policy: SamplingPolicy, index: int) -> dict[str, Any]:
    """The fields that change, and their values; None takes a field out.

    Args:
        fields: the agent's request.
        policy: the run's sampling.
        index: added to the seed, so that equal prompts differ.
    """
    if policy.as_asked:
        return {}
    changes: dict[str, Any] = {name: None for name in fields if name in SAMPLING_FIELDS}
    if policy.allow_n:
        changes.pop("n", None)
    changes["temperature"] = policy.temperature
    if policy.top_p is not None:
        changes["top_p"] = policy.top_p
    if policy.top_k is not None:
        changes["top_k"] = policy.top_k
    if policy.seed is not None:
        changes["seed"] = policy.seed + index
    return changes


def max_token_changes(
    fields: Fields, policy: SamplingPolicy, names: tuple[str, ...]
) -> dict[str, Any]:
    """The bound on completion tokens: the smaller of the agent's and the policy's.

    Args:
        fields: the agent's request.
        policy: the run's sampling.
        names: the format's fields for it; the last one is added where the agent sent none.
    """
    bound = policy.max_tokens
    if bound is None:
        return {}
    changes: dict[str, Any] = {}
    sent = False
    for name in names:
        if name not in fields:
            continue
        asked = msgspec.json.decode(fields[name])
        if asked is None:
            continue
        sent = True
        if not isinstance(asked, int) or asked > bound:
            changes[name] = bound
    return changes if sent else {names[-1]: bound}


def chosen_changes(fields: Fields, choice: ModelChoice, names: tuple[str, ...]) -> dict[str, Any]:
    """The model and sampling that a strategy chooses.

    Args:
        fields: the agent's request.
        choice: what it chooses.
        names: the format's fields for the bound on tokens; the last one is added where the agent sent none.
    """
    changes: dict[str, Any] = {}
    if choice.model is not None:
        changes["model"] = choice.model
    if choice.temperature is not None:
        changes["temperature"] = choice.temperature
    if choice.top_p is not None:
        changes["top_p"] = choice.top_p
    if choice.max_tokens is not None:
        sent = [name for name in names if bytes(fields.get(name, b"null")) != b"null"]
        changes |= dict.fromkeys(sent or names[-1:], choice.max_tokens)
    return changes


def term_changes(fields: Fields, terms: Terms, names: tuple[str, ...]) -> dict[str, Any]:
    """The fields that model, sampling, a strategy's choice and its prompt change; None takes a field out.

    Args:
        fields: the agent's request.
        terms: on what terms it goes upstream; a strategy's choice goes before the sampling policy.
        names: the format's fields for the bound on tokens; the last one is added where the agent sent none.
    """
    changes: dict[str, Any] = {}
    if terms.model is not None:
        changes["model"] = terms.model
    if terms.sampling is not None:
        changes |= sampling_changes(fields, terms.sampling, terms.index)
        changes |= max_token_changes(fields, terms.sampling, names)
    if terms.choice is not None:
        changes |= chosen_changes(fields, terms.choice, names)
    changes |= terms.prompt.read
    return changes


def changed(body: bytes, fields: Fields, changes: dict[str, Any], terms: Terms) -> bytes:
    """The body with its fields changed, and the prompt as it goes upstream; the very body where nothing is.

    Args:
        body: the agent's request.
        fields: the same.
        changes: its fields that change; None takes a field out.
        terms: on what terms it goes upstream.
    """
    sent = terms.prompt.sent
    if not changes and not sent:
        return body
    made = {**fields, **changes, **sent}
    for name, value in changes.items():
        if value is None:
            del made[name]
    return msgspec.json.encode(made)
