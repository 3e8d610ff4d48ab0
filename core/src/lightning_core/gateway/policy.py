"""PolicyGate: which policy answers a run's train and val calls, when they must wait, and which replica they go to."""

from __future__ import annotations

import asyncio
import hashlib
import time
from weakref import WeakValueDictionary

from lightning_core.engine import Endpoint
from lightning_core.gateway.limits import GatewayLimits
from lightning_core.gateway.refusal import Refusal
from lightning_core.trace import CallErrorKind
from lightning_core.wire import ServedPolicy


class Common:
    """What the gates of one gateway share."""

    def __init__(self, limits: GatewayLimits) -> None:
        self.limits = limits
        """Bounds on waits."""
        self.dead_until: dict[str, float] = {}
        """Until when (monotonic, seconds) an address is asked last."""
        self.changed = asyncio.Event()
        """Set once any gate has changed; there is another one then."""

    def tell(self) -> None:
        """A gate has changed: let those who wait look again."""
        self.changed.set()
        self.changed = asyncio.Event()


class PolicyGate:
    """Lets calls through to a policy, except while they are held.

    A run's gate has a `default` behind it, whose policy answers while the run has none of its own.
    """

    def __init__(self, common: Common, default: PolicyGate | None = None) -> None:
        """
        Args:
            common: what it shares with the others.
            default: the gate of the policy that answers where this one has none; it holds these calls too.
        """
        self._common = common
        self._default = default
        self._own: ServedPolicy | None = None
        self._paused = False
        self._awaited = False
        self._held = False
        self._drained = asyncio.Event()
        self._drained.set()
        self._in_flight = 0

    @property
    def own(self) -> ServedPolicy | None:
        """The policy of this gate itself."""
        return self._own

    @property
    def policy(self) -> ServedPolicy | None:
        """The policy that the next call goes to."""
        return self._source()._own

    @property
    def paused(self) -> bool:
        """Whether calls wait for `resume`."""
        return self._paused

    @property
    def awaited(self) -> bool:
        """Whether calls wait for `set`."""
        return self._awaited

    @property
    def in_flight(self) -> int:
        """Calls that have been let through here and have not ended."""
        return self._in_flight

    def set(self, policy: ServedPolicy) -> None:
        """Send the calls from now on to `policy`; those that wait included."""
        self._own = policy
        self._awaited = False
        for endpoint in policy.endpoints:
            self._common.dead_until.pop(endpoint.base_url, None)
        self._changed()

    def drop(self, *, awaited: bool) -> None:
        """Have no policy; `awaited`: calls wait for the next one, else the default's answers."""
        self._own = None
        self._awaited = awaited
        self._changed()

    def pause(self) -> None:
        """Let no call through."""
        self._paused = True
        self._changed()

    async def drained(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for the calls in flight; whether all have ended."""
        try:
            async with asyncio.timeout(timeout):
                await self._drained.wait()
        except TimeoutError:
            return False
        return True

    def resume(self) -> None:
        """Let calls through again."""
        self._paused = False
        self._changed()

    async def enter(self) -> tuple[ServedPolicy, PolicyGate]:
        """Wait until a call may go: the policy for it, and the gate whose policy it is, which `leave` wants back.

        Raises:
            Refusal: it was held for too long, or there is no policy.
        """
        source = self._source()
        if self._held or source._held:
            source = await self._wait()
        policy = source._own
        if policy is None or not policy.endpoints:
            raise Refusal(
                404,
                "unknown_model",
                "no policy is published; publish one with `PUT /api/v1/policy`, or run in observe mode",
                CallErrorKind.REFUSED,
            )
        self._count(1)
        if source is not self:
            source._count(1)
        return policy, source

    def leave(self, source: PolicyGate) -> None:
        """A call that `enter` let through has ended."""
        self._count(-1)
        if source is not self:
            source._count(-1)

    def replicas(self, policy: ServedPolicy, rollout_id: str) -> list[Endpoint]:
        """The policy's replicas in the order in which to try them for a rollout: always the same one first
        (rendezvous hashing), and those that lately refused a connection last."""
        if len(policy.endpoints) == 1:
            return list(policy.endpoints)
        now = time.monotonic()

        def rank(endpoint: Endpoint) -> tuple[bool, bytes]:
            dead = self._common.dead_until.get(endpoint.base_url, 0.0) > now
            key = f"{rollout_id}\0{endpoint.base_url}".encode()
            return dead, hashlib.blake2b(key, digest_size=8).digest()

        return sorted(policy.endpoints, key=rank)

    def mark_dead(self, endpoint: Endpoint) -> None:
        """Ask `endpoint` last for a while."""
        now, dead_until = time.monotonic(), self._common.dead_until
        for url in [url for url, until in dead_until.items() if until < now]:
            del dead_until[url]
        dead_until[endpoint.base_url] = now + self._common.limits.dead_time

    def _source(self) -> PolicyGate:
        return self if self._own is not None or self._default is None else self._default

    def _changed(self) -> None:
        self._held = self._paused or self._awaited
        self._common.tell()

    async def _wait(self) -> PolicyGate:
        """Wait until nothing holds a call; the gate whose policy answers it."""
        longest = self._common.limits.max_pause
        try:
            async with asyncio.timeout(longest):
                # What held it may do so again before this task has had its turn.
                while True:
                    source = self._source()
                    if not (self._held or source._held):
                        return source
                    await self._common.changed.wait()
        except TimeoutError:
            why = "the run's own policy was away" if self._awaited else "the policy stayed paused"
            raise Refusal(
                503,
                "paused",
                f"{why} for more than {longest:g} s",
                CallErrorKind.PAUSED,
                headers={"retry-after": "5"},
            ) from None

    def _count(self, change: int) -> None:
        self._in_flight += change
        if self._in_flight:
            self._drained.clear()
        else:
            self._drained.set()


class Policies:
    """The default policy, and those that runs have of their own. No run's calls ever reach another run's policy."""

    def __init__(self, limits: GatewayLimits) -> None:
        self._common = Common(limits)
        self._gates: WeakValueDictionary[str, PolicyGate] = WeakValueDictionary()
        # Gates that must outlive the sessions that use them.
        self._kept: dict[str, PolicyGate] = {}
        self.default = PolicyGate(self._common)
        """The gate of what answers where a run has no policy of its own."""

    def of(self, run: str | None) -> PolicyGate:
        """A run's gate, the same as long as anyone holds it; the default's for None."""
        if run is None:
            return self.default
        gate = self._gates.get(run)
        if gate is None:
            gate = self._gates[run] = PolicyGate(self._common, self.default)
        return gate

    @property
    def of_runs(self) -> dict[str, PolicyGate]:
        """The gates, by run, that have a policy of their own, wait for one, or are paused."""
        return dict(self._kept)

    def set(self, policy: ServedPolicy, run: str | None = None) -> None:
        """Send calls to `policy`, those that wait included; calls in flight end where they are."""
        gate = self.of(run)
        gate.set(policy)
        self._keep(run, gate)

    def drop(self, run: str, *, awaited: bool = False) -> None:
        """Forget a run's policy; `awaited`: its calls wait for the next one, else the default's answers them."""
        gate = self.of(run)
        gate.drop(awaited=awaited)
        self._keep(run, gate)

    async def pause(self, timeout: float, run: str | None = None) -> bool:
        """Let new calls wait; whether those in flight ended within `timeout` seconds."""
        gate = self.of(run)
        gate.pause()
        self._keep(run, gate)
        return await gate.drained(timeout)

    def resume(self, run: str | None = None) -> None:
        """Let calls through again."""
        gate = self.of(run)
        gate.resume()
        self._keep(run, gate)

    def _keep(self, run: str | None, gate: PolicyGate) -> None:
        if run is None:
            return
        if gate.own is not None or gate.awaited or gate.paused:
            self._kept[run] = gate
        else:
            self._kept.pop(run, None)
