"""The executor `ray`, with a real Ray: workers as actors, and nothing left of them."""

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

from lightning_core.errors import UsageError
from lightning_core.instrument.context import PLACEHOLDER_KEY
from lightning_core.runs import RunConfig
from lightning_core.testing import ScriptedServer
from lightning_core.trace import Trace
from lightning_verl.addresses import only_here
from lightning_verl.ray_executor import RayExecutor

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="Ray is not installed; `lightning-verl[ray]` has it",
)
whole_run = [pytest.mark.slow, needs_ray, pytest.mark.timeout(600)]

AGENTS = '''
import os, pathlib, signal, time


def asking(question):
    from openai import OpenAI

    meeting(question)
    reply = OpenAI(api_key=os.environ["OPENAI_API_KEY"]).chat.completions.create(
        model="m", messages=[{"role": "user", "content": question}])
    return reply.choices[0].message.content


def once(name):
    """Whether this is the first to ask."""
    try:
        os.close(os.open(name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def parent(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def meeting(question):
    """Ends once two workers have come."""
    pathlib.Path(f"came-{os.getppid()}").touch()
    print("the agent says", question, flush=True)
    while len(list(pathlib.Path().glob("came-*"))) < 2:
        time.sleep(0.05)
    return question


def hanging(question):
    pathlib.Path(f"hangs-{os.getpid()}").touch()
    time.sleep(3600)


def ending(question):
    os._exit(7)


def killing_actor(question):
    if once("killed"):
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(3600)
    return question


def killing_driver(question):
    if once("killed"):
        actor = os.getppid()
        raylet = parent(actor)
        os.kill(parent(raylet), signal.SIGKILL)
        time.sleep(3600)
    return question


def seeing(question):
    return os.environ["GEMINI_API_KEY"]


def here(question):
    return os.environ.get("PLACE", "") + os.getcwd()
'''

CLUSTER = """
import sys
from ray.cluster_utils import Cluster

node = {"num_cpus": 0, "object_store_memory": 80 << 20}
cluster = Cluster(initialize_head=True, head_node_args={"include_dashboard": False, "temp_dir": sys.argv[1], **node})
cluster.add_node(**node, **({"node_ip_address": sys.argv[2]} if len(sys.argv) > 2 else {}))
print(cluster.address, flush=True)
for line in sys.stdin:
    print("alive", flush=True)
cluster.shutdown()
"""


class Project:
    """A user's folder, and the command line in it."""

    def __init__(self, folder, scratch):
        self.folder = folder
        self.scratch = scratch
        self.mark = f"ray-executor-{folder.name}-{os.getpid()}"
        (folder / "agents.py").write_text(AGENTS)
        self.tasks(6)

    def tasks(self, count):
        lines = [
            json.dumps({"id": f"t{n}", "input": f"q{n}", "expected": f"q{n}"}) for n in range(count)
        ]
        (self.folder / "tasks.jsonl").write_text("\n".join(lines))

    @property
    def environment(self):
        kept = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("OPENAI_", "LIGHTNING_CORE_", "RAY_"))
        }
        bin = Path(sys.executable).parent
        return kept | {
            "PATH": f"{bin}{os.pathsep}{kept['PATH']}",
            "TMPDIR": str(self.scratch),
            "MARK": self.mark,
        }

    def start(self, *options, agent="agents.py:meeting", executor="ray", **variables):
        arguments = [
            agent,
            "--tasks",
            "tasks.jsonl",
            "--reward",
            "exact_match",
            "--executor",
            executor,
        ]
        return subprocess.Popen(
            ["lightning-core", "run", *arguments, "--name", "run", *options],
            cwd=self.folder, env=self.environment | variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, *options, **settings):
        with self.start(*options, **settings) as process:
            out, said = process.communicate(timeout=300)
        return subprocess.CompletedProcess([], process.returncode, out, said)

    def traces(self):
        shown = subprocess.run(
            ["lightning-core", "show", "run", "--json"],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        found = [Trace.from_value(json.loads(line)) for line in shown.stdout.splitlines()]
        return {trace.rollout.task_id: trace for trace in found}

    @property
    def logs(self):
        return self.folder / "runs/run/logs"

    def processes(self):
        """The processes that this project has started and that live, and what was started by them."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if f"MARK={self.mark}\0".encode() in path.read_bytes():
                    found.append(int(path.parent.name))
        return found

    def wait_until(self, true, process):
        deadline = time.monotonic() + 200
        while not true():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def left(self):
        """What is left of a run: the command lines of processes, and files."""
        lines = []
        for pid in self.processes():
            with contextlib.suppress(OSError):
                lines.append(Path(f"/proc/{pid}/cmdline").read_bytes())
        return [*lines, *self.scratch.iterdir()]

    def wait_until_nothing_is_left(self):
        """After a crash: what has lost who started it ends by itself."""
        deadline = time.monotonic() + 120
        while left := self.left():
            assert time.monotonic() < deadline, left
            time.sleep(0.2)


@pytest.fixture
def project(tmp_path):
    # Ray's sockets need a short path.
    scratch = Path(tempfile.mkdtemp(prefix="lrt-", dir="/tmp"))
    project = Project(tmp_path, scratch)
    yield project
    for pid in project.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(scratch, ignore_errors=True)


@pytest.fixture
def cluster(tmp_path_factory):
    """Start a Ray of two nodes, as somebody else's; its address, and whether it lives."""
    with contextlib.ExitStack() as stack:

        @contextlib.contextmanager
        def start(*options):
            scratch = Path(tempfile.mkdtemp(prefix="lrc-", dir="/tmp"))
            # Ray writes the address there, and does not make the folder.
            (scratch / "ray").mkdir()
            with (scratch / "errors").open("w") as errors:
                process = subprocess.Popen(
                    [sys.executable, "-c", CLUSTER, scratch, *options],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                    env=os.environ | LOOPBACK | {"RAY_TMPDIR": str(scratch)}, start_new_session=True,
                )  # fmt: skip
            try:
                address = process.stdout.readline().strip()
                assert address, (scratch / "errors").read_text()
                yield address, process, scratch
            finally:
                process.stdin.close()
                process.wait(120)
                process.stdout.close()
                shutil.rmtree(scratch, ignore_errors=True)

        yield lambda *options: stack.enter_context(start(*options))


LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
"""Makes Ray use loopback alone."""


def lives(process):
    process.stdin.write("ping\n")
    process.stdin.flush()
    return process.stdout.readline() == "alive\n"


def listening(pids):
    """The addresses on which processes listen, as `/proc` has them."""
    inodes = set()
    for pid in pids:
        for path in Path(f"/proc/{pid}/fd").glob("*"):
            with contextlib.suppress(OSError):
                name = os.readlink(path)
                if name.startswith("socket:["):
                    inodes.add(name[8:-1])
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return {row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes}


class TestWholeRuns:
    pytestmark = whole_run

    def test_two_workers_share_the_tasks_and_every_rollout_is_graded(self, project):
        with ScriptedServer.in_thread() as server:
            done = project.run(
                "--workers", "2", "--concurrency", "1", "--model", server.base_url,
                agent="agents.py:asking",
            )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "6 scored, mean reward 1.000" in done.stdout
        assert all(len(trace.calls) == 1 for trace in project.traces().values())
        assert len({trace.attempt.worker for trace in project.traces().values()}) == 2
        for number in range(2):
            log = (project.logs / f"worker-{number}.log").read_text()
            assert f"worker {number}: runs on node" in log
            assert "the agent says q" in log
        assert json.loads((project.folder / "runs/run/run.json").read_text())["executor"] == "ray"
        for path in project.folder.rglob("*"):
            assert not path.is_file() or b"lc1." not in path.read_bytes(), path
        assert project.left() == []

    def test_an_agent_is_not_shown_the_provider_s_key(self, project):
        pytest.importorskip("litellm")
        done = project.run(
            "--model", "gemini/gemini-2.0-flash", agent="agents.py:seeing", GEMINI_API_KEY="sk-secret-77"
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert {trace.output for trace in project.traces().values()} == {PLACEHOLDER_KEY}

    def test_ctrl_c_ends_ray_and_the_workers_which_only_this_machine_can_reach(self, project):
        process = project.start("--workers", "2", "--concurrency", "1", agent="agents.py:hanging")
        project.wait_until(lambda: len(list(project.folder.glob("hangs-*"))) == 2, process)
        running = project.processes()
        loopback = {
            "0100007F",
            "0000000000000000FFFF00000100007F",
            "00000000000000000000000001000000",
        }
        assert listening(running)
        assert listening(running) <= loopback
        for pid in running:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                for name in ("environ", "cmdline"):
                    assert b"lc1." not in Path(f"/proc/{pid}/{name}").read_bytes()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
        assert process.returncode == 130, said
        assert "Traceback" not in said
        assert project.left() == []

    def test_a_run_that_is_killed_takes_its_ray_with_it(self, project):
        process = project.start("--workers", "1", agent="agents.py:hanging")
        project.wait_until(lambda: list(project.folder.glob("hangs-*")), process)
        process.kill()
        process.communicate(timeout=60)
        project.wait_until_nothing_is_left()

    def test_an_actor_that_is_killed_costs_its_attempt_and_the_run_goes_on(self, project):
        done = project.run("--workers", "2", "--concurrency", "1", agent="agents.py:killing_actor")
        assert done.returncode == 0, done.stderr
        assert "6 rollouts: 6 success" in done.stdout
        assert "its Ray actor on node" in done.stderr
        assert "Traceback" not in done.stderr
        assert sorted(trace.attempt.number for trace in project.traces().values()) == [1] * 5 + [2]
        project.wait_until_nothing_is_left()

    def test_a_ray_that_dies_is_started_again(self, project):
        done = project.run("--workers", "2", "--concurrency", "1", agent="agents.py:killing_driver")
        assert done.returncode == 0, done.stderr
        assert "6 rollouts: 6 success" in done.stdout
        assert "the process that speaks with Ray ended" in done.stderr
        project.wait_until_nothing_is_left()

    def test_an_agent_that_ends_its_worker_is_found_out(self, project):
        project.tasks(1)
        done = project.run(agent="agents.py:ending")
        assert done.returncode == 1
        (trace,) = project.traces().values()
        assert "the agent ended its process (status 7)" in trace.attempt.error
        assert project.left() == []

    def test_an_agent_that_cannot_be_loaded_is_said_as_such(self, project):
        done = project.run(agent="agents.py:absent")
        assert done.returncode == 1
        assert "absent" in done.stderr
        assert "Traceback" not in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
        assert project.left() == []


class TestJoining:
    pytestmark = whole_run

    def test_workers_are_spread_over_the_nodes_of_a_ray_that_goes_on(self, project, cluster):
        address, process, scratch = cluster()
        done = project.run(
            "--workers", "2", "--concurrency", "1", executor=f"ray:{address}", **LOOPBACK
        )
        assert done.returncode == 0, done.stderr
        assert "6 scored, mean reward 1.000" in done.stdout
        first = [
            (project.logs / f"worker-{n}.log").read_text().partition("\n")[0] for n in range(2)
        ]
        assert len({line.rpartition(" ")[2] for line in first}) == 2, first
        assert project.left() == []
        assert lives(process)
        kept = [path for path in scratch.rglob("*") if path.is_file()]
        assert kept
        for path in kept:
            assert b"lc1." not in path.read_bytes(), path

    def test_code_that_ray_brings_to_the_node_is_used(self, project, cluster, tmp_path):
        """As with `ray job submit --working-dir`."""
        address, process, _ = cluster()
        elsewhere = tmp_path / "shipped"
        elsewhere.mkdir()
        shutil.copy(project.folder / "agents.py", elsewhere)
        job = {"runtime_env": {"working_dir": str(elsewhere)}}
        done = project.run(
            "--limit", "1", agent="agents.py:here", executor=f"ray:{address}",
            RAY_JOB_CONFIG_JSON_ENV_VAR=json.dumps(job), **LOOPBACK,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        (trace,) = project.traces().values()
        assert "working_dir_files" in trace.attempt.output
        assert lives(process)

    def test_ctrl_c_ends_the_wait_for_something_that_is_no_ray(self, project):
        with socket.socket() as mute:
            mute.bind(("127.0.0.1", 0))
            mute.listen()
            address = f"127.0.0.1:{mute.getsockname()[1]}"
            process = project.start(executor=f"ray:{address}", **LOOPBACK)
            log = project.logs / "ray.log"
            project.wait_until(lambda: log.exists() and "Connecting" in log.read_text(), process)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
        assert process.returncode == 130, said
        assert project.left() == []

    def test_nodes_that_could_not_reach_the_server_are_refused(self, project, cluster):
        address, process, _ = cluster("127.0.0.2")
        done = project.run(executor=f"ray:{address}", **LOOPBACK)
        assert done.returncode == 1
        assert "nodes on other machines (127.0.0.2)" in done.stderr
        assert "lightning-core serve --host 127.0.0.1" in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
        assert lives(process)
        assert project.left() == []


@needs_ray
@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:1", "nothing answers at '127.0.0.1:1'"),
        ("", "expected `ray`, `ray:auto` or `ray:HOST:PORT`"),
        ("head", "expected `ray`, `ray:auto` or `ray:HOST:PORT`"),
        ("ray://head:10001", "expected `ray`, `ray:auto` or `ray:HOST:PORT`"),
        ("127.0.0.1:99999", "nothing answers"),
    ],
)
def test_an_address_where_no_ray_can_be_is_refused_before_anything_starts(address, said):
    config = RunConfig(name="run", agent="agents.py:plain", created_at=0.0)
    with pytest.raises(UsageError, match="executor `ray`") as caught:
        RayExecutor().check(address, config)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("server", "here"),
    [
        ("http://127.0.0.1:9999", True),
        ("http://localhost:9999", True),
        ("http://[::1]:9999", True),
        ("http://0.0.0.0:9999", True),
        ("http://192.0.2.7:9999", False),
        ("http://head.example:9999/", False),
    ],
)
def test_which_servers_other_nodes_cannot_reach(server, here):
    assert only_here(server) is here


@needs_ray
@pytest.mark.slow
async def test_a_long_folder_for_temporary_files_keeps_ray_from_nothing(tmp_path, monkeypatch):
    """As a batch system's: Ray's sockets lie beneath, and a socket's path may have 107 characters."""
    long = tmp_path / ("scratch" * 8)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    monkeypatch.setenv("TMPDIR", str(long))
    async with RayExecutor().opened(None, server=None, logs=tmp_path / "logs"):
        pass


def test_without_ray_the_command_that_installs_it_is_said(tmp_path):
    """In a Python that cannot find Ray."""
    code = textwrap.dedent("""
        import importlib.util, sys
        from importlib.machinery import PathFinder

        find = PathFinder.find_spec
        PathFinder.find_spec = lambda name, *rest: None if name == "ray" else find(name, *rest)
        from lightning_core.cli import main
        sys.argv = ["lightning-core", "run", "agents.py:meeting", "--tasks", "tasks.jsonl", "--executor", "ray"]
        sys.exit(main())
    """)
    (tmp_path / "agents.py").write_text(AGENTS)
    (tmp_path / "tasks.jsonl").write_text('{"input": "x"}\n')
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1, done.stderr
    assert 'Ray is not installed; `pip install "lightning-verl[ray]"`' in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()
