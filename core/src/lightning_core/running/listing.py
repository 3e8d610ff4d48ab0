"""Listing: all rollouts of a run, asked for page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Final

from lightning_core.client import Client
from lightning_core.rollout import Rollout, RolloutStatus
from lightning_core.running.patience import Patience

_PAGE: Final = 1000
"""Rollouts that are asked for at once."""


async def listed(
    client: Client, patience: Patience, run: str, *, status: RolloutStatus | None = None
) -> AsyncIterator[Rollout]:
    """A run's rollouts in the order in which they were enqueued; those of one status where it is given.

    Raises:
        LightningError: as `Patience.ask`.
    """
    after: str | None = None
    while True:
        page = await patience.ask(
            partial(client.rollouts, run=run, status=status, after=after, limit=_PAGE)
        )
        for rollout in page:
            yield rollout
        if len(page) < _PAGE:
            return
        after = page[-1].id
