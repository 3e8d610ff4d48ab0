"""A real server on loopback, with short leases."""

from contextlib import asynccontextmanager

import pytest

from lightning_core.client import Client
from lightning_core.server import Server, ServerConfig
from lightning_core.tokens import Scope


@pytest.fixture
def open_server(tmp_path):
    """Open a server on the same folder, as often as a test wants, with an admin's and a worker's client."""

    @asynccontextmanager
    async def opened(**config):
        config = ServerConfig(**{"folder": tmp_path / "run", "lease_seconds": 30.0} | config)
        async with (
            Server(config) as server,
            Client(server.url, server.token(Scope.ADMIN)) as admin,
            Client(server.url, server.token(Scope.WORKER)) as worker,
        ):
            yield server, admin, worker

    return opened
