"""`lightning-core setup`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import sys
import time
from collections import deque
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.status import Status
from rich.text import Text

from lightning_core.children import environ_for_another_python
from lightning_core.cli.doctor import show
from lightning_core.cli.terminal import complete, console
from lightning_core.errors import LightningError, UsageError
from lightning_core.findings import Verdict
from lightning_core.plugins import installed
from lightning_core.recipe import Recipe, Step
from lightning_core.running.prepare import find_backend

_TAIL: Final = 30
"""Lines of what a command said that are shown when it failed."""
_STOP_SECONDS: Final = 10.0


@click.command("setup")
@click.argument("backend")
@click.option(
    "--venv",
    required=True,
    type=click.Path(path_type=Path),
    help="The folder of the environment; made where it is missing.",
)
@click.option(
    "--cuda",
    "variant",
    metavar="VERSION|cpu",
    help="The CUDA version to install for, or cpu. [default: what this machine's driver supports]",
)
@click.option(
    "--python",
    type=click.Path(path_type=Path),
    help="The Python to make it with. [default: the one that runs this]",
)
@click.option("--dry-run", is_flag=True, help="Print the commands, and run none.")
def command(
    backend: str, venv: Path, variant: str | None, python: Path | None, dry_run: bool
) -> int:
    """Make the environment in which the trainer of BACKEND runs, or complete one that was cut off."""
    found = find_backend(backend, installed())
    _refuse_what_is_no_environment(venv)
    recipe = found.recipe(venv, python=python or Path(sys.executable), variant=variant)
    out = console()
    for note in recipe.notes:
        out.print(Text.assemble(("note  ", "yellow"), note))
    if dry_run:
        for step in recipe.steps:
            out.print(Text(shlex.join(step.command)))
        return 0
    complete(_follow(recipe, out))
    findings = list(found.examine({"python": str(recipe.python)}))
    if any(finding.verdict is Verdict.BAD for finding in findings):
        out.print("\nwhat it needs was installed, but it is not ready:\n")
        return show(findings)
    out.print(Text.assemble(("\nready", "green"), f": {recipe.python}"))
    if recipe.next:
        out.print(Text(f"next: {recipe.next}"))
    return 0


def _refuse_what_is_no_environment(venv: Path) -> None:
    if not venv.exists() or (venv / "pyvenv.cfg").is_file():
        return
    if not venv.is_dir() or any(venv.iterdir()):
        raise UsageError(
            f"`--venv` {str(venv)!r}: is there already and is no virtual environment; name another folder, or delete it"
        )


async def _follow(recipe: Recipe, out: Console) -> None:
    for number, step in enumerate(recipe.steps, start=1):
        out.print(Text(f"[{number}/{len(recipe.steps)}] {step.what}", "bold"))
        out.print(Text(f"$ {shlex.join(step.command)}"))
        began = time.monotonic()
        await _run(step, out)
        out.print(Text(f"done in {time.monotonic() - began:.0f} s", "dim"))


async def _run(step: Step, out: Console) -> None:
    try:
        process = await asyncio.create_subprocess_exec(
            *step.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # Ctrl+C reaches this process alone, which ends the whole group.
            env=environ_for_another_python(),
        )
    except OSError as error:
        raise LightningError(f"`{step.command[0]}` cannot be run: {error.strerror}") from error
    last: deque[str] = deque(maxlen=_TAIL)
    try:
        with out.status(Text("…")) as status:
            await _listen(process, last, status)
            code = await process.wait()
    finally:
        await _end(process)
    if code:
        raise LightningError(
            f"setup: {step.what}: ended with status {code}; the last that it said:\n"
            + "\n".join(f"  {line}" for line in last)
            + "\nrun the same command again once that is mended; it goes on from there"
        )


async def _listen(process: asyncio.subprocess.Process, last: deque[str], status: Status) -> None:
    assert process.stdout is not None
    pending = b""
    while part := await process.stdout.read(4096):
        # Progress bars end their lines with a carriage return.
        *lines, pending = (pending + part).replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            text = line.decode(errors="replace").strip()
            if text:
                last.append(text)
                status.update(Text(text[:100]))
    if pending:
        last.append(pending.decode(errors="replace").strip())


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the command and what it started; nothing where it ended by itself."""
    if process.returncode is not None:
        return
    _signal(process, signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_STOP_SECONDS):
            await process.wait()
    # What it started, too, where the command itself went first.
    _signal(process, signal.SIGKILL)
    await process.wait()


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
