"""A server on its own, as a site has one: workers elsewhere, and several runs at once, each with its own policy."""

import json
import re
import signal
import subprocess

import pytest

from lightning_core.testing import ScriptedServer, Text

pytestmark = pytest.mark.slow


def test_server_and_worker_on_their_own(
    cli, folder, serve, scripted_server, write_tasks, processes_with
):
    write_tasks(*({"id": f"t{n}", "input": f"q{n}", "expected": f"q{n}"} for n in range(4)))
    with serve("--model", scripted_server.base_url, MARK="own-server-55") as served:
        served.work("agents.py:streaming")
        url, token = served.url, {"LIGHTNING_CORE_TOKEN": served.admin_token}
        done = cli("run", "agents.py:streaming", "--tasks", "tasks.jsonl", "--reward", "exact_match", "--workers", "0",
                   "--server", url, "--name", "far", **token)  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "4 scored, mean reward 1.000" in done.stdout
        config = json.loads((folder / "runs/far/run.json").read_text())
        assert (config["mode"], config["model"]) == ("val", "scripted")
        hint = re.search(r"lightning-core (show far) ROLLOUT (--server \S+)", done.stdout)
        assert hint, done.stdout
        shown = cli("show", "far", "t2", "--server", url, **token)
        assert "user q2" in shown.stdout, shown.stderr
        assert "4 rollouts" in cli("show", "serve").stdout
    assert processes_with("own-server-55") == []


def test_a_terminal_that_closes_ends_server_and_worker_in_order(serve, processes_with):
    with serve(MARK="closed-terminal-8") as served:
        served.work("agents.py:plain")
        served.wait_for_worker()
        (worker,) = served.workers
        for process in (worker, served.process):
            process.send_signal(signal.SIGHUP)
            assert process.wait(60) == 0
    assert processes_with("closed-terminal-8") == []


def test_ctrl_c_ends_serve_while_a_model_loads(folder, environment):
    package = folder / "slow"
    (package / "lightning_slow-1.0.dist-info").mkdir(parents=True)
    (package / "lightning_slow-1.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: lightning-slow\nVersion: 1.0\n"
    )
    (package / "lightning_slow-1.0.dist-info/entry_points.txt").write_text(
        "[lightning_core]\nslow = lightning_slow\n"
    )
    (package / "lightning_slow.py").write_text(
        "import asyncio\n"
        "from lightning_core import Engine, EngineFactory, hookimpl\n"
        "class Slow(Engine):\n"
        "    name = 'slow'\n"
        "    gives = frozenset()\n"
        "    async def start(self):\n"
        "        print('loading', flush=True)\n"
        "        await asyncio.sleep(3600)\n"
        "    async def stop(self):\n"
        "        print('stopped', flush=True)\n"
        "class Factory(EngineFactory):\n"
        "    name = 'slow'\n"
        "    def accepts(self, model):\n"
        "        return model == 'slow'\n"
        "    def create(self, model, *, folder, options):\n"
        "        return Slow()\n"
        "@hookimpl\n"
        "def lightning_register_engines():\n"
        "    return [Factory()]\n"
    )
    server = subprocess.Popen(
        ["lightning-core", "serve", "--port", "0", "--model", "slow"],
        cwd=folder, env=environment | {"PYTHONPATH": str(package)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert server.stdout.readline() == "loading\n"
    server.send_signal(signal.SIGINT)
    out, said = server.communicate(timeout=30)
    assert (out, server.returncode) == ("stopped\n", 0)
    assert "Traceback" not in said


@pytest.fixture
def models():
    """Two model servers, each of which answers every chat with its own name."""
    with (
        ScriptedServer.in_thread(models=["left"]) as left,
        ScriptedServer.in_thread(models=["right"]) as right,
    ):
        for server in (left, right):
            name = server.models[0]
            server.respond(lambda request, name=name: Text(name) if request.messages else None)
        yield left, right


def asked(server):
    """What the model server was asked in chats."""
    return [request.messages[-1]["content"] for request in server.requests if request.messages]


def started(folder, environment, name, model, served):
    arguments = [
        "run",
        "agents.py:plain",
        "--tasks",
        "tasks.jsonl",
        "--name",
        name,
        "--model",
        model.base_url,
    ]
    return subprocess.Popen(
        ["lightning-core", *arguments, "--server", served.url, "--concurrency", "2"],
        cwd=folder, env=environment | served.elsewhere, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_two_runs_on_one_server_each_have_their_own_model(
    cli, folder, environment, serve, models, scripted_server, write_tasks
):
    write_tasks(*({"id": f"t{n}", "input": f"q{n}"} for n in range(6)))
    with serve("--model", scripted_server.base_url) as served:
        runs = [started(folder, environment, model.models[0], model, served) for model in models]
        for run in runs:
            _, said = run.communicate(timeout=240)
            assert run.returncode == 0, said
        for model in models:
            (name,) = model.models
            shown = cli("show", name, "--json", "--server", served.url, **served.elsewhere)
            found = [json.loads(line) for line in shown.stdout.splitlines()]
            assert [trace["attempt"]["output"] for trace in found] == [name] * 6
            assert sorted(asked(model)) == [f"q{n}" for n in range(6)]
        assert asked(scripted_server) == []
        # The runs are over, and so are their policies: the next run has the site's.
        served.work("agents.py:plain")
        done = cli("run", "agents.py:plain", "--tasks", "tasks.jsonl", "--workers", "0", "--name", "third",
                   **served.elsewhere)  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert len(asked(scripted_server)) == 6


def test_how_replies_are_sampled_is_said_only_with_a_model_of_ones_own(
    cli, serve, scripted_server, write_tasks
):
    write_tasks({"id": "a", "input": "x"})
    with serve() as served:
        arguments = ("run", "agents.py:plain", "--tasks", "tasks.jsonl", "--temperature", "0.5")
        refused = cli(*arguments, **served.elsewhere)
        assert refused.returncode == 2
        assert "has its own sampling rules" in refused.stderr
        assert f"GET {served.url}/api/v1/status" in refused.stderr
        done = cli(*arguments, "--model", scripted_server.base_url, **served.elsewhere)
        assert done.returncode == 0, done.stderr
        (request,) = (r for r in scripted_server.requests if r.messages)
        assert request.json["temperature"] == 0.5


def test_a_run_that_was_stopped_waits_for_its_own_model(
    cli, folder, environment, serve, models, scripted_server, write_tasks
):
    """Its rollouts are on the server still, and no worker may give them to the server's model."""
    write_tasks({"id": "hangs", "input": "hang"}, {"id": "late", "input": "q"})
    left, _ = models
    with serve("--model", scripted_server.base_url) as served:
        arguments = ("run", "agents.py:moody", "--tasks", "tasks.jsonl", "--name", "mine", "--model", left.base_url,
                     "--concurrency", "1", "--timeout", "5")  # fmt: skip
        run = subprocess.Popen(
            ["lightning-core", *arguments], cwd=folder, env=environment | served.elsewhere,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        left.wait_for(2).wait(120)
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=60)
        served.work("agents.py:plain")
        other = cli("run", "agents.py:plain", "--tasks", "tasks.jsonl", "--workers", "0", "--name", "other",
                    **served.elsewhere)  # fmt: skip
        assert other.returncode == 0, other.stderr
        # The stopped run's rollouts went nowhere.
        assert sorted(asked(scripted_server)) == ["hang", "q"]
        done = cli(*arguments, "--resume", **served.elsewhere)
        assert done.returncode == 0, done.stderr
        shown = cli("show", "mine", "--json", "--server", served.url, **served.elsewhere)
        outputs = {
            t["task"]["id"]: t["attempt"].get("output")
            for t in map(json.loads, shown.stdout.splitlines())
        }
        assert outputs["late"] == "left"
