"""Sessions that a command holds itself: of a traced program, and of a served policy's users."""

from __future__ import annotations

import asyncio
from typing import Final

import click

from lightning_core.client import Client
from lightning_core.errors import FencedError, WireError
from lightning_core.wire import Lease

LONGEST: Final = 7 * 24 * 3600.0
"""Seconds that such a session may last."""


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
