"""`lightning-core setup`: the commands of a backend's recipe, shown, run, and gone on with."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PLUGIN = """
import sys
from pathlib import Path

from lightning_core.backend import Backend
from lightning_core.findings import Finding, Verdict
from lightning_core.plugins import hookimpl
from lightning_core.recipe import Recipe, Step

HERE = Path(__file__).parent


class Setting(Backend):
    name = "setting"

    def recipe(self, venv, *, python, variant):
        steps = tuple(
            Step(path.stem, (str(python), str(path), str(venv))) for path in sorted(HERE.glob("step_*.py"))
        )
        return Recipe(
            python=venv / "bin/python", variant=variant or "cpu", notes=(f"for {variant or 'cpu'}",), steps=steps,
            next="train",
        )

    def examine(self, options):
        there = (HERE / "whole").exists()
        yield Finding("python there", Verdict.GOOD, options["python"])
        yield Finding("wheels", Verdict.GOOD if there else Verdict.BAD, "4" if there else "none", "fit them")

    async def optimize(self, run):
        raise NotImplementedError


class Plain(Setting):
    name = "plain"
    recipe = Backend.recipe


@hookimpl
def lightning_register_backends():
    return [Setting(), Plain()]
"""
WAIT = 60.0


@pytest.fixture
def folder(tmp_path):
    """A folder with an installed plugin, whose backend `setting` has the files `step_*.py` in it as its recipe."""
    (tmp_path / "setting_plugin.py").write_text(PLUGIN)
    metadata = tmp_path / "setting_plugin-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: setting-plugin\nVersion: 1.0\n"
    )
    (metadata / "entry_points.txt").write_text("[lightning_core]\nsetting = setting_plugin\n")
    (tmp_path / "whole").write_text("")
    return tmp_path


@pytest.fixture
def step(folder):
    """Write a step of the recipe."""

    def write(number, code):
        (folder / f"step_{number}.py").write_text(
            "import os, sys, time\nfrom pathlib import Path\n" + code
        )

    return write


def command(folder, *arguments):
    line = [sys.executable, "-m", "lightning_core.cli", "setup", *arguments]
    return line, {**os.environ, "PYTHONPATH": str(folder), "LIGHTNING_CORE_TOKEN": "secret"}


@pytest.fixture
def setup(folder):
    """Run `lightning-core setup`."""

    def run(*arguments):
        line, env = command(folder, *arguments)
        return subprocess.run(
            line, env=env, cwd=folder, capture_output=True, text=True, timeout=WAIT
        )

    return run


def appears(path: Path):
    end = time.monotonic() + WAIT
    while not path.exists():
        assert time.monotonic() < end, f"{path} was not written"
        time.sleep(0.02)
    return path


def gone(pid):
    end = time.monotonic() + WAIT
    while time.monotonic() < end:
        try:
            # Whoever adopted it may not have fetched its status yet; it then runs no longer all the same.
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def test_each_command_is_shown_and_run_in_order(setup, step, folder):
    step(1, "Path('trail').write_text('one ' + sys.argv[1])\n")
    step(2, "Path('trail').open('a').write(' two')\n")
    done = setup("setting", "--venv", "a place")
    assert done.returncode == 0, done.stderr
    assert (folder / "trail").read_text() == "one a place two"
    assert f"$ {sys.executable} {folder}/step_1.py 'a place'" in done.stdout
    assert "[2/2] step_2" in done.stdout
    assert "ready: a place/bin/python" in done.stdout
    assert "next: train" in done.stdout


def test_a_dry_run_prints_commands_that_a_shell_takes_and_runs_none(setup, step, folder):
    step(1, "Path(sys.argv[1]).mkdir()\n")
    done = setup("setting", "--venv", "a place", "--cuda", "13.0", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert not (folder / "a place").exists()
    note, line = done.stdout.splitlines()
    assert note == "note  for 13.0"
    subprocess.run(line, shell=True, check=True, cwd=folder, timeout=WAIT)
    assert (folder / "a place").is_dir()


def test_a_failure_shows_the_end_of_what_was_said_and_the_next_call_goes_on(setup, step, folder):
    step(
        1, "for n in range(200): print('line', n)\nsys.exit(0 if Path('mended').exists() else 7)\n"
    )
    step(2, "Path('reached').write_text('')\n")
    failed = setup("setting", "--venv", "v")
    assert failed.returncode == 1
    assert "step_1: ended with status 7" in failed.stderr
    assert "line 199\n" in failed.stderr
    assert "line 100\n" not in failed.stderr
    assert "goes on from there" in failed.stderr
    assert not (folder / "reached").exists()
    (folder / "mended").write_text("")
    assert setup("setting", "--venv", "v").returncode == 0
    assert (folder / "reached").exists()


def test_what_is_not_ready_after_all_is_a_failure(setup, step, folder):
    step(1, "")
    (folder / "whole").unlink()
    done = setup("setting", "--venv", "v")
    assert done.returncode == 1
    assert "it is not ready" in done.stdout
    assert "problem  wheels: fit them" in done.stdout
    assert "ready: " not in done.stdout


def test_a_command_gets_neither_our_secrets_nor_our_packages(setup, step, folder):
    step(1, "Path('env').write_text(repr(sorted(os.environ)))\n")
    assert setup("setting", "--venv", "v").returncode == 0
    given = (folder / "env").read_text()
    assert "PATH" in given
    assert "PYTHONPATH" not in given
    assert "LIGHTNING_CORE_TOKEN" not in given


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_a_folder_that_is_no_environment_is_left_alone(setup, step, folder, dry):
    step(1, "Path('ran').write_text('')\n")
    (folder / "work").mkdir()
    (folder / "work" / "thesis.txt").write_text("")
    done = setup("setting", "--venv", "work", *dry)
    assert done.returncode == 1
    assert "'work': is there already and is no virtual environment" in done.stderr
    assert not (folder / "ran").exists()
    (folder / "work" / "thesis.txt").rename(folder / "work" / "pyvenv.cfg")
    assert setup("setting", "--venv", "work", *dry).returncode == 0


def test_a_program_that_is_missing_is_named(setup, folder, step):
    step(1, "")
    done = setup("setting", "--venv", "v", "--python", "no-such-python")
    assert done.returncode == 1
    assert "`no-such-python` cannot be run: No such file" in done.stderr


def test_a_backend_that_needs_no_environment_says_so(setup):
    done = setup("plain", "--venv", "v")
    assert done.returncode == 1
    assert "backend `plain`: needs no environment of its own" in done.stderr
    assert (
        "backend `nothing`: not installed; installed are" in setup("nothing", "--venv", "v").stderr
    )


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_end_in_the_middle_ends_all_that_was_started(folder, step, number, status):
    step(
        1,
        "import subprocess\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal, time;"
        " signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)'],"
        " stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "Path('pids.new').write_text(f'{os.getpid()} {child.pid}')\n"
        "Path('pids.new').rename('pids')\n"
        "time.sleep(600)\n",
    )
    line, env = command(folder, "setting", "--venv", "v")
    with subprocess.Popen(
        line, env=env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        pids = [int(pid) for pid in appears(folder / "pids").read_text().split()]
        running.send_signal(number)
        running.communicate(timeout=WAIT)
    assert running.returncode == status
    assert all(gone(pid) for pid in pids)
