"""What `serve` does for agents that only have its address: takes their calls, and tells what its strategy comes to."""

from __future__ import annotations

import asyncio
import uuid
from typing import Final

from lightning_core.cli.sessions import LONGEST, kept
from lightning_core.cli.terminal import console
from lightning_core.client import Client
from lightning_core.errors import LightningError
from lightning_core.gateway.tally import Tally
from lightning_core.rollout import Rollout
from lightning_core.server.app import Server
from lightning_core.task import Task
from lightning_core.wire import Lease

RUN: Final = "traffic"
"""The run of calls that name no session."""
_ROLLOUT_SECONDS: Final = 24 * 3600.0
"""Seconds after which calls go into a new rollout, so that none grows without end."""
_LOOK_SECONDS: Final = 1.0
_TELL_SECONDS: Final = 60.0
_ENOUGH: Final = 20
"""Calls after which a slot that never matched is told of."""


async def take_traffic(server: Server, client: Client, upstream: str) -> LightningError:
    """Record the calls that name no session, and send them to `upstream`; ends only with an error."""
    async with asyncio.TaskGroup() as group:
        while True:
            try:
                lease = await client.open_session(
                    Rollout(
                        id=f"{RUN}:{uuid.uuid4().hex[:12]}", task_id=RUN, run=RUN, timeout=LONGEST
                    ),
                    Task(id=RUN, input=None),
                    upstream=upstream,
                    timeout=LONGEST,
                )
            except LightningError as error:
                server.take_plain(None)
                return error
            server.take_plain(lease.attempt.id)
            over = asyncio.Event()
            group.create_task(_hold(lease, client, server, over))
            await over.wait()


async def _hold(lease: Lease, client: Client, server: Server, over: asyncio.Event) -> None:
    """Keep a session until it is time for the next, or it was taken away, which sets `over`; and end it once calls no
    longer belong to it."""
    async with kept(lease, client) as beating:
        await asyncio.wait({beating}, timeout=_ROLLOUT_SECONDS)
        over.set()
        while server.in_use(lease.attempt.id):
            await asyncio.sleep(_LOOK_SECONDS)


class Telling:
    """Tells on the terminal how often a strategy's slots match."""

    def __init__(self, tally: Tally, every: float = _TELL_SECONDS) -> None:
        """
        Args:
            tally: what counts.
            every: seconds between two times that it is told.
        """
        self._tally = tally
        self._every = every
        self._told = 0
        self._warned: set[str] = set()

    async def tell(self) -> None:
        """Tell again and again, where there were calls since."""
        left = self._every
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self._warn()
            left -= _LOOK_SECONDS
            if left <= 0:
                left = self._every
                self.say()

    def say(self) -> None:
        """Tell now, where there were calls since the last time."""
        tally = self._tally
        if tally.calls == self._told:
            return
        self._told = tally.calls
        self._warn()
        calls = "1 call" if tally.calls == 1 else f"{tally.calls} calls"
        lines = [f"strategy: {calls}"]
        for name, count in tally.slots.items():
            lines.append(f"  `{name}`: {count.matched} matched, {count.missed} did not")
        console().print("\n".join(lines), markup=False)

    def _warn(self) -> None:
        """Tell once of each slot that matched none of the first calls."""
        for name, count in self._tally.slots.items():
            if self._tally.calls >= _ENOUGH and not count.matched and name not in self._warned:
                self._warned.add(name)
                made_for = self._tally.agent
                of = f" The strategy was made for `{made_for}`." if made_for else ""
                console().print(
                    f"strategy: slot `{name}` fits none of {self._tally.calls} calls: the agent does not send its `original`.{of}"
                    " Is it of another agent, or of an older version of this one? What does not fit passes unchanged",
                    style="yellow", markup=False,
                )  # fmt: skip
