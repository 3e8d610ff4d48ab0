"""RunFolder: the layout of `runs/NAME`, which only its owner can enter.

run.json         what the run was asked to do (`RunConfig`)
store.sqlite     tasks, rollouts, attempts, calls, spans, rewards
server.key       signs the tokens; readable by its owner alone
metrics.jsonl    one line for each rollout that ended, or for each step of an optimisation
state.json       what a backend saved, to resume from
checkpoints/     of the policy, where weights are trained: model, optimiser, random numbers
policy/          the weights that the engine has taken last
artifact/        what an optimisation ended in
logs/            server.log, worker-N.log, and the engine's
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from lightning_core.errors import StoreError, UsageError
from lightning_core.optimization import OptimizeConfig
from lightning_core.records import Json
from lightning_core.runs import RunConfig

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class RunFolder:
    """One run's folder. Makes paths; reads and writes the small files."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, runs: Path, name: str | None, *, hint: str) -> RunFolder:
        """Make a new folder.

        Args:
            runs: the folder that holds run folders.
            name: the run's name; by default made from `hint` and the time.
            hint: what the run is about, such as the agent's name.

        Raises:
            UsageError: the name cannot be a folder's, or is taken.
            StoreError: the folder cannot be made.
        """
        if name is None:
            word = re.sub(r"[^A-Za-z0-9]+", "-", hint).strip("-").lower()[:40] or "run"
            name = f"{word}-{time.strftime('%Y%m%d-%H%M%S')}"
            name = next(n for n in _numbered(name) if not (runs / n).exists())
        if not _NAME.fullmatch(name) or name == "last":
            raise UsageError(
                f"run name {name!r}: expected letters, digits, `.`, `_` and `-`, at most 100, the first a letter or digit; and not `last`"
            )
        try:
            runs.mkdir(parents=True, exist_ok=True)
            # For its owner alone: `expected` lies in the store, and with the key any token can be made.
            (runs / name).mkdir(mode=0o700)
        except FileExistsError as error:
            if not (runs / name).exists():
                raise StoreError(
                    f"run folder `{runs / name}`: cannot be made: `{runs}` is no folder;"
                    " choose another place with `LIGHTNING_CORE_RUNS`"
                ) from error
            raise UsageError(
                f"run `{name}` exists in `{runs}`; resume it with `--resume`, or choose another name"
            ) from None
        except OSError as error:
            raise StoreError(
                f"run folder `{runs / name}`: cannot be made: {error.strerror};"
                " choose another place with `LIGHTNING_CORE_RUNS`"
            ) from error
        return cls(runs / name)

    @classmethod
    def open(cls, runs: Path, name: str) -> RunFolder:
        """An existing run, by name, path, or the start of a name that only one run has; `last` is the newest.

        Raises:
            UsageError: there is no such run, or several.
        """
        for path in (Path(name), runs / name):
            # A server's folder has a store and no run of its own.
            if (path / "run.json").is_file() or (path / "store.sqlite").is_file():
                return cls(path)
        found = sorted(
            (p.parent for p in runs.glob("*/run.json")),
            key=lambda p: (p / "run.json").stat().st_mtime,
        )
        if name == "last" and found:
            return cls(found[-1])
        matching = [path for path in found if path.name.startswith(name)]
        if len(matching) == 1:
            return cls(matching[0])
        names = ", ".join(f"`{path.name}`" for path in (matching or found)[-10:]) or "none"
        raise UsageError(
            f"run `{name}`: {'matches several' if matching else 'not found'} in `{runs}`; runs there: {names}"
        )

    @property
    def store(self) -> Path:
        """The store's file."""
        return self.path / "store.sqlite"

    @property
    def logs(self) -> Path:
        """The folder of logs, made where it is missing."""
        (self.path / "logs").mkdir(exist_ok=True)
        return self.path / "logs"

    @property
    def metrics(self) -> Path:
        """The file of metrics."""
        return self.path / "metrics.jsonl"

    def write_config(self, config: RunConfig) -> None:
        """Write `run.json`."""
        _replace(self.path / "run.json", msgspec.json.format(config.to_json()) + b"\n")

    def read_config(self) -> RunConfig:
        """Read `run.json`; raises as `RunConfig.from_json` does."""
        return RunConfig.from_json((self.path / "run.json").read_bytes())

    def asked(self) -> OptimizeConfig | None:
        """What was to be optimised; None for an evaluation, and for a server's folder, which has no run."""
        return self.read_config().optimize if (self.path / "run.json").is_file() else None

    def append_metrics(self, line: Mapping[str, Json]) -> None:
        """Append one line to `metrics.jsonl`."""
        with self.metrics.open("ab+") as file:
            end = file.seek(0, os.SEEK_END)
            if end:
                # A kill may have cut the last line short; the next must not become part of it.
                file.seek(end - 1)
                if file.read(1) != b"\n":
                    file.write(b"\n")
            file.write(msgspec.json.encode(line) + b"\n")

    def lines(self) -> Iterator[dict[str, Any]]:
        """The lines of `metrics.jsonl`, but for one that a kill cut short."""
        try:
            with self.metrics.open("rb") as file:
                for line in file:
                    with contextlib.suppress(msgspec.DecodeError):
                        value = msgspec.json.decode(line)
                        if isinstance(value, dict):
                            yield value
        except FileNotFoundError:
            return

    def told(self) -> frozenset[str]:
        """The rollouts that have their line in `metrics.jsonl`."""
        named = (line.get("rollout") for line in self.lines())
        return frozenset(name for name in named if isinstance(name, str))

    def logged_steps(self) -> set[int]:
        """The steps that have a line in `metrics.jsonl`."""
        named = (line.get("step") for line in self.lines())
        return {number for number in named if isinstance(number, int)}

    def save_state(self, state: Mapping[str, Json]) -> None:
        """Replace `state.json` atomically."""
        _replace(self.path / "state.json", msgspec.json.encode(state))

    def load_state(self) -> dict[str, Any] | None:
        """What `save_state` wrote; None where nothing was."""
        try:
            data = (self.path / "state.json").read_bytes()
        except FileNotFoundError:
            return None
        return msgspec.json.decode(data, type=dict[str, Any])


def _numbered(name: str) -> Any:
    yield name
    for number in range(2, 10_000):
        yield f"{name}-{number}"


def _replace(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old or the new content, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
