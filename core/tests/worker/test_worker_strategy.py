"""Code that opts in reads its attempt's strategy by name, wherever it runs, and what it reads is told as spans."""

import asyncio
import json
import subprocess
import sys

import pytest

from lightning_core import strategy
from lightning_core.agents import Command, load_agent
from lightning_core.instrument import span
from lightning_core.rollout import Attempt, Cause, Rollout
from lightning_core.slots import SlotDeclaration, SlotKind
from lightning_core.strategy import InteractionPattern, PromptTemplate, Strategy
from lightning_core.task import Task
from lightning_core.trace import Span, Trace

AGENT = """
import subprocess, sys, threading
from lightning_core import strategy

READ = '''
import json
from lightning_core import strategy
print(json.dumps([strategy.prompt("ask", "Default {x}"), strategy.rule("tries", 2, low=1, high=5),
                  strategy.choose("flow", ["short", "long"])]))
'''

def read(question=None):
    return [strategy.prompt("ask", "Default {x}"), strategy.rule("tries", 2, low=1, high=5),
            strategy.choose("flow", ["short", "long"])]

def threaded(question):
    found = []
    thread = threading.Thread(target=lambda: found.extend(read()))
    thread.start()
    thread.join()
    return found

def child(question):
    return subprocess.run([sys.executable, "-c", READ], capture_output=True, text=True, check=True).stdout

def wrong(question):
    return strategy.rule("tries", "many")
"""
DEFAULTS = ["Default {x}", 2, "short"]
TUNED = ["Tuned é {x}", 4, "long"]
STRATEGY = Strategy(
    prompt_templates={"ask": PromptTemplate(template="Tuned é {x}")},
    decision_rules={"tries": 4},
    interaction_patterns={
        "flow": InteractionPattern(chosen="long", options={"short": (), "long": ()})
    },
)


@pytest.fixture
def agents(tmp_path):
    path = tmp_path / "opted_in.py"
    path.write_text(AGENT)
    return path


def declared(spans):
    """What was declared, as a trace has it."""
    rollout = Rollout(id="r", task_id="t")
    attempt = Attempt(
        id="r.1", rollout_id="r", number=1, fence=1, worker="w", started_at=0, deadline=0, lease_until=0
    )  # fmt: skip
    made = tuple(Span.from_value(span) for span in spans)
    return Trace(rollout=rollout, task=Task(id="t", input=""), attempt=attempt, spans=made).slots


EXPECTED = {
    SlotDeclaration(name="ask", kind=SlotKind.PROMPT, type="str", default="Default {x}"),
    SlotDeclaration(name="tries", kind=SlotKind.RULE, type="int", default=2, low=1, high=5),
    SlotDeclaration(
        name="flow", kind=SlotKind.CHOICE, type="str", default="short", options=("short", "long")
    ),
}


@pytest.mark.parametrize(("given", "expected"), [(STRATEGY, TUNED), (None, DEFAULTS)])
@pytest.mark.parametrize("way", ["read", "threaded", "child"])
@pytest.mark.parametrize("isolate", [False, True])
async def test_python_agents_read_it_in_this_process_and_in_their_own(
    server, worker, agents, given, expected, way, isolate
):
    spec = f"{agents}:{way}"
    await worker(spec if isolate else load_agent(spec), isolate=isolate)
    report = await server.report(await server.put("x", strategy=given))
    assert report.cause is Cause.SUCCESS, report.error
    assert (json.loads(report.output) if way == "child" else report.output) == expected
    await server.until(lambda: len({span["name"] for span in server.spans}) >= 3)
    assert set(declared(server.spans)) == EXPECTED


@pytest.mark.parametrize(("given", "expected"), [(STRATEGY, TUNED), (None, DEFAULTS)])
async def test_commands_read_it_from_a_file(server, worker, agents, given, expected):
    code = f"import sys; sys.path.insert(0, {str(agents.parent)!r}); import opted_in; exec(opted_in.READ)"
    await worker(Command((sys.executable, "-c", code)))
    report = await server.report(await server.put("x", strategy=given))
    assert (report.cause, report.output) == (Cause.SUCCESS, expected), report.error
    assert set(declared(server.spans)) == EXPECTED


async def test_a_command_in_another_language_finds_the_file_by_name(server, worker):
    await worker(Command(("sh", "-c", 'cat "$LIGHTNING_CORE_STRATEGY"')))
    report = await server.report(await server.put("x", strategy=STRATEGY))
    assert Strategy.from_value(report.output) == STRATEGY
    assert report.output["format_version"] == Strategy.VERSION


async def test_a_large_strategy_reaches_a_command(server, worker):
    large = Strategy(prompt_templates={"ask": PromptTemplate(template="x" * 2_000_000)})
    await worker(Command(("sh", "-c", 'wc -c < "$LIGHTNING_CORE_STRATEGY"')))
    report = await server.report(await server.put("x", strategy=large))
    assert report.output > 2_000_000


async def test_the_strategy_of_an_outer_attempt_is_nobodys_here(
    server, worker, agents, monkeypatch, tmp_path
):
    STRATEGY.dump(tmp_path / "outer.json")
    monkeypatch.setenv("LIGHTNING_CORE_STRATEGY", str(tmp_path / "outer.json"))
    await worker(Command(("sh", "-c", 'echo "[${LIGHTNING_CORE_STRATEGY-1}]"')))
    report = await server.report(await server.put("x"))
    assert report.output == [1]


async def test_attempts_at_one_time_each_read_their_own(server, worker):
    together = asyncio.Barrier(20)

    async def agent(text):
        await together.wait()
        found = strategy.rule("n", -1)
        await together.wait()
        return [found, await asyncio.to_thread(strategy.rule, "n", -1), strategy.rule("n", -1)]

    await worker(agent, concurrency=20)
    ids = [
        await server.put("x", strategy=Strategy(decision_rules={"n": n}) if n else None)
        for n in range(20)
    ]
    for n, attempt in enumerate(ids):
        assert (await server.report(attempt)).output == [n or -1] * 3
    values = sorted(
        (span["attempt_id"], span["attributes"]["lightning.slot.value"]) for span in server.spans
    )
    assert values == sorted((attempt, n or -1) for n, attempt in enumerate(ids))


async def test_a_slot_span_takes_no_time_and_lies_where_it_was_read(server, worker):
    async def agent(text):
        with span("node", "write"):
            return strategy.rule("n", 1)

    await worker(agent)
    await server.report(await server.put("x"))
    by_kind = {each["kind"]: each for each in server.spans}
    slot = Span.from_value(by_kind["slot"])
    assert slot.parent_id == by_kind["node"]["id"]
    assert 0 <= slot.ended_at - slot.started_at < 0.1
    assert slot.attributes == {
        "lightning.slot.name": "n", "lightning.slot.kind": "rule", "lightning.slot.type": "int",
        "lightning.slot.default": 1, "lightning.slot.value": 1, "lightning.slot.low": None,
        "lightning.slot.high": None, "lightning.slot.options": None,
    }  # fmt: skip


async def test_a_value_of_the_wrong_type_is_the_agents_error_with_the_reason(
    server, worker, agents
):
    await worker(f"{agents}:wrong", isolate=True)
    report = await server.report(await server.put("x", strategy=STRATEGY))
    assert report.cause is Cause.AGENT_ERROR
    assert "rule `tries`: expected str but the strategy in use has 4" in report.error


def test_threads_that_read_first_at_one_time_share_what_the_process_was_given(agents):
    code = """
import threading, time, opted_in
from lightning_core import slots, strategy

asked = []

def source():
    asked.append(1)
    time.sleep(0.1)
    return strategy.Strategy(decision_rules={"tries": 3}), None

slots.use_in_process(source)
found = []
threads = [threading.Thread(target=lambda: found.append(opted_in.read()[1])) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(asked, found)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=agents.parent, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == f"[1] {[3] * 8}", done.stderr
