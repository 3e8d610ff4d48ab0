"""`lightning-core new-plugin`."""

from __future__ import annotations

from pathlib import Path

import click

from lightning_core.cli.terminal import console
from lightning_core.scaffold import KINDS, write


@click.command("new-plugin")
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("name")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="The package's folder. [default: lightning-NAME]",
)
def command(kind: str, name: str, output: Path | None) -> int:
    """Write the package of a plugin that works and passes its conformance class, for you to change.

    \b
    lightning-core new-plugin adapter my-agents
    """
    folder = output or Path(f"lightning-{name}")
    written = write(kind, name, folder)
    out = console()
    for path in written:
        out.print(f"  {folder / path}", style="dim")
    out.print(f"wrote {len(written)} files; next:")
    out.print(f'  cd {folder} && pip install -e ".[test]" && pytest', markup=False)
    out.print("  lightning-core plugins")
    return 0
