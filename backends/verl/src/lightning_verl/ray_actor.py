"""What runs on a node of Ray: an actor that starts a worker there, as a child process like any other worker."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from pathlib import Path

import msgspec

import lightning_core
from lightning_core.children import Child
from lightning_core.errors import WireError

_LOOK = 0.2
_LONGEST = 20.0
_CHUNK = 1 << 18


class NodeOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that is wanted, as it goes to the node."""

    what: str
    """Its name in messages, such as `worker 0`."""
    arguments: tuple[str, ...]
    """What follows `python -m lightning_core.worker`."""
    token: str
    """The worker's token."""
    log: str
    """The file of the run to which the worker's log goes, for messages."""
    folder: str | None
    """The folder to run in; None keeps the one that Ray has made for the job."""
    scratch: str | None
    """Where the log may lie until it is fetched; None takes the node's usual place."""
    hidden: frozenset[str] = frozenset()
    """Environment variables of the node whose values it must not get; where one is set, it gets a placeholder."""
    version: str = lightning_core.__version__
    """The release of lightning-core that the run has."""


class NodeWorker:
    """One worker on this node. Its process ends with the actor's, whatever ends that: the actor holds its lifeline."""

    def __init__(self) -> None:
        self._child: Child | None = None
        self._place: tempfile.TemporaryDirectory[str] | None = None
        self._over = False
        self._shown = ""

    async def node(self) -> str:
        """What this node is called, and where it is."""
        import ray

        node = ray.get_runtime_context().get_node_id()
        return f"{socket.gethostname()} ({ray.util.get_node_ip_address()}, {node[:12]})"

    async def start(self, order: bytes) -> str | None:
        """Start the worker and wait until it is ready; why it is not.

        The order, which holds the token, comes by this call and not with the actor's making: Ray keeps and shows that.
        """
        wanted = msgspec.json.decode(order, type=NodeOrder)
        if wanted.version != lightning_core.__version__:
            return (
                f"{wanted.what}: node {socket.gethostname()} has lightning-core {lightning_core.__version__} and the run"
                f" {wanted.version}; install one release on every node"
            )
        if wanted.folder is not None:
            try:
                os.chdir(wanted.folder)
            except OSError as error:
                return (
                    f"{wanted.what}: node {socket.gethostname()} cannot use the run's folder {wanted.folder!r}:"
                    f" {error.strerror}; the agent's code must lie at one path on every node, see docs/executors.md"
                )
        self._place = tempfile.TemporaryDirectory(
            prefix="lightning-", dir=wanted.scratch, ignore_cleanup_errors=True
        )
        self._shown = wanted.log
        child = Child(
            wanted.what, "lightning_core.worker", wanted.arguments,
            log=Path(self._place.name) / "worker.log", secret=wanted.token, hidden=wanted.hidden,
        )  # fmt: skip
        self._child = child
        try:
            await child.start()
        except WireError as error:
            self._over = True
            return self._for_the_run(child, error)
        return None

    async def ended(self) -> tuple[int | None, str]:
        """Wait until the worker ends by itself; its exit status, and what to say of it."""
        child = self._child
        assert child is not None
        error = await child.died()
        status, self._over = child.exit_status, True
        return status, self._for_the_run(child, error)

    async def stop(self) -> None:
        """Let the worker end in order."""
        if self._child is not None:
            await self._child.stop()
        self._over = True

    async def said(self, offset: int) -> tuple[bytes, bool]:
        """What the worker's log has from a byte on, waited for some time; and whether no more can come."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _LONGEST
        while True:
            over = self._over
            data = self._read(offset)
            if data or over or loop.time() > until:
                return data, over and len(data) < _CHUNK
            await asyncio.sleep(_LOOK)

    async def clean(self) -> None:
        """Remove what the worker has left on this node."""
        if self._place is not None:
            self._place.cleanup()

    def _read(self, offset: int) -> bytes:
        log = Path(self._place.name) / "worker.log" if self._place is not None else None
        if log is None or not log.exists():
            return b""
        with log.open("rb") as file:
            file.seek(offset)
            return file.read(_CHUNK)

    def _for_the_run(self, child: Child, error: WireError) -> str:
        """An error's text, with the log's place in the run rather than here."""
        return str(error).replace(str(child.log), self._shown)
