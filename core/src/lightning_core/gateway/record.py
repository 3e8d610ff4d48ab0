"""Making a Call of what an exchange has seen. Runs after the agent has its last byte."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from lightning_core.gateway import jsontext
from lightning_core.gateway.detached import Detached
from lightning_core.gateway.dialects import stored
from lightning_core.gateway.dialects.base import Dialect, Prepared, Reply
from lightning_core.gateway.dialects.sampled import NOTE
from lightning_core.gateway.dialects.translated import TranslatedDialect
from lightning_core.gateway.incoming import Incoming
from lightning_core.gateway.labels import read_labels
from lightning_core.gateway.refusal import Refusal
from lightning_core.gateway.relay import Relay
from lightning_core.gateway.replies import bounded, read_reply
from lightning_core.gateway.retries import Entry
from lightning_core.gateway.session import Session
from lightning_core.gateway.targets import Target
from lightning_core.gateway.translating import in_chat
from lightning_core.trace import Call, CallError, CallErrorKind, StrategyUse, TokenSource

_NO_IDS = "the engine was asked for token ids and gave none"
_NO_LINEAGE = (
    "what `previous_response_id` stands for is not known: `chat_request` has the rest alone"
)

_ABORTED: Final = "abort"
"""What vLLM says of a reply that it gave up, such as for new weights, with status 200."""


@dataclass(slots=True)
class Outcome:
    """What an exchange has seen so far."""

    dialect: Dialect
    session: Session
    agent: Incoming
    """Who is answered."""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    request: dict[str, Any] | None = None
    """The body, decoded ahead of the record; None where that was not needed, or only leniency does it."""
    started_at: float = 0.0
    entry: Entry | None = None
    strategy: StrategyUse | None = None
    prepared: Prepared | None = None
    deployment: str | None = None
    target: Target | None = None
    replica: str | None = None
    policy_version: int | None = None
    relay: Relay | None = None
    refusal: Refusal | None = None
    """What the gateway answered itself."""
    error: CallError | None = None
    """What went wrong beside the upstream's reply: the agent has gone, the deadline passed."""


def build_call(outcome: Outcome, entry: Entry) -> Call:
    """The record of an exchange that has ended."""
    session, prepared, relay = outcome.session, outcome.prepared, outcome.relay
    reply, error = _reply_of(outcome)
    request = outcome.request or request_of(outcome.body)
    overrides = prepared.overrides if prepared is not None else {}
    has_ids = reply.prompt_token_ids is not None or any(
        choice.token_ids is not None for choice in reply.choices
    )
    if prepared is not None and reply.complete and "return_token_ids" in overrides and not has_ids:
        reply.reply[NOTE] = _NO_IDS
    chat_request, chat_sent = _in_chat(outcome, request, overrides)
    named = stored.previous(outcome.dialect.name, request)
    if named is not None and not outcome.dialect.translated and not session.lineage.find(named):
        reply.reply.setdefault(NOTE, _NO_LINEAGE)
    labels = read_labels(outcome.headers)
    asked = overrides.get("model") or request.get("model") or outcome.deployment
    return Call(
        id=entry.id,
        attempt_id=session.attempt_id,
        rollout_id=session.rollout_id,
        index=entry.index,
        dialect=outcome.dialect.name,
        span_id=labels.span,
        agent=labels.agent,
        node=labels.node,
        labels=labels.others,
        request=request,
        chat_request=chat_request,
        overrides=overrides,
        chat_sent=chat_sent,
        strategy=outcome.strategy,
        choices=reply.choices,
        prompt_token_ids=reply.prompt_token_ids,
        token_source=TokenSource.ENGINE if has_ids else None,
        reply=reply.reply,
        usage=reply.usage,
        model=reply.model or (asked if isinstance(asked, str) else None),
        target=outcome.target.shown if outcome.target is not None else None,
        replica=outcome.replica,
        policy_version=outcome.policy_version,
        mode=session.mode,
        stream=prepared.stream if prepared is not None else request.get("stream") is True,
        status=_status_of(outcome),
        complete=reply.complete,
        error=error,
        tries=entry.tries,
        started_at=outcome.started_at,
        first_byte_at=relay.first_byte_at if relay is not None else None,
        ended_at=time.time() if relay is None or relay.ended_at is None else relay.ended_at,
    )


def ended_call(call: Call, dialect: Dialect, relay: Relay) -> Call | None:
    """A Call whose upstream had not come to its end, with the end that a later reply tells; None where that tells none.

    Args:
        call: the Call as it was recorded.
        dialect: its format.
        relay: the later reply, delivered.
    """
    if (data := relay.captured) is None:
        return None
    reply, fault = read_reply(
        dialect,
        data,
        status=relay.status,
        encoding=relay.encoding,
        stream=relay.stream,
        whole=relay.whole,
    )
    if not relay.whole or not stored.finished(reply.reply):
        return None
    if stored.cancelled(reply.reply):
        kind = CallErrorKind.CLIENT_GONE
        fault = CallError(kind=kind, status=relay.status, message=stored.CANCELLED)
    return msgspec.structs.replace(
        call,
        choices=reply.choices,
        reply=reply.reply,
        usage=reply.usage,
        model=reply.model or call.model,
        complete=reply.complete and fault is None,
        error=fault,
        ended_at=time.time(),
    )


def _in_chat(
    outcome: Outcome, request: dict[str, Any], overrides: dict[str, Any]
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """`Call.chat_request` and `Call.chat_sent`."""
    dialect, session = outcome.dialect, outcome.session
    if isinstance(dialect, TranslatedDialect):
        return dialect.request, None
    if dialect.native is None:
        return None, None
    asked = in_chat(dialect, session, request)
    if outcome.strategy is None or not outcome.strategy.applied:
        return asked, None
    return asked, in_chat(dialect, session, {**request, **overrides})


def _reply_of(outcome: Outcome) -> tuple[Reply, CallError | None]:
    relay, refusal = outcome.relay, outcome.refusal
    if refusal is not None:
        # The reply that broke before its first byte said nothing.
        message = bounded(refusal.message)
        error = CallError(kind=refusal.kind, status=refusal.status, message=message)
        return Reply(complete=False), error
    if relay is None:
        return Reply(complete=False), outcome.error
    data = relay.captured
    if data is None:
        message = "the reply was longer than the gateway records (`max_reply`)"
        found = CallError(kind=CallErrorKind.UNREADABLE, status=relay.status, message=message)
        return Reply(complete=False), outcome.error or found
    reply, fault = read_reply(
        outcome.dialect,
        data,
        status=relay.status,
        encoding=relay.encoding,
        stream=relay.stream,
        whole=relay.whole,
    )
    if outcome.prepared is not None and any(
        choice.finish_reason == _ABORTED for choice in reply.choices
    ):
        message = "the engine ended the reply before its end (`finish_reason` is `abort`)"
        fault = fault or CallError(kind=CallErrorKind.CUT, status=relay.status, message=message)
    problem = outcome.error or relay.error or fault
    reply.complete = reply.complete and relay.whole and relay.error is None and fault is None
    return reply, problem


def _status_of(outcome: Outcome) -> int | None:
    if isinstance(outcome.agent, Detached):
        return Detached.status
    if outcome.refusal is not None:
        return outcome.refusal.status
    if outcome.relay is not None and outcome.relay.response is not None:
        return outcome.relay.status
    return None


def request_of(body: bytes) -> dict[str, Any]:
    """A request's body for the record; empty where it is no JSON object."""
    try:
        value = jsontext.decode(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
