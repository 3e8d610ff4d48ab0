"""PolicyGate: which policy answers train and val calls, when they must wait, and which replica they go to."""

from __future__ import annotations

import asyncio
import hashlib
import time

from lightning_core.engine import Endpoint
from lightning_core.gateway.limits import GatewayLimits
from lightning_core.gateway.refusal import Refusal
from lightning_core.trace import CallErrorKind
from lightning_core.wire import ServedPolicy


class PolicyGate:
    """Lets train and val calls through to the served policy, except while it is paused."""

    def __init__(self, limits: GatewayLimits) -> None:
        self._limits = limits
        self._policy: ServedPolicy | None = None
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._drained = asyncio.Event()
        self._drained.set()
        self._in_flight = 0
        self._dead_until: dict[str, float] = {}

    @property
    def policy(self) -> ServedPolicy | None:
        """The policy that the next call goes to."""
        return self._policy

    @property
    def paused(self) -> bool:
        """Whether calls wait."""
        return not self._resumed.is_set()

    @property
    def in_flight(self) -> int:
        """Calls that have been let through and have not ended."""
        return self._in_flight

    def set(self, policy: ServedPolicy) -> None:
        """Send the calls from now on to `policy`; those that wait included."""
        self._policy = policy
        self._dead_until.clear()

    async def pause(self, timeout: float) -> bool:
        """Let no call through, and wait at most `timeout` seconds for those in flight; whether all have ended."""
        self._resumed.clear()
        try:
            async with asyncio.timeout(timeout):
                await self._drained.wait()
        except TimeoutError:
            return False
        return True

    def resume(self) -> None:
        """Let calls through again."""
        self._resumed.set()

    async def enter(self) -> ServedPolicy:
        """Wait until a call may go; it then counts as in flight until `leave`.

        Raises:
            Refusal: the pause lasted too long, or there is no policy.
        """
        if self.paused:
            try:
                async with asyncio.timeout(self._limits.max_pause):
                    # A pause may begin again before this task has had its turn.
                    while self.paused:
                        await self._resumed.wait()
            except TimeoutError:
                raise Refusal(
                    503,
                    "paused",
                    f"the policy stayed paused for more than {self._limits.max_pause:g} s",
                    CallErrorKind.PAUSED,
                    headers={"retry-after": "5"},
                ) from None
        if self._policy is None or not self._policy.endpoints:
            raise Refusal(
                404,
                "unknown_model",
                "no policy is published; publish one with `PUT /api/v1/policy`, or run in observe mode",
                CallErrorKind.REFUSED,
            )
        self._in_flight += 1
        self._drained.clear()
        return self._policy

    def leave(self) -> None:
        """A call that `enter` let through has ended."""
        self._in_flight -= 1
        if self._in_flight == 0:
            self._drained.set()

    def replicas(self, policy: ServedPolicy, rollout_id: str) -> list[Endpoint]:
        """The policy's replicas in the order in which to try them for a rollout: always the same one first
        (rendezvous hashing), and those that lately refused a connection last."""
        if len(policy.endpoints) == 1:
            return list(policy.endpoints)
        now = time.monotonic()

        def rank(endpoint: Endpoint) -> tuple[bool, bytes]:
            dead = self._dead_until.get(endpoint.base_url, 0.0) > now
            key = f"{rollout_id}\0{endpoint.base_url}".encode()
            return dead, hashlib.blake2b(key, digest_size=8).digest()

        return sorted(policy.endpoints, key=rank)

    def mark_dead(self, endpoint: Endpoint) -> None:
        """Ask `endpoint` last for a while."""
        self._dead_until[endpoint.base_url] = time.monotonic() + self._limits.dead_time
