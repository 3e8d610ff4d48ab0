"""RunPolicies: which runs have a policy of their own. Their names outlive the server; addresses and keys do not.

A server that is started again knows by the names whose calls must not be answered by the default policy. Such a run is
held: its rollouts are not leased and its calls wait, until it has told again where its policy is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from lightning_core.engine import Endpoint
from lightning_core.errors import WireError
from lightning_core.gateway.policy import Policies, PolicyGate
from lightning_core.rollout import RolloutStatus
from lightning_core.server.queue import Queue
from lightning_core.store.base import Store
from lightning_core.wire import PolicyStatus, ServedPolicy

log = logging.getLogger(__name__)

_STATE: Final = "policies"
_REACH_SECONDS: Final = 10.0
_SILENT_SECONDS: Final = 600.0
"""Seconds after which a run that asks for nothing counts as over."""


class RunPolicies:
    """Policies of runs on one server.

    Args:
        store: keeps the names of the runs.
        policies: the gateway's.
        queue: where rollouts of a run whose policy is away wait aside.
    """

    def __init__(self, store: Store, policies: Policies, queue: Queue) -> None:
        self._store = store
        self._policies = policies
        self._queue = queue
        self._heard: dict[str, float] = {}
        self._changing = asyncio.Lock()

    async def start(self) -> list[str]:
        """Hold the runs whose policy this server does not know any more; their names."""
        for run in await self._store.get_state(_STATE) or ():
            self._heard[run] = time.monotonic()
            self._await(run)
        return list(self._heard)

    def heard(self, run: str) -> None:
        """A run has asked for something, and so is not over."""
        if run in self._heard:
            self._heard[run] = time.monotonic()

    async def set(self, run: str, policy: ServedPolicy) -> None:
        """Serve a run's own policy.

        Raises:
            WireError: this server can reach no replica (400).
        """
        problems = await asyncio.gather(*map(_unreachable, policy.endpoints))
        if all(problems):
            raise WireError(
                f"policy of run `{run}`: this server cannot reach the run's engine: {problems[0]}; the engine must be at an"
                " address that the server reaches: run it on the server's machine or where the server can connect to it,"
                " and name it with `--model NAME@http://HOST:PORT/v1`",
                400,
            )
        async with self._changing:
            if run not in self._heard:
                self._heard[run] = time.monotonic()
                await self._keep()
            self.heard(run)
            self._policies.set(policy, run)
            await self._queue.let_go(run)

    async def drop(self, run: str) -> None:
        """Forget a run's policy. While it has rollouts that have not ended, the run is held until it has another one."""
        async with self._changing:
            if run not in self._heard:
                return
            for status in (RolloutStatus.QUEUED, RolloutStatus.RUNNING):
                if await self._store.rollouts(run=run, status=status, limit=1):
                    self._await(run)
                    return
            await self._forget(run)

    async def forget_where_gone(self, run: str) -> None:
        """Forget the policy of a run whose last rollout was deleted, unless the run still asks for things."""
        async with self._changing:
            heard = self._heard.get(run)
            if heard is None or time.monotonic() - heard < _SILENT_SECONDS:
                return
            if not await self._store.rollouts(run=run, limit=1):
                await self._forget(run)

    def status(self) -> dict[str, PolicyStatus]:
        """How each run's own policy stands."""
        return {run: _status(gate) for run, gate in self._policies.of_runs.items()}

    def default_status(self) -> PolicyStatus | None:
        """How the default policy stands; None where there is none."""
        gate = self._policies.default
        return None if gate.own is None else _status(gate)

    def _await(self, run: str) -> None:
        self._policies.drop(run, awaited=True)
        self._queue.hold(run)

    async def _forget(self, run: str) -> None:
        del self._heard[run]
        await self._keep()
        self._policies.drop(run)
        await self._queue.let_go(run)

    async def _keep(self) -> None:
        await self._store.put_state(_STATE, list(self._heard))
        await self._store.flush()


async def _unreachable(endpoint: Endpoint) -> str | None:
    """Why no connection can be made to a replica; None where one can, or only a proxy could tell."""
    try:
        url = urlsplit(endpoint.base_url)
        host, port = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
    except ValueError as error:
        return f"its address is none: {error}"
    try:
        if url.scheme in getproxies() and not proxy_bypass(host):
            return None
        async with asyncio.timeout(_REACH_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
        writer.close()
    except TimeoutError:
        reason = f"no answer in {_REACH_SECONDS:g} s"
    except (OSError, UnicodeError) as error:
        reason = str(error)
    else:
        return None
    return f"{url.scheme}://{host}:{port}{url.path}: {reason}"


def _status(gate: PolicyGate) -> PolicyStatus:
    policy = gate.own
    standing = PolicyStatus(paused=gate.paused, awaited=gate.awaited, in_flight=gate.in_flight)
    if policy is None:
        return standing
    return PolicyStatus(
        version=policy.version,
        model=policy.endpoints[0].model,
        replicas=len(policy.endpoints),
        train=policy.train,
        val=policy.val,
        paused=gate.paused,
        awaited=gate.awaited,
        in_flight=gate.in_flight,
    )
