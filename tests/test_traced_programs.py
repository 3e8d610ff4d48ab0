"""`lightning-core trace` as a user walks it: the program keeps its terminal, and never outlives the command."""

import os
import pty
import signal
import subprocess
import time

import pytest

from lightning_core.testing import ScriptedServer

pytestmark = pytest.mark.slow


def test_trace_shows_any_programs_calls_and_passes_its_status_on(cli, folder, scripted_server):
    (folder / "program.py").write_text(
        "import sys, agents\nprint(agents.plain('what is up?'))\nsys.exit(3)\n"
    )
    done = cli(
        "trace",
        "--",
        "python",
        "program.py",
        OPENAI_BASE_URL=scripted_server.base_url,
        OPENAI_API_KEY="k",
    )
    assert done.returncode == 3
    assert done.stdout == "what is up?\n"
    assert "user what is up?" in done.stderr
    assert "ended with status 3" in done.stderr


def test_each_format_goes_where_the_program_s_own_environment_says(cli, scripted_server):
    with ScriptedServer.in_thread() as other:
        done = cli(
            "trace",
            "--",
            "sh", "-c", 'curl -s "$ANTHROPIC_BASE_URL/v1/messages" -H "content-type: application/json" -d "$SAID"',
            OPENAI_BASE_URL=scripted_server.base_url,
            ANTHROPIC_BASE_URL=other.url,
            SAID='{"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}',
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert '"type":"message"' in done.stdout
        assert other.requests
    assert not scripted_server.requests


def test_trace_says_when_it_saw_nothing(cli):
    done = cli("trace", "--", "python", "-c", "print('hi')")
    assert (done.returncode, done.stdout) == (0, "hi\n")
    assert "no model call was seen" in done.stderr


@pytest.fixture
def trace(folder, environment):
    """Start `lightning-core trace -- PROGRAM`, which prints a line once it runs; its process, and that line read."""
    started = []

    def start(*program, **options):
        process = subprocess.Popen(
            ["lightning-core", "trace", "--", *program],
            cwd=folder, env=environment | options, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        assert process.stdout.readline() == "runs\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def until_gone(processes_with, mark):
    deadline = time.monotonic() + 60
    while processes_with(mark):
        assert time.monotonic() < deadline, "it outlived `trace`"
        time.sleep(0.1)


@pytest.mark.parametrize("program", ["sleep 3600", "setsid sleep 3600 & sleep 3600"])
def test_a_program_ends_with_a_trace_that_is_killed(trace, processes_with, program):
    mark = "killed-trace-91"
    process = trace("sh", "-c", f"echo runs; {program}", MARK=mark)
    process.kill()
    until_gone(processes_with, mark)


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGHUP])
def test_a_program_is_told_to_end_and_nothing_is_left(trace, processes_with, kind):
    mark = f"told-trace-{kind}"
    program = "trap 'echo told; exit 7' TERM; sleep 3600 & echo runs; wait"
    process = trace("sh", "-c", program, MARK=mark)
    process.send_signal(kind)
    out, said = process.communicate(timeout=60)
    assert (out, process.returncode) == ("told\n", 7)
    assert "ended with status 7" in said
    assert processes_with(mark) == []


def test_a_signal_that_nohup_has_ignored_stays_ignored(folder, environment):
    code = "import signal; print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)"
    done = subprocess.run(
        ["nohup", "lightning-core", "trace", "--", "python", "-c", code],
        cwd=folder, env=environment | {"LIGHTNING_CORE_RUNS": "runs"}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "True" in done.stdout


def test_what_a_program_leaves_running_on_purpose_runs_on(cli, processes_with):
    done = cli("trace", "--", "sh", "-c", "sleep 3600 >&- 2>&- & echo $!", MARK="left-running-4")
    left = int(done.stdout)
    try:
        assert processes_with("left-running-4") == [left]
    finally:
        os.kill(left, signal.SIGKILL)


@pytest.mark.parametrize(
    ("program", "status", "says"),
    [
        ("no-such-program", 127, "program `no-such-program`: not found"),
        ("./no-such-file", 127, "program `./no-such-file`: not found"),
        ("./not-executable", 126, "program `./not-executable`: cannot be executed"),
        ("./no-interpreter", 126, "program `./no-interpreter`: cannot be started"),
        ("./", 126, "program `./`: cannot be executed"),
    ],
)
def test_a_program_that_cannot_be_run_has_a_shells_status(cli, folder, program, status, says):
    (folder / "not-executable").write_text("#!/bin/sh\n")
    (folder / "no-interpreter").write_text("#!/there/is/none\n")
    (folder / "no-interpreter").chmod(0o755)
    done = cli("trace", "--", program)
    assert done.returncode == status
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_program_that_is_killed_has_a_shells_status(cli):
    assert cli("trace", "--", "sh", "-c", "kill -9 $$").returncode == 137


def test_a_program_reads_standard_input(folder, environment):
    done = subprocess.run(
        ["lightning-core", "trace", "--", "sh", "-c", "read line; echo got $line"],
        cwd=folder, env=environment, input="hello\n", capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stdout == "got hello\n"


def test_a_program_keeps_the_terminal_and_ctrl_c_is_its_own(folder, environment):
    program = (
        "import os, signal, sys\n"
        "assert os.isatty(0) and os.isatty(1) and os.isatty(2)\n"
        "assert os.tcgetpgrp(0) == os.getpgrp(), 'not in the foreground'\n"
        "def caught(number, frame):\n"
        "    print('caught', flush=True)\n"
        "    sys.exit(5)\n"
        "signal.signal(signal.SIGINT, caught)\n"
        "print('ready ' + input(), flush=True)\n"
        "while True:\n"
        "    signal.pause()\n"
    )
    (folder / "program.py").write_text(program)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execvpe(
            "lightning-core", ["lightning-core", "trace", "--", "python", "program.py"], environment
        )
    seen = b""

    def until(text):
        nonlocal seen
        while text not in seen:
            try:
                seen += os.read(terminal, 4096)
            except OSError:  # All that held the terminal have ended.
                break
        assert text in seen, seen

    try:
        os.write(terminal, b"hello\n")
        until(b"ready hello")
        os.write(terminal, b"\x03")
        until(b"caught")
        until(b"ended with status 5")
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 5
    finally:
        os.close(terminal)
