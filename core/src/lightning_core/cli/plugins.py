"""`lightning-core plugins`."""

from __future__ import annotations

import click
from rich.table import Table

from lightning_core.cli.terminal import console
from lightning_core.frameworks import installed
from lightning_core.plugins import load


@click.command("plugins")
def command() -> int:
    """List the plugins, their hooks and the frameworks that they need."""
    plugins = load()
    out = console()
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("plugin", "package", "version", "framework: required → found", "hooks"):
        table.add_column(column, overflow="fold")
    for info in plugins.found:
        frameworks = "\n".join(f"{line} → {found}" for line, found in map(framework, info.requires))
        hooks = "\n".join(info.hooks) if info.error is None else "[red]broken, see below[/red]"
        table.add_row(info.name, info.distribution, info.version, frameworks or "none", hooks)
    out.print(table)
    if not plugins.found:
        out.print(
            "no plugins are installed; from a checkout: `pip install ./core ./plugins/langgraph`",
            style="dim",
        )
    for kind, names in (
        ("adapters", plugins.adapters()),
        ("engines", plugins.engines()),
        ("backends", plugins.backends()),
        ("rewards", plugins.rewards()),
    ):
        out.print(f"[dim]{kind}:[/dim] {', '.join(names) or 'none'}")
    for info in plugins.broken:
        out.print(f"error: {info.error}", style="red")
    return 1 if plugins.broken else 0


def framework(line: str) -> tuple[str, str]:
    """A requirement, and the installed version that meets it or not."""
    version, fits = installed(line)
    if version is None:
        return line, "not installed"
    return line, version if fits else f"{version} (does not fit)"
