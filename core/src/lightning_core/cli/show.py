"""`lightning-core show`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from lightning_core.cli.render import runs_table, summary, trace_tree
from lightning_core.cli.terminal import console
from lightning_core.errors import UsageError
from lightning_core.folder import RunFolder
from lightning_core.rollout import Rollout
from lightning_core.settings import Settings
from lightning_core.store.base import Store
from lightning_core.store.sqlite import SQLiteStore
from lightning_core.trace import Trace


@click.command("show")
@click.argument("run")
@click.argument("rollout", required=False)
@click.option("--attempt", type=click.IntRange(1), help="Which attempt; the last by default.")
@click.option("--full", is_flag=True, help="Every message whole.")
@click.option("--json", "as_json", is_flag=True, help="The trace as JSON, one line each.")
def command(run: str, rollout: str | None, attempt: int | None, full: bool, as_json: bool) -> None:
    """Show RUN's rollouts, or one of them as a tree of spans and calls.

    RUN is a run's name, the start of it, its folder, or `last`. ROLLOUT is its id, or the part after the run's name.
    """
    folder = RunFolder.open(Path(Settings.from_environ().runs), run)
    traces = asyncio.run(_read(folder, rollout, attempt))
    out = console()
    if as_json:
        for trace in traces:
            click.echo(trace.to_json())
    elif rollout is not None:
        for trace in traces:
            out.print(trace_tree(trace, full=full))
    else:
        out.print(runs_table(traces))
        out.print("\n" + summary(traces))


async def _read(folder: RunFolder, rollout: str | None, attempt: int | None) -> list[Trace]:
    store = await SQLiteStore.open(folder.store, readonly=True)
    try:
        every = await _rollouts(store)
        chosen = every if rollout is None else _matching(every, rollout, folder)
        traces = [await store.trace(r.id, attempt) for r in chosen]
        if rollout is not None and traces == [None]:
            raise UsageError(f"rollout `{chosen[0].id}`: has no such attempt")
        return [trace for trace in traces if trace is not None]
    finally:
        await store.close()


async def _rollouts(store: Store) -> list[Rollout]:
    every: list[Rollout] = []
    while page := await store.rollouts(after=every[-1].id if every else None):
        every += page
    return every


def _matching(every: list[Rollout], name: str, folder: RunFolder) -> list[Rollout]:
    exact = [r for r in every if name in (r.id, r.id.partition(":")[2])]
    if found := exact or [r for r in every if r.id.partition(":")[2].startswith(name)]:
        return found
    shown = ", ".join(f"`{r.id.partition(':')[2] or r.id}`" for r in every[:10])
    raise UsageError(
        f"rollout `{name}`: not in run `{folder.path.name}`; it has {shown or 'none'}{' …' if len(every) > 10 else ''}"
    )
