"""`lightning-core show`."""

from __future__ import annotations

import click

from lightning_core.cli.reading import read_traces
from lightning_core.cli.render import runs_table, summary, trace_tree
from lightning_core.cli.terminal import console


@click.command("show")
@click.argument("run")
@click.argument("rollout", required=False)
@click.option("--attempt", type=click.IntRange(1), help="Which attempt; the last by default.")
@click.option("--full", is_flag=True, help="Every message whole, and what a strategy made of it.")
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
    found = read_traces(run, rollout, attempt=attempt, server=server)
    out = console()
    if as_json:
        for trace in found.traces:
            click.echo(trace.to_json())
    elif rollout is not None:
        for trace in found.traces:
            out.print(trace_tree(trace, full=full), soft_wrap=False)
    else:
        out.print(runs_table(found.traces))
        queued = f"; {found.waiting} wait for a worker" if found.waiting else ""
        out.print(f"\n{summary(found.traces)}{queued}")
