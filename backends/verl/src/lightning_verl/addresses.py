"""Addresses: whether something answers there, and who reaches it. Both halves and the executor ask."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit


def why_unreached(address: str, seconds: float) -> str | None:
    """Why nothing answers at `HOST:PORT` within so many seconds; None where something does."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
    except (OSError, OverflowError) as error:
        return str(error)
    return None


def only_here(server: str) -> bool:
    """Whether the address of a server means another server, or none, on other machines."""
    from lightning_core.server.app import is_loopback

    host = urlsplit(server).hostname or ""
    return is_loopback(host) or host in ("0.0.0.0", "::")
