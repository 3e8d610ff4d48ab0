"""WorkerRoutes: what a worker, or an attempt itself, asks of the API: leases, heart-beats, reports, spans."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from lightning_core.errors import FencedError, ScopeError, WireError
from lightning_core.records import Json
from lightning_core.rollout import Attempt, Rollout
from lightning_core.server.request import (
    ADMIN,
    ANYONE,
    LONGEST_WAIT,
    WORKER,
    Request,
    Routes,
    whole,
)
from lightning_core.server.scheduler import Scheduler
from lightning_core.server.strategies import Strategies
from lightning_core.store.base import Store
from lightning_core.task import Task
from lightning_core.tokens import Claims, Scope, TokenSigner
from lightning_core.trace import Span
from lightning_core.wire import Finish, Heartbeat, Lease, Upstreams

_SESSION_SLACK: Final = 120.0
"""Seconds after the deadline for which a session's token is good: its spans may come last."""
_MOST_SPANS: Final = 50_000
"""Spans that one attempt may have; each comes twice, at its start and its end."""
_MOST_SPAN_BYTES: Final = 64 * 1024 * 1024
"""Bytes of JSON that they may take."""
_REMEMBERED_ATTEMPTS: Final = 10_000


class WorkerRoutes:
    """Handlers for workers, over scheduler and store."""

    def __init__(
        self, store: Store, scheduler: Scheduler, strategies: Strategies, signer: TokenSigner
    ) -> None:
        self._store = store
        self._scheduler = scheduler
        self._strategies = strategies
        self._signer = signer
        self._span_use: dict[str, tuple[int, int]] = {}

    @property
    def routes(self) -> Routes:
        """What they answer."""
        return {
            ("POST", "leases", ""): (WORKER, self._lease),
            ("POST", "sessions", ""): (ADMIN, self._session),
            ("POST", "attempts", "heartbeat"): (WORKER, self._heartbeat),
            ("POST", "attempts", "finish"): (WORKER, self._finish),
            ("POST", "attempts", "spans"): (ANYONE, self._spans),
        }

    async def _lease(self, request: Request) -> object:
        granted = await self._scheduler.lease(
            request.field("worker", str),
            capacity=request.field("capacity", int),
            wait=min(request.field("wait", float), LONGEST_WAIT),
            upstreams=_upstreams(request),
            run=request.optional("run", str),
        )
        return {"leases": [self._as_lease(request, *grant) for grant in granted]}

    async def _session(self, request: Request) -> object:
        rollout = msgspec.structs.replace(
            request.field("rollout", Rollout), timeout=request.field("timeout", float)
        )
        granted = await whole(
            self._scheduler.open_session(
                rollout,
                request.field("task", Task),
                worker="session",
                upstreams=_upstreams(request),
            )
        )
        return self._as_lease(request, *granted)

    def _as_lease(self, request: Request, attempt: Attempt, rollout: Rollout, task: Task) -> Lease:
        token = self._signer.sign(
            Claims(
                scope=Scope.SESSION,
                expires_at=attempt.deadline + _SESSION_SLACK,
                attempt_id=attempt.id,
                fence=attempt.fence,
            )
        )
        return Lease(
            attempt=attempt,
            rollout=msgspec.structs.replace(rollout, metadata={}),
            task=task.without_expected(),
            session=token,
            base_url=f"{request.origin}/s/{token}/v1",
            heartbeat=(attempt.lease_until - attempt.started_at) / 3,
            strategy=self._strategies.readable(rollout),
        )

    def _spans_left(self, attempt_id: str, count: int, size: int) -> None:
        """Refuse more spans of an attempt than it may have: an agent may post its own."""
        if len(self._span_use) > _REMEMBERED_ATTEMPTS:
            for other in list(self._span_use):
                if self._scheduler.running(other) is None:
                    del self._span_use[other]
        spans, bytes_ = self._span_use.get(attempt_id, (0, 0))
        spans, bytes_ = spans + count, bytes_ + size
        if spans > _MOST_SPANS or bytes_ > _MOST_SPAN_BYTES:
            raise WireError(
                f"attempt `{attempt_id}`: more than {_MOST_SPANS} spans or {_MOST_SPAN_BYTES} bytes of them;"
                " these are not taken",
                413,
            )
        self._span_use[attempt_id] = spans, bytes_

    async def _heartbeat(self, request: Request) -> object:
        until, cancel = self._scheduler.heartbeat(request.key, request.field("fence", int))
        return Heartbeat(lease_until=until, cancel=cancel)

    async def _finish(self, request: Request) -> object:
        report = Finish.from_value(request.body)
        return {"status": await whole(self._scheduler.finish(request.key, report))}

    async def _spans(self, request: Request) -> object:
        claims = request.claims
        if claims.scope is Scope.SESSION and claims.attempt_id != request.key:
            raise ScopeError(f"token: is of another attempt than `{request.key}`")
        attempt = self._scheduler.running(request.key)
        if attempt is None or (claims.fence is not None and claims.fence != attempt.fence):
            raise FencedError(
                f"attempt `{request.key}`: has ended or is not known; its spans are not taken", 409
            )
        raw = request.field("spans", list[dict[str, Any]])
        self._spans_left(request.key, len(raw), request.size)
        spans = [Span.from_value({**span, "attempt_id": request.key}) for span in raw]
        await self._store.put(*spans)
        return {"stored": len(spans)}


def _upstreams(request: Request) -> Upstreams:
    default = request.body.get("upstream")
    named = request.optional("upstreams", dict[str, Json]) or {}
    return Upstreams(
        default=None if default is None else _without_credentials(default),
        by_format={name: _without_credentials(url) for name, url in named.items()},
    )


def _without_credentials(url: Json) -> str:
    if not isinstance(url, str):
        raise WireError(f"upstream: expected a URL but got {url!r}", 400)
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise WireError(f"upstream: expected an http(s) URL but got {url!r}", 400)
    if parts.username or parts.password:
        raise WireError(
            "upstream: the URL holds credentials; give them as the agent's API key", 400
        )
    if parts.query or parts.fragment:
        raise WireError("upstream: expected an address without a query", 400)
    return url
