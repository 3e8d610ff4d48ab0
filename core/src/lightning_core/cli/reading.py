"""Reading traces for commands: from a run's folder, or from a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from lightning_core.children import take_token
from lightning_core.client import Client
from lightning_core.errors import UsageError, WireError
from lightning_core.folder import RunFolder
from lightning_core.rollout import Rollout, RolloutStatus
from lightning_core.running.launch import admin_token
from lightning_core.settings import Settings
from lightning_core.store.sqlite import SQLiteStore
from lightning_core.trace import Trace


class Found(NamedTuple):
    """What a command asked for."""

    traces: list[Trace]
    """The traces that are wanted."""
    waiting: int
    """How many of the rollouts wait for a worker."""
    groups: list[list[Trace]]
    """The traces of the groups to which the wanted ones belong, in the order of these; only where asked for."""
    folder: RunFolder | None
    """The run's folder; None where a server was asked."""


def read_traces(
    run: str,
    rollout: str | None = None,
    *,
    attempt: int | None = None,
    server: str | None = None,
    groups: bool = False,
) -> Found:
    """The traces of a run.

    Args:
        run: the run's name, the start of it, its folder, or `last`; with `server` its name there.
        rollout: a rollout's id, the part after the run's name or the start of that; None for all.
        attempt: which attempt; None for the last.
        server: the server's address, its token in the environment; None reads the folder.
        groups: whether to read the rest of the groups too.

    Raises:
        UsageError: there is no such run, rollout or attempt.
    """
    if server is None:
        folder = RunFolder.open(Path(Settings.from_environ().runs), run)
        return asyncio.run(_from_folder(folder, rollout, attempt, groups))
    token = admin_token(server, take_token())
    return asyncio.run(_from_server(server, token, run, rollout, attempt, groups))


async def _from_folder(
    folder: RunFolder, rollout: str | None, attempt: int | None, groups: bool
) -> Found:
    store = await SQLiteStore.open(folder.store, readonly=True)
    try:
        every: list[Rollout] = []
        while page := await store.rollouts(after=every[-1].id if every else None):
            every += page
        found = await _chosen(every, rollout, attempt, store.trace, folder.path.name, groups)
        return found._replace(folder=folder)
    finally:
        await store.close()


async def _from_server(
    url: str, token: str, run: str, rollout: str | None, attempt: int | None, groups: bool
) -> Found:
    async with Client(url, token) as client:

        async def trace(rollout_id: str, number: int | None) -> Trace | None:
            try:
                return await client.trace(rollout_id, number)
            except WireError as error:
                if error.status == 404:
                    return None
                raise

        every: list[Rollout] = []
        while page := await client.rollouts(run=run, after=every[-1].id if every else None):
            every += page
        if not every:
            raise UsageError(f"run `{run}`: not on server {client.shown}")
        return await _chosen(every, rollout, attempt, trace, run, groups)


async def _chosen(
    every: list[Rollout],
    name: str | None,
    attempt: int | None,
    read: Callable[[str, int | None], Awaitable[Trace | None]],
    run: str,
    groups: bool,
) -> Found:
    chosen = every if name is None else _matching(every, name, run)
    traces = [await read(rollout.id, attempt) for rollout in chosen]
    if name is not None and traces == [None]:
        which = "no attempt yet" if attempt is None else f"no attempt {attempt}"
        raise UsageError(f"rollout `{chosen[0].id}`: has {which}; it is `{chosen[0].status}`")
    waiting = sum(rollout.status is RolloutStatus.QUEUED for rollout in chosen)
    found = [trace for trace in traces if trace is not None]
    return Found(found, waiting, await _groups(every, found, read) if groups else [], None)


async def _groups(
    every: list[Rollout],
    found: list[Trace],
    read: Callable[[str, int | None], Awaitable[Trace | None]],
) -> list[list[Trace]]:
    """The groups of the traces; a trace without one stands alone."""
    known = {trace.rollout.id: trace for trace in found}
    made: dict[str, list[Trace]] = {}
    for trace in found:
        group = trace.rollout.group
        name = trace.rollout.id if group is None else f"group {group}"
        if name in made:
            continue
        members = [r.id for r in every if r.group == group] if group else [trace.rollout.id]
        traces = [known.get(id_) or await read(id_, None) for id_ in members]
        made[name] = [member for member in traces if member is not None]
    return list(made.values())


def _matching(every: list[Rollout], name: str, run: str) -> list[Rollout]:
    exact = [r for r in every if name in (r.id, r.id.partition(":")[2])]
    if found := exact or [r for r in every if r.id.partition(":")[2].startswith(name)]:
        return found
    shown = ", ".join(f"`{r.id.partition(':')[2] or r.id}`" for r in every[:10])
    more = " …" if len(every) > 10 else ""
    raise UsageError(f"rollout `{name}`: not in run `{run}`; it has {shown or 'none'}{more}")
