"""An optimisation that is killed in any phase of a step goes on as if nothing had happened."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from lightning_core.folder import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STEPS, BATCH, GROUP = 3, 2, 3

PROGRAM = textwrap.dedent(
    """
    import asyncio, contextlib, os, signal, sys
    from pathlib import Path

    model, runs, phase, resume = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4] == "resume"

    def kill():
        os.kill(os.getpid(), signal.SIGKILL)

    from lightning_core import OptimizeConfig, Task, optimize
    from lightning_local.train import loop, trainer

    graded = 0

    def letters(task, trace):
        global graded
        graded += 1
        if phase == "grading" and graded == 9:
            kill()
        return sum(letter.islower() for letter in trace.output) / max(len(trace.output), 1)

    def killing(method, when):
        count = 0
        def wrapped(*arguments, **named):
            nonlocal count
            count += 1
            if count == 2 and when == "before":
                kill()
            result = method(*arguments, **named)
            if count == 2 and when == "after":
                kill()
            return result
        return wrapped

    if phase.startswith("update"):
        trainer.Trainer.update = killing(trainer.Trainer.update, phase.split("-")[1])
    if phase.startswith("checkpoint"):
        trainer.Trainer.save = killing(trainer.Trainer.save, phase.split("-")[1])
    if phase.startswith("weights"):
        trainer.Trainer.weights = killing(trainer.Trainer.weights, phase.split("-")[1])

    asked = 0

    async def ask(question):
        global asked
        from openai import AsyncOpenAI
        asked += 1
        if phase == "rollout" and asked == 9:
            kill()
        async with AsyncOpenAI() as client:
            reply = await client.chat.completions.create(
                model="any", messages=[{"role": "user", "content": question}]
            )
        return reply.choices[0].message.content

    async def main():
        config = OptimizeConfig(
            backend="local", steps=3, batch_size=2, group_size=3, seed=7,
            options={"learning_rate": "1e-2", "threads": "1"},
        )
        if phase == "swap":
            from lightning_core.running.runner import ServedRun
            publish = ServedRun.publish
            async def dying(self, folder, *, version):
                if version == 2:
                    asyncio.get_running_loop().call_later(0.02, kill)
                await publish(self, folder, version=version)
            ServedRun.publish = dying
        if phase == "logging":
            from lightning_core.running.runner import ServedRun
            log = ServedRun.log
            async def silent(self, metrics, *, step):
                if step == 2:
                    kill()
                await log(self, metrics, step=step)
            ServedRun.log = silent
        await optimize(
            ask, [Task(id=f"t{n}", input=f"the tool {n}") for n in range(4)], config, reward=letters,
            model=model, runs=runs, name="run", max_tokens=8, engine_options={"threads": "1"},
            resume=resume,
        )

    asyncio.run(main())
    """
)


def run(folders, tmp_path, phase, resume=False):
    environment = {k: v for k, v in os.environ.items() if k != "OPENAI_API_KEY"}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folders["llama"]), str(tmp_path), phase, "resume" if resume else "new"],
        env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def processes_of(folder: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in line and int(entry.name) != os.getpid():
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize(
    "phase",
    [
        "rollout", "grading", "update-before", "update-after", "checkpoint-before", "checkpoint-after",
        "weights-before", "weights-after", "swap", "logging",
    ],
)  # fmt: skip
def test_a_run_that_is_killed_goes_on_and_learns_from_everything_once(tmp_path, folders, phase):
    killed = run(folders, tmp_path, phase)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    deadline = time.monotonic() + 30
    while processes_of(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not processes_of(tmp_path)

    resumed = run(folders, tmp_path, "none", resume=True)

    assert resumed.returncode == 0, resumed.stderr
    found = list(RunFolder(tmp_path / "run").lines())
    steps = [line for line in found if "reward" in line and "step" in line]
    assert [line["step"] for line in steps] == [1, 2, 3]
    assert [line["version"] for line in steps] == [1, 2, 3]
    rollouts = [line["rollout"] for line in found if "rollout" in line]
    assert len(rollouts) == len(set(rollouts)) == STEPS * BATCH * GROUP
    for line in steps:
        assert line["rollouts/scored"] == BATCH * GROUP
        # Whatever was sampled was sampled by the very weights that learn from it.
        assert line["staleness/max"] == 0
        assert line["update/drift_max"] < 1e-3
    assert (tmp_path / "run/artifact/policy.pt").is_file()
