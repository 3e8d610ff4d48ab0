"""An example's modules as a user's own run finds them, and the tasks that it makes."""

import importlib
import sys
from types import SimpleNamespace

import pytest


@pytest.fixture(scope="module")
def example(request):
    """The modules by name, importable for these tests only: other examples have an `agent` too."""
    folder = request.path.parents[1]
    names = [path.stem for path in folder.glob("*.py")]
    others = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(str(folder))
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    patch.undo()
    for name in names:
        del sys.modules[name]
    sys.modules.update(others)


@pytest.fixture(scope="module")
def made(example, tmp_path_factory):
    """The folder that the example's `write_tasks` fills."""
    folder = tmp_path_factory.mktemp("made")
    example.tasks.write_tasks(folder)
    return folder
