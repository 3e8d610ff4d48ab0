"""Trackers: the numbers of a step come back from what each library wrote; a fault is said once and costs nothing."""

import importlib.util
import json
import logging
import sqlite3
import struct

import pytest

from lightning_core import trackers
from lightning_core.errors import UsageError
from lightning_core.plugins import load
from lightning_core.settings import Settings

METRICS = {
    "reward": 0.5,
    "groups/equal": 2,
    "time": {"update": 1.25, "save": {"disk": 0.5}},
    "note": "text",
    "flag": True,
    "loss": float("nan"),
}
NUMBERS = {"reward": 0.5, "groups/equal": 2.0, "time/update": 1.25, "time/save/disk": 0.5}


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("LIGHTNING_CORE_TRACK", "MLFLOW_TRACKING_URI", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")


def test_only_finite_numbers_are_tracked():
    assert dict(trackers.flattened(METRICS)) == NUMBERS


def test_nothing_is_written_or_imported_unless_it_is_asked_for(tmp_path):
    assert (
        load(Settings(), entry_points=[]).tell_step(folder=tmp_path, step=1, metrics=METRICS) == []
    )
    trackers.close(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_environment_names_the_trackers():
    settings = Settings.from_environ({"LIGHTNING_CORE_TRACK": "tensorboard, mlflow"})
    assert settings.track == ("tensorboard", "mlflow")


def test_an_unknown_tracker_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("LIGHTNING_CORE_TRACK", "tensorbord")
    plugins = load(Settings(), entry_points=[])
    ((plugin, error),) = plugins.tell_step(folder=tmp_path, step=1, metrics=METRICS)
    assert plugin == "lightning_core.builtin"
    assert str(error) == "tracker 'tensorbord': expected some of `tensorboard`, `wandb`, `mlflow`"


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_library_is_named_with_the_extra(name, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=rf'run `pip install "lightning-core\[{name}\]"`'):
        trackers.track(tmp_path, 1, METRICS, [name])


def events(folder):
    """The scalars in TensorBoard's files, by step: length, checksum, event, checksum, as TFRecord has it."""
    from tensorboardX.proto.event_pb2 import Event

    found = {}
    for path in sorted((folder / "tensorboard").iterdir()):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack_from("<Q", data)
            event = Event.FromString(data[12 : 12 + length])
            for value in event.summary.value:
                found.setdefault(event.step, {})[value.tag] = value.simple_value
            data = data[16 + length :]
    return found


@pytest.fixture
def tensorboard():
    pytest.importorskip("tensorboardX", reason="pip install tensorboardX")


@pytest.mark.usefixtures("tensorboard")
def test_tensorboard_has_the_numbers_of_each_step(tmp_path, monkeypatch):
    monkeypatch.setenv("LIGHTNING_CORE_TRACK", "tensorboard")
    plugins = load(Settings(), entry_points=[])
    for step in (1, 2):
        metrics = {**METRICS, "reward": 0.5 * step}
        assert plugins.tell_step(folder=tmp_path, step=step, metrics=metrics) == []
    trackers.close(tmp_path)
    assert events(tmp_path) == {1: NUMBERS, 2: {**NUMBERS, "reward": 1.0}}


@pytest.mark.usefixtures("tensorboard")
def test_a_resumed_run_adds_to_what_is_there(tmp_path):
    trackers.track(tmp_path, 1, {"reward": 0.25}, ["tensorboard"])
    trackers.close(tmp_path)
    trackers.track(tmp_path, 2, {"reward": 0.5}, ["tensorboard"])
    trackers.close(tmp_path)
    assert events(tmp_path) == {1: {"reward": 0.25}, 2: {"reward": 0.5}}


@pytest.mark.usefixtures("tensorboard")
def test_a_tracker_that_fails_is_named_once(tmp_path, caplog):
    (tmp_path / "tensorboard").write_text("a file where a folder should be")
    with caplog.at_level(logging.WARNING, logger="lightning_core.run"):
        trackers.track(tmp_path, 1, METRICS, ["tensorboard"])
        trackers.track(tmp_path, 2, METRICS, ["tensorboard"])
        trackers.close(tmp_path)
    (said,) = caplog.messages
    assert said.startswith("tracker `tensorboard`: NotADirectoryError")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # MLflow's own use of its dependencies
def test_mlflow_has_the_numbers_of_each_step_in_one_run(tmp_path):
    pytest.importorskip("mlflow", reason="pip install mlflow")
    for step in (1, 2):
        trackers.track(tmp_path, step, {"reward": 0.5 * step, "agents/a[0]": 1.0}, ["mlflow"])
        trackers.close(tmp_path)
    with sqlite3.connect(tmp_path / "mlflow/mlflow.db") as connection:
        rows = connection.execute(
            "SELECT key, step, value FROM metrics ORDER BY key, step"
        ).fetchall()
        runs = connection.execute("SELECT run_uuid, status FROM runs").fetchall()
    connection.close()
    assert rows == [
        ("agents/a_0_", 1, 1.0), ("agents/a_0_", 2, 1.0), ("reward", 1, 0.5), ("reward", 2, 1.0),
    ]  # fmt: skip
    assert runs == [(json.loads((tmp_path / "mlflow/run.json").read_bytes())["run"], "FINISHED")]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the library's own use of its dependencies
def test_wandb_has_the_numbers_in_the_runs_folder(tmp_path):
    wandb = pytest.importorskip("wandb", reason="pip install wandb")
    trackers.track(tmp_path, 1, METRICS, ["wandb"])
    trackers.close(tmp_path)
    wandb.teardown()  # ends its service, which writes the last of the file when it does
    (written,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    data = written.read_bytes()
    assert b"time/save/disk" in data
    assert b"1.25" in data
