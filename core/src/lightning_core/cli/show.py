"""`lightning-core show`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import click

from lightning_core.children import take_token
from lightning_core.cli.render import runs_table, summary, trace_tree
from lightning_core.cli.terminal import console
from lightning_core.client import Client
from lightning_core.errors import UsageError, WireError
from lightning_core.folder import RunFolder
from lightning_core.rollout import Rollout, RolloutStatus
from lightning_core.running.launch import admin_token
from lightning_core.settings import Settings
from lightning_core.store.sqlite import SQLiteStore
from lightning_core.trace import Trace


@click.command("show")
@click.argument("run")
@click.argument("rollout", required=False)
@click.option("--attempt", type=click.IntRange(1), help="Which attempt; the last by default.")
@click.option("--full", is_flag=True, help="Every message whole.")
@click.option("--json", "as_json", is_flag=True, help="The trace as JSON, one line each.")
@click.option("--server", help="Read from this server; its admin token in LIGHTNING_CORE_TOKEN.")
def command(
    run: str,
    rollout: str | None,
    attempt: int | None,
    full: bool,
    as_json: bool,
    server: str | None,
) -> None:
    """Show RUN's rollouts, or one of them as a tree of spans and calls.

    RUN is a run's name, the start of it, its folder or a server's, or `last`; with --server a run's name on it.
    ROLLOUT is its id, or the part after the run's name.
    """
    settings = Settings.from_environ()
    if server is None:
        folder = RunFolder.open(Path(settings.runs), run)
        traces, waiting = asyncio.run(_from_folder(folder, rollout, attempt))
    else:
        traces, waiting = asyncio.run(
            _from_server(server, admin_token(server, take_token()), run, rollout, attempt)
        )
    out = console()
    if as_json:
        for trace in traces:
            click.echo(trace.to_json())
    elif rollout is not None:
        for trace in traces:
            out.print(trace_tree(trace, full=full))
    else:
        out.print(runs_table(traces))
        queued = f"; {waiting} wait for a worker" if waiting else ""
        out.print(f"\n{summary(traces)}{queued}")


async def _from_folder(
    folder: RunFolder, rollout: str | None, attempt: int | None
) -> tuple[list[Trace], int]:
    store = await SQLiteStore.open(folder.store, readonly=True)
    try:
        every: list[Rollout] = []
        while page := await store.rollouts(after=every[-1].id if every else None):
            every += page
        return await _chosen(every, rollout, attempt, store.trace, folder.path.name)
    finally:
        await store.close()


async def _from_server(
    url: str, token: str, run: str, rollout: str | None, attempt: int | None
) -> tuple[list[Trace], int]:
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
        return await _chosen(every, rollout, attempt, trace, run)


async def _chosen(
    every: list[Rollout],
    name: str | None,
    attempt: int | None,
    read: Callable[[str, int | None], Awaitable[Trace | None]],
    run: str,
) -> tuple[list[Trace], int]:
    """The traces that are wanted, and how many rollouts wait for a worker."""
    chosen = every if name is None else _matching(every, name, run)
    traces = [await read(rollout.id, attempt) for rollout in chosen]
    if name is not None and traces == [None]:
        which = "no attempt yet" if attempt is None else f"no attempt {attempt}"
        raise UsageError(f"rollout `{chosen[0].id}`: has {which}; it is `{chosen[0].status}`")
    waiting = sum(rollout.status is RolloutStatus.QUEUED for rollout in chosen)
    return [trace for trace in traces if trace is not None], waiting


def _matching(every: list[Rollout], name: str, run: str) -> list[Rollout]:
    exact = [r for r in every if name in (r.id, r.id.partition(":")[2])]
    if found := exact or [r for r in every if r.id.partition(":")[2].startswith(name)]:
        return found
    shown = ", ".join(f"`{r.id.partition(':')[2] or r.id}`" for r in every[:10])
    more = " …" if len(every) > 10 else ""
    raise UsageError(f"rollout `{name}`: not in run `{run}`; it has {shown or 'none'}{more}")
