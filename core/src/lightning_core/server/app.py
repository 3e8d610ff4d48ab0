"""Server: puts store, scheduler, gateway and API behind one port."""

from __future__ import annotations

import ipaddress
import logging
import socket
from pathlib import Path
from typing import Final, Self

import msgspec
from aiohttp import web

from lightning_core import __version__
from lightning_core.errors import StoreError, UsageError
from lightning_core.gateway.app import Gateway
from lightning_core.gateway.front import Front
from lightning_core.gateway.limits import GatewayLimits
from lightning_core.gateway.tally import Tally
from lightning_core.server.api import PREFIX, Api
from lightning_core.server.leases import LEASE_SECONDS
from lightning_core.server.policies import RunPolicies
from lightning_core.server.retention import Retention
from lightning_core.server.scheduler import Scheduler
from lightning_core.server.strategies import Strategies
from lightning_core.store.sqlite import SQLiteStore
from lightning_core.strategy import Strategy
from lightning_core.tokens import Scope, TokenSigner
from lightning_core.wire import EventKind

log = logging.getLogger(__name__)

_SHUTDOWN_SECONDS: Final = 1.0
"""What is under way has so long to end: a long poll would hold the server open for a minute."""
_API_BODIES: Final = 4
"""An API body, such as a batch of tasks, may be so many times as large as a model request."""


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a server is set up."""

    folder: Path
    """The run folder: the store and the key lie there."""
    host: str = "127.0.0.1"
    """The address to bind to."""
    port: int = 0
    """The port; 0 takes a free one."""
    allow_targets: tuple[str, ...] = ()
    """Hosts to which observe calls may go, on an address other than loopback; on loopback empty means all."""
    lease_seconds: float = LEASE_SECONDS
    """Seconds without a heart-beat after which an attempt is lost."""
    keep_seconds: float | None = None
    """Seconds after its end for which a rollout is kept, with all that belongs to it; None keeps all."""
    limits: GatewayLimits = GatewayLimits()
    """The gateway's limits."""
    strategy: Strategy | None = None
    """What the calls of rollouts are changed by that name no strategy of their own."""


class Server:
    """One running server. Restartable on the same folder without loss."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.url = ""
        self.tally: Tally | None = None
        """How often the strategy of `config` matches, once the server has started; None without one."""
        self._signer: TokenSigner | None = None
        self._store: SQLiteStore | None = None
        self._gateway: Gateway | None = None
        self._scheduler: Scheduler | None = None
        self._api: Api | None = None
        self._front: Front | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Open the store, take up its rollouts, and listen.

        Raises:
            StoreError: the folder or the store cannot be used.
            UsageError: the address cannot be bound.
        """
        config = self.config
        bound = _bind(config.host, config.port)
        try:
            await self._build()
        except BaseException:
            bound.close()
            await self.close()
            raise
        assert self._gateway is not None  # it has just been built
        rest = web.Server(self._dispatch, handler_cancellation=True, access_log=None)
        self._front = Front(self._gateway, rest)
        await self._front.listen(bound, backlog=4096)
        port = bound.getsockname()[1]
        host = f"[{config.host}]" if ":" in config.host else config.host
        self.url = f"http://{host}:{port}"
        log.info("server %s listens on %s, folder %s", __version__, self.url, config.folder)

    async def _build(self) -> None:
        config = self.config
        try:
            # What lies in it is for its owner: the key, and what only the grader may see.
            config.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._signer = TokenSigner.from_file(config.folder / "server.key")
        except OSError as error:
            raise StoreError(
                f"run folder `{config.folder}`: cannot be written: {error.strerror};"
                " choose another with `--folder` or `LIGHTNING_CORE_RUNS`"
            ) from error
        self._store = await SQLiteStore.open(config.folder / "store.sqlite")
        everything = is_loopback(config.host) and not config.allow_targets
        self._gateway = Gateway(
            store=self._store,
            signer=self._signer,
            allow_targets=None if everything else config.allow_targets,
            limits=config.limits,
        )
        await self._gateway.start()
        retention = Retention(self._store, config.keep_seconds)
        strategies = Strategies(self._store, config.strategy)
        self.tally = strategies.tally
        self._scheduler = Scheduler(
            self._store,
            self._gateway,
            lease_seconds=config.lease_seconds,
            retention=retention,
            strategies=strategies,
        )
        policies = RunPolicies(self._store, self._gateway.policies, self._scheduler.queue)
        retention.tell(policies.forget_where_gone)
        self._api = Api(
            store=self._store,
            scheduler=self._scheduler,
            gateway=self._gateway,
            policies=policies,
            strategies=strategies,
            signer=self._signer,
            max_body=_API_BODIES * config.limits.max_body,
        )
        # First: what it takes up must find the runs held whose own policy is away.
        awaited = await policies.start()
        await self._scheduler.start()
        for run in awaited:
            await self._scheduler.events.add_of_run(EventKind.POLICY_AWAITED, run)

    async def close(self) -> None:
        """Stop listening, let what is under way be recorded, close the store. May be called more than once."""
        if self._front is not None:
            await self._front.close(_SHUTDOWN_SECONDS)
            self._front = None
        if self._scheduler is not None:
            await self._scheduler.close()
            self._scheduler = None
        if self._gateway is not None:
            await self._gateway.close()
            self._gateway = None
        if self._store is not None:
            await self._store.close()
            self._store = None

    async def failure(self) -> StoreError:
        """Wait until the server cannot go on; why."""
        if self._api is None:
            raise UsageError("server: not started")
        return await self._api.failed

    def take_plain(self, attempt_id: str | None) -> None:
        """Have the calls that name no session belong to this attempt from now on, and go to its upstream; None refuses
        them.

        Whoever reaches the server can make them then.
        """
        if self._gateway is None:
            raise UsageError("server: not started")
        self._gateway.plain = attempt_id

    def in_use(self, attempt_id: str) -> bool:
        """Whether calls of an attempt are under way, or may still come by `take_plain`."""
        gateway = self._gateway
        return gateway is not None and (
            gateway.plain == attempt_id or gateway.calls_under_way(attempt_id) > 0
        )

    def token(self, scope: Scope) -> str:
        """A token for an admin or a worker, good for 30 days."""
        if self._signer is None:
            raise UsageError("server: not started")
        return self._signer.issue(scope)

    async def _dispatch(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path
        if self._gateway is None or self._api is None:
            return web.json_response(
                {"error": {"type": "internal", "message": "closing"}}, status=503
            )
        # First: the path of a call that names its session in a header is whatever the agent's own server has.
        if self._gateway.matches(request):
            return await self._gateway.handle(request)
        if path.startswith(PREFIX):
            return await self._api.handle(request)
        if path == "/healthz":
            return web.json_response({"status": "ok", "version": __version__})
        message = f"no such route; the API is under `{PREFIX}`, the gateway under `/v1/` and `/s/`"
        return web.json_response({"error": {"type": "not_found", "message": message}}, status=404)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise UsageError(
            f"server: cannot listen on {host}:{port}: {error.strerror};"
            " choose another with `--port`, or 0 for a free one"
        ) from error
    return bound
