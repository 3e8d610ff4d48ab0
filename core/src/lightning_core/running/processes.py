"""The executor `process`: workers as child processes of the run."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from lightning_core.children import Child
from lightning_core.errors import UsageError
from lightning_core.executor import Executor, MakeWorker, WorkerOrder
from lightning_core.runs import RunConfig


class ProcessExecutor(Executor):
    """Workers on this machine, which end with the run, whatever ends the run."""

    name = "process"

    def check(self, address: str | None, config: RunConfig) -> None:
        """Refuse an address.

        Raises:
            UsageError: one was given.
        """
        if address is not None:
            raise UsageError(
                f"executor `process`: takes no address but got {address!r}; give `--executor process`"
            )

    @contextlib.asynccontextmanager
    async def opened(
        self, address: str | None, *, server: str | None, logs: Path
    ) -> AsyncIterator[MakeWorker]:
        """Nothing is needed."""
        yield _child


def _child(order: WorkerOrder) -> Child:
    return Child(
        order.what,
        "lightning_core.worker",
        order.arguments,
        log=order.log,
        secret=order.token,
        hidden=order.hidden,
    )
