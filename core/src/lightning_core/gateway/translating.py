"""Translating: putting calls of other formats to upstreams that speak only chat completions."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import msgspec

from lightning_core.gateway.dialects import TRANSLATORS, stored
from lightning_core.gateway.dialects.base import Dialect
from lightning_core.gateway.dialects.translated import TranslatedDialect
from lightning_core.gateway.dialects.translation import Message
from lightning_core.gateway.headers import Line, line_of, session_token
from lightning_core.gateway.limits import GatewayLimits
from lightning_core.gateway.recorder import Recorder
from lightning_core.gateway.refusal import Refusal
from lightning_core.gateway.session import Session
from lightning_core.gateway.targets import Target
from lightning_core.provider import NOT_OF_THE_FORM, is_anthropic, is_openai
from lightning_core.trace import Call

_REMEMBERED = 1024
NO_ROUTE = frozenset({404, 405})
"""What a server answers to a path that it does not know."""


class Speech:
    """Which formats upstreams were found to speak, for as long as the process lives."""

    def __init__(self) -> None:
        self._native: dict[tuple[Hashable, str], bool] = {}

    def is_native(self, target: Target, dialect: Dialect) -> bool | None:
        """Whether an upstream speaks a format itself; None where nobody knows."""
        host = target.url.host
        if is_openai(host) or is_anthropic(host):
            return True
        return self._native.get((target.key, dialect.name))

    def learn(self, target: Target, dialect: Dialect, *, native: bool) -> None:
        """Remember what an upstream's answer told."""
        if len(self._native) >= _REMEMBERED:
            self._native.clear()
        self._native[target.key, dialect.name] = native


async def translate(
    dialect: Dialect, request: dict[str, Any], call_id: str, session: Session, recorder: Recorder
) -> TranslatedDialect:
    """Put a request into the terms of chat completions.

    Args:
        dialect: its format.
        request: the request, decoded.
        call_id: its Call's id.
        session: knows the conversations that it may go on with.
        recorder: knows those that the session has forgotten.

    Raises:
        Refusal: it is not of the format, goes on with a response that is not known, or asks for what chat completions
            cannot say.
    """
    earlier: Sequence[Message] = ()
    if (named := stored.previous(dialect.name, request)) is not None:
        found = await earlier_of(named, session, recorder)
        if found is None:
            raise stored.unknown(named)
        earlier = found
    return begin(dialect, request, call_id, earlier)


def begin(
    dialect: Dialect, fields: dict[str, Any], call_id: str, earlier: Sequence[Message]
) -> TranslatedDialect:
    """The same for a request whose earlier conversation is at hand."""
    try:
        return TranslatedDialect(dialect, TRANSLATORS[dialect.name].begin(fields, call_id, earlier))
    except (ValueError, msgspec.MsgspecError) as error:
        raise Refusal(400, "bad_request", str(error)) from None


async def earlier_of(named: str, session: Session, recorder: Recorder) -> Sequence[Message] | None:
    """The conversation that ended in a response; None where it is not known."""
    found = session.lineage.find(named)
    if found is None:
        call = await translated_call(named, session, recorder)
        if call is not None and call.complete:
            found = stored.conversation(call)
    return found


async def translated_call(named: str, session: Session, recorder: Recorder) -> Call | None:
    """The recorded Call that a translated response of the session's came from; None where there is none."""
    if session.lineage.deleted(named):
        return None
    call = await recorder.call(stored.call_id(named))
    if call is None or call.attempt_id != session.attempt_id or not stored.is_translated(call):
        return None
    return call


def in_chat(dialect: Dialect, session: Session, request: dict[str, Any]) -> dict[str, Any] | None:
    """A request that was not translated in the terms of chat completions, as far as they can say it; None for formats of
    which that says nothing, and where it is not of the format."""
    translator = TRANSLATORS.get(dialect.name)
    if translator is None:
        return None
    named = stored.previous(dialect.name, request)
    earlier = (session.lineage.find(named) if named is not None else None) or ()
    try:
        return translator.begin(request, "", earlier).request
    except NOT_OF_THE_FORM:
        pass  # It may ask for more than chat completions can say.
    try:
        return {"messages": translator.prompt(request, earlier)}
    except NOT_OF_THE_FORM:
        return None


def remember(session: Session, call: Call, limits: GatewayLimits) -> None:
    """Keep of a Call what later requests name by the id of its response."""
    named = stored.id_of(call)
    if named is None:
        return
    if stored.unfinished(call.reply):
        session.polled[named] = call.id
        if len(session.polled) > limits.remember:
            del session.polled[next(iter(session.polled))]
        return
    before = stored.previous(call.dialect, call.request)
    known = before is None or stored.is_translated(call) or session.lineage.find(before) is not None
    if known and call.complete and call.choices:
        session.lineage.add(named, stored.conversation(call))


def lines_in_chat(lines: Sequence[Line]) -> list[Line]:
    """A request's headers for an upstream that speaks chat completions: the key as it expects it, and none that say
    something of the other format."""
    found = []
    named = any(line.pair[0] == "authorization" for line in lines)
    for line in lines:
        name, value = line.pair
        if name.startswith("anthropic-"):
            continue
        if name == "x-api-key" and not named and session_token(value) is None:
            line = line_of("Authorization", f"Bearer {value}")
        found.append(line)
    return found
