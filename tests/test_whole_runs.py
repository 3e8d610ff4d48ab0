"""The whole path as a user walks it: command line and Python, server, worker, gateway, grader."""

import json
import os
import signal
import subprocess
import time

import pytest

import lightning_core as lc
from lightning_core.errors import UsageError
from lightning_core.rollout import Cause
from lightning_core.testing import Delay, Error, Text
from lightning_core.worker.callable import CallableAdapter

pytestmark = pytest.mark.slow


def traces(cli, run="last"):
    done = cli("show", run, "--json")
    assert done.returncode == 0, done.stderr
    return {
        t["rollout"]["task_id"]: lc.Trace.from_value(t)
        for t in map(json.loads, done.stdout.splitlines())
    }


def test_a_run_records_every_call_and_scores_every_rollout(cli, folder, write_tasks, run):
    write_tasks(
        {"id": "a", "input": "hello", "expected": "hello"},
        {"id": "b", "input": "hello", "expected": "bye"},
    )
    done = run("agents.py:streaming", "--reward", "agents.py:score")
    assert done.returncode == 0, done.stderr
    assert "2 rollouts: 2 success; 2 scored, mean reward 0.500" in done.stdout
    got = traces(cli)
    assert {task: trace.reward for task, trace in got.items()} == {"a": 1.0, "b": 0.0}
    (call,) = got["a"].calls
    assert (call.text, call.stream, call.complete, call.mode) == ("hello", True, True, "val")
    lines = [
        json.loads(line)
        for line in next(folder.glob("runs/*/metrics.jsonl")).read_text().splitlines()
    ]
    assert sorted(line["task"] for line in lines) == ["a", "b"]


def test_without_a_model_calls_go_where_they_went_with_the_agents_own_key(
    cli, folder, scripted_server, write_tasks
):
    write_tasks({"id": "a", "input": "hello"})
    done = cli("run", "agents.py:plain", "--tasks", "tasks.jsonl",
               OPENAI_BASE_URL=scripted_server.base_url, OPENAI_API_KEY="sk-users-own")  # fmt: skip
    assert done.returncode == 0, done.stderr
    (request,) = scripted_server.requests
    assert request.headers["authorization"] == "Bearer sk-users-own"
    assert not [name for name in request.headers if name.lower().startswith("x-lightning")]
    assert len(traces(cli)["a"].calls) == 1
    for path in folder.glob("runs/**/*"):
        if path.is_file():
            assert b"sk-users-own" not in path.read_bytes(), path


def test_no_token_is_written_to_any_log_or_record(cli, folder, scripted_server, write_tasks, run):
    write_tasks({"id": "a", "input": "hello"})
    run("agents.py:plain")
    cli(
        "trace",
        "--model",
        scripted_server.base_url,
        "--",
        "python",
        "-c",
        "import agents; agents.plain('x')",
    )
    files = [path for path in folder.glob("runs/**/*") if path.is_file()]
    assert len(files) >= 6
    for path in files:
        assert b"lc1." not in path.read_bytes(), path


def test_each_failure_is_put_down_to_its_cause_and_the_others_go_on(cli, folder, write_tasks, run):
    write_tasks(
        {"id": "good", "input": "hello", "expected": "hello"},
        {"id": "raises", "input": "raise"},
        {"id": "hangs", "input": "hang"},
        {"id": "garbage", "input": "garbage"},
        {"id": "bad-grader", "input": "x", "metadata": {"grader": "raise"}},
        {"id": "nan-grader", "input": "x", "metadata": {"grader": "nan"}},
    )
    done = run("agents.py:moody", "--reward", "agents.py:score", "--timeout", "5")
    assert done.returncode == 0, done.stderr
    got = traces(cli)
    causes = {task: str(trace.attempt.cause) for task, trace in got.items()}
    assert causes == {
        "good": "success", "raises": "agent_error", "hangs": "timeout", "garbage": "agent_error",
        "bad-grader": "success", "nan-grader": "success",
    }  # fmt: skip
    assert [task for task, trace in got.items() if trace.reward is not None] == ["good"]
    statuses = {task: str(trace.rewards[0].status) for task, trace in got.items()}
    assert set(statuses.values()) == {"scored", "unscored"}
    assert "the agent broke" in got["raises"].attempt.error
    assert "the grader broke" in got["bad-grader"].rewards[0].details["error"]
    assert all(len(trace.calls) == 1 for trace in got.values())


def test_an_agent_that_exits_takes_no_sibling_with_it_when_isolated(cli, write_tasks, run):
    write_tasks({"id": "good", "input": "hello"}, {"id": "exits", "input": "exit"})
    done = run("agents.py:moody", "--isolate")
    assert done.returncode == 0, done.stderr
    causes = {task: str(trace.attempt.cause) for task, trace in traces(cli).items()}
    assert causes == {"good": "success", "exits": "agent_error"}


def test_an_agent_that_ends_its_worker_is_found_out_and_the_others_succeed(cli, write_tasks, run):
    good = {f"good{n}": {"id": f"good{n}", "input": f"q{n}"} for n in range(8)}
    tasks = list(good.values())
    write_tasks(*tasks[:3], {"id": "exits", "input": "exit"}, *tasks[3:])
    done = run("agents.py:moody")
    assert done.returncode == 0, done.stderr
    got = traces(cli)
    causes = {task: str(trace.attempt.cause) for task, trace in got.items()}
    assert causes == {**dict.fromkeys(good, "success"), "exits": "agent_error"}
    assert got["exits"].attempt.number == 2
    assert "the agent ended its process (status 7)" in got["exits"].attempt.error
    first = cli("show", "last", "exits", "--attempt", "1").stdout
    assert "attempt 1  lost" in first
    assert "ended with status 7" in first
    assert "worker 0: ended with status 7" in done.stderr
    assert "`--isolate`" in done.stderr
    assert "Traceback" not in done.stderr


def test_with_two_workers_too_an_exit_takes_no_other_rollout_with_it(cli, write_tasks, run):
    tasks = [{"id": f"good{n}", "input": f"q{n}"} for n in range(6)]
    write_tasks(*tasks[:3], {"id": "exits", "input": "exit"}, *tasks[3:])
    done = run("agents.py:moody", "--workers", "2")
    assert done.returncode == 0, done.stderr
    causes = {task: str(trace.attempt.cause) for task, trace in traces(cli).items()}
    assert causes.pop("exits") == "agent_error"
    assert causes == dict.fromkeys((task["id"] for task in tasks), "success")


def test_sync_agents_that_hang_use_up_a_worker_and_the_next_one_goes_on(
    cli, folder, write_tasks, run
):
    (folder / "agents.py").write_text(
        (folder / "agents.py").read_text()
        + "\ndef sync(question):\n    if question == 'hang':\n        time.sleep(3600)\n    return ask(question)\n"
    )
    write_tasks({"id": "hangs", "input": "hang"}, {"id": "good", "input": "hello"})
    done = run("agents.py:sync", "--concurrency", "1", "--timeout", "8")
    assert done.returncode == 0, done.stderr
    causes = {task: str(trace.attempt.cause) for task, trace in traces(cli).items()}
    assert causes == {"hangs": "timeout", "good": "success"}
    assert "`--isolate`" in done.stderr


def test_a_failed_model_call_is_a_model_error_and_is_tried_again(
    cli, scripted_server, write_tasks, run
):
    write_tasks({"id": "a", "input": "hello"})
    scripted_server.enqueue(Error(500, {"error": {"message": "overloaded"}}), Text("better"))
    done = run("agents.py:plain")
    assert done.returncode == 0, done.stderr
    trace = traces(cli)["a"]
    assert (trace.attempt.number, trace.output) == (2, "better")
    first = cli("show", "last", "a", "--attempt", "1")
    assert "model_error" in first.stdout
    assert "overloaded" in first.stdout


def test_a_command_in_another_language_is_an_agent(cli, folder, scripted_server, write_tasks):
    (folder / "agent.sh").write_text(
        "question=$(python3 -c \"import json,os;print(json.load(open(os.environ['LIGHTNING_CORE_TASK']))['input'])\")\n"
        'curl -s "$OPENAI_BASE_URL/chat/completions" -H "content-type: application/json" '
        '-H "authorization: Bearer $OPENAI_API_KEY" '
        '-d "{\\"model\\": \\"m\\", \\"messages\\": [{\\"role\\": \\"user\\", \\"content\\": \\"$question\\"}]}" '
        "> reply-$$.json && python3 -c \"import json,sys;print(json.load(open(sys.argv[1]))['choices'][0]['message']['content'])\" reply-$$.json\n"
    )
    write_tasks({"id": "a", "input": "hello", "expected": "hello"})
    done = cli("run", "--tasks", "tasks.jsonl", "--reward", "exact_match", "--model", scripted_server.base_url,
               "--", "bash", "agent.sh")  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    trace = traces(cli)["a"]
    assert (trace.output, trace.reward, len(trace.calls)) == ("hello", 1.0, 1)


def test_a_run_that_was_killed_is_resumed_and_repeats_nothing(
    cli, folder, environment, scripted_server, write_tasks, processes_with
):
    write_tasks(*({"id": f"t{n}", "input": f"q{n}", "expected": f"q{n}"} for n in range(6)))
    scripted_server.respond(
        lambda request: (
            Delay(0.3, Text(request.messages[-1]["content"])) if request.messages else None
        )
    )
    command = ["lightning-core", "run", "agents.py:plain", "--tasks", "tasks.jsonl", "--reward", "exact_match",
               "--model", scripted_server.base_url, "--concurrency", "1", "--name", "mine"]  # fmt: skip
    process = subprocess.Popen(command, cwd=folder, env=environment | {"MARK": "resumed-run-7f3a"})
    scripted_server.wait_for(4).wait(120)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while processes_with("resumed-run-7f3a"):
        assert time.monotonic() < deadline, "children outlived the run"
        time.sleep(0.1)
    done = cli(*command[1:], "--resume")
    assert done.returncode == 0, done.stderr
    assert "6 rollouts: 6 success; 6 scored, mean reward 1.000" in done.stdout
    # What was under way when the run was killed may have been asked twice; what had ended was not.
    assert 6 <= sum(bool(request.messages) for request in scripted_server.requests) <= 8


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_leaves_no_process_behind(
    folder, environment, scripted_server, kind, write_tasks, processes_with
):
    write_tasks({"id": "a", "input": "hang"})
    mark = f"interrupted-run-{kind}"
    process = subprocess.Popen(
        ["lightning-core", "run", "agents.py:moody", "--tasks", "tasks.jsonl", "--model", scripted_server.base_url],
        cwd=folder, env=environment | {"MARK": mark}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # A shell that runs the tests in the background has it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    scripted_server.wait_for(1).wait(120)
    process.send_signal(kind)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + kind
    assert "Traceback" not in said
    assert processes_with(mark) == []


def test_a_failed_start_leaves_no_process_behind(cli, write_tasks, processes_with):
    write_tasks({"id": "a", "input": "x"})
    done = cli(
        "run",
        "agents.py:plain",
        "--tasks",
        "tasks.jsonl",
        "--model",
        "http://127.0.0.1:9/v1",
        MARK="failed-start-1c",
    )
    assert done.returncode == 1
    assert "http://127.0.0.1:9/v1/models cannot be reached" in done.stderr
    done = cli("run", "agents.py:absent", "--tasks", "tasks.jsonl", MARK="failed-start-1c")
    assert done.returncode == 1
    assert "`agents.py` has no `absent`" in done.stderr
    assert processes_with("failed-start-1c") == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--tasks", "absent.jsonl"), "absent.jsonl"),
        (
            ("--tasks", "tasks.jsonl", "--reward", "agents.py:nothing"),
            "`agents.py` has no `nothing`",
        ),
        (("--tasks", "tasks.jsonl", "--reward", "nothing"), "known are `contains`"),
        (("--tasks", "tasks.jsonl", "--model", "no such model"), "no engine accepts it"),
        (("--tasks", "tasks.jsonl", "--name", "../out"), "run name '../out'"),
        (("--tasks", "tasks.jsonl", "--field", "input=absent"), "absent"),
        (("--tasks", "tasks.jsonl", "--resume"), "run `last`: not found"),
        (("--tasks", "tasks.jsonl", "--name", "last"), "run name 'last'"),
        (("--tasks", "tasks.jsonl", "--workers", "0"), "add `--server`"),
        (("--tasks", "tasks.jsonl", "--timeout", "nan"), "timeout"),
        (
            ("--tasks", "tasks.jsonl", "--model", "m@http://me:hunter2@127.0.0.1/v1"),
            "m@http://***@127",
        ),
        (
            (
                "--tasks",
                "tasks.jsonl",
                "--model",
                "http://127.0.0.1:9/v1",
                "--engine-option",
                "x=1",
            ),
            "`x`",
        ),
        (("--tasks", "tasks.jsonl", "--server", "http://127.0.0.1:9"), "token is needed"),
    ],
)
def test_bad_arguments_are_one_clear_error_and_nothing_is_started(
    cli, folder, arguments, says, write_tasks
):
    write_tasks({"id": "a", "input": "x"})
    done = cli("run", "agents.py:plain", *arguments)
    assert done.returncode == 1
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert "hunter2" not in done.stderr
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("agent", "says"),
    [
        (("absent.py:agent",), "there is no file `absent.py`"),
        (("absent_module:agent",), "there is no module `absent_module`"),
        (("agents.py",), "expected `path.py:NAME`"),
        (("--", "no-such-program"), "there is no program 'no-such-program'"),
    ],
)
def test_an_agent_that_is_not_there_is_one_clear_error_and_nothing_is_started(
    cli, folder, agent, says, write_tasks
):
    write_tasks({"id": "a", "input": "x"})
    done = cli("run", "--tasks", "tasks.jsonl", *agent)
    assert done.returncode == 1
    assert says in done.stderr
    assert not (folder / "runs").exists()


def test_a_run_keeps_no_secret_of_its_command_line_and_is_its_owners_alone(
    cli, folder, scripted_server, write_tasks
):
    write_tasks({"id": "a", "input": "x"})
    done = cli("run", "--tasks", "tasks.jsonl", "--name", "quiet", "--model", scripted_server.base_url, "--",
               "bash", "-c", "echo hi", "agent", "--api-key", "hunter2", "--password=hunter2")  # fmt: skip
    assert done.returncode == 0, done.stderr
    text = (folder / "runs/quiet/run.json").read_text()
    assert "hunter2" not in text
    assert "--api-key" in text
    assert (folder / "runs/quiet").stat().st_mode & 0o777 == 0o700
    cli("trace", "--name", "watched", "--", "bash", "-c", "true", "x", "--token", "hunter2")
    for path in folder.glob("runs/**/*"):
        if path.is_file():
            assert b"hunter2" not in path.read_bytes(), path


def test_a_run_is_resumed_only_with_what_it_was_started_with(
    cli, folder, scripted_server, write_tasks
):
    write_tasks({"id": "a", "input": "x", "expected": "x"})
    started = ("--name", "mine", "--model", scripted_server.base_url, "--reward", "exact_match")
    assert cli("run", "agents.py:plain", "--tasks", "tasks.jsonl", *started).returncode == 0
    kept = json.loads((folder / "runs/mine/run.json").read_text())
    assert (kept["workers"], kept["concurrency"], kept["isolate"], kept["limit"]) == (
        1,
        8,
        False,
        None,
    )
    assert len(kept["owner"]) == 32
    for agent, options, says in (
        ("agents.py:streaming", started, "has agent `agents.py:plain` and not `agents.py:streaming`"),
        ("agents.py:plain", (*started[:4], "--reward", "contains"), "has reward `exact_match` and not `contains`"),
        ("agents.py:plain", (*started[:2], *started[4:]), "and not none"),
    ):  # fmt: skip
        done = cli("run", agent, "--tasks", "tasks.jsonl", *options, "--resume")
        assert done.returncode == 1
        assert says in done.stderr
    write_tasks({"id": "a", "input": "x", "expected": "y"})
    done = cli("run", "agents.py:plain", "--tasks", "tasks.jsonl", *started, "--resume")
    assert done.returncode == 1
    assert "the tasks' ids or contents differ" in done.stderr
    assert json.loads((folder / "runs/mine/run.json").read_text()) == kept


def test_a_name_that_is_taken_is_refused(run, write_tasks):
    write_tasks({"id": "a", "input": "x"})
    arguments = ("agents.py:plain", "--name", "one")
    assert run(*arguments).returncode == 0
    again = run(*arguments)
    assert again.returncode == 1
    assert "`--resume`" in again.stderr


def test_a_plugin_that_fails_to_import_is_named_and_the_run_goes_on(
    cli, folder, scripted_server, write_tasks
):
    package = folder / "broken"
    (package / "lightning_broken-1.2.dist-info").mkdir(parents=True)
    (package / "lightning_broken-1.2.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: lightning-broken\nVersion: 1.2\n"
    )
    (package / "lightning_broken-1.2.dist-info/entry_points.txt").write_text(
        "[lightning_core]\nbroken = lightning_broken\n"
    )
    (package / "lightning_broken.py").write_text("import a_framework_that_is_not_there\n")
    listed = cli("plugins", PYTHONPATH=str(package))
    assert listed.returncode == 1
    assert "plugin `broken` of `lightning-broken` 1.2 could not be loaded" in listed.stdout
    write_tasks({"id": "a", "input": "x"})
    done = cli(
        "run",
        "agents.py:plain",
        "--tasks",
        "tasks.jsonl",
        "--model",
        scripted_server.base_url,
        PYTHONPATH=str(package),
    )
    assert done.returncode == 0, done.stderr


async def test_from_python_a_live_agent_runs_in_this_process(
    tmp_path, scripted_server, monkeypatch
):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    here = os.getpid()

    async def agent(question):
        from openai import AsyncOpenAI

        async with AsyncOpenAI() as client:
            reply = await client.chat.completions.create(
                model="any", messages=[{"role": "user", "content": question}], temperature=0.9
            )
        return {"pid": os.getpid(), "text": reply.choices[0].message.content}

    result = await lc.run(
        agent,
        [{"id": str(n), "input": f"q{n}", "expected": f"q{n}"} for n in range(8)],
        reward=lambda task, trace: {"reward": trace.output["text"] == task.expected, "length": 2.0},
        model=scripted_server.base_url,
        runs=tmp_path,
    )
    assert result.mean_reward == 1.0
    assert result.causes == {Cause.SUCCESS: 8}
    assert [trace.task.id for trace in result.traces] == [str(n) for n in range(8)]
    assert {trace.output["pid"] for trace in result.traces} == {here}
    assert all(trace.calls[0].overrides["temperature"] == 0.0 for trace in result.traces)
    assert {reward.name for reward in result.traces[0].rewards} == {"reward", "length"}
    assert "OPENAI_API_KEY" not in os.environ


async def test_tasks_may_be_any_iterable_and_a_live_object_may_bring_its_adapter(tmp_path, run):
    class Shouting(CallableAdapter):
        async def run(self, agent, task, context):
            return (await super().run(agent, task, context)).upper()

    result = await lc.run(
        lambda question: question,
        ({"input": word} for word in ("one", "two")),
        adapter=Shouting(),
        runs=tmp_path,
    )
    assert [trace.output for trace in result.traces] == ["ONE", "TWO"]
    with pytest.raises(UsageError, match="live object"):
        await lc.run("agents.py:plain", [{"input": "x"}], adapter=Shouting(), runs=tmp_path)


@pytest.mark.parametrize(
    ("number", "value"),
    [
        (number, value)
        for number in ("concurrency", "repeats", "max_attempts", "workers", "timeout")
        for value in (-1, 1.5, float("nan"), float("inf"), True)
        if (number, value) != ("timeout", 1.5)
    ],
)
async def test_numbers_that_cannot_be_are_refused_before_anything_is_made(tmp_path, number, value):
    runs = tmp_path / "runs"
    with pytest.raises(UsageError, match=number):
        await lc.run(lambda question: question, [{"input": "x"}], runs=runs, **{number: value})
    assert not runs.exists()


async def test_run_sync_refuses_a_running_loop():
    with pytest.raises(UsageError, match=r"await lightning_core\.run"):
        lc.run_sync(lambda question: question, [{"input": "x"}])


def test_a_resumed_run_tells_of_each_rollout_once(run, folder, write_tasks):
    write_tasks({"id": "a", "input": "x"}, {"id": "b", "input": "y"})
    arguments = ("agents.py:plain", "--name", "one")
    assert run(*arguments).returncode == 0
    assert run(*arguments, "--resume").returncode == 0
    lines = (folder / "runs/one/metrics.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["task"] for line in lines) == ["a", "b"]


def test_a_reward_that_always_fails_is_said_and_is_no_success(write_tasks, run):
    write_tasks({"id": "a", "input": "x", "metadata": {"grader": "raise"}})
    done = run("agents.py:plain", "--reward", "agents.py:score")
    assert done.returncode == 1
    assert "the reward function failed on 1 rollout; first:" in done.stdout
    assert "the grader broke" in done.stdout


def test_no_agent_or_model_commands_the_terminal(cli, scripted_server, write_tasks):
    write_tasks({"id": "a", "input": "\x1b[2J\x1b]0;pwned\x07\u009bred"})
    for arguments in (
        ("run", "agents.py:plain", "--tasks", "tasks.jsonl", "--model", scripted_server.base_url),
        ("show", "last", "a", "--full"),
        ("show", "last"),
    ):
        done = cli(*arguments)
        assert done.returncode == 0, done.stderr
        assert not set(done.stdout) & {"\x1b", "\x07", "\u009b"}
        assert "␛[2J" in done.stdout


def test_show_lists_and_finds(cli, write_tasks, run):
    write_tasks({"id": "alpha", "input": "x"}, {"id": "beta", "input": "y"})
    run("agents.py:plain", "--name", "shown")
    assert "alpha:0" in cli("show", "sho").stdout
    assert "user y" in cli("show", "last", "beta").stdout
    missing = cli("show", "shown", "gamma")
    assert missing.returncode == 1
    assert "it has `alpha:0`, `beta:0`" in missing.stderr
    assert "run `nothing`: not found" in cli("show", "nothing").stderr


def test_doctor_finds_nothing_wrong_here(cli):
    done = cli("doctor")
    assert done.returncode == 0, done.stdout
    assert "0 problems" in done.stdout


def test_doctor_names_a_run_folder_that_cannot_be_used(cli, folder):
    (folder / "file").write_text("")
    done = cli("doctor", LIGHTNING_CORE_RUNS=str(folder / "file" / "runs"))
    assert done.returncode == 1
    assert "LIGHTNING_CORE_RUNS" in done.stdout
