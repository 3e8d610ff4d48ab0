"""Sessions that a command holds itself: of a traced program, and of a served policy's users."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

import click

from lightning_core.client import Client
from lightning_core.errors import FencedError, LightningError, WireError
from lightning_core.rollout import Cause
from lightning_core.wire import Finish, Lease

LONGEST: Final = 7 * 24 * 3600.0
"""Seconds that such a session may last."""


@contextlib.asynccontextmanager
async def kept(lease: Lease, client: Client) -> AsyncIterator[asyncio.Task[None]]:
    """Keep a lease within, and end its attempt as a success; what keeps it, which ends where the lease is taken away."""
    beating = asyncio.create_task(heartbeat(lease, client))
    try:
        yield beating
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        with contextlib.suppress(LightningError):  # The server may have ended first.
            await client.finish(
                lease.attempt.id, Finish(fence=lease.attempt.fence, cause=Cause.SUCCESS)
            )


async def heartbeat(lease: Lease, client: Client) -> None:
    """Keep a lease until it is taken away; a server that does not answer is told of, and asked again."""
    while True:
        await asyncio.sleep(lease.heartbeat)
        try:
            await client.heartbeat(lease.attempt.id, lease.attempt.fence)
        except FencedError:
            return
        except WireError as error:
            click.echo(f"lightning-core: {error}", err=True)
