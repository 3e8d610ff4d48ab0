"""Asides: requests beside the model calls, which are no Calls: models, stored responses, counts of tokens."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from lightning_core.engine import Endpoint
from lightning_core.gateway import jsontext
from lightning_core.gateway.asking import Services
from lightning_core.gateway.dialects import TRANSLATORS, dialect_of, stored
from lightning_core.gateway.dialects.base import Dialect, Prepared, Terms
from lightning_core.gateway.dialects.chat import ChatDialect
from lightning_core.gateway.dialects.messages import MessagesDialect
from lightning_core.gateway.dialects.messages_translation import MessagesTranslator
from lightning_core.gateway.dialects.models import SUFFIX as MODELS
from lightning_core.gateway.dialects.models import is_models_path, models_reply
from lightning_core.gateway.headers import passed_back_lines, passed_on
from lightning_core.gateway.http1 import Broken, Connection
from lightning_core.gateway.incoming import Incoming
from lightning_core.gateway.labels import TARGET, read_labels
from lightning_core.gateway.outgoing import Outgoing, whole_reply
from lightning_core.gateway.reading import read_fields
from lightning_core.gateway.record import ended_call
from lightning_core.gateway.refusal import Refusal
from lightning_core.gateway.relay import Relay
from lightning_core.gateway.session import Session
from lightning_core.gateway.targets import Target
from lightning_core.gateway.translating import (
    NO_ROUTE,
    begin,
    earlier_of,
    lines_in_chat,
    translated_call,
)
from lightning_core.provider import OPENAI
from lightning_core.rollout import Mode
from lightning_core.trace import Call, CallErrorKind

COUNT = "/count_tokens"
"""What follows a format's path where tokens are to be counted."""
ROUTES = f"`GET …{MODELS}`, `GET …{stored.ROUTE}ID`, `POST …/messages{COUNT}`"
"""What is answered here, for a message."""
_JSON = {"Content-Type": "application/json"}
_CHAT = ChatDialect()


class Aside:
    """One request that is no Call."""

    def __init__(
        self, services: Services, session: Session, request: Incoming, path: str, *, fixed: bool
    ) -> None:
        """
        Args:
            services: what the gateway's exchanges share.
            session: whose request it is.
            request: the request, its body not yet read.
            path: the path after the session's prefix.
            fixed: whether it goes to the session's upstream, whatever target it names.
        """
        self._services = services
        self._session = session
        self._request = request
        self._path = path
        self._named = None if fixed else request.headers.get(TARGET)

    async def answer(self) -> Outgoing | None:
        """The answer; None where it is no route.

        Raises:
            Refusal: it cannot be answered.
        """
        method, path = self._request.method, self._path
        if method == "GET" and is_models_path(path):
            return await self._models()
        if method == "POST" and path.endswith(COUNT):
            return await self._count()
        _, found, rest = path.rpartition(stored.ROUTE)
        if not found:
            return None
        named, _, action = rest.partition("/")
        if (method, action) in (
            ("GET", ""),
            ("DELETE", ""),
            ("POST", "cancel"),
            ("GET", "input_items"),
        ):
            return await self._response(named, action)
        return None

    # Models ------------------------------------------------------------------------------------------------------

    async def _models(self) -> Outgoing:
        session, path = self._session, self._path
        if session.mode is not Mode.OBSERVE:
            return self._own(models_reply(path, session.gate.policy))
        return await self._whole(self._observed(path[path.rindex(MODELS) :], "models", OPENAI))

    # Stored responses --------------------------------------------------------------------------------------------

    async def _response(self, named: str, action: str) -> Outgoing:
        session, recorder = self._session, self._services.recorder
        job = session.jobs.get(named)
        call = None if job is not None else await translated_call(named, session, recorder)
        if job is None and call is None:
            return await self._of_upstream(named, action)
        if action == "input_items":
            request = job.request if job is not None else call.request if call is not None else {}
            return self._own(stored.input_items(request, stored.call_id(named)))
        if self._request.method == "DELETE":
            session.lineage.delete(named)
            if job is not None:
                job.call.stop(_cancelled())
            return self._own(stored.deleted(named))
        if action == "cancel":
            if job is not None:
                job.call.stop(_cancelled())
                await asyncio.wait({job.task})
                call = await recorder.call(stored.call_id(named))
            elif call is not None and call.request.get("background") is not True:
                raise Refusal(
                    400,
                    "bad_request",
                    f"response {named!r} does not run in the background: it has ended",
                )
        elif "stream=true" in self._request.query:
            raise Refusal(
                400,
                "bad_request",
                f"response {named!r}: what was translated cannot be streamed again; ask for it without `stream`",
                param="stream",
            )
        if call is not None:
            return self._own(await self._ended(call))
        assert job is not None  # one of the two is there
        return self._own(job.at("in_progress"))

    async def _ended(self, call: Call) -> bytes:
        """The response that a translated Call ended in."""
        dialect = dialect_of(f"/{call.dialect}")
        assert dialect is not None  # it was translated
        before = stored.previous(call.dialect, call.request)
        session, recorder = self._session, self._services.recorder
        earlier = None if before is None else await earlier_of(before, session, recorder)
        return stored.reply_of(call, begin(dialect, call.request, call.id, earlier or ()))

    async def _of_upstream(self, named: str, action: str) -> Outgoing:
        """Ask the upstream, which keeps its responses itself; a poll may bring the end of a Call."""
        session = self._session
        dialect = dialect_of(stored.ROUTE.rstrip("/"))
        assert dialect is not None  # the path has been looked at
        suffix = self._path[self._path.rindex(stored.ROUTE) :]
        if session.mode is Mode.OBSERVE:
            target = self._observed(suffix, dialect.name, dialect.home)
            if self._speaks(target, dialect) is False:
                raise stored.missing(named)
            reply = await self._send(target)
        else:
            policy, endpoint = session.gate.policy, self._endpoint()
            if policy is None or dialect.native not in policy.capabilities:
                raise stored.missing(named)
            query = self._request.query
            base = endpoint.base_url.rstrip("/")
            target = self._services.targets.trusted(base + suffix + (f"?{query}" if query else ""))
            reply = await self._send(target, endpoint)
        relay = Relay(
            self._request,
            reply,
            dialect=dialect,
            prepared=Prepared(body=b""),
            target=target,
            upstream=self._services.upstream,
            max_reply=self._services.limits.max_reply,
        )
        response = await relay.deliver()
        call_id = session.polled.get(named)
        if call_id is not None and action != "input_items" and relay.status < 400:
            session.spawn(self._end(named, call_id, dialect, relay))
        return response

    async def _end(self, named: str, call_id: str, dialect: Dialect, relay: Relay) -> None:
        """Record the end of a Call where a poll has brought it."""
        session, recorder = self._session, self._services.recorder
        call = await recorder.call(call_id)
        ended = None if call is None else ended_call(call, dialect, relay)
        if ended is not None and session.polled.pop(named, None) is not None:
            session.tokens += ended.total_tokens
            await recorder.put(ended)

    # Counts of tokens --------------------------------------------------------------------------------------------

    async def _count(self) -> Outgoing | None:
        dialect = dialect_of(self._path.removesuffix(COUNT))
        if not isinstance(dialect, MessagesDialect):
            return None
        body = await self._request.body(self._services.limits.max_body)
        read_fields(body, self._request.headers.get("content-type", ""))
        session = self._session
        if session.mode is not Mode.OBSERVE:
            endpoint, policy = self._endpoint(), session.gate.policy
            base = endpoint.base_url.rstrip("/")
            if policy is not None and dialect.native in policy.capabilities:
                target = self._services.targets.trusted(base + dialect.suffix + COUNT)
                sent = self._as_asked(dialect, body, endpoint)
                return await self._whole(target, sent, endpoint, dialect)
            target = self._services.targets.trusted(base.removesuffix("/v1") + "/tokenize")
            return await self._tokenize(target, body, endpoint)
        target = self._observed(dialect.suffix + COUNT, dialect.name, dialect.home)
        speaks = self._speaks(target, dialect)
        if speaks is not False:
            reply = await self._send(target, body=self._as_asked(dialect, body))
            if speaks or reply.status not in NO_ROUTE:
                return await self._passed_back(target, reply)
            await self._services.upstream.drop(target, reply)
        base = self._services.targets.beside(target, dialect.suffix + COUNT, "").shown
        target = self._services.targets.trusted(base.removesuffix("/v1") + "/tokenize")
        return await self._tokenize(target, body)

    async def _tokenize(
        self, target: Target, body: bytes, endpoint: Endpoint | None = None
    ) -> Outgoing:
        """Count by the upstream's own tokenizer."""
        translator = TRANSLATORS["messages"]
        assert isinstance(translator, MessagesTranslator)
        try:
            asked: dict[str, Any] = translator.tokenize(jsontext.decode(body))
        except (ValueError, msgspec.MsgspecError) as error:
            raise Refusal(400, "bad_request", str(error)) from None
        sent = self._as_asked(_CHAT, msgspec.json.encode(asked), endpoint)
        reply = await self._send(target, endpoint, sent, translated=True)
        data = await self._read(target, reply)
        try:
            if reply.status >= 400:
                raise ValueError(f"it answered {reply.status}")
            return self._own(translator.count(data))
        except ValueError as error:
            raise Refusal(
                404,
                "not_supported",
                f"upstream `{target.host}` cannot count tokens: `{target.url.path}`: {error}",
                CallErrorKind.STATUS,
            ) from None

    def _as_asked(self, dialect: Dialect, body: bytes, endpoint: Endpoint | None = None) -> bytes:
        """`body` with the model and the prompt that a call would go upstream with."""
        fields = read_fields(body, _JSON["Content-Type"])
        terms = Terms(model=None if endpoint is None else endpoint.model)
        session = self._session
        if session.strategy is not None:
            label = read_labels(self._request.headers).name
            chooses = session.mode is not Mode.TRAIN
            request = jsontext.exact(body)
            applied = session.strategy.apply(dialect, fields, request, label, chooses=chooses)
            model = None if applied.choice is None else applied.choice.model
            terms = Terms(model=model or terms.model, prompt=applied.prompt)
        return dialect.prepare(body, fields, terms).body

    # The way upstream --------------------------------------------------------------------------------------------

    def _observed(self, suffix: str, name: str, home: str) -> Target:
        target, _ = self._services.targets.observed(
            self._named,
            upstream=self._session.upstream(name),
            path=self._path,
            suffix=suffix,
            query=self._request.query,
            home=home,
        )
        return target

    def _speaks(self, target: Target, dialect: Dialect) -> bool | None:
        """Whether an observed upstream speaks a format itself; None where nobody knows."""
        if self._services.limits.chat_only and self._named is None:
            return False
        return self._services.speech.is_native(target, dialect)

    def _endpoint(self) -> Endpoint:
        session = self._session
        policy = session.gate.policy
        if policy is None or not policy.endpoints:
            raise Refusal(404, "unknown_model", "no policy is published", CallErrorKind.REFUSED)
        return session.gate.replicas(policy, session.rollout_id)[0]

    async def _send(
        self,
        target: Target,
        endpoint: Endpoint | None = None,
        body: bytes | None = None,
        *,
        dialect: Dialect | None = None,
        translated: bool = False,
    ) -> Connection:
        request = self._request
        if body is None and request.method != "GET":
            body = await request.body(self._services.limits.max_body)
        headers = passed_on(
            lines_in_chat(request.lines) if translated else request.lines,
            request.headers.get("connection"),
            credentials=endpoint is None,
            api_key=None if endpoint is None else endpoint.api_key,
            key_header=Dialect.key_header if dialect is None else dialect.key_header,
        )
        return await self._services.upstream.send(request.method.encode(), target, headers, body)

    async def _whole(
        self,
        target: Target,
        body: bytes | None = None,
        endpoint: Endpoint | None = None,
        dialect: Dialect | None = None,
    ) -> Outgoing:
        reply = await self._send(target, endpoint, body, dialect=dialect)
        return await self._passed_back(target, reply)

    async def _passed_back(self, target: Target, reply: Connection) -> Outgoing:
        data = await self._read(target, reply)
        lines = passed_back_lines(reply.headers, edited=False)
        return Outgoing(self._request, reply.status, reply.reason, lines, len(data), pending=data)

    async def _read(self, target: Target, reply: Connection) -> bytes:
        pieces: list[bytes] = []
        try:
            while piece := await reply.read():
                pieces.append(piece)
        except Broken as error:
            raise self._services.upstream.failure(error, target) from error
        finally:
            self._services.upstream.release(target, reply)
        return b"".join(pieces)

    def _own(self, body: bytes) -> Outgoing:
        return whole_reply(self._request, 200, _JSON, body)


def _cancelled() -> Refusal:
    return Refusal(409, "cancelled", stored.CANCELLED, CallErrorKind.CLIENT_GONE)
