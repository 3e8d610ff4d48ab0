"""The trainer process: heard, and ended whole whatever happens."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from lightning_core.errors import EngineError, LightningError
from lightning_core.optimization import OptimizeConfig
from lightning_core.sampling import SamplingPolicy
from lightning_verl.job import Done, Failed, Job, Progress
from lightning_verl.learning import Learning
from lightning_verl.lines import LinesFile, StepMetrics
from lightning_verl.process import TrainerProcess
from lightning_verl.trainer.__main__ import explain

JOB = Job(
    run="r", url="http://127.0.0.1:1", token="secret", overrides=(), train=SamplingPolicy(),
    val=SamplingPolicy(), timeout=1.0, max_attempts=1, consumed="",
    learning=Learning.of(OptimizeConfig(backend="verl"), max_tokens=1000),
)  # fmt: skip


@pytest.fixture
def trainer(tmp_path):
    """A trainer whose Python runs `code` in place of the module."""

    def make(code):
        path = tmp_path / "python"
        path.write_text(f"#!{sys.executable}\n{textwrap.dedent(code)}")
        path.chmod(0o755)
        return TrainerProcess(
            path, JOB, folder=tmp_path, log=tmp_path / "verl.log", env=dict(os.environ)
        )

    return make


async def test_reports_come_as_they_are_made_and_noise_goes_to_the_log(trainer):
    process = trainer("""
        import json, sys
        job = json.loads(sys.stdin.readline())
        print(json.dumps({"kind": "progress", "text": job["run"] + job["token"]}), flush=True)
        print("a library says something", flush=True)
        print(json.dumps({"kind": "failed", "message": "no"}), flush=True)
        print(json.dumps({"kind": "done"}), flush=True)
    """)
    async with process:
        reports = [report async for report in process.reports()]
    assert reports == [Progress(text="rsecret"), Failed(message="no"), Done()]
    assert "a library says something" in process.log.read_text()
    assert "secret" not in process.log.read_text()


async def test_an_end_without_a_report_is_an_error_with_the_end_of_the_log(trainer):
    process = trainer("""
        import sys
        print("the last words", file=sys.stderr)
        sys.exit(3)
    """)
    async with process:
        with pytest.raises(EngineError, match=r"(?s)status 3.*the last words"):
            _ = [report async for report in process.reports()]


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A child of ours that has ended and was not waited for is none that is left behind.
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"


async def gone(pids):
    while any(alive(pid) for pid in pids):
        await asyncio.sleep(0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_what_it_started_ends_with_it_also_in_groups_of_their_own(trainer):
    process = trainer("""
        import json, os, subprocess, sys, time
        sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
        same = subprocess.Popen(sleep)
        other = subprocess.Popen(sleep, preexec_fn=os.setpgrp)
        pids = f"{os.getpid()} {same.pid} {other.pid}"
        print(json.dumps({"kind": "progress", "text": pids}), flush=True)
        sys.stdin.read()
    """)
    async with process:
        report = await anext(process.reports())
        pids = [int(pid) for pid in report.text.split()]
        assert all(map(alive, pids))
    async with asyncio.timeout(20):
        await gone(pids)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_its_lifeline_ends_with_a_parent_that_is_killed(tmp_path):
    """The real trainer's half of it: a process that holds only the lifeline ends when the parent does."""
    code = textwrap.dedent("""
        import os, signal, sys, time
        from lightning_verl.trainer import __main__ as trainer
        os.setsid()
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        trainer._end_with_parent()
        print(os.getpid(), flush=True)
        time.sleep(600)
    """)
    parent = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {code!r}], stdin=subprocess.PIPE)
time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    try:
        pid = int(await asyncio.to_thread(process.stdout.readline))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    async with asyncio.timeout(20):
        await gone([pid])


def test_the_lines_of_a_file_that_grows_are_read_once_and_whole(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 7, "data": {}}\n{"step": 8, "da')
    metrics = LinesFile(path, StepMetrics)
    assert [line.step for line in metrics.left] == [7]
    assert metrics.read() == []
    with path.open("w") as file:
        file.write('{"step": 1, "data": {"a": 1.5, "b": null}}\n{"step": 2, "da')
        file.flush()
        (first,) = metrics.read()
        assert (first.step, first.data) == (1, {"a": 1.5, "b": None})
        assert metrics.read() == []
        file.write('ta": {}}\n')
        file.flush()
        assert [line.step for line in metrics.read()] == [2]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (RuntimeError("CUDA out of memory. Tried"), "gpu_memory_utilization"),
        (
            RuntimeError("killed due to the node running low on memory … out of memory"),
            "this machine's memory",
        ),
        (LightningError("step 1: nothing"), "step 1: nothing"),
        (ValueError("plain"), "ValueError: plain"),
    ],
)
def test_an_error_is_told_with_the_next_step_where_it_is_known(error, says):
    assert says in explain(error)


def test_what_was_raised_in_rays_process_is_what_is_told():
    remote = RuntimeError("a traceback of many lines")
    remote.cause = KeyError("the cause")
    assert explain(remote) == "KeyError: 'the cause'"
