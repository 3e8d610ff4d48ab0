"""`lightning-core trace`."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from lightning_core.children import take_token
from lightning_core.cli import AgentCommand, pairs
from lightning_core.cli.render import trace_tree
from lightning_core.cli.terminal import complete, console
from lightning_core.client import Client
from lightning_core.engines import create_engine
from lightning_core.errors import FencedError, UsageError, WireError
from lightning_core.folder import RunFolder
from lightning_core.instrument.bootstrap import child_environment
from lightning_core.plugins import installed
from lightning_core.redaction import redacted_options, redacted_words
from lightning_core.rollout import Cause, Mode, Rollout
from lightning_core.running.checks import check_agent
from lightning_core.running.launch import serving
from lightning_core.runs import RunConfig
from lightning_core.sampling import DEFAULT_MAX_TOKENS, SamplingPolicy
from lightning_core.settings import Settings
from lightning_core.task import Task
from lightning_core.trace import Trace
from lightning_core.wire import Finish, Lease, ServedPolicy
from lightning_core.worker.adapters import child_adapters

_LONGEST: Final = 7 * 24 * 3600.0
_NO_CALLS: Final = """\
no model call was seen. The program made none, or its SDK went another way: it must be Python with the `openai`
package, or read OPENAI_BASE_URL."""


@click.command("trace", cls=AgentCommand)
@click.option(
    "--model",
    help="What answers the calls: smollm2, a folder, an address. Else they go where they went.",
)
@click.option("--engine", help="The engine that serves --model, where not the obvious one.")
@click.option(
    "--engine-option", "engine_options", multiple=True, callback=pairs, metavar="KEY=VALUE"
)
@click.option("--temperature", type=float, default=0.0, show_default=True, help="With --model.")
@click.option("--max-tokens", type=click.IntRange(1), default=DEFAULT_MAX_TOKENS, show_default=True,
              help="With --model: bound of each reply.")  # fmt: skip
@click.option("--name", help="The run's name.")
@click.option("--full", is_flag=True, help="Show every message whole.")
def command(
    model: str | None,
    engine: str | None,
    engine_options: dict[str, str],
    temperature: float,
    max_tokens: int,
    name: str | None,
    full: bool,
    command_line: tuple[str, ...],
) -> int:
    """Run any program unchanged and show its model calls as a tree.

    Give the program after `--`: lightning-core trace -- python my_agent.py
    """
    if not command_line:
        raise click.UsageError(
            "give the program after `--`: lightning-core trace -- python my_agent.py"
        )
    take_token()  # It has no use here, and the program could read it in this process's environment.
    sampling = SamplingPolicy(temperature=temperature, max_tokens=max_tokens)
    trace, folder, status = complete(
        _trace(command_line, model, engine, engine_options, sampling, name)
    )
    out = console(stderr=True)
    out.print()
    out.print(trace_tree(trace, full=full))
    if not trace.calls:
        out.print(_NO_CALLS, style="yellow")
    out.print(f"kept in {folder.path}; again: lightning-core show {folder.path.name}", style="dim")
    return status


async def _trace(
    line: tuple[str, ...],
    model: str | None,
    engine_name: str | None,
    engine_options: Mapping[str, str],
    sampling: SamplingPolicy,
    name: str | None,
) -> tuple[Trace, RunFolder, int]:
    check_agent(None, line)
    served = create_engine(model, engine_name, installed())
    if served is not None:
        served.check(engine_options)
    shown = shlex.join(redacted_words(line))
    folder = RunFolder.create(Path(Settings.from_environ().runs), name, hint="trace")
    mode = Mode.VAL if served else Mode.OBSERVE
    config = RunConfig(
        name=folder.path.name,
        agent=shown,
        created_at=time.time(),
        command=redacted_words(sys.argv),
        tasks=1,
        model=model,
        engine=served.name if served else None,
        mode=mode,
        validation=sampling,
        engine_options=redacted_options(engine_options),
    )
    folder.write_config(config)
    async with serving(folder, served, engine_options) as base:
        client = base.client
        if base.engine is not None:
            await client.set_policy(
                ServedPolicy(
                    version=0,
                    endpoints=base.endpoints,
                    capabilities=base.engine.gives,
                    val=sampling,
                )
            )
        lease = await client.open_session(
            Rollout(
                id=f"{config.name}:{uuid.uuid4().hex[:8]}",
                task_id="command",
                run=config.name,
                mode=mode,
                timeout=_LONGEST,
            ),
            Task(id="command", input=shown),
            upstream=os.environ.get("OPENAI_BASE_URL"),
            timeout=_LONGEST,
        )
        status = await _run(line, lease, base.url, client, served is not None)
        cause = Cause.SUCCESS if status == 0 else Cause.AGENT_ERROR
        error = None if status == 0 else f"the program ended with status {status}"
        await client.finish(
            lease.attempt.id, Finish(fence=lease.attempt.fence, cause=cause, error=error)
        )
        return await client.trace(lease.rollout.id), folder, status


async def _run(line: tuple[str, ...], lease: Lease, server: str, client: Client, key: bool) -> int:
    """Run the program on this terminal; its exit status."""
    environment = child_environment(
        os.environ,
        gateway=server,
        session=lease.session,
        attempt=lease.attempt.id,
        span=None,
        adapters=child_adapters(installed().adapters().values()),
        base_url=lease.base_url,
        set_key=key,
    )
    try:
        process = await asyncio.create_subprocess_exec(*line, env=environment)
    except OSError as error:
        raise UsageError(f"program `{line[0]}`: cannot be started: {error.strerror}") from error
    # Ctrl+C reaches the program too, which shares this terminal; it decides, and this process reports.
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    loop.add_signal_handler(signal.SIGTERM, process.terminate)
    beating = asyncio.create_task(_heartbeat(lease, client))
    try:
        status = await process.wait()
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGTERM)
    return status if status >= 0 else 128 - status


async def _heartbeat(lease: Lease, client: Client) -> None:
    while True:
        await asyncio.sleep(lease.heartbeat)
        try:
            await client.heartbeat(lease.attempt.id, lease.attempt.fence)
        except FencedError:
            return
        except WireError as error:
            click.echo(f"lightning-core: {error}", err=True)
