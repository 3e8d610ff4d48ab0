"""The run folder: its names, its small files."""

import os

import pytest

from lightning_core.errors import StoreError, UsageError
from lightning_core.folder import RunFolder
from lightning_core.runs import RunConfig
from lightning_core.settings import Settings


def made(runs, name, at):
    folder = RunFolder.create(runs, name, hint="")
    folder.write_config(RunConfig(name=name, agent="a", created_at=at))
    os.utime(folder.path / "run.json", (at, at))
    return folder


def test_a_name_is_made_from_the_agent_and_never_taken_twice(tmp_path):
    names = {
        RunFolder.create(tmp_path, None, hint="My agent.py:graph!").path.name for _ in range(3)
    }
    assert len(names) == 3
    assert all(name.startswith("my-agent-py-graph-") for name in names)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "../x", "-x", "a b", "é", "x" * 101, "last"]
)
def test_what_cannot_be_a_folder_name_is_refused(tmp_path, name):
    with pytest.raises(UsageError, match="run name"):
        RunFolder.create(tmp_path, name, hint="")
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_taken_is_refused(tmp_path):
    made(tmp_path, "one", 1)
    with pytest.raises(UsageError, match="`--resume`"):
        RunFolder.create(tmp_path, "one", hint="")


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="LIGHTNING_CORE_RUNS"):
        RunFolder.create(tmp_path / "file", "one", hint="")


def test_runs_are_found_by_name_start_path_and_age(tmp_path):
    first, second = made(tmp_path, "alpha", 1), made(tmp_path, "beta", 2)
    for name, expected in (
        ("alpha", first),
        ("al", first),
        ("last", second),
        (str(second.path), second),
    ):
        assert RunFolder.open(tmp_path, name).path == expected.path
    made(tmp_path, "alps", 3)
    with pytest.raises(UsageError, match=r"matches several.*`alpha`, `alps`"):
        RunFolder.open(tmp_path, "al")
    with pytest.raises(UsageError, match=r"not found.*`alpha`, `beta`, `alps`"):
        RunFolder.open(tmp_path, "gamma")


def test_the_small_files_come_back(tmp_path):
    folder = made(tmp_path, "one", 1)
    assert folder.read_config().name == "one"
    assert folder.load_state() is None
    for step in (1, 2):
        folder.save_state({"step": step})
        folder.append_metrics({"step": step, "reward": 0.5})
    assert folder.load_state() == {"step": 2}
    assert folder.metrics.read_text() == '{"step":1,"reward":0.5}\n{"step":2,"reward":0.5}\n'
    assert not list(folder.path.glob(".*")), "no temporary file is left"


def test_settings_come_from_the_environment():
    assert Settings.from_environ({}) == Settings()
    settings = Settings.from_environ(
        {
            "LIGHTNING_CORE_PLUGINS": "a, b,",
            "LIGHTNING_CORE_TRACE_PLUGINS": "1",
            "LIGHTNING_CORE_RUNS": "/r",
        }
    )
    assert (settings.plugins, settings.trace_plugins, settings.runs) == (("a", "b"), True, "/r")
    assert Settings.from_environ({"LIGHTNING_CORE_PLUGINS": ""}).plugins == ()
    with pytest.raises(UsageError, match="expected 0 or 1 but got 'yes'"):
        Settings.from_environ({"LIGHTNING_CORE_TRACE_PLUGINS": "yes"})
