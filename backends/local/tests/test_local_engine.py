"""The engine `local` as a user has it: a process that serves, and that never outlives its owner."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import pytest

from lightning_core.capability import Capability
from lightning_core.errors import EngineError, UsageError
from lightning_core.plugins import load
from lightning_core.testing.engine import EngineConformance
from lightning_local.engine import LocalEngine, LocalEngineFactory

MODELS: dict[str, Path] = {}


@pytest.fixture(autouse=True, scope="module")
def _models(folders):
    MODELS.update(folders)


@pytest.mark.slow
class TestLocalEngine(EngineConformance):
    @classmethod
    def make(cls, folder):
        return LocalEngineFactory().create(
            str(MODELS["llama"]), folder=folder, options={"threads": "1", "device": "cpu"}
        )

    @classmethod
    def weights(cls, folder):
        return MODELS["llama"], MODELS["other"]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_gone(pid: int) -> None:
    deadline = time.monotonic() + 60
    while alive(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.05)


OWNER = """
import asyncio, sys
from pathlib import Path
from lightning_local.engine import LocalEngineFactory

async def main():
    engine = LocalEngineFactory().create(sys.argv[1], folder=Path(sys.argv[2]), options={})
    await engine.start()
    print(engine.pid, flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_the_engine_ends_with_its_owner(folders, tmp_path, number):
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folders["llama"]), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # A shell that runs the tests in the background has it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        pid = int(owner.stdout.readline())
        assert alive(pid)
        owner.send_signal(number)
        owner.wait(60)
        wait_gone(pid)
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()


@pytest.mark.slow
async def test_a_start_that_is_cancelled_leaves_nothing(folders, tmp_path):
    engine = LocalEngine(str(folders["llama"]), folder=tmp_path)
    starting = asyncio.create_task(engine.start())
    while engine.pid is None:
        await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    wait_gone(engine.pid)


@pytest.mark.slow
async def test_a_start_that_takes_too_long_is_ended(folders, tmp_path):
    engine = LocalEngineFactory().create(
        str(folders["llama"]), folder=tmp_path, options={"start_timeout": "1"}
    )
    with pytest.raises(EngineError, match="start_timeout"):
        await engine.start()
    wait_gone(engine.pid)


@pytest.mark.slow
async def test_an_engine_that_dies_is_told_with_the_end_of_its_log(folders, tmp_path):
    engine = LocalEngine(str(folders["llama"]), folder=tmp_path)
    (endpoint,) = await engine.start()
    try:
        assert engine.gives == {
            Capability.TOKEN_IDS,
            Capability.LOGPROBS,
            Capability.STREAM_TOKEN_IDS,
            Capability.TOOLS,
            Capability.WEIGHTS_IN_PLACE,
        }
        with pytest.raises(EngineError, match="started already"):
            await engine.start()
        assert (await engine.stats())["model"] == "llama"
        assert endpoint.api_key not in (tmp_path / "engine.log").read_text()
        assert endpoint.api_key.encode() not in Path(f"/proc/{engine.pid}/cmdline").read_bytes()
        assert endpoint.api_key.encode() not in Path(f"/proc/{engine.pid}/environ").read_bytes()
        os.kill(engine.pid, signal.SIGKILL)
        wait_gone(engine.pid)
        with pytest.raises(EngineError, match=r"does not answer(.|\n)*loaded"):
            await engine.load_weights(folders["other"])
    finally:
        await engine.stop()
    with pytest.raises(EngineError, match="not started"):
        await engine.stats()


@pytest.mark.slow
async def test_a_model_that_cannot_be_loaded_is_named(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "no-such-type"}')
    engine = LocalEngineFactory().create(str(tmp_path / "model"), folder=tmp_path, options={})
    with pytest.raises(EngineError, match="no-such-type"):
        await engine.start()
    assert not alive(engine.pid)


@pytest.mark.slow
def test_by_hand_it_says_where_it_serves_and_ends_on_a_signal(folders):
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "lightning_local.serve",
            "--model",
            str(folders["llama"]),
            "--port",
            "0",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        name, _, address = server.stdout.readline().strip().partition(" at ")
        assert name == "llama"

        async def ask():
            body = {"model": name, "prompt": "hi", "max_tokens": 2}
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"{address}/completions", json=body) as response,
            ):
                return response.status

        assert asyncio.run(ask()) == 200
        server.terminate()
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "0.0.0.0"], "LIGHTNING_CORE_ENGINE_KEY"),
        (["--port", "x"], "invalid int"),
    ],
)
def test_by_hand_what_cannot_be_is_refused_at_once(arguments, words):
    done = subprocess.run(
        [sys.executable, "-m", "lightning_local.serve", "--model", "none", *arguments],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "LIGHTNING_CORE_ENGINE_KEY": ""},
    )  # fmt: skip
    assert done.returncode != 0
    assert words in done.stderr


def test_the_factory_accepts_what_it_can_serve(folders, tmp_path):
    factory = LocalEngineFactory()
    (tmp_path / "empty").mkdir()
    accepted = ["smollm2", "org/name", "Qwen/Qwen2.5-0.5B-Instruct", str(folders["llama"])]
    assert [model for model in accepted if not factory.accepts(model)] == []
    refused = [
        "gpt-4o",
        "http://127.0.0.1/v1",
        "name@http://h/v1",
        str(tmp_path / "empty"),
        "/no/such",
        "a/b/c",
        "",
    ]
    assert [model for model in refused if factory.accepts(model)] == []


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        ("gpt-4o", {}, "'gpt-4o'"),
        ("org/name", {"thread": "1"}, "'thread'"),
        ("org/name", {"threads": "0"}, "at least 1"),
        ("org/name", {"max_batch": "many"}, "'many'"),
        ("org/name", {"device": "tpu"}, "'tpu'"),
        ("org/name", {"dtype": "int4"}, "'int4'"),
        ("org/name", {"logprobs": "cooked"}, "'cooked'"),
    ],
)
def test_the_factory_refuses_what_it_cannot(tmp_path, model, options, words):
    with pytest.raises(UsageError, match=words):
        LocalEngineFactory().create(model, folder=tmp_path, options=options)


def test_both_engines_are_found_without_importing_torch():
    code = (
        "import json, sys; from lightning_core.plugins import load; engines = load().engines();"
        "engines['local'].accepts('smollm2');"
        "print(json.dumps([sorted(engines), sorted({'torch', 'transformers'} & set(sys.modules))]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    engines, loaded = json.loads(done.stdout)
    assert {"local", "vllm"} <= set(engines)
    assert loaded == []
    assert {"local", "vllm"} <= set(load().engines())
