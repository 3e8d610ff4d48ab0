"""The rollouts of a run that have not ended."""

from __future__ import annotations

from functools import partial
from typing import Final

from lightning_core.client import Client
from lightning_core.rollout import Rollout, RolloutStatus
from lightning_core.running.listing import listed
from lightning_core.running.patience import Patience

_REASON: Final = "the training has ended"


async def unended(client: Client, run: str, patience: Patience) -> list[Rollout]:
    """Those that are queued, then those that run.

    Raises:
        WireError: the server refused, or stayed away.
    """
    found: dict[str, Rollout] = {}  # One may begin to run between two questions.
    for status in (RolloutStatus.QUEUED, RolloutStatus.RUNNING):
        async for rollout in listed(client, patience, run, status=status):
            found[rollout.id] = rollout
    return list(found.values())


async def cancel_unended(client: Client, run: str, patience: Patience) -> None:
    """Cancel all that are queued or run, as the run's steps are done.

    Raises:
        WireError: the server refused, or stayed away.
    """
    for rollout in await unended(client, run, patience):
        await patience.ask(partial(client.cancel, rollout.id, _REASON))
