"""Api: the routes of `docs/wire.md` under `/api/v1`, over scheduler, store and gateway."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec
from aiohttp import web

from lightning_core import __version__
from lightning_core.errors import (
    FencedError,
    FormatError,
    LightningError,
    ScopeError,
    StoreError,
    TokenError,
    UsageError,
    WireError,
)
from lightning_core.gateway.app import Gateway
from lightning_core.records import Json
from lightning_core.reward import Reward
from lightning_core.rollout import Attempt, Rollout, RolloutStatus
from lightning_core.server.scheduler import Scheduler
from lightning_core.store.base import Store
from lightning_core.task import Task
from lightning_core.tokens import Claims, Scope, TokenSigner
from lightning_core.trace import Span
from lightning_core.wire import Finish, Heartbeat, Lease, ServedPolicy, Status

log = logging.getLogger(__name__)

PREFIX: Final = "/api/v1/"
_LONGEST_WAIT: Final = 60.0
"""Seconds that a client may ask the server to wait."""
_SESSION_SLACK: Final = 120.0
"""Seconds after the deadline for which a session's token is good: its spans may come last."""
_SESSION_BODY: Final = 4 * 1024 * 1024
"""Bytes of a body that comes with a session's token."""
_MOST_SPANS: Final = 50_000
"""Spans that one attempt may have; each comes twice, at its start and its end."""
_MOST_SPAN_BYTES: Final = 64 * 1024 * 1024
"""Bytes of JSON that they may take."""
_REMEMBERED_ATTEMPTS: Final = 10_000
_T = TypeVar("_T")


class Api:
    """Answers API requests. `failed` gets the error after which the server cannot go on."""

    def __init__(
        self,
        *,
        store: Store,
        scheduler: Scheduler,
        gateway: Gateway,
        signer: TokenSigner,
        max_body: int,
    ) -> None:
        self.failed: asyncio.Future[StoreError] = asyncio.get_running_loop().create_future()
        self._store = store
        self._scheduler = scheduler
        self._gateway = gateway
        self._signer = signer
        self._max_body = max_body
        self._span_use: dict[str, tuple[int, int]] = {}
        admin, worker = frozenset({Scope.ADMIN}), frozenset({Scope.WORKER, Scope.ADMIN})
        anyone = worker | {Scope.SESSION}
        self._routes: dict[tuple[str, str, str], tuple[frozenset[Scope], _Handler]] = {
            ("GET", "status", ""): (worker, self._status),
            ("POST", "tasks", ""): (admin, self._put_tasks),
            ("POST", "rollouts", ""): (admin, self._enqueue),
            ("GET", "rollouts", ""): (admin, self._list),
            ("GET", "rollouts", "trace"): (admin, self._trace),
            ("POST", "rollouts", "cancel"): (admin, self._cancel),
            ("POST", "rollouts", "rewards"): (admin, self._reward),
            ("GET", "groups", "traces"): (admin, self._group),
            ("GET", "events", ""): (admin, self._events),
            ("PUT", "runs", ""): (admin, self._claim_run),
            ("POST", "tokens", ""): (admin, self._worker_token),
            ("POST", "workers", "lost"): (admin, self._lose_worker),
            ("POST", "leases", ""): (worker, self._lease),
            ("POST", "sessions", ""): (admin, self._session),
            ("POST", "attempts", "heartbeat"): (worker, self._heartbeat),
            ("POST", "attempts", "finish"): (worker, self._finish),
            ("POST", "attempts", "spans"): (anyone, self._spans),
            ("PUT", "policy", ""): (admin, self._set_policy),
            ("POST", "policy", "pause"): (admin, self._pause),
            ("POST", "policy", "resume"): (admin, self._resume),
        }

    async def handle(self, request: web.BaseRequest) -> web.Response:
        """Answer one request; every fault becomes the error form of `docs/wire.md`."""
        try:
            return _json(await self._answer(request), 200)
        except FencedError as error:
            return _error(409, "fenced", str(error))
        except ScopeError as error:
            return _error(403, "forbidden", str(error))
        except TokenError as error:
            return _error(401, "unauthorized", str(error))
        except WireError as error:
            return _error(
                error.status or 400, _KINDS.get(error.status or 400, "bad_request"), str(error)
            )
        except (FormatError, UsageError, msgspec.ValidationError) as error:
            return _error(400, "bad_request", f"{request.method} {request.path}: {error}")
        except StoreError as error:
            if not self.failed.done():
                self.failed.set_result(error)
            return _error(500, "internal", str(error))
        except LightningError as error:
            log.exception("%s %s failed", request.method, request.path)
            return _error(500, "internal", str(error))

    async def _answer(self, request: web.BaseRequest) -> object:
        parts = [
            unquote(part)
            for part in request.raw_path.partition("?")[0].removeprefix(PREFIX).split("/")
        ]
        if parts[0] == "policy":
            name, key, action = "policy", "", "/".join(parts[1:])
        else:
            name, key, action = parts[0], "/".join(parts[1:2]), "/".join(parts[2:])
        route = self._routes.get((request.method, name, action))
        if route is None:
            raise WireError(
                f"{request.method} {request.path}: no such route; see docs/wire.md", 404
            )
        scopes, handler = route
        header = request.headers.get("authorization", "")
        if not header.startswith("Bearer "):
            raise TokenError("token: missing; send `Authorization: Bearer lc1.…`")
        claims = self._signer.verify(header.removeprefix("Bearer "), *scopes)
        body: dict[str, Any] = {}
        size = 0
        if request.method != "GET":
            limit = _SESSION_BODY if claims.scope is Scope.SESSION else self._max_body
            body, size = await self._body(request, limit)
        return await handler(
            _Request(key, claims, dict(request.query), body, size, _origin(request))
        )

    async def _body(self, request: web.BaseRequest, limit: int) -> tuple[dict[str, Any], int]:
        """The body, and its size in bytes."""
        data = bytearray()
        async for piece in request.content.iter_any():
            data += piece
            if len(data) > limit:
                raise WireError(f"body: more than the {limit} bytes that the server takes", 413)
        try:
            value = msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise WireError(
                f"{request.method} {request.path}: the body is not JSON that can be read: {error}",
                400,
            ) from error
        if not isinstance(value, dict):
            raise WireError(f"{request.method} {request.path}: expected a JSON object", 400)
        return value, len(data)

    # Runs ----------------------------------------------------------------------------------------------------

    async def _claim_run(self, request: _Request) -> object:
        await _whole(self._scheduler.claim_run(request.key, request.field("owner", str)))
        return {"run": request.key}

    async def _worker_token(self, request: _Request) -> object:
        if request.body.get("scope") != Scope.WORKER:
            raise WireError(
                f"body: `scope`: expected 'worker' but got {request.body.get('scope')!r}", 400
            )
        return {"token": self._signer.issue(Scope.WORKER)}

    async def _lose_worker(self, request: _Request) -> object:
        reason = request.field("reason", str)
        return {"ended": await _whole(self._scheduler.lose_worker(request.key, reason))}

    async def _put_tasks(self, request: _Request) -> object:
        tasks = request.field("tasks", list[Task])
        await self._store.put(*tasks, run=request.field("run", str))
        await self._store.flush()
        return {"stored": len(tasks)}

    async def _enqueue(self, request: _Request) -> object:
        rollouts = request.field("rollouts", list[Rollout])
        created, known = await _whole(self._scheduler.enqueue(rollouts))
        return {"created": created, "known": known}

    async def _list(self, request: _Request) -> object:
        query = request.query
        status = query.get("status")
        rollouts = await self._store.rollouts(
            run=query.get("run"),
            group=query.get("group"),
            status=msgspec.convert(status, RolloutStatus) if status else None,
            after=query.get("after"),
            limit=int(request.number("limit", 1000, 10_000)),
        )
        return {"rollouts": rollouts}

    async def _trace(self, request: _Request) -> object:
        number = request.query.get("attempt")
        trace = await self._store.trace(
            request.key, int(request.number("attempt", 1)) if number else None
        )
        if trace is None:
            which = f"attempt {number}" if number else "attempt"
            raise WireError(f"rollout `{request.key}`: not known, or has no {which} yet", 404)
        return trace

    async def _group(self, request: _Request) -> object:
        rollouts = await self._store.rollouts(group=request.key, limit=10_000)
        if not rollouts:
            raise WireError(f"group `{request.key}`: not known", 404)
        traces = [await self._store.trace(rollout.id) for rollout in rollouts]
        return {"traces": [trace for trace in traces if trace is not None]}

    async def _cancel(self, request: _Request) -> object:
        reason = str(request.body.get("reason", ""))
        return {"status": await _whole(self._scheduler.cancel(request.key, reason))}

    async def _reward(self, request: _Request) -> object:
        rollout = await self._store.rollout(request.key)
        if rollout is None:
            raise WireError(f"rollout `{request.key}`: not known", 404)
        if not rollout.status.ended:
            raise WireError(
                f"rollout `{request.key}`: is `{rollout.status}`; reward it once it has ended", 409
            )
        rewards = request.field("rewards", list[Reward])
        await self._store.put_rewards(request.key, rewards)
        await self._store.flush()
        return {"stored": len(rewards)}

    async def _events(self, request: _Request) -> object:
        events, after = self._scheduler.events, int(request.number("after", 0))
        if events.missed(after):
            raise WireError(
                f"events after {after} are gone; list the rollouts, then ask with `after=0`", 410
            )
        wait = request.number("wait", 0, _LONGEST_WAIT)
        found = await events.after(after, wait=wait, run=request.query.get("run"))
        return {"events": found, "last": events.last}

    # Workers -------------------------------------------------------------------------------------------------

    async def _lease(self, request: _Request) -> object:
        upstream = request.body.get("upstream")
        granted = await self._scheduler.lease(
            request.field("worker", str),
            capacity=request.field("capacity", int),
            wait=min(request.field("wait", float), _LONGEST_WAIT),
            upstream=_without_credentials(upstream),
        )
        return {"leases": [self._as_lease(request, *grant) for grant in granted]}

    async def _session(self, request: _Request) -> object:
        rollout = msgspec.structs.replace(
            request.field("rollout", Rollout), timeout=request.field("timeout", float)
        )
        granted = await _whole(
            self._scheduler.open_session(
                rollout,
                request.field("task", Task),
                worker="session",
                upstream=_without_credentials(request.body.get("upstream")),
            )
        )
        return self._as_lease(request, *granted)

    def _as_lease(self, request: _Request, attempt: Attempt, rollout: Rollout, task: Task) -> Lease:
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

    async def _heartbeat(self, request: _Request) -> object:
        until, cancel = self._scheduler.heartbeat(request.key, request.field("fence", int))
        return Heartbeat(lease_until=until, cancel=cancel)

    async def _finish(self, request: _Request) -> object:
        report = Finish.from_value(request.body)
        return {"status": await _whole(self._scheduler.finish(request.key, report))}

    async def _spans(self, request: _Request) -> object:
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

    # Policy --------------------------------------------------------------------------------------------------

    async def _set_policy(self, request: _Request) -> object:
        policy = ServedPolicy.from_value(request.body)
        if not policy.endpoints:
            raise WireError("policy: `endpoints` is empty; expected at least one replica", 400)
        self._gateway.set_policy(policy)
        return {"version": policy.version}

    async def _pause(self, request: _Request) -> object:
        drained = await self._gateway.pause(request.field("timeout", float))
        return {"drained": drained, "in_flight": self._gateway.policy_in_flight}

    async def _resume(self, request: _Request) -> object:
        self._gateway.resume()
        policy = self._gateway.policy
        return {"version": policy.version if policy else None}

    async def _status(self, request: _Request) -> object:
        policy = self._gateway.policy
        shown = None
        if policy is not None:
            shown = {
                "version": policy.version,
                "model": policy.endpoints[0].model,
                "replicas": len(policy.endpoints),
            }
        return Status(
            version=__version__,
            in_flight=self._gateway.in_flight,
            paused=self._gateway.paused,
            policy=shown,
            **self._scheduler.status(),
        )


class _Request(msgspec.Struct, frozen=True):
    """A request whose token has been checked."""

    key: str
    claims: Claims
    query: dict[str, str]
    body: dict[str, Any]
    size: int
    origin: str

    def field(self, name: str, kind: type[_T]) -> _T:
        """A field of the body, converted; `ValidationError` names it."""
        if name not in self.body:
            raise WireError(f"body: `{name}` is missing", 400)
        try:
            return msgspec.convert(self.body[name], kind)
        except msgspec.ValidationError as error:
            raise WireError(f"body: `{name}`: {error}", 400) from error

    def number(self, name: str, default: float, most: float | None = None) -> float:
        """A number of the query, bounded."""
        text = self.query.get(name)
        try:
            value = default if text is None else float(text)
        except ValueError as error:
            raise WireError(f"query: `{name}`: expected a number but got {text!r}", 400) from error
        if not math.isfinite(value):
            raise WireError(f"query: `{name}`: expected a finite number but got {text!r}", 400)
        return value if most is None else min(value, most)


_Handler = Callable[[_Request], Awaitable[object]]
_KINDS: Final = {
    400: "bad_request", 404: "not_found", 409: "conflict", 410: "gone", 413: "too_large",
}  # fmt: skip


async def _whole(work: Coroutine[Any, Any, _T]) -> _T:
    """Finish what changes state even where the client goes away in the middle."""
    return await asyncio.shield(asyncio.ensure_future(work))


def _json(value: object, status: int) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(value), status=status, content_type="application/json"
    )


def _error(status: int, kind: str, message: str) -> web.Response:
    return _json({"error": {"type": kind, "message": message}}, status)


def _origin(request: web.BaseRequest) -> str:
    """The address by which this client reaches the server."""
    return f"{request.scheme}://{request.host}"


def _without_credentials(url: Json) -> str | None:
    if url is None:
        return None
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
