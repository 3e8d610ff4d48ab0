"""ServerProcess: a server as a child of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from lightning_core.children import Child
from lightning_core.errors import WireError
from lightning_core.tokens import Scope, TokenSigner


class ServerProcess:
    """A server that lives no longer than this process."""

    def __init__(self, folder: Path, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.folder = folder
        self.url = ""
        self._child = Child(
            "server",
            "lightning_core.server",
            ["--folder", str(folder), "--host", host, "--port", str(port)],
            log=folder / "logs" / "server.log",
        )

    async def __aenter__(self) -> Self:
        self.url = (await self._child.start())["url"]
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._child.stop()

    async def died(self) -> WireError:
        """Wait until it ends by itself; why it did."""
        return await self._child.died()

    def token(self, scope: Scope) -> str:
        """A token for an admin or a worker, good for 30 days."""
        return TokenSigner.from_file(self.folder / "server.key").issue(scope)
