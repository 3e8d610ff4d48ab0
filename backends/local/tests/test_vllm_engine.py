"""The engine `vllm` supervises whatever command it is told to run; here a stand-in that answers like `vllm serve`."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import pytest

from lightning_core.capability import Capability
from lightning_core.errors import EngineError, UsageError
from lightning_core.testing.engine import EngineConformance
from lightning_local.vllm import VLLMEngineFactory

SERVER = """#!{python}
import json, os, subprocess, sys, http.server

print("starting with", sys.argv[1:], file=sys.stderr, flush=True)
if "--break" in sys.argv:
    sys.exit("no kernel image is available")
helper = subprocess.Popen(["sleep", "3600"])
if "--stubborn" in sys.argv:
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
healthy_after = 3

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global healthy_after
        healthy_after -= 1
        key_is_right = self.headers.get("authorization") == "Bearer " + os.environ["VLLM_API_KEY"]
        body = json.dumps({{"pids": [os.getpid(), helper.pid], "argv": sys.argv[1:], "key": key_is_right}})
        self.send_response(200 if healthy_after <= 0 and "--never" not in sys.argv else 503)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *args):
        pass

port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


VLLM = shutil.which(os.environ.get("LIGHTNING_CORE_TEST_VLLM", "vllm"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(
    VLLM is None, reason="install vllm, or name its command in `LIGHTNING_CORE_TEST_VLLM`"
)
class TestVLLM(EngineConformance):
    @classmethod
    def make(cls, folder):
        arguments = "--enforce-eager --dtype float32 --max-model-len 1024"
        options = {"executable": VLLM, "args": arguments, "tool_parser": "hermes"}
        return VLLMEngineFactory().create("smollm2", folder=folder, options=options)


@pytest.fixture
def executable(tmp_path):
    path = tmp_path / "fake-vllm"
    path.write_text(SERVER.format(python=sys.executable))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_gone(*pids: int) -> None:
    deadline = time.monotonic() + 60
    while any(map(alive, pids)):
        assert time.monotonic() < deadline, [pid for pid in pids if alive(pid)]
        time.sleep(0.05)


async def ask(endpoint):
    headers = {"authorization": f"Bearer {endpoint.api_key}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(f"{endpoint.base_url}/models") as response,
    ):
        return await response.json(content_type=None)


@pytest.mark.parametrize("stubborn", [False, True])
async def test_it_is_started_with_the_arguments_and_ended_whole(tmp_path, executable, stubborn):
    extra = "--max-model-len 2048" + (" --stubborn" if stubborn else "")
    engine = VLLMEngineFactory().create(
        "org/model",
        folder=tmp_path,
        options={"executable": executable, "args": extra, "tool_parser": "hermes"},
    )
    assert Capability.TOOLS in engine.gives
    assert Capability.WEIGHTS_IN_PLACE not in engine.gives
    (endpoint,) = await engine.start()
    told = await ask(endpoint)
    assert told["key"]
    assert told["argv"][:2] == ["serve", "org/model"]
    assert "--tool-call-parser hermes --max-model-len 2048" in " ".join(told["argv"])
    assert endpoint.api_key not in " ".join(told["argv"])
    assert all(map(alive, told["pids"]))
    await engine.stop()
    await engine.stop()
    wait_gone(engine.pid, *told["pids"])


async def test_one_that_dies_is_told_with_the_end_of_its_log(tmp_path, executable):
    engine = VLLMEngineFactory().create(
        "m", folder=tmp_path, options={"executable": executable, "args": "--break"}
    )
    with pytest.raises(EngineError, match=r"ended with code 1(.|\n)*no kernel image"):
        await engine.start()
    wait_gone(engine.pid)


async def test_one_that_never_is_healthy_is_ended(tmp_path, executable):
    engine = VLLMEngineFactory().create(
        "m", folder=tmp_path,
        options={"executable": executable, "args": "--never", "start_timeout": "1"},
    )  # fmt: skip
    with pytest.raises(EngineError, match=r"start_timeout(.|\n)*starting with"):
        await engine.start()
    wait_gone(engine.pid)


OWNER = """
import asyncio, sys, json, urllib.request
from pathlib import Path
from lightning_local.vllm import VLLMEngineFactory

async def main():
    options = {"executable": sys.argv[1]}
    engine = VLLMEngineFactory().create("m", folder=Path(sys.argv[2]), options=options)
    (endpoint,) = await engine.start()
    with urllib.request.urlopen(endpoint.base_url + "/models") as response:
        print(json.dumps([engine.pid, *json.load(response)["pids"]]), flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


def test_it_ends_with_an_owner_that_is_killed(tmp_path, executable):
    import json

    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, executable, str(tmp_path)], stdout=subprocess.PIPE
    )
    try:
        pids = json.loads(owner.stdout.readline())
        assert all(map(alive, pids))
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait(60)
        wait_gone(*pids)
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()


def test_without_vllm_the_message_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match=r"pip install vllm"):
        VLLMEngineFactory().create("m", folder=tmp_path, options={})


@pytest.mark.parametrize(
    ("options", "words"),
    [({"arg": "x"}, "'arg'"), ({"args": "'"}, "quotation"), ({"start_timeout": "soon"}, "'soon'")],
)
def test_options_that_are_wrong_are_named(tmp_path, executable, options, words):
    with pytest.raises(UsageError, match=words):
        VLLMEngineFactory().create(
            "m", folder=tmp_path, options={"executable": executable, **options}
        )


def test_it_has_to_be_asked_for():
    assert not VLLMEngineFactory().accepts("org/model")
