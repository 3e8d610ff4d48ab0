"""Exchange: one request of an agent's, from its first byte to its record."""

from __future__ import annotations

import asyncio
import logging
import random
import time

import msgspec

from lightning_core.gateway.asking import Asking, Services, Work
from lightning_core.gateway.detached import Detached
from lightning_core.gateway.dialects import stored
from lightning_core.gateway.dialects.base import Dialect
from lightning_core.gateway.dialects.translated import TranslatedDialect
from lightning_core.gateway.incoming import Incoming
from lightning_core.gateway.labels import CALL, TARGET, read_retry
from lightning_core.gateway.outgoing import Outgoing, refusal_reply, whole_reply
from lightning_core.gateway.reading import read_fields
from lightning_core.gateway.record import Outcome, build_call, request_of
from lightning_core.gateway.refusal import Refusal
from lightning_core.gateway.retries import Entry, Replay
from lightning_core.gateway.session import Job, Session, deadline_passed
from lightning_core.gateway.translating import remember
from lightning_core.rollout import Mode
from lightning_core.trace import Call, CallError, CallErrorKind, Try

_log = logging.getLogger(__name__)
# Unique, not secret: a system call for each would cost as much as reading the request.
_random = random.Random(random.SystemRandom().getrandbits(256))


class Exchange:
    """One request, its reply, and the Call that both make."""

    def __init__(
        self,
        services: Services,
        session: Session,
        request: Incoming,
        dialect: Dialect,
        path: str,
        *,
        fixed: bool = False,
    ) -> None:
        """
        Args:
            services: what the gateway's exchanges share.
            session: whose request it is.
            request: the request, its body not yet read.
            dialect: the format that it speaks.
            path: the path after the session's prefix.
            fixed: whether it goes to the session's upstream, whatever target it names.
        """
        self._services = services
        self._session = session
        self._path = path
        self._fixed = fixed
        self._outcome = Outcome(dialect=dialect, session=session, agent=request)
        self._arrival = 0
        self._task: asyncio.Task[object] | None = None
        self._stopped: Refusal | None = None
        self._committing = False
        self._call: Call | None = None
        self._replayed: Replay | None = None

    async def run(self) -> Outgoing:
        """Answer the request and record the Call. Whatever happens, it is recorded once the body has come.

        The caller still has to `finish` the reply.
        """
        self._arrival = self._session.enter(self)
        return await self._see_through(self._answer())

    async def _see_through(self, work: Work) -> Outgoing:
        """Answer by `work` and record the Call, unless `work` has left that to another task."""
        session, outcome = self._session, self._outcome
        task = self._task = asyncio.current_task()
        try:
            try:
                if self._stopped is not None:
                    work.close()
                    raise self._stopped
                response = await work
            except Refusal as refusal:
                response = self._refused(refusal)
            except ConnectionError:
                if not outcome.started_at:
                    raise
                outcome.error = self._gone()
                response = Outgoing(outcome.agent, 499, "Closed", "", 0)  # to nobody
            except asyncio.CancelledError:
                if self._stopped is None or task is None or task.uncancel() > 0:
                    if outcome.started_at:
                        outcome.error = self._gone()
                        session.spawn(self._commit())
                    raise
                response = self._interrupted(self._stopped)
            except Exception:
                # A fault of the gateway's own must not lose the record of what was sampled.
                _log.exception("attempt `%s`: a call could not be handled", session.attempt_id)
                message = "the gateway failed; its log says why"
                response = self._interrupted(
                    Refusal(500, "internal", message, CallErrorKind.UNREADABLE)
                )
            if self._task is not task:
                return response
            self._committing = True
            try:
                await self._commit()
            except asyncio.CancelledError:
                session.spawn(self._commit())
                raise
            return response
        finally:
            if self._task is task:
                session.leave(self)

    def stop(self, reason: Refusal) -> None:
        """See `Stoppable.stop`."""
        if self._stopped is None and not self._committing:
            self._stopped = reason
            if self._task is not None:
                self._task.cancel()

    # The way of a request ----------------------------------------------------------------------------------------

    async def _answer(self) -> Outgoing:
        session, outcome, headers = self._session, self._outcome, self._outcome.agent.headers
        outcome.headers = headers
        try:
            outcome.body = await outcome.agent.body(self._services.limits.max_body)
        except Refusal:
            outcome.started_at = time.time()
            raise
        outcome.started_at = time.time()
        fields = read_fields(outcome.body, headers.get("content-type", ""))
        target = None if self._fixed else headers.get(TARGET)
        digest = (outcome.dialect.name, target, len(outcome.body), hash(outcome.body))
        call_key = headers.get(CALL)
        retry = read_retry(headers)
        # Without any mark there will be no retry that could be told from a new call.
        marked = call_key is not None or retry is not None
        entry = await session.memory.earlier_try(call_key, retry, digest) if marked else None
        if entry is None:
            entry = outcome.entry = Entry(
                _new_id(), session.next_index(), call_key or digest, digest
            )
            if marked:
                session.memory.add(entry)
        else:
            outcome.entry = entry
            entry.again()
            if entry.replay is not None:
                return self._replay(entry.replay)
        self._admit(entry)
        asking = Asking(self._services, outcome, self._path, self._detach)
        if session.mode is Mode.OBSERVE or not outcome.dialect.answered_by_policy:
            return await asking.observe(fields, target, entry)
        return await asking.ask_policy(fields, entry)

    def _admit(self, entry: Entry) -> None:
        session = self._session
        self._services.recorder.check()
        if time.time() >= session.deadline:
            raise deadline_passed()
        if entry.admitted:
            return
        used = session.over_budget()
        if used is not None:
            raise Refusal(
                429,
                "budget",
                f"attempt `{session.attempt_id}` has used up {used}; raise the rollout's `budget`",
                CallErrorKind.BUDGET,
                headers={"x-should-retry": "false"},
            )
        entry.admitted = True
        session.calls += 1

    def _replay(self, replay: Replay) -> Outgoing:
        self._replayed = replay
        headers = {"Content-Type": replay.content_type}
        response = whole_reply(self._outcome.agent, replay.status, headers, replay.body)
        response.finish()
        return response

    def _detach(self, work: Work, dialect: TranslatedDialect) -> Outgoing:
        """Answer that the call is to run, and leave `work` to a task of its own."""
        session, outcome = self._session, self._outcome
        assert outcome.entry is not None  # set before anything is asked
        agent, named = outcome.agent, stored.response_id(outcome.entry.id)
        frame = stored.Frame(dialect)
        outcome.agent, self._task = Detached(agent), None

        async def run() -> None:
            try:
                await self._see_through(work)
            finally:
                del session.jobs[named]

        request = outcome.request or request_of(outcome.body)
        session.jobs[named] = Job(self, session.spawn(run()), request, frame.at)
        kind = {"Content-Type": "application/json"}
        return whole_reply(agent, Detached.status, kind, frame.at("queued"))

    # Ends --------------------------------------------------------------------------------------------------------

    def _refused(self, refusal: Refusal) -> Outgoing:
        self._outcome.refusal = refusal
        return refusal_reply(self._outcome.agent, refusal, self._outcome.dialect)

    def _interrupted(self, reason: Refusal) -> Outgoing:
        """The answer to a call that `stop` ended."""
        relay = self._outcome.relay
        if relay is None or relay.response is None:
            return self._refused(reason)
        self._outcome.error = CallError(
            kind=reason.kind, status=relay.status, message=reason.message
        )
        relay.cut()
        return relay.response

    def _gone(self) -> CallError:
        relay = self._outcome.relay
        return CallError(
            kind=CallErrorKind.CLIENT_GONE,
            status=relay.status if relay is not None and relay.response is not None else None,
            message="the agent closed the connection before it had the whole reply",
        )

    # The record --------------------------------------------------------------------------------------------------

    async def _commit(self) -> None:
        session, outcome = self._session, self._outcome
        entry = outcome.entry
        if entry is None:
            # A body that cannot be read has no earlier try to look for.
            entry = outcome.entry = Entry("", 0, None, None)
            entry.id, entry.index = _new_id(), session.next_index()
        call = self._call
        if call is None:
            call = self._call = self._build(entry)
            if outcome.dialect.native is not None or outcome.dialect.translated:
                remember(session, call, self._services.limits)
            session.count(call, self._arrival, replayed=self._replayed is not None)
        await self._services.recorder.put(call)
        if entry.remembered and entry.running:
            self._remember(entry, call)

    def _build(self, entry: Entry) -> Call:
        outcome, replayed = self._outcome, self._replayed
        if replayed is None:
            return build_call(outcome, entry)
        return msgspec.structs.replace(
            replayed.call,
            tries=entry.tries,
            status=replayed.status if outcome.error is None else None,
            error=outcome.error,
        )

    def _remember(self, entry: Entry, call: Call) -> None:
        relay = self._outcome.relay
        if call.complete and relay is not None and (sent := relay.sent) is not None:
            replay = Replay(call, relay.status, relay.content_type, sent)
            self._session.memory.keep(entry, replay, len(sent) + len(self._outcome.body))
        latest = Try(
            started_at=self._outcome.started_at,
            ended_at=call.ended_at,
            error=None if call.complete else call.error,
        )
        entry.end(latest, failed=call.error is not None)


def _new_id() -> str:
    # Ids in the order of time keep the store's index in a few pages.
    return f"{time.time_ns():016x}{_random.getrandbits(64):016x}"
