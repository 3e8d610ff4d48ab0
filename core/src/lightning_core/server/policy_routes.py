"""PolicyRoutes: the default policy, a run's own, pauses, and how the server is doing."""

from __future__ import annotations

from lightning_core import __version__
from lightning_core.errors import WireError
from lightning_core.gateway.app import Gateway
from lightning_core.server.policies import RunPolicies
from lightning_core.server.request import ADMIN, WORKER, Request, Routes, whole
from lightning_core.server.scheduler import Scheduler
from lightning_core.wire import ServedPolicy, Status


class PolicyRoutes:
    """Handlers for policies and the status. The key of a request is the run; empty for the default policy."""

    def __init__(self, gateway: Gateway, scheduler: Scheduler, policies: RunPolicies) -> None:
        self._gateway = gateway
        self._scheduler = scheduler
        self._policies = policies

    @property
    def routes(self) -> Routes:
        """What they answer."""
        return {
            ("GET", "status", ""): (WORKER, self._status),
            ("PUT", "policy", ""): (ADMIN, self._set),
            ("POST", "policy", "pause"): (ADMIN, self._pause),
            ("POST", "policy", "resume"): (ADMIN, self._resume),
            ("PUT", "runs", "policy"): (ADMIN, self._set),
            ("DELETE", "runs", "policy"): (ADMIN, self._drop),
            ("POST", "runs", "policy/pause"): (ADMIN, self._pause),
            ("POST", "runs", "policy/resume"): (ADMIN, self._resume),
        }

    async def _set(self, request: Request) -> object:
        policy = ServedPolicy.from_value(request.body)
        if not policy.endpoints:
            raise WireError("policy: `endpoints` is empty; expected at least one replica", 400)
        if request.key:
            await whole(self._policies.set(request.key, policy))
        else:
            self._gateway.policies.set(policy)
        return {"version": policy.version}

    async def _drop(self, request: Request) -> object:
        await whole(self._policies.drop(request.key))
        return {"run": request.key}

    async def _pause(self, request: Request) -> object:
        run = request.key or None
        policies = self._gateway.policies
        drained = await policies.pause(request.field("timeout", float), run)
        return {"drained": drained, "in_flight": policies.of(run).in_flight}

    async def _resume(self, request: Request) -> object:
        run = request.key or None
        policies = self._gateway.policies
        policies.resume(run)
        policy = policies.of(run).policy
        return {"version": policy.version if policy else None}

    async def _status(self, request: Request) -> object:
        return Status(
            version=__version__,
            in_flight=self._gateway.in_flight,
            paused=self._gateway.policies.default.paused,
            policy=self._policies.default_status(),
            policies=self._policies.status(),
            **self._scheduler.status(),
        )
