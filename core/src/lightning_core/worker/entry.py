"""`work`: a whole worker, from the name of an agent to its end."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence

from lightning_core.agents import Command, find_adapter
from lightning_core.client import Client
from lightning_core.errors import AgentError
from lightning_core.plugins import Plugins, installed
from lightning_core.worker.keys import load_without_key
from lightning_core.worker.supervisor import descendants, end_tree
from lightning_core.worker.worker import Worker

_CHILD_GRACE = 1.0

_log = logging.getLogger("lightning_core.worker")


async def work(
    agent: str | None,
    command: Sequence[str] = (),
    *,
    url: str,
    token: str,
    concurrency: int = 8,
    isolate: bool = False,
    name: str | None = None,
    for_run: str | None = None,
    stop: asyncio.Event | None = None,
    ready: asyncio.Event | None = None,
    plugins: Plugins | None = None,
) -> bool:
    """Run a worker in a process that does nothing else, until `stop` is set or this is cancelled.

    What this process has started meanwhile and is left in the end is ended.

    Args:
        agent: `module:attr` or `path.py:attr`; None where a command is given.
        command: a command line instead.
        url: the server's address.
        token: a worker's token.
        concurrency: attempts at once.
        isolate: one process per attempt.
        name: the worker's name; `HOST-PID` by default.
        for_run: the run whose rollouts alone it takes; None takes any.
        stop: tells it to stop.
        ready: set once the agent is loaded.
        plugins: which adapters there are; those installed by default.

    Returns:
        Whether all that it started has ended. False: a thread of an agent's still runs, and the interpreter may not come to
        its end by itself; leave by `os._exit`.

    Raises:
        AgentError: the agent cannot be used, or cannot be ended and takes up all places.
        WireError: the server refuses this worker.
    """
    before = set(descendants(os.getpid()) or ())
    adapters = (plugins or installed()).adapters()
    adapter = None
    loaded: object = agent
    if command:
        if agent is not None:
            raise AgentError(
                f"agent {agent!r} and command `{Command(tuple(command))}` are both given"
            )
        loaded = Command(tuple(command))
    elif not isolate:
        loaded = load_without_key(agent)
        adapter = find_adapter(loaded, adapters)
    async with Client(url, token) as client:
        worker = Worker(
            client,
            loaded,
            adapter,
            adapters=tuple(adapters.values()),
            name=name,
            for_run=for_run,
            concurrency=concurrency,
            isolate=isolate and not command,
            own_loop=True,
        )
        try:
            return await worker.run(stop, ready=ready)
        finally:
            # Blocking: nothing else runs here any more, and a cancellation must not cut it short.
            _end_children(before)


def _end_children(before: set[int]) -> None:
    """End what in-process agents started and left behind."""
    left = set(descendants(os.getpid()) or ()) - before
    if left:
        _log.info("%d processes that agents left behind are ended", len(left))
        end_tree(os.getpid(), grace=_CHILD_GRACE, spare=before, reap=False)
