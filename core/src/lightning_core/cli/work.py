"""`lightning-core work`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import click

from lightning_core.children import take_token
from lightning_core.cli import AgentCommand
from lightning_core.cli.terminal import ending
from lightning_core.errors import LightningError, UsageError
from lightning_core.settings import Settings
from lightning_core.worker.entry import work
from lightning_core.worker.logs import log_to_stderr


@click.command("work", cls=AgentCommand)
@click.argument("agent", required=False)
@click.option("--server", help="The server's address; LIGHTNING_CORE_SERVER by default.")
@click.option(
    "--concurrency", type=click.IntRange(1), default=8, show_default=True, help="Attempts at once."
)
@click.option("--isolate", is_flag=True, help="One process for each attempt.")
@click.option("--name", help="This worker's name; host and process id by default.")
def command(
    agent: str | None,
    server: str | None,
    concurrency: int,
    isolate: bool,
    name: str | None,
    command_line: tuple[str, ...],
) -> None:
    """Work for a server: lease attempts and run AGENT, or the command line after `--`, until Ctrl+C.

    The worker token, which `lightning-core serve` prints, is read from LIGHTNING_CORE_TOKEN.
    """
    token = take_token()
    if (agent is None) == (not command_line):
        raise click.UsageError("give either AGENT or a command line after `--`")
    url = server or Settings.from_environ().server
    if url is None:
        raise UsageError(
            "server: which one? give `--server http://HOST:PORT` or set `LIGHTNING_CORE_SERVER`"
        )
    if token is None:
        raise UsageError(
            f"server {url}: a worker token is needed; set `LIGHTNING_CORE_TOKEN` to what `serve` printed"
        )
    log_to_stderr()
    status = 0
    try:
        clean = asyncio.run(_work(agent, command_line, url, token, concurrency, isolate, name))
    except LightningError as error:
        click.echo(f"error: {error}", err=True)
        clean, status = False, 1
    if not clean:
        # A thread of an agent's that hangs would keep the interpreter from ending.
        sys.stderr.flush()
        os._exit(status)


async def _work(
    agent: str | None,
    line: tuple[str, ...],
    url: str,
    token: str,
    concurrency: int,
    isolate: bool,
    name: str | None,
) -> bool:
    stop = asyncio.Event()
    for number in (signal.SIGINT, *ending()):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return await work(
        agent,
        line,
        url=url,
        token=token,
        concurrency=concurrency,
        isolate=isolate,
        name=name,
        stop=stop,
    )
