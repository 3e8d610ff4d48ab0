"""Settings from the environment: every `LIGHTNING_CORE_*` variable that a user may set."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from lightning_core.errors import UsageError

_PREFIX = "LIGHTNING_CORE_"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the environment says. Each field is the variable `LIGHTNING_CORE_` + its name in capitals."""

    plugins: tuple[str, ...] | None = None
    """Comma-separated names of the only plugins to load; None loads all that are installed."""
    trace_plugins: bool = False
    """`1` prints each hook call with its implementations and results to standard error."""
    runs: str = "runs"
    """The folder that holds run folders."""
    server: str | None = None
    """Default of `--server`."""
    token: str | None = None
    """The token that `work` and `run --server` send."""
    track: tuple[str, ...] = ()
    """Comma-separated names of where the numbers of an optimisation go beside `metrics.jsonl`: `tensorboard`, `wandb`,
    `mlflow`."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read the variables.

        Raises:
            UsageError: a variable has a value that it cannot have.
        """
        env = os.environ if environ is None else environ
        plugins = env.get(f"{_PREFIX}PLUGINS")
        trace = env.get(f"{_PREFIX}TRACE_PLUGINS", "0")
        if trace not in ("", "0", "1"):
            raise UsageError(f"`{_PREFIX}TRACE_PLUGINS`: expected 0 or 1 but got {trace!r}")
        return cls(
            plugins=None if plugins is None else _names(plugins),
            trace_plugins=trace == "1",
            runs=env.get(f"{_PREFIX}RUNS") or "runs",
            server=env.get(f"{_PREFIX}SERVER") or None,
            token=env.get(f"{_PREFIX}TOKEN") or None,
            track=_names(env.get(f"{_PREFIX}TRACK", "")),
        )


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
