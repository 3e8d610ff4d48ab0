"""Session: the state of one attempt's access to the gateway."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from lightning_core.gateway.limits import GatewayLimits
from lightning_core.gateway.lineage import Lineage
from lightning_core.gateway.policy import PolicyGate
from lightning_core.gateway.refusal import Refusal
from lightning_core.gateway.retries import Memory
from lightning_core.gateway.strategy import CompiledStrategy
from lightning_core.gateway.tally import Tally
from lightning_core.rollout import Budget, Mode
from lightning_core.trace import Call, CallError, CallErrorKind


class Stoppable(Protocol):
    """A call under way."""

    def stop(self, reason: Refusal) -> None:
        """End it: an agent that has seen nothing yet is answered with `reason`, else its connection is cut."""


class Job(NamedTuple):
    """A call that was answered before it has run."""

    call: Stoppable
    """The call."""
    task: asyncio.Task[None]
    """What runs it and records it."""
    request: dict[str, Any]
    """The body as the agent sent it."""
    at: Callable[[str], bytes]
    """What the agent is told of it in a status."""


class Session:
    """One attempt's access to the gateway: where its calls go, what it may use, what it has used.

    Made by the server with the attempt, given to `Gateway.open`, taken back by `Gateway.end`.
    """

    def __init__(
        self,
        *,
        attempt_id: str,
        rollout_id: str,
        mode: Mode,
        deadline: float,
        run: str = "",
        budget: Budget = Budget(),  # noqa: B008 - frozen
        upstream: str | None = None,
        upstreams: Mapping[str, str] = MappingProxyType({}),
        earlier: Sequence[Call] = (),
        strategy: CompiledStrategy | None = None,
        tally: Tally | None = None,
    ) -> None:
        """
        Args:
            attempt_id: the attempt; the session token names it.
            rollout_id: its rollout; calls of one rollout stick to one replica.
            mode: observe, train or val.
            deadline: Unix time in seconds at which calls under way are ended.
            run: its run, whose policy answers its train and val calls.
            budget: what the attempt may use.
            upstream: address, ending in `/v1`, of observed calls that do not say where they go.
            upstreams: the same for those of some formats, by the format's name.
            earlier: calls that the attempt made before the server was started again; they count.
            strategy: what its calls are changed by.
            tally: counts what of the strategy matches.
        """
        self.attempt_id = attempt_id
        self.rollout_id = rollout_id
        # The rollouts of a group ask the same, and must not be told the same.
        self.salt = zlib.crc32(rollout_id.encode())
        """Added to the seed of the sampling policy, with the call's index."""
        self.mode = mode
        self.deadline = deadline
        self.run = run
        self.budget = budget
        self._upstream = upstream
        self._upstreams = upstreams
        self.strategy = strategy
        self.earlier = earlier
        """The calls that an earlier server recorded, until the session is open."""
        self._tally = tally
        self.calls = len(earlier)
        """Calls admitted so far; retries of one call count once."""
        self.tokens = sum(call.total_tokens for call in earlier)
        """Prompt and completion tokens so far, as the upstreams reported them."""
        self.last_error: CallError | None = earlier[-1].error if earlier else None
        """Why the most recent recorded call by arrival failed; None where it succeeded."""
        self.closing = False
        """Whether the attempt has ended: no new call is taken."""
        self.memory = Memory(GatewayLimits())
        self.lineage = Lineage(GatewayLimits().lineage_bytes)
        """What conversations hold that requests name by the id of a response."""
        self.jobs: dict[str, Job] = {}
        """The calls that were answered and still run, by the id of their response."""
        self.polled: dict[str, str] = {}
        """The ids of the Calls that an upstream answered before they had run, by the id of their response."""
        self.gate: PolicyGate
        """Its run's gate, once it is open."""
        self._arrivals = 0
        self._indices = max((call.index + 1 for call in earlier), default=0)
        self._last_arrival = -1
        self._active: set[Stoppable] = set()
        self._background: set[asyncio.Task[None]] = set()
        self._idle: asyncio.Event | None = None
        self._timer: asyncio.TimerHandle | None = None

    def upstream(self, dialect: str) -> str | None:
        """Where observed calls of a format go that name no target; None stands for the format's own provider."""
        return self._upstreams.get(dialect, self._upstream)

    @property
    def in_flight(self) -> int:
        """Calls under way, those that wait for a paused policy included."""
        return len(self._active)

    def start(self, limits: GatewayLimits, gate: PolicyGate, seconds_left: float) -> None:
        """Begin, within the gateway's bounds and behind the run's gate; called by `Gateway.open`."""
        self.memory = Memory(limits)
        self.lineage = Lineage(limits.lineage_bytes)
        self.gate = gate
        # A loop's timer cannot hold every number of seconds; a month is longer than any attempt.
        delay = min(max(seconds_left, 0.0), 30 * 86400.0)
        self._timer = asyncio.get_running_loop().call_later(delay, self._expire)

    def enter(self, call: Stoppable) -> int:
        """A call has arrived; returns its place in the order of arrival."""
        self._active.add(call)
        self._arrivals += 1
        return self._arrivals - 1

    def leave(self, call: Stoppable) -> None:
        """A call has ended and is recorded, or will be by a task given to `spawn`."""
        self._active.discard(call)
        self._wake_if_idle()

    def next_index(self) -> int:
        """The index of a new Call."""
        self._indices += 1
        return self._indices - 1

    def over_budget(self) -> str | None:
        """What the attempt has used up; None while it may make another call."""
        budget = self.budget
        if budget.calls is not None and self.calls >= budget.calls:
            return f"its {budget.calls} calls"
        if budget.tokens is not None and self.tokens >= budget.tokens:
            return f"its {budget.tokens} tokens (it has used {self.tokens})"
        return None

    def count(self, call: Call, arrival: int, *, replayed: bool) -> None:
        """Account for a call that has ended; `replayed` where nothing new was sampled."""
        if not replayed:
            self.tokens += call.total_tokens
        if self._tally is not None and not call.tries:
            self._tally.add(call)
        if arrival >= self._last_arrival:
            self._last_arrival = arrival
            self.last_error = call.error

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` to its end whatever happens to the call; `drain` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background_done)
        return task

    async def drain(self, grace: float, reason: Refusal) -> None:
        """Give calls under way `grace` seconds, stop the others with `reason`, and return once all are recorded."""
        self.closing = True
        if self._timer is not None:
            self._timer.cancel()
        self._idle = asyncio.Event()
        self._wake_if_idle()
        if grace > 0:
            try:
                async with asyncio.timeout(grace):
                    await self._idle.wait()
            except TimeoutError:
                pass
        self._stop(reason)
        await self._idle.wait()
        self.memory = Memory(GatewayLimits())

    def _stop(self, reason: Refusal) -> None:
        for call in list(self._active):
            call.stop(reason)

    def _expire(self) -> None:
        self._stop(deadline_passed())

    def _background_done(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        self._wake_if_idle()

    def _wake_if_idle(self) -> None:
        if self._idle is not None and not self._active and not self._background:
            self._idle.set()


def deadline_passed() -> Refusal:
    """The answer to a call of an attempt whose time is up."""
    return Refusal(
        504,
        "deadline",
        "the attempt's deadline has passed; give it more time with the rollout's `timeout`",
        CallErrorKind.DEADLINE,
        headers={"x-should-retry": "false"},
    )
