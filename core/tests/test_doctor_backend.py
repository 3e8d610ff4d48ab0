"""`lightning-core doctor --backend`: a backend's own findings, and commands that can be copied."""

import os
import subprocess
import sys

import pytest

PLUGIN = """
from lightning_core.backend import Backend
from lightning_core.findings import Finding, Verdict
from lightning_core.plugins import hookimpl

COMMAND = 'pip install "wheels[round]>=4" --find-links wheels/' + "w" * 150 + "/simple"


class Examined(Backend):
    name = "examined"

    def examine(self, options):
        yield Finding("wheels", Verdict(options.get("python", "problem")), "[red]3[/red]; expected 4", COMMAND)
        yield Finding("bell", Verdict.GOOD, "rings", "not shown")

    async def optimize(self, run):
        raise NotImplementedError


class Plain(Examined):
    name = "plain"
    examine = Backend.examine


@hookimpl
def lightning_register_backends():
    return [Examined(), Plain()]
"""


@pytest.fixture
def doctor(tmp_path):
    """Run `lightning-core doctor` where a plugin with the backends `examined` and `plain` is installed."""
    (tmp_path / "examined_plugin.py").write_text(PLUGIN)
    metadata = tmp_path / "examined_plugin-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: examined-plugin\nVersion: 1.0\n"
    )
    (metadata / "entry_points.txt").write_text("[lightning_core]\nexamined = examined_plugin\n")

    def run(*arguments, **variables):
        return subprocess.run(
            [sys.executable, "-m", "lightning_core.cli", "doctor", *arguments],
            env={**os.environ, "PYTHONPATH": str(tmp_path), **variables},
            cwd=tmp_path, capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    return run


def test_a_problem_of_the_backend_is_in_the_table_and_in_the_status(doctor):
    done = doctor("--backend", "examined")
    assert done.returncode == 1, done.stderr
    assert "[red]3[/red]; expected 4" in done.stdout
    assert "1 problem\n" in done.stdout
    assert "bell" in done.stdout
    assert "not shown" not in done.stdout


@pytest.mark.parametrize("columns", ["40", "200"])
def test_what_to_do_is_one_line_with_its_brackets_however_narrow_the_terminal(doctor, columns):
    done = doctor("--backend", "examined", COLUMNS=columns)
    line = next(line for line in done.stdout.splitlines() if line.startswith("problem  wheels: "))
    assert line.endswith("/simple")
    assert 'pip install "wheels[round]>=4" --find-links wheels/www' in line


def test_the_python_is_the_backends_option(doctor):
    done = doctor("--backend", "examined", "--python", "note")
    assert done.returncode == 0, done.stdout
    assert "note  wheels: pip install" in done.stdout


def test_without_it_and_for_a_backend_without_findings_the_machine_alone_is_examined(doctor):
    for arguments in ((), ("--backend", "plain")):
        done = doctor(*arguments)
        assert done.returncode == 0, done.stdout
        assert "wheels" not in done.stdout
        assert "0 problems" in done.stdout


def test_what_cannot_be_asked_is_refused(doctor):
    done = doctor("--python", "p")
    assert done.returncode == 1
    assert "`--python`: is a backend's; name it with `--backend`" in done.stderr
    assert "backend `nothing`: not installed" in doctor("--backend", "nothing").stderr
