"""The example's modules as a user's own run finds them, and data made once."""

import importlib
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

import lightning_core as lc
from lightning_core.testing.scripted import ScriptedServer

FOLDER = Path(__file__).parents[1]
MODULES = ("agent", "data", "evaluate", "execution_match", "make_data", "shaped_reward")


@pytest.fixture(scope="package")
def example():
    """The modules by name, importable for these tests only: other examples have an `agent` too."""
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(str(FOLDER))
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    patch.undo()
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "").parent == FOLDER:
            del sys.modules[name]


@pytest.fixture(scope="package")
def made(example, tmp_path_factory):
    """The folder that `make_data` fills."""
    folder = tmp_path_factory.mktemp("made")
    example.make_data.make(folder)
    return folder


@pytest.fixture(scope="package")
def library(made):
    """Path of the library's database."""
    return made / "databases" / "library.sqlite"


@pytest.fixture(scope="package")
def run_scripted(example, tmp_path_factory):
    """A function that runs the agent on tasks with a model that says what `reply` makes of a request."""

    def run(tasks, reply, **options):
        with ScriptedServer.in_thread() as server:
            server.respond(
                lambda request: reply(request) if request.messages else None
            )  # the list of models
            return lc.run_sync(
                example.agent.graph, tasks, reward=example.agent.score, model=server.base_url,
                runs=tmp_path_factory.mktemp("runs"), **options,
            )  # fmt: skip

    return run


@pytest.fixture
def database(tmp_path):
    """A function that makes a database of one table `t` from rows."""

    def make(rows, name="t.sqlite", columns=None):
        path = tmp_path / name
        path.unlink(missing_ok=True)
        width = columns or len(rows[0])
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(f"CREATE TABLE t ({', '.join(f'c{i}' for i in range(width))})")
            connection.executemany(f"INSERT INTO t VALUES ({', '.join('?' * width)})", rows)
        return path

    return make
