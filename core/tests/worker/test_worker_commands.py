"""Commands: task by file, output by file or last line, killed whole."""

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from lightning_core.agents import Command
from lightning_core.errors import AgentError
from lightning_core.rollout import Cause, Mode
from lightning_core.worker import Worker

ECHO = """
import json, os
task = json.load(open(os.environ["LIGHTNING_CORE_TASK"]))
print("working on", task["id"])
"""


def python(code):
    return Command((sys.executable, "-c", code))


async def test_the_last_line_is_the_output_and_the_rest_is_kept_as_logs(server, worker):
    await worker(python(ECHO + "print(json.dumps({'got': task['input']}))\nprint()"))
    report = await server.report(await server.put({"question": "ä"}, id="t1"))
    assert report.cause is Cause.SUCCESS
    assert report.output == {"got": {"question": "ä"}}
    assert report.logs == "working on t1"


async def test_a_last_line_that_is_no_json_is_text(server, worker):
    await worker(python("print('first'); print('forty two')"))
    assert (await server.report(await server.put(1))).output == "forty two"


async def test_a_silent_command_succeeds_without_output(server, worker):
    await worker(python("pass"))
    report = await server.report(await server.put(1))
    assert (report.cause, report.output, report.logs) == (Cause.SUCCESS, None, None)


async def test_the_output_file_goes_before_the_last_line(server, worker):
    code = ECHO + "json.dump([1, 2], open(os.environ['LIGHTNING_CORE_OUTPUT'], 'w'))"
    await worker(python(code))
    report = await server.report(await server.put(1, id="t2"))
    assert report.output == [1, 2]
    assert report.logs == "working on t2"


async def test_garbage_in_the_output_file_is_the_agents_error(server, worker):
    await worker(python("import os; open(os.environ['LIGHTNING_CORE_OUTPUT'], 'w').write('{nope')"))
    report = await server.report(await server.put(1))
    assert report.cause is Cause.AGENT_ERROR
    assert "{nope" in report.error
    assert "not JSON" in report.error


@pytest.mark.parametrize("where", ["file", "last line"])
@pytest.mark.parametrize("depth", [110, 200_000])
async def test_json_that_is_nested_too_deep_is_the_agents_error(server, worker, where, depth):
    text = f"'[' * {depth} + ']' * {depth}"
    code = {
        "file": f"import os; open(os.environ['LIGHTNING_CORE_OUTPUT'], 'w').write({text})",
        "last line": f"print({text})",
    }[where]
    await worker(python(code))
    report = await server.report(await server.put(1))
    assert report.cause is Cause.AGENT_ERROR
    assert "deeper than 100" in report.error
    assert len(report.error) < 1000


async def test_garbage_on_the_last_line_stays_readable(server, worker):
    await worker(python(r"import sys; sys.stdout.buffer.write(b'\xff\xfe\x00 bytes\n')"))
    report = await server.report(await server.put(1))
    assert report.cause is Cause.SUCCESS
    assert report.output.endswith("bytes")


async def test_a_status_other_than_0_is_the_agents_error_with_what_it_printed(server, worker):
    code = "import sys; print('out'); print('no such table', file=sys.stderr); sys.exit(3)"
    await worker(python(code))
    report = await server.report(await server.put(1))
    assert report.cause is Cause.AGENT_ERROR
    assert "exited with status 3" in report.error
    assert "no such table" in report.error
    assert "no such table" in report.logs


async def test_a_secret_on_the_command_line_is_in_no_error_and_no_log(server, worker, caplog):
    with caplog.at_level("INFO", "lightning_core"):
        await worker(Command(("sh", "-c", "exit 3", "x", "--api-key", "hunter2")))
        report = await server.report(await server.put(1))
    assert "--api-key" in report.error
    assert "hunter2" not in report.error
    assert "--api-key" in caplog.text
    assert "hunter2" not in caplog.text


async def test_a_signal_is_named(server, worker):
    await worker(python("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"))
    report = await server.report(await server.put(1))
    assert report.cause is Cause.AGENT_ERROR
    assert "SIGSEGV" in report.error


async def test_a_program_that_does_not_exist_is_refused_at_the_start(server, worker):
    made = await worker(Command(("no-such-program-here", "x")))
    with pytest.raises(AgentError, match="no-such-program-here"):
        await made.task


async def test_a_program_that_vanishes_is_the_workers_error(server, worker, tmp_path):
    program = tmp_path / "agent"
    shutil.copy(shutil.which("true"), program)
    await worker(Command((str(program),)))
    program.unlink()
    report = await server.report(await server.put(1))
    assert report.cause is Cause.WORKER_ERROR
    assert str(program) in report.error


async def test_endless_output_is_bounded_and_blocks_nothing(server, worker):
    code = """
import sys
for n in range(3000):
    sys.stdout.write("x" * 1000 + "\\n"); sys.stderr.write("y" * 1000 + "\\n")
print("done")
"""
    await worker(python(code))
    report = await server.report(await server.put(1))
    assert (report.cause, report.output) == (Cause.SUCCESS, "done")
    assert len(report.logs) <= 16 * 1024


async def test_a_long_last_line_is_taken_whole_up_to_the_limit(server, worker):
    code = ECHO + "print(json.dumps('z' * task['input']))"
    await worker(python(code), output_limit=1_000_000)
    assert (await server.report(await server.put(900_000))).output == "z" * 900_000
    report = await server.report(await server.put(1_100_000))
    assert report.cause is Cause.AGENT_ERROR
    assert "1000000" in report.error


async def test_a_task_of_more_than_200_kilobytes_arrives(server, worker):
    await worker(python(ECHO + "print(len(task['input']))"))
    report = await server.report(await server.put("x" * 300_000))
    assert report.output == 300_000


async def test_the_environment_leads_to_the_gateway_and_holds_no_worker_token(
    server, worker, monkeypatch
):
    monkeypatch.setenv("LIGHTNING_CORE_TOKEN", "the worker's own")
    monkeypatch.setenv("OPENAI_API_KEY", "the user's")
    await worker(python("import json, os; print(json.dumps(dict(os.environ)))"))
    for mode, key in ((Mode.TRAIN, "lightning-core"), (Mode.OBSERVE, "the user's")):
        attempt = await server.put(1, mode=mode)
        env = (await server.report(attempt)).output
        session = json.loads(env["LIGHTNING_CORE_SESSION"])
        assert session["attempt"] == attempt
        assert session["gateway"] == server.url
        assert env["OPENAI_API_KEY"] == key
        assert "LIGHTNING_CORE_TOKEN" not in env
        assert not Path(env["LIGHTNING_CORE_TASK"]).parent.exists()


async def test_a_command_that_hangs_ends_at_its_deadline_with_its_logs(server, worker, marker):
    code = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("begun", flush=True)
while True: time.sleep(1)
"""
    await worker(python(code))
    report = await server.report(await server.put(1, timeout=1.0))
    assert report.cause is Cause.TIMEOUT
    assert report.logs == "begun\n"
    assert marker() == []


CHILDREN = """
import os, subprocess, sys
sleep = ["sleep", "3600"]
subprocess.Popen(sleep)
subprocess.Popen(sleep, start_new_session=True)
subprocess.Popen(sleep, env={"PATH": os.environ["PATH"], **marks}, start_new_session=True)
if os.fork() == 0:  # a daemon: session of its own, parent gone
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", sleep)
    os._exit(0)
os.wait()
"""
MARKS = (
    "import os\nmarks = {k: v for k, v in os.environ.items() if k.startswith('LIGHTNING_TEST')}\n"
)


@pytest.mark.parametrize("end", ["exits", "hangs", "ignores"])
async def test_children_that_outlive_a_command_are_ended(server, worker, marker, end):
    code = MARKS + CHILDREN
    if end == "ignores":
        code = code.replace(
            '["sleep", "3600"]', '["sh", "-c", "trap : TERM; while :; do sleep 1; done"]'
        )
        code = code.replace('os.execvp("sleep"', 'os.execvp("sh"')
    if end == "hangs":
        code += "import time; time.sleep(3600)"
    await worker(python(code))
    report = await server.report(await server.put(1, timeout=3.0 if end == "hangs" else 60))
    assert report.cause is (Cause.TIMEOUT if end == "hangs" else Cause.SUCCESS)
    assert marker() == []


@pytest.mark.skipif(sys.platform != "linux", reason="the last resort reads /proc")
async def test_a_command_that_kills_its_supervisor_is_ended_all_the_same(server, worker, marker):
    code = """
import os, signal, subprocess, time
subprocess.Popen(["sleep", "3600"], start_new_session=True)
os.kill(os.getppid(), signal.SIGKILL)
time.sleep(3600)
"""
    await worker(python(code))
    report = await server.report(await server.put(1))
    assert report.cause is Cause.AGENT_ERROR
    while marker():
        await asyncio.sleep(0.05)


async def test_eight_commands_run_at_once(server, worker, tmp_path):
    code = (
        ECHO
        + f"""
import time
from pathlib import Path
Path({str(tmp_path)!r}, str(task["input"])).touch()
while len(list(Path({str(tmp_path)!r}).iterdir())) < 8: time.sleep(0.02)
"""
    )
    await worker(python(code), concurrency=8)
    ids = [await server.put(n) for n in range(8)]
    assert {(await server.report(i)).cause for i in ids} == {Cause.SUCCESS}


async def test_a_node_program_is_an_agent(server, worker, tmp_path):
    if shutil.which("node") is None:
        pytest.skip("`node` is not installed")
    program = tmp_path / "agent.js"
    program.write_text("""
const fs = require("fs");
const task = JSON.parse(fs.readFileSync(process.env.LIGHTNING_CORE_TASK));
console.error("thinking");
fs.writeFileSync(process.env.LIGHTNING_CORE_OUTPUT,
  JSON.stringify({upper: task.input.toUpperCase(), base: process.env.OPENAI_BASE_URL}));
""")
    await worker(Command(("node", str(program))))
    report = await server.report(await server.put("abc"))
    assert report.cause is Cause.SUCCESS
    assert report.output["upper"] == "ABC"
    assert report.output["base"].startswith(server.url)
    assert report.logs == "thinking"


async def test_no_folder_and_no_descriptor_is_left(server, worker, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = await worker(python("print(1)"))
    await server.report(await server.put(1))
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    for _ in range(5):
        await server.report(await server.put(1))
    if before:
        # The report may come a moment before the last pipe is closed.
        async with asyncio.timeout(10):
            while len(os.listdir("/proc/self/fd")) > before:
                await asyncio.sleep(0.01)
    await made.stop()
    assert list(tmp_path.iterdir()) == []


def test_a_command_needs_no_adapter():
    assert Worker(None, Command(("true",))).name.count("-")


async def test_no_token_is_kept_in_logs_or_errors(server, worker):
    code = """
import json, os, sys
print("POST", os.environ["OPENAI_BASE_URL"] + "/chat/completions")
sys.exit(json.loads(os.environ["LIGHTNING_CORE_SESSION"])["session"])
"""
    await worker(python(code))
    report = await server.report(await server.put(1))
    assert report.cause is Cause.AGENT_ERROR
    assert "POST" in report.logs
    for session in server.sessions:
        assert session not in report.logs
        assert session not in report.error
