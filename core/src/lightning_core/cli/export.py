"""`lightning-core export`."""

from __future__ import annotations

from pathlib import Path

import click

from lightning_core.cli.terminal import console
from lightning_core.errors import UsageError
from lightning_core.folder import RunFolder
from lightning_core.plugins import installed
from lightning_core.running.prepare import find_backend
from lightning_core.settings import Settings


@click.command("export")
@click.option("--run", "name", default="last", show_default=True, help="The run, by name or path.")
@click.option(
    "--format",
    "format_",
    help="policy.pt, peft, hf, …: what the run's backend knows; a wrong one lists them.",
)
@click.option("--output", required=True, type=click.Path(path_type=Path), help="Where to write it.")
def command(name: str, format_: str | None, output: Path) -> None:
    """Write what an optimisation ended in, or has come to so far, in the format that you need."""
    folder = RunFolder.open(Path(Settings.from_environ().runs), name)
    wanted = folder.read_config().optimize
    if wanted is None:
        raise UsageError(
            f"run `{folder.path.name}`: is an evaluation, which ends in nothing to export; give the name of a run"
            " that `lightning-core optimize` made"
        )
    backend = find_backend(wanted.backend, installed())
    format_ = format_ or (backend.formats[0] if backend.formats else "")
    if format_ not in backend.formats:
        known = ", ".join(f"`{each}`" for each in backend.formats) or "none"
        raise UsageError(f"format {format_!r}: backend `{backend.name}` writes {known}")
    written = backend.export(folder.path, format=format_, output=output)
    console().print(f"wrote {written}", markup=False)
