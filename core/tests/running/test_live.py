"""The live line of a run: what is done, and of what how many."""

import re

import pytest

from lightning_core.rollout import Attempt, Cause, Rollout
from lightning_core.running.live import LiveProgress
from lightning_core.running.progress import Progress
from lightning_core.task import Task
from lightning_core.trace import Trace


@pytest.fixture
def line(capsys, monkeypatch):
    """The last line that a terminal shows of some counts."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")

    def show(*every):
        with LiveProgress("demo", steps=20) as live:
            for counts in every:
                live(counts)
        said = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", capsys.readouterr().err)
        return " ".join(said.replace("\r", "\n").strip().splitlines()[-1].split())

    return show


@pytest.fixture
def ended():
    attempt = Attempt(
        id="x.1", rollout_id="x", number=1, fence=1, worker="w", started_at=0, deadline=9, lease_until=9,
        ended_at=1, cause=Cause.SUCCESS,
    )  # fmt: skip
    return Trace(rollout=Rollout(id="x", task_id="t"), task=Task(id="t", input=""), attempt=attempt)


def counting(phase, *batches, trace):
    """Counts after some batches of rollouts, each as how many were asked for and how many of them have ended."""
    counts = Progress(0)
    counts.phase = phase
    for expected, number in batches:
        counts.expect(expected)
        for _ in range(number):
            counts.add(trace)
    return counts


def test_while_a_step_waits_for_rollouts_its_own_are_counted(line, ended):
    counts = counting("step 2 of 20: rollouts", (48, 48), (48, 12), trace=ended)
    counts.running = 8
    said = line(counts)
    assert "12/48 ━━━━━━╺" in said  # A quarter of the bar.
    assert said.endswith("step 2 of 20: rollouts 8 running")


def test_while_it_learns_nothing_is_counted(line, ended):
    waiting = counting("step 1 of 20: rollouts", (48, 12), trace=ended)
    learning = counting("step 1 of 20: learning from 40 samples", (48, 48), trace=ended)
    said = line(waiting, learning)
    assert said.endswith("step 1 of 20: learning from 40 samples")
    assert not set("48╺") & set(said.partition(" 0:0")[0])


def test_rollouts_that_run_ahead_of_the_step_are_counted_while_it_learns(line, ended):
    said = line(counting("step 1 of 20: learning from 40 samples", (48, 48), (48, 3), trace=ended))
    assert "3/48" in said


def test_what_is_asked_for_on_top_is_counted_with_what_is_waited_for(line, ended):
    assert "50/60" in line(counting("step 1 of 20: rollouts", (48, 40), (12, 10), trace=ended))


def test_an_evaluation_counts_all_that_it_has(line, ended):
    counts = counting(None, (4, 4), (6, 1), trace=ended)
    assert "5/10" in line(counts)
