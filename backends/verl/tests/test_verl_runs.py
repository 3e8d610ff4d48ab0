"""What may befall a run of verl's: agents that hang or break, a kill within a step, Ctrl+C; and rollouts ahead of the
trainer. On this machine's processors, with a tiny random model.

Needs the verl environment (`make verl-env`), named by `LIGHTNING_CORE_VERL_PYTHON`; takes some ten minutes.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

from lightning_core.cli.reading import read_traces
from lightning_core.folder import RunFolder
from lightning_core.rollout import Cause, Mode
from lightning_verl import environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

AGENT = '''
import pathlib
import time

from openai import OpenAI


def agent(question):
    """Two turns. Some questions are one too many."""
    if "break" in question:
        raise ValueError("the agent broke")
    client, messages = OpenAI(), [{"role": "user", "content": question}]
    for turn in range(2):
        if turn and "hang" in question:
            time.sleep(600)
        reply = client.chat.completions.create(model="any", messages=messages)
        said = reply.choices[0].message.content or ""
        if "slow" in question:
            time.sleep(600 if pathlib.Path(__file__).with_name("late").exists() else 3)
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "Go on."}]
    return said


def score(task, trace):
    """A number from 0 to 1 that two random texts hardly share: equal rewards tell a group nothing."""
    said = "".join(call.text for call in trace.calls)
    return sum(ord(letter) % 97 for letter in said) / (97 * max(len(said), 1))
'''
TASKS = {
    "mixed": ["Say this.", "Say that, then hang.", "Then break."],
    "broken": ["Then break.", "Now break.", "Do break."],
    "plain": ["Say this.", "Say that.", "Say more.", "Say it all."],
    "slow": ["Say this, slow.", "Say that, slow.", "Say more, slow.", "Say it all, slow."],
}
SECONDS = 1500
ON_LOOPBACK = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
}
"""Ray listens there alone, is looked for there, and asks for no token, whether or not the user has one."""
ACTORS = """
import json, sys, ray
ray.init(address=sys.argv[1], log_to_driver=False)
print(json.dumps([str(each) for each in ray.util.list_named_actors(all_namespaces=True)]))
"""


class Folder:
    def __init__(self, path, python):
        self.path, self.python = path, python
        (path / "agent.py").write_text(AGENT)
        for name, texts in TASKS.items():
            lines = [json.dumps({"id": f"t{n}", "input": text}) for n, text in enumerate(texts)]
            (path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")

    def start(self, name, tasks, *options, env=None):
        """Start an optimisation; whoever starts it waits for it."""
        return subprocess.Popen(
            [sys.executable, "-m", "lightning_core.cli", "optimize", "agent.py:agent", "--tasks", f"{tasks}.jsonl",
             "--reward", "agent.py:score", "--backend", "verl", "--model", "tiny", "--batch-size", "3", "--group-size", "2",
             "--max-tokens", "8", "--name", name, "--set", "platform=cpu", "--set", f"python={self.python}",
             "--set", "actor_rollout_ref.actor.optim.lr=1e-3", *options],
            cwd=self.path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
            env={k: v for k, v in os.environ.items() if not k.startswith("OPENAI_")} | (env or {}),
        )  # fmt: skip

    def lines(self, name):
        return list(RunFolder(self.path / "runs" / name).lines())

    def steps(self, name):
        return [line for line in self.lines(name) if "rollouts/all" in line]

    def rollouts(self, name):
        return [line for line in self.lines(name) if "rollout" in line]

    def processes(self):
        """Those that belong to a run in this folder, by their place in `/proc`."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if str(self.path).encode() in (entry / "environ").read_bytes():
                        yield entry

    def left(self):
        """What is left of runs in this folder."""
        return [(entry / "cmdline").read_bytes() for entry in self.processes()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, verl_python, make_tiny):
    made = Folder(tmp_path_factory.mktemp("runs"), verl_python)
    make_tiny(made.path / "tiny")
    return made


def until(process, condition):
    """Wait for something of a process that must not end before."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert process.poll() is None, process.communicate()[0][-4000:]
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.05)


def ended(process):
    out, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, out[-4000:]
    return out


@pytest.fixture(scope="module")
def killed(folder):
    """Killed while the second step's rollouts run, and gone on with; two thirds of a step's rollouts are enough."""
    options = (
        "--steps",
        "3",
        "--quorum",
        "0.6",
        "--set",
        "algorithm.rollout_correction.rollout_is=token",
    )
    process = folder.start("killed", "mixed", *options)
    store = folder.path / "runs/killed"

    def second_step():
        lines = folder.rollouts("killed") if (store / "metrics.jsonl").exists() else []
        return sum(":step-2." in line["rollout"] for line in lines) >= 2

    until(process, second_step)
    before = {line["rollout"] for line in folder.rollouts("killed")}
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    end = time.monotonic() + 60
    while folder.left() and time.monotonic() < end:
        time.sleep(0.1)
    left = folder.left()
    ended(folder.start("killed", "mixed", *options, "--resume"))
    return before, left


def test_a_killed_run_leaves_no_process(killed):
    assert killed[1] == []


def test_what_had_ended_before_the_kill_is_not_run_again_and_counts_in_its_step(folder, killed):
    before, _ = killed
    traces = {t.rollout.id: t for t in read_traces(str(folder.path / "runs/killed")).traces}
    assert [line["step"] for line in folder.steps("killed")] == [1, 2, 3]
    told = Counter(line["rollout"] for line in folder.rollouts("killed"))
    assert set(told.values()) == {1}
    assert {traces[name].attempt.number for name in before} == {1}
    assert [line["rollouts/all"] for line in folder.steps("killed")] == [6, 6, 6]


def test_the_late_are_cancelled_the_broken_are_counted_and_the_rest_is_learnt_from(folder, killed):
    traces = read_traces(str(folder.path / "runs/killed")).traces
    causes = Counter((trace.task.id, trace.attempt.cause) for trace in traces)
    # Those that hung as the run was killed may be told to be lost before they are cancelled.
    late = {
        Cause.CANCELLED: causes.pop(("t1", Cause.CANCELLED)),
        Cause.LOST: causes.pop(("t1", Cause.LOST), 0),
    }
    assert causes == {("t0", Cause.SUCCESS): 6, ("t2", Cause.AGENT_ERROR): 6}
    assert sum(late.values()) == 6
    assert late[Cause.LOST] in (0, 1, 2)
    assert all(line["update/grad_norm"] > 0 for line in folder.steps("killed"))
    for line in folder.steps("killed"):
        assert (line["rollouts/scored"], line["failures/agent_error"]) == (2, 2)
        assert line.get("failures/cancelled", 0) + line.get("failures/lost", 0) == 2
        assert line["verl/training/rollout_probs_diff_mean"] < 1e-5
        # The weights of rollout correction: vLLM and the trainer agree, so they are 1.
        (mean,) = {v for k, v in line.items() if re.search(r"rollout_is_mean$", k)}
        assert mean == pytest.approx(1.0, abs=1e-4)


def whole_and_cancelled(folder, name):
    """The traces of the rollouts that ended well, and of those that the run's end cancelled: there are no others."""
    traces = read_traces(str(folder.path / "runs" / name)).traces
    cancelled = [trace for trace in traces if trace.attempt.cause is Cause.CANCELLED]
    whole = [trace for trace in traces if trace.attempt.cause is Cause.SUCCESS]
    assert len(whole) + len(cancelled) == len(traces)
    return whole, cancelled


def test_rollouts_ahead_of_the_trainer_are_bounded_in_age(folder):
    out = ended(folder.start("ahead", "plain", "--steps", "4", "--async", "--batch-size", "2"))
    assert "4 steps" in out
    steps = folder.steps("ahead")
    assert [line["step"] for line in steps] == [1, 2, 3, 4]
    ages = [line["staleness/max"] for line in steps]
    assert max(ages) == 1, ages
    assert all(line["update/grad_norm"] > 0 for line in steps)
    # A rollout may go on under the next weights; each of its calls says which.
    whole, _ = whole_and_cancelled(folder, "ahead")
    assert all(trace.rollout.mode is Mode.TRAIN for trace in whole)
    for trace in whole:
        versions = [call.policy_version for call in trace.calls]
        assert versions == sorted(versions)


APART = ("--async", "--set", "actor_rollout_ref.rollout.nnodes=1")
"""vLLM has devices of its own, as many as the trainer."""


def test_new_weights_reach_a_vllm_with_devices_of_its_own(folder):
    """As nothing is ahead here, each step learns from rollouts of the weights that it starts from."""
    nothing_ahead = ("--set", "trainer.v1.separate_async.num_warmup_batches=0")
    validated = ("--val", "plain.jsonl", "--val-every", "3")
    out = ended(
        folder.start(
            "apart",
            "plain",
            "--steps",
            "3",
            "--batch-size",
            "2",
            *APART,
            *nothing_ahead,
            *validated,
        )
    )
    assert "3 steps" in out
    steps = folder.steps("apart")
    assert [line["step"] for line in steps] == [1, 2, 3]
    for line in steps:
        assert line["staleness/max"] == 0
        assert line["verl/training/rollout_probs_diff_mean"] < 1e-6
    # Else nothing new would have to reach it.
    assert all(line["update/grad_norm"] > 0 for line in steps)
    traces = read_traces(str(folder.path / "runs/apart")).traces
    validations = [trace for trace in traces if trace.rollout.mode is Mode.VAL]
    assert len(validations) == 2 * 4
    assert {c.policy_version for trace in validations for c in trace.calls} == {0, 3}
    assert folder.left() == []


def test_rollouts_go_on_while_a_trainer_with_devices_of_its_own_learns(folder):
    options = ("--steps", "4", "--batch-size", "2")
    mini = ("--set", "actor_rollout_ref.actor.ppo_mini_batch_size=1")
    process = folder.start("beside", "slow", *options, *APART, *mini)
    store = folder.path / "runs/beside"

    def last_step():
        lines = folder.rollouts("beside") if (store / "metrics.jsonl").exists() else []
        return sum(":step-4." not in line["rollout"] for line in lines) == 4 * 2 * 2

    until(process, last_step)
    # Those that run ahead of the last step outlast it.
    (folder.path / "late").touch()
    ended(process)
    steps = folder.steps("beside")
    assert [line["step"] for line in steps] == [1, 2, 3, 4]
    assert max(line["staleness/max"] for line in steps) == 1
    assert all(line["update/grad_norm"] > 0 for line in steps)
    # What runs ahead of the last step is cancelled before vLLM ends, and so meets none that is gone.
    whole, cancelled = whole_and_cancelled(folder, "beside")
    assert len(whole) >= 4 * 2 * 2
    assert cancelled
    for trace in whole:
        versions = [call.policy_version for call in trace.calls]
        assert versions == sorted(versions)
        assert all(call.choices[0].finish_reason != "abort" for call in trace.calls)


def test_where_all_break_the_run_says_so_after_other_tasks_were_tried(folder):
    process = folder.start("broken", "broken", "--steps", "2", "--batch-size", "2")
    out, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert "nothing to learn from in 3 batches of 2 tasks" in out
    assert "lightning-core show RUN" in out
    assert "Traceback" not in out
    assert len(folder.rollouts("broken")) == 3 * 2 * 2
    assert folder.left() == []


def test_a_vllm_that_dies_within_a_step_is_named(folder):
    process = folder.start("dead", "plain", "--steps", "2", "--batch-size", "2")
    metrics = folder.path / "runs/dead/metrics.jsonl"
    until(process, lambda: metrics.exists() and len(folder.rollouts("dead")) >= 4)
    for entry in folder.processes():
        if b"EngineCore" in (entry / "cmdline").read_bytes():
            os.kill(int(entry.name), signal.SIGKILL)
    out, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert "vLLM" in out or "EngineDeadError" in out, out[-3000:]
    assert "--resume" in out
    assert folder.left() == []


def test_a_ray_that_is_not_there_is_named(folder):
    address = "127.0.0.1:9"
    process = folder.start(
        "alone", "plain", "--steps", "1", "--set", f"+ray_kwargs.ray_init.address={address}"
    )
    out, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert address in out
    assert "Traceback" not in out
    assert folder.left() == []


@pytest.fixture
def cluster(verl_python, tmp_path_factory):
    """A Ray of somebody else's; its address."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    # Ray's sockets have short names or none.
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as place:
        env = environment.environ(ON_LOOPBACK)
        process = subprocess.Popen(
            [verl_python.parent / "ray", "start", "--head", "--block", f"--port={port}", "--node-ip-address=127.0.0.1",
             "--num-cpus=64", "--num-gpus=1", "--object-store-memory=500000000", "--include-dashboard=false",
             f"--temp-dir={place}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, env=env,
        )  # fmt: skip
        try:
            yield f"127.0.0.1:{port}"
            assert process.poll() is None, "it is not ours to stop"
        finally:
            process.terminate()
            process.wait(60)


def test_a_ray_that_is_joined_goes_on_without_us(folder, cluster, verl_python):
    process = folder.start("joined", "plain", "--steps", "1", "--batch-size", "2", "--set",
                           f"+ray_kwargs.ray_init.address={cluster}", env=ON_LOOPBACK)  # fmt: skip
    ended(process)
    assert [line["rollouts/scored"] for line in folder.steps("joined")] == [4]
    listed = subprocess.run(
        [verl_python, "-c", ACTORS, cluster], capture_output=True, text=True, timeout=120,
        env=environment.environ(ON_LOOPBACK),
    )  # fmt: skip
    assert json.loads(listed.stdout.splitlines()[-1]) == [], listed.stderr[-2000:]
    assert folder.left() == []


def test_ctrl_c_while_verl_starts_leaves_nothing_behind(folder):
    process = folder.start("stopped", "plain", "--steps", "2")
    log = folder.path / "runs/stopped/logs/verl.log"
    until(process, lambda: log.exists() and b"TaskRunner" in log.read_bytes())
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 130, out
    assert "--resume" in out
    assert "Traceback" not in out
    assert folder.left() == []
