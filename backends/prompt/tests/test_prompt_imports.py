"""What a command line that only reads options must not pay for."""

import subprocess
import sys

import pytest

HEAVY = {"gepa", "matplotlib", "numpy", "optuna"}


@pytest.mark.parametrize(
    "module", ["", ".budget", ".journal", ".live", ".plot", ".prices", ".reflection", ".scored"]
)
def test_importing_it_imports_no_library_of_a_search(module):
    code = f"import sys, lightning_prompt{module}; print(sorted({HEAVY!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
