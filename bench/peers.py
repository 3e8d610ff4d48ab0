"""Other gateways, held against ours on the same load in one run: requests per CPU second of all their processes.

Each is installed into an environment of its own under `bench/.peers`, from the package index, at the version that
the claim names, and runs with its default settings; log lines for each request are off everywhere. agentlightning's
gateway has no streams; LiteLLM's are measured beside the claim. Linux only: CPU is read from `/proc`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.gateway import check_recorded, open_sessions
from bench.parent import Child, tree_cpu
from bench.results import Row, in_turns

NAMES = ("peer-agentlightning", "peer-litellm")
ROUNDS = 5
HOME = Path(__file__).parent / ".peers"
"""Where other people's programs are installed."""
_STARTUP_SECONDS = 180.0


@dataclass(frozen=True)
class Peer:
    """Another gateway."""

    requirement: str
    """What pip installs."""
    python: tuple[str, ...]
    """Interpreters that can run it, the best first."""
    start: Callable[[Path, int, str, Path], list[str]]
    """Its command line, from its environment, port, upstream and a scratch folder."""
    ready: str
    """A path that answers once it serves."""
    prepare: Callable[[str, str], str]
    """Tell it of the upstream once it is up; returns the path of chat completions. From its address and the upstream."""
    headers: dict[str, str]
    """Headers that its requests need."""
    environment: dict[str, str]
    """Variables that it is started with."""
    streams: bool
    """Whether it has streams."""
    requests: int
    """Requests in a round; half as many streams."""
    goal: float
    """The least ratio of ours to it."""


def _start_agentlightning(home: Path, port: int, upstream: str, scratch: Path) -> list[str]:
    script = Path(__file__).parent / "agentlightning_server.py"
    return [str(home / "bin" / "python"), str(script), str(port)]


def _prepare_agentlightning(address: str, upstream: str) -> str:
    model = {"model": "bench-model", "endpoint": f"{upstream}/v1", "version": 1}
    _post(f"{address}/api/models", [model])
    _post(f"{address}/api/rollouts", [{"input": "bench", "rollout_id": "bench"}])
    return "/proxy/rollout/bench/attempt/1/mode/val/openai/v1/chat/completions"


def _start_litellm(home: Path, port: int, upstream: str, scratch: Path) -> list[str]:
    config = {
        "model_list": [
            {
                "model_name": "bench-model",
                "litellm_params": {
                    "model": "openai/bench-model",
                    "api_base": f"{upstream}/v1",
                    "api_key": "sk-upstream",
                },
            }
        ],
        "general_settings": {"master_key": _LITELLM_KEY},
    }
    path = scratch / "litellm.yaml"
    path.write_text(json.dumps(config))  # JSON is YAML
    logging: dict[str, Any] = {"version": 1, "disable_existing_loggers": False}
    logging["loggers"] = {"uvicorn.access": {"level": "WARNING"}}
    log_config = scratch / "litellm-logging.json"
    log_config.write_text(json.dumps(logging))
    command = [
        str(home / "bin" / "litellm"),
        "--config",
        str(path),
        "--log_config",
        str(log_config),
    ]
    return [*command, "--host", "127.0.0.1", "--port", str(port)]


_LITELLM_KEY = "sk-bench-master"
_OUR_PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"

PEERS = {
    "peer-agentlightning": Peer(
        requirement="agentlightning==1.0.2",
        python=("python3.12", "python3.13"),
        start=_start_agentlightning,
        ready="/healthz",
        prepare=_prepare_agentlightning,
        headers={},
        environment={},
        streams=False,
        requests=400,
        goal=6.0,
    ),
    "peer-litellm": Peer(
        requirement="litellm[proxy]==1.108.7",
        python=(_OUR_PYTHON, "python3.12", "python3.13", "python3.11"),
        start=_start_litellm,
        ready="/health/liveliness",
        prepare=lambda address, upstream: "/v1/chat/completions",
        headers={"authorization": f"Bearer {_LITELLM_KEY}"},
        environment={"LITELLM_LOCAL_MODEL_COST_MAP": "True"},  # nothing is fetched at its start
        streams=True,
        requests=60,
        goal=50.0,
    ),
}


@dataclass(frozen=True)
class Case:
    """A load."""

    name: str
    """Behind the peer's name in a row's."""
    connections: int
    """How many at once."""
    stream: bool
    """Whether streams are asked for."""
    ours: int
    """Requests of ours in a round."""


CASES = (
    Case("c1", 1, False, 1500),
    Case("c32", 32, False, 2000),
    Case("stream-c32", 32, True, 500),
)


def rows(names: Sequence[str] = NAMES) -> Iterator[Row]:
    """Run the benches in `names`. The row with a peer's bare name is that of the concurrency, of 1 and 32, at which
    ours stands worse; it alone has a goal.

    Raises:
        RuntimeError: a peer cannot be installed or started, or a request failed.
    """
    homes = {
        name: environment(name.removeprefix("peer-"), [PEERS[name].requirement], PEERS[name].python)
        for name in names
    }
    with (
        tempfile.TemporaryDirectory(prefix="lightning-bench-") as scratch,
        # agentlightning asks for token ids and the others do not; all shall get the same reply.
        Child("upstream", "--no-ids") as upstream,
        Child("load") as load,
    ):
        address = f"http://127.0.0.1:{upstream.port}"
        folder = Path(scratch) / "ours"
        sent = 0
        with Child("ours", "--folder", str(folder)) as ours, contextlib.ExitStack() as stack:
            path = f"{open_sessions(ours, address)['observe']}/chat/completions"

            def through_ours(case: Case) -> float:
                nonlocal sent
                sent += case.ours
                job = {"connections": case.connections, "stream": case.stream}
                before = ours.cpu()
                load.order("load", port=ours.port, path=path, requests=case.ours, **job)
                return case.ours / (ours.cpu() - before)

            peers = {
                name: stack.enter_context(_running(home, PEERS[name], address, Path(scratch)))
                for name, home in homes.items()
            }
            for case in CASES:
                through_ours(case)  # warm
            for name, peer in peers.items():
                yield from _compare(name, peer, load, through_ours)
        check_recorded(folder, sent)


def _compare(
    name: str, peer: _Running, load: Child, through_ours: Callable[[Case], float]
) -> Iterator[Row]:
    plain: list[Row] = []
    for case in CASES:
        if case.stream and not peer.peer.streams:
            continue
        peer.requests_per_cpu_second(load, case)  # warm
        ours, theirs = [], []
        for _ in range(ROUNDS):
            theirs.append(peer.requests_per_cpu_second(load, case))
            ours.append(through_ours(case))
        row = in_turns(f"{name}-{case.name}", ours, theirs)
        if not case.stream:
            plain.append(row)
        yield row
    worse = min(plain, key=lambda each: float(each["ratio"]))
    goal = PEERS[name].goal
    yield {**worse, "name": name, "goal": goal, "holds": worse["ratio"] >= goal}


@dataclass(frozen=True)
class _Running:
    """A peer that serves."""

    peer: Peer
    pid: int
    port: int
    path: str

    def requests_per_cpu_second(self, load: Child, case: Case) -> float:
        """One round."""
        requests = self.peer.requests if not case.stream else self.peer.requests // 2
        job: dict[str, Any] = {"requests": requests, "timeout": 180.0}
        job |= {"connections": case.connections, "stream": case.stream}
        before = self._cpu_at_rest()
        load.order("load", port=self.port, path=self.path, headers=self.peer.headers, **job)
        return requests / (self._cpu_at_rest() - before)

    def _cpu_at_rest(self) -> float:
        """The time used, once what was put off until after the replies is done."""
        before = tree_cpu(self.pid)
        for _ in range(50):
            time.sleep(0.2)
            after = tree_cpu(self.pid)
            if after - before < 0.02:
                return after
            before = after
        raise RuntimeError(f"`{self.peer.requirement}` never came to rest")


@contextlib.contextmanager
def _running(home: Path, peer: Peer, upstream: str, scratch: Path) -> Iterator[_Running]:
    """Start a peer and end it with all its children: it has a process group of its own."""
    port = _free_port()
    address = f"http://127.0.0.1:{port}"
    kept = ("PATH", "HOME", "LANG", "TMPDIR")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment |= peer.environment
    log = scratch / f"{home.name}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            peer.start(home, port, upstream, scratch),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=scratch,
            env=environment,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + _STARTUP_SECONDS
        while not _answers(f"{address}{peer.ready}"):
            if process.poll() is not None or time.monotonic() > deadline:
                tail = log.read_bytes()[-3000:].decode(errors="replace")
                raise RuntimeError(f"`{peer.requirement}` did not start; its last words:\n{tail}")
            time.sleep(0.2)
        yield _Running(peer, process.pid, port, peer.prepare(address, upstream))
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)


def environment(name: str, requirements: Sequence[str], python: Sequence[str]) -> Path:
    """An environment of its own, made on first use.

    Args:
        name: its folder's under `HOME`.
        requirements: what pip installs, at versions that are named.
        python: interpreters that can run it, the best first.

    Raises:
        RuntimeError: none of them is here.
    """
    home = HOME / name
    marker = home / ".installed"
    wanted = "\n".join(requirements)
    if marker.exists() and marker.read_text() == wanted:
        return home
    found = _find_python(requirements[0], python)
    shutil.rmtree(home, ignore_errors=True)
    print(f"installing {' '.join(requirements)} into {home}", file=sys.stderr)
    subprocess.run([found, "-m", "venv", str(home)], check=True)
    pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", *requirements]
    subprocess.run(pip, check=True)
    marker.write_text(wanted)
    return home


def _find_python(requirement: str, python: Sequence[str]) -> str:
    for name in python:
        found = [shutil.which(name), *map(str, _pyenv(name))]
        for command in filter(None, found):
            # A version manager's shim may exist for an interpreter that is not switched on.
            done = subprocess.run([command, "-c", "import venv"], capture_output=True, check=False)
            if done.returncode == 0:
                return command
    raise RuntimeError(
        f"`{requirement}` needs {' or '.join(python)}, and none is here: put one on the PATH,"
        " with `pyenv install 3.12`, `uv python install 3.12` or the system's packages"
    )


def _pyenv(name: str) -> list[Path]:
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    version = name.removeprefix("python")
    return sorted(root.glob(f"versions/{version}.*/bin/{name}"), reverse=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        assert isinstance(port, int)
        return port


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _post(address: str, body: Any) -> None:
    request = urllib.request.Request(
        address, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as reply:
        reply.read()
