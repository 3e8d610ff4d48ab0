"""The example's modules as a user's own run finds them, and tasks made once."""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

FOLDER = Path(__file__).parents[1]
MODULES = ("agent", "convert_dataset", "passages", "scoring", "tasks")


@pytest.fixture(scope="module")
def example():
    """The modules by name, importable for these tests only: other examples have an `agent` too."""
    others = {name: sys.modules.pop(name) for name in MODULES if name in sys.modules}
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(str(FOLDER))
    patch.setenv("OPENAI_API_KEY", "k")
    patch.setenv("OPENAI_MODEL", "scripted")
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    patch.undo()
    for name in MODULES:
        del sys.modules[name]
    sys.modules.update(others)


@pytest.fixture(scope="module")
def made(example, tmp_path_factory):
    """The folder that `write_tasks` fills."""
    folder = tmp_path_factory.mktemp("made")
    example.tasks.write_tasks(folder)
    return folder
