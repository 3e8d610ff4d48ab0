"""Trackers: the numbers of each step in TensorBoard, Weights & Biases or MLflow, by their own libraries.

None is imported unless `LIGHTNING_CORE_TRACK` names it. They write in a thread of their own, one step after another,
so that a slow one holds up no rollout; what goes wrong there is logged once for each tracker.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import logging
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from lightning_core.errors import UsageError
from lightning_core.records import Json
from lightning_core.redaction import without_userinfo
from lightning_core.settings import Settings

log = logging.getLogger("lightning_core.run")


class Tracker(Protocol):
    """Where one run's numbers go."""

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write the numbers of a step."""

    def close(self) -> None:
        """Say that no more will come."""


class TensorBoard:
    """Event files in `tensorboard/`."""

    def __init__(self, folder: Path) -> None:
        library = importlib.import_module("tensorboardX")
        # By itself a file is named by the second: a run that is resumed at once would overwrite its own.
        self._writer: Any = library.SummaryWriter(
            str(folder / "tensorboard"), filename_suffix=f".{time.time_ns()}"
        )

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """See `Tracker.log`; the numbers are on the disk when it returns."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """See `Tracker.close`."""
        self._writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases in `wandb/`: offline, for `wandb sync`, unless `WANDB_API_KEY` or `WANDB_MODE` is set.

    A run that is resumed goes on under the same id. `WANDB_PROJECT` and its other variables hold.
    """

    def __init__(self, folder: Path) -> None:
        library: Any = importlib.import_module("wandb")
        mode = os.environ.get("WANDB_MODE") or (
            "online" if os.environ.get("WANDB_API_KEY") else "offline"
        )
        self._run: Any = library.init(
            project=os.environ.get("WANDB_PROJECT") or "lightning-core",
            name=folder.name,
            id=hashlib.sha256(str(folder).encode()).hexdigest()[:16],
            resume="allow" if mode == "online" else None,
            dir=str(folder),
            mode=mode,
            settings=library.Settings(silent=True, console="off", disable_git=True),
        )

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """See `Tracker.log`."""
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        """See `Tracker.close`."""
        self._run.finish()


class MLflow:
    """A run of MLflow: at `MLFLOW_TRACKING_URI`, else in an SQLite file in `mlflow/`.

    A run that is resumed goes on under the same id. `MLFLOW_EXPERIMENT_NAME` holds.
    """

    _NAME: Final = re.compile(r"[^A-Za-z0-9_\-. :/]")

    def __init__(self, folder: Path) -> None:
        library: Any = importlib.import_module("mlflow.tracking")
        self._entities: Any = importlib.import_module("mlflow.entities")
        place = folder / "mlflow"
        place.mkdir(exist_ok=True)
        own = f"sqlite:///{place / 'mlflow.db'}"
        uri = os.environ.get("MLFLOW_TRACKING_URI") or own
        self._client: Any = library.MlflowClient(tracking_uri=uri)
        self._id = self._open(folder, place / "run.json", None if uri == own else uri)

    def _open(self, folder: Path, note: Path, uri: str | None) -> str:
        """The id of the run that the folder names, where it is of the same server; else of a new one."""
        server = None if uri is None else without_userinfo(uri)
        if note.exists():
            saved = msgspec.json.decode(note.read_bytes(), type=dict[str, str | None])
            if saved.get("server") == server and saved.get("run"):
                self._client.update_run(saved["run"], status="RUNNING")
                return str(saved["run"])
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "lightning-core"
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            artifacts = (note.parent / "artifacts").as_uri() if uri is None else None
            id_ = self._client.create_experiment(name, artifact_location=artifacts)
        else:
            id_ = experiment.experiment_id
        run = str(self._client.create_run(id_, run_name=folder.name).info.run_id)
        note.write_bytes(msgspec.json.encode({"run": run, "server": server}))
        return run

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """See `Tracker.log`."""
        now = int(time.time() * 1000)
        metrics = [
            self._entities.Metric(self._NAME.sub("_", name), value, now, step)
            for name, value in numbers.items()
        ]
        # MLflow takes 1000 metrics at once.
        for start in range(0, len(metrics), 1000):
            self._client.log_batch(self._id, metrics=metrics[start : start + 1000])

    def close(self) -> None:
        """See `Tracker.close`."""
        self._client.set_terminated(self._id)


_TRACKERS: Final[Mapping[str, tuple[Callable[[Path], Tracker], str]]] = {
    "tensorboard": (TensorBoard, "tensorboardX"),
    "wandb": (WeightsAndBiases, "wandb"),
    "mlflow": (MLflow, "mlflow"),
}
"""Trackers by name, and the library that each needs."""


def check(names: Sequence[str]) -> None:
    """See that trackers can be used; imports none of their libraries.

    Raises:
        UsageError: there is no such tracker, or its library is not installed.
    """
    for name in names:
        if name not in _TRACKERS:
            known = ", ".join(f"`{known}`" for known in _TRACKERS)
            raise UsageError(f"tracker {name!r}: expected some of {known}")
        library = _TRACKERS[name][1]
        if importlib.util.find_spec(library) is None:
            raise UsageError(
                f"tracker `{name}`: needs `{library}`, which is not installed; run"
                f' `pip install "lightning-core[{name}]"`'
            )


def track(
    folder: Path, step: int, metrics: Mapping[str, Json], names: Sequence[str] | None = None
) -> None:
    """Have the numbers of a step written, and return at once.

    Args:
        folder: the run's folder; files go there.
        step: the step's number.
        metrics: numbers by name; a mapping within gives names such as `time/update`. What is no number is left out.
        names: the trackers; by default those that `LIGHTNING_CORE_TRACK` names.

    Raises:
        UsageError: as `check` does.
    """
    names = Settings.from_environ().track if names is None else names
    if not names:
        return
    check(names)
    numbers = dict(flattened(metrics))
    for name in names:
        _thread().submit(_write, name, folder.resolve(), step, numbers)


def close(folder: Path) -> None:
    """Wait until all that was given for a run's folder is written, and close its trackers there."""
    closed: Future[None] = _thread().submit(_close, folder.resolve())
    closed.result()


def flattened(metrics: Mapping[str, Json], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The finite numbers of metrics, by name; those of a mapping within by `NAME/INNER`."""
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{name}/")
        elif (
            isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        ):
            yield f"{prefix}{name}", float(value)


# What follows runs in the trackers' thread only, but for `_thread`.

_open: Final[dict[tuple[Path, str], Tracker]] = {}
_blamed: Final[set[tuple[Path, str]]] = set()


@lru_cache(maxsize=1)
def _thread() -> ThreadPoolExecutor:
    # An executor's thread is joined when the process ends, before the libraries' own exit handlers run.
    return ThreadPoolExecutor(1, thread_name_prefix="trackers")


def _write(name: str, folder: Path, step: int, numbers: Mapping[str, float]) -> None:
    with _Blame(name, folder):
        tracker = _open.get((folder, name))
        if tracker is None:
            tracker = _open[folder, name] = _TRACKERS[name][0](folder)
        tracker.log(step, numbers)


def _close(folder: Path) -> None:
    for of, name in [key for key in _open if key[0] == folder]:
        with _Blame(name, folder):
            _open.pop((of, name)).close()


class _Blame:
    """Logs what a tracker raises, once for each run; the run goes on."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name, self._folder = name, folder

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if not isinstance(error, Exception):
            return False
        if (self._folder, self._name) not in _blamed:
            _blamed.add((self._folder, self._name))
            log.warning(
                "tracker `%s`: %s: %s (not said again)", self._name, type(error).__name__, error
            )
            log.debug("the tracker's traceback", exc_info=error)
        return True
