"""Api: the routes of `docs/wire.md` under `/api/v1`, over scheduler, store and gateway."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final
from urllib.parse import unquote

import msgspec
from aiohttp import web

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
from lightning_core.server.policies import RunPolicies
from lightning_core.server.policy_routes import PolicyRoutes
from lightning_core.server.request import Request, Routes
from lightning_core.server.run_routes import RunRoutes
from lightning_core.server.scheduler import Scheduler
from lightning_core.server.strategies import Strategies
from lightning_core.server.worker_routes import WorkerRoutes
from lightning_core.store.base import Store
from lightning_core.tokens import Scope, TokenSigner

log = logging.getLogger(__name__)

PREFIX: Final = "/api/v1/"
_SESSION_BODY: Final = 4 * 1024 * 1024
"""Bytes of a body that comes with a session's token."""


class Api:
    """Answers API requests. `failed` gets the error after which the server cannot go on."""

    def __init__(
        self,
        *,
        store: Store,
        scheduler: Scheduler,
        gateway: Gateway,
        policies: RunPolicies,
        strategies: Strategies,
        signer: TokenSigner,
        max_body: int,
    ) -> None:
        self.failed: asyncio.Future[StoreError] = asyncio.get_running_loop().create_future()
        self._signer = signer
        self._max_body = max_body
        self._routes: Routes = {
            **RunRoutes(store, scheduler, policies, strategies, signer).routes,
            **WorkerRoutes(store, scheduler, strategies, signer).routes,
            **PolicyRoutes(gateway, scheduler, policies).routes,
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
        if route is None or (name == "runs" and not key):
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
        if request.method not in ("GET", "DELETE"):
            limit = _SESSION_BODY if claims.scope is Scope.SESSION else self._max_body
            body, size = await self._body(request, limit)
        return await handler(
            Request(key, claims, dict(request.query), body, size, _origin(request))
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


_KINDS: Final = {
    400: "bad_request", 404: "not_found", 409: "conflict", 410: "gone", 413: "too_large",
}  # fmt: skip


def _json(value: object, status: int) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(value), status=status, content_type="application/json"
    )


def _error(status: int, kind: str, message: str) -> web.Response:
    return _json({"error": {"type": kind, "message": message}}, status)


def _origin(request: web.BaseRequest) -> str:
    """The address by which this client reaches the server."""
    return f"{request.scheme}://{request.host}"
