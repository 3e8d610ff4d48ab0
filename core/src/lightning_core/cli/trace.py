"""`lightning-core trace`."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import shutil
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
from lightning_core.cli.sessions import LONGEST, heartbeat
from lightning_core.cli.terminal import complete, console, heeded
from lightning_core.client import Client
from lightning_core.engine import Engine
from lightning_core.engines import create_engine
from lightning_core.folder import RunFolder
from lightning_core.instrument.bootstrap import child_environment
from lightning_core.instrument.context import PLACEHOLDER_KEY
from lightning_core.plugins import installed
from lightning_core.redaction import redacted_options, redacted_words
from lightning_core.rollout import Cause, Mode, Rollout
from lightning_core.running.launch import serving
from lightning_core.runs import RunConfig
from lightning_core.sampling import DEFAULT_MAX_TOKENS, SamplingPolicy
from lightning_core.settings import Settings
from lightning_core.task import Task
from lightning_core.trace import Trace
from lightning_core.wire import Finish, Lease, ServedPolicy, Upstreams
from lightning_core.worker.adapters import child_adapters
from lightning_core.worker.foreground import ForegroundProcess
from lightning_core.worker.process import Exit

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
    missing = _missing(command_line[0])
    if missing is not None:
        click.echo(f"error: {missing[0]}", err=True)
        return missing[1]
    take_token()  # It has no use here, and the program could read it in this process's environment.
    sampling = SamplingPolicy(temperature=temperature, max_tokens=max_tokens)
    trace, folder, status = complete(
        _trace(command_line, model, engine, engine_options, sampling, name)
    )
    out = console(stderr=True)
    out.print()
    out.print(trace_tree(trace, full=full), soft_wrap=False)
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
        own = Upstreams.own(os.environ)
        lease = await client.open_session(
            Rollout(
                id=f"{config.name}:{uuid.uuid4().hex[:8]}",
                task_id="command",
                run=config.name,
                mode=mode,
                timeout=LONGEST,
            ),
            Task(id="command", input=shown),
            upstream=own.default,
            upstreams=own.by_format,
            timeout=LONGEST,
        )
        end = await _run(line, lease, base.url, client, base.engine)
        status = end.returncode if end.returncode >= 0 else 128 - end.returncode
        cause = Cause.SUCCESS if status == 0 else Cause.AGENT_ERROR
        error = None if status == 0 else f"the program ended with status {status}"
        if end.failed is not None:
            error = f"program `{line[0]}`: cannot be started: {end.failed}"
            click.echo(f"error: {error}", err=True)
        await client.finish(
            lease.attempt.id, Finish(fence=lease.attempt.fence, cause=cause, error=error)
        )
        return await client.trace(lease.rollout.id), folder, status


def _missing(program: str) -> tuple[str, int] | None:
    """Why a program cannot be run, and the exit status that a shell has for it; None where nothing is wrong with it."""
    if shutil.which(program) is not None:
        return None
    if shutil.which(program, mode=os.F_OK) is not None or Path(program).is_dir():
        return (
            f"program `{program}`: cannot be executed; check that it is a file with `chmod +x`",
            126,
        )
    return f"program `{program}`: not found (on PATH, or from {Path.cwd()}); check its name", 127


async def _run(
    line: tuple[str, ...], lease: Lease, server: str, client: Client, engine: Engine | None
) -> Exit:
    """Run the program on this terminal; how it ended."""
    hidden = frozenset() if engine is None else engine.secrets & os.environ.keys()
    environment = child_environment(
        {**os.environ, **dict.fromkeys(hidden, PLACEHOLDER_KEY)},
        gateway=server,
        session=lease.session,
        attempt=lease.attempt.id,
        span=None,
        adapters=child_adapters(installed().adapters().values()),
        base_url=lease.base_url,
        set_key=engine is not None,
    )
    # Ctrl+C and Ctrl+\ reach the program too, which shares this terminal; it decides, and this process reports.
    loop = asyncio.get_running_loop()
    from_terminal = heeded(signal.SIGINT, signal.SIGQUIT)
    for number in from_terminal:
        loop.add_signal_handler(number, lambda: None)
    process = await ForegroundProcess.start(
        line, env=environment, marker=f"{lease.attempt.id}:{secrets.token_hex(8)}"
    )
    beating = asyncio.create_task(heartbeat(lease, client))
    try:
        return await _outlast(process)
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        for number in from_terminal:
            loop.remove_signal_handler(number)


async def _outlast(process: ForegroundProcess) -> Exit:
    """Wait for the program's end. SIGTERM and SIGHUP, which cancel this, are handed on to it; a second one ends it."""
    task, told = asyncio.current_task(), False
    while True:
        try:
            return await process.wait()
        except asyncio.CancelledError:
            if task is not None:
                task.uncancel()
            if told:
                process.end()
            else:
                process.terminate()
            told = True
