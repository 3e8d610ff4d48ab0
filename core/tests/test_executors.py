"""Executors: chosen by name, checked before anything starts, opened around the workers of a run."""

import contextlib
import os
from pathlib import Path
from unittest import mock

import pytest

from lightning_core.children import Child
from lightning_core.cli import main
from lightning_core.errors import PluginError, UsageError, WireError
from lightning_core.executor import Executor, split_executor
from lightning_core.plugins import hookimpl, load
from lightning_core.running import prepare as preparing
from lightning_core.running.evaluate import run
from lightning_core.settings import Settings

AGENTS = """
import os, signal

def echo(question):
    return question

def dying(question):
    try:
        os.close(os.open("died", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return question
    os.kill(os.getpid(), signal.SIGKILL)
"""
TASKS = [{"id": f"t{n}", "input": f"q{n}", "expected": f"q{n}"} for n in range(4)]


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("process", ("process", None)),
        ("ray:auto", ("ray", "auto")),
        ("ray:head:6379", ("ray", "head:6379")),
        ("ray:", ("ray", "")),
    ],
)
def test_an_address_follows_the_name(spec, parts):
    assert split_executor(spec) == parts


class Elsewhere(Executor):
    """Workers in processes, as if they were elsewhere; keeps a journal."""

    name = "elsewhere"

    def __init__(self):
        self.journal = []
        self.orders = []
        self.fails = False

    def check(self, address, config):
        if address == "nowhere":
            raise UsageError("executor `elsewhere`: there is no 'nowhere'")
        self.journal.append(("checked", address, config.workers))

    @contextlib.asynccontextmanager
    async def opened(self, address, *, server, logs):
        if self.fails:
            raise WireError("executor `elsewhere`: is away")
        self.journal.append(("opened", address, server, logs.name))

        def make(order):
            self.orders.append(order)
            return Child(
                order.what,
                "lightning_core.worker",
                order.arguments,
                log=order.log,
                secret=order.token,
            )

        yield make
        self.journal.append(("closed",))


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    executor = Elsewhere()

    class Plugin:
        @hookimpl
        def lightning_register_executors(self):
            return [executor]

    plugins = load(Settings(), entry_points=[])
    plugins._manager.register(Plugin(), name="elsewhere")
    monkeypatch.setattr(preparing, "installed", lambda: plugins)
    (tmp_path / "agents.py").write_text(AGENTS)
    monkeypatch.chdir(tmp_path)
    return executor


@pytest.mark.slow
async def test_a_run_gets_its_workers_from_the_executor_it_asks_for(elsewhere, tmp_path):
    result = await run(
        "agents.py:echo",
        TASKS,
        reward="exact_match",
        executor="elsewhere:far",
        workers=2,
        name="run",
    )
    assert result.mean_reward == 1.0
    assert elsewhere.journal == [
        ("checked", "far", 2), ("opened", "far", None, "logs"), ("closed",),
    ]  # fmt: skip
    assert sorted(order.what for order in elsewhere.orders) == ["worker 0", "worker 1"]
    assert all(order.token not in "".join(order.arguments) for order in elsewhere.orders)
    assert '"executor": "elsewhere:far"' in (tmp_path / "runs/run/run.json").read_text()
    assert (tmp_path / "runs/run/logs/worker-1.log").exists()


@pytest.mark.slow
async def test_a_worker_that_ends_is_ordered_again(elsewhere):
    result = await run("agents.py:dying", TASKS, executor="elsewhere", concurrency=1)
    assert [str(trace.attempt.cause) for trace in result.traces] == ["success"] * 4
    assert len(elsewhere.orders) >= 2
    assert {order.what for order in elsewhere.orders} == {"worker 0"}
    assert elsewhere.journal[-1] == ("closed",)


async def test_an_executor_that_is_away_is_found_out_before_the_rest_starts(elsewhere, tmp_path):
    elsewhere.fails = True
    with pytest.raises(WireError, match="is away"):
        await run("agents.py:echo", TASKS, executor="elsewhere", name="run")
    assert not (tmp_path / "runs/run/logs/server.log").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"executor": "absent"}, "`absent`: not installed; installed are `elsewhere`, `process`"),
        ({"executor": "process:here"}, "`process`: takes no address but got 'here'"),
        ({"executor": "elsewhere:nowhere"}, "`elsewhere`: there is no 'nowhere'"),
        (
            {"executor": "elsewhere", "workers": 0, "server": "http://127.0.0.1:1", "token": "x"},
            "`elsewhere`: the run starts no worker",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value["executor"],
)
async def test_what_cannot_work_is_refused_and_no_folder_made(elsewhere, tmp_path, options, said):
    with pytest.raises(UsageError) as caught:
        await run("agents.py:echo", TASKS, **options)
    assert said in str(caught.value)
    assert not (tmp_path / "runs").exists()


async def test_a_live_object_runs_here_and_nowhere_else(elsewhere):
    with pytest.raises(UsageError, match="a live object runs in this process"):
        await run(lambda question: question, TASKS, executor="elsewhere")
    assert os.listdir() == ["agents.py"]


@pytest.mark.parametrize(
    "command",
    [["run"], ["optimize", "--backend", "local", "--model", "smollm2"]],
    ids=lambda c: c[0],
)
def test_the_commands_that_start_workers_have_the_option(elsewhere, command, capsys):
    options = ["--tasks", "tasks.jsonl", "--reward", "exact_match", "--executor", "process:x"]
    Path("tasks.jsonl").write_text('{"input": "x"}\n')
    with mock.patch("sys.argv", ["lightning-core", *command, "agents.py:echo", *options]):
        assert main() == 1
    assert "executor `process`: takes no address but got 'x'" in capsys.readouterr().err


def test_two_executors_of_one_name_are_an_error():
    class Plugin:
        @hookimpl
        def lightning_register_executors(self):
            return [type("Mine", (Elsewhere,), {"name": "process"})()]

    plugins = load(Settings(), entry_points=[])
    plugins._manager.register(Plugin(), name="mine")
    with pytest.raises(PluginError, match="executor `process` is registered by plugin"):
        plugins.executors()
