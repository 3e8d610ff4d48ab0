"""Asking: a call's way upstream and its reply's way back, by the session's mode and what the upstream speaks."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from lightning_core.gateway import jsontext
from lightning_core.gateway.dialects import stored
from lightning_core.gateway.dialects.base import Dialect, Fields, Prepared, Terms
from lightning_core.gateway.dialects.translated import TranslatedDialect
from lightning_core.gateway.headers import Line, passed_on
from lightning_core.gateway.http1 import Connection
from lightning_core.gateway.labels import read_labels
from lightning_core.gateway.limits import GatewayLimits
from lightning_core.gateway.outgoing import Outgoing
from lightning_core.gateway.record import Outcome
from lightning_core.gateway.recorder import Recorder
from lightning_core.gateway.refusal import Refusal
from lightning_core.gateway.relay import Relay
from lightning_core.gateway.retries import Entry
from lightning_core.gateway.strategy import Applied
from lightning_core.gateway.targets import Target, Targets, deployment_of
from lightning_core.gateway.translating import NO_ROUTE, Speech, lines_in_chat, translate
from lightning_core.gateway.upstream import Upstream
from lightning_core.provider import OPENAI
from lightning_core.rollout import Mode
from lightning_core.trace import CallErrorKind
from lightning_core.wire import ServedPolicy

_AS_IT_IS = Applied()

Work = Coroutine[Any, Any, Outgoing]
"""What answers a call."""


class Services(msgspec.Struct, frozen=True):
    """What all exchanges of a gateway share."""

    limits: GatewayLimits
    recorder: Recorder
    upstream: Upstream
    targets: Targets
    speech: Speech


class Asking:
    """One call's way upstream. What it sees goes into the call's `Outcome`."""

    def __init__(
        self,
        services: Services,
        outcome: Outcome,
        path: str,
        detach: Callable[[Work, TranslatedDialect], Outgoing],
    ) -> None:
        """
        Args:
            services: what the gateway's exchanges share.
            outcome: what is known of the call; its request, its session.
            path: the path after the session's prefix.
            detach: leaves work to a task of its own, and says what the agent is told meanwhile.
        """
        self._services = services
        self._outcome = outcome
        self._path = path
        self._detach = detach

    async def observe(self, fields: Fields, named: str | None, entry: Entry) -> Outgoing:
        """Ask what the agent meant to ask.

        Args:
            fields: the request's body.
            named: the target that the request names.
            entry: the Call.
        """
        services, outcome = self._services, self._outcome
        dialect, chat_only = outcome.dialect, services.limits.chat_only and named is None
        target, is_own = services.targets.observed(
            named,
            upstream=outcome.session.upstream(dialect.name),
            path=self._path,
            suffix=dialect.suffix,
            query=outcome.agent.query,
            home=OPENAI if chat_only else dialect.home,
        )
        outcome.deployment = deployment_of(self._path)
        speaks: bool | None = True
        if dialect.native is not None:
            speaks = False if chat_only else services.speech.is_native(target, dialect)
        if speaks is False:
            return await self._observe_translated(fields, target, entry)
        reply, prepared = await self._send_observed(fields, target, is_own, entry)
        if speaks is None and reply.status in NO_ROUTE:
            await services.upstream.drop(target, reply)
            return await self._observe_translated(fields, target, entry)
        if speaks is None and reply.status < 400:
            services.speech.learn(target, dialect, native=True)
        return await self._deliver(reply, prepared)

    async def _observe_translated(self, fields: Fields, target: Target, entry: Entry) -> Outgoing:
        """Ask an upstream that speaks only chat completions, or may do so."""
        services, own = self._services, self._outcome.dialect
        dialect = await self._translate(entry)
        chat = services.targets.beside(target, own.suffix, dialect.suffix)

        async def ask() -> Outgoing:
            reply, prepared = await self._send_observed(dialect.fields, chat, True, entry)
            if reply.status not in NO_ROUTE:
                services.speech.learn(target, own, native=False)
            return await self._deliver(reply, prepared)

        if stored.asks_background(own, fields):
            return self._detach(ask(), dialect)
        return await ask()

    async def _send_observed(
        self, fields: Fields, target: Target, is_own: bool, entry: Entry
    ) -> tuple[Connection, Prepared]:
        services, outcome = self._services, self._outcome
        applied = self._apply_strategy(fields, chooses=True)
        if is_own and outcome.deployment is not None:
            applied = applied.without_model()
        outcome.strategy = applied.use
        terms = Terms(
            # Only Azure knows a model by its path.
            model=outcome.deployment if not is_own else None,
            index=entry.index,
            stream_usage=services.limits.stream_usage,
            prompt=applied.prompt,
            choice=applied.choice,
        )
        prepared = self._prepare(fields, terms)
        outcome.target = target
        connection = outcome.headers.get("connection")
        headers = passed_on(self._lines(), connection, credentials=True)
        return await services.upstream.send(b"POST", target, headers, prepared.body), prepared

    async def ask_policy(self, fields: Fields, entry: Entry) -> Outgoing:
        """Ask the run's policy.

        Args:
            fields: the request's body.
            entry: the Call.
        """
        outcome = self._outcome
        if stored.asks_background(outcome.dialect, fields):
            policy = outcome.session.gate.policy
            if policy is None or not _speaks(policy, outcome.dialect):
                dialect = await self._translate(entry)
                return self._detach(self._ask_when_let(dialect.fields, entry), dialect)
        return await self._ask_when_let(fields, entry)

    async def _ask_when_let(self, fields: Fields, entry: Entry) -> Outgoing:
        outcome = self._outcome
        gate = outcome.session.gate
        policy, source = await gate.enter()
        try:
            if not _speaks(policy, outcome.dialect):
                fields = (await self._translate(entry)).fields
            return await self._ask(policy, fields, entry)
        finally:
            gate.leave(source)

    async def _ask(self, policy: ServedPolicy, fields: Fields, entry: Entry) -> Outgoing:
        services, outcome, session = self._services, self._outcome, self._outcome.session
        applied = self._apply_strategy(fields, chooses=session.mode is Mode.VAL)
        outcome.strategy = applied.use
        outcome.policy_version = policy.version
        lines, connection = self._lines(), outcome.headers.get("connection")
        last: Refusal | None = None
        for endpoint in session.gate.replicas(policy, session.rollout_id):
            prepared = self._prepare(
                fields,
                Terms(
                    model=endpoint.model,
                    sampling=policy.train if session.mode is Mode.TRAIN else policy.val,
                    capabilities=policy.capabilities,
                    index=session.salt + entry.index,
                    stream_usage=services.limits.stream_usage,
                    prompt=applied.prompt,
                    choice=applied.choice,
                ),
            )
            base = endpoint.base_url.rstrip("/")
            target = services.targets.trusted(base + outcome.dialect.suffix)
            outcome.target, outcome.replica = target, base
            headers = passed_on(
                lines,
                connection,
                credentials=False,
                api_key=endpoint.api_key,
                key_header=outcome.dialect.key_header,
            )
            try:
                reply = await services.upstream.send(b"POST", target, headers, prepared.body)
            except Refusal as refusal:
                if refusal.kind is CallErrorKind.TIMEOUT:
                    raise
                session.gate.mark_dead(endpoint)
                last = refusal
                continue
            return await self._deliver(reply, prepared)
        assert last is not None  # `enter` lets no call through to a policy without replicas
        raise last

    async def _translate(self, entry: Entry) -> TranslatedDialect:
        """From here on, speak chat completions to the upstream."""
        outcome = self._outcome
        try:
            outcome.request = outcome.request or jsontext.decode(outcome.body)
        except ValueError as error:
            message = f"expected the body to be JSON that can be translated: {error}"
            raise Refusal(400, "bad_request", message) from None
        assert outcome.request is not None  # `read_fields` has looked
        outcome.dialect = dialect = await translate(
            outcome.dialect, outcome.request, entry.id, outcome.session, self._services.recorder
        )
        return dialect

    def _lines(self) -> Sequence[Line]:
        lines = self._outcome.agent.lines
        return lines_in_chat(lines) if self._outcome.dialect.translated else lines

    def _apply_strategy(self, fields: Fields, *, chooses: bool) -> Applied:
        outcome = self._outcome
        strategy = outcome.session.strategy
        if strategy is None:
            return _AS_IT_IS
        if isinstance(outcome.dialect, TranslatedDialect):
            request = outcome.dialect.request
        else:
            request = outcome.request = jsontext.exact(outcome.body)
        label = read_labels(outcome.headers).name
        return strategy.apply(outcome.dialect, fields, request, label, chooses=chooses)

    def _prepare(self, fields: Fields, terms: Terms) -> Prepared:
        outcome = self._outcome
        try:
            outcome.prepared = outcome.dialect.prepare(outcome.body, fields, terms)
        except msgspec.MsgspecError as error:
            message = f"the body is not a `{outcome.dialect.name}` request: {error}"
            raise Refusal(400, "bad_request", message) from None
        return outcome.prepared

    async def _deliver(self, reply: Connection, prepared: Prepared) -> Outgoing:
        outcome = self._outcome
        assert outcome.target is not None  # set before anything is sent
        relay = outcome.relay = Relay(
            outcome.agent,
            reply,
            dialect=outcome.dialect,
            prepared=prepared,
            target=outcome.target,
            upstream=self._services.upstream,
            max_reply=self._services.limits.max_reply,
        )
        response = await relay.deliver()
        relay.ended_at = time.time()
        return response


def _speaks(policy: ServedPolicy, dialect: Dialect) -> bool:
    return dialect.native is None or dialect.native in policy.capabilities
