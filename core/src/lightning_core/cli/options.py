"""Options that `run` and `optimize` have alike: how attempts are run, and where tasks come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from lightning_core.cli import pairs

_F = TypeVar("_F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--engine", help="The engine that serves --model, where not the obvious one."),
    click.option(
        "--engine-option", "engine_options", multiple=True, callback=pairs, metavar="KEY=VALUE"
    ),
    click.option(
        "--timeout", type=float, default=600.0, show_default=True, help="Seconds for one attempt."
    ),
    click.option("--max-attempts", type=click.IntRange(1), default=2, show_default=True),
    click.option(
        "--max-calls", type=click.IntRange(1), help="Model calls that one attempt may make."
    ),
    click.option(
        "--max-total-tokens", type=click.IntRange(1), help="Tokens that one attempt may use."
    ),
    click.option("--isolate", is_flag=True, help="One process for each attempt."),
    click.option(
        "--workers",
        type=click.IntRange(0),
        default=1,
        show_default=True,
        help="Workers; 0, with --server, leaves the work to workers elsewhere.",
    ),
    click.option(
        "--executor",
        default="process",
        show_default=True,
        metavar="NAME[:ADDRESS]",
        help="Where workers run: process, on this machine; ray, ray:auto, ray:HOST:PORT, on a cluster.",
    ),
    click.option("--name", help="The run's name."),
    click.option(
        "--resume", is_flag=True, help="Go on with the run --name, by default the newest."
    ),
    click.option(
        "--field",
        "fields",
        multiple=True,
        callback=pairs,
        metavar="OURS=THEIRS",
        help="Where a task's part lies in the source: input=question, expected=answer.",
    ),
    click.option("--split", help="Only the tasks of this split, of --tasks."),
    click.option("--limit", type=click.IntRange(1), help="Only the first so many of --tasks."),
    click.option(
        "--server", help="A server that runs elsewhere; its admin token in LIGHTNING_CORE_TOKEN."
    ),
)


def running_options(function: _F) -> _F:
    """Add the options to a command, after those that stand above this."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function
