"""The whole path: the model asks for calculations, is told their values, answers, and is scored."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import lightning_core as lc
from lightning_core.testing import ScriptedServer, Text, ToolCall, ToolCalls

FOLDER = Path(__file__).parents[1]
GSM8K = '{"question": "Ann has 3 bags of 4 nuts and eats 2. How many are left?", "answer": "She has 3*4=<<3*4=12>>12.\\n<<12-2=10>>10 are left.\\n#### 10"}\n'  # fmt: skip


@pytest.fixture
async def run(example, tmp_path):
    async def run(tasks, respond, **options):
        with ScriptedServer.in_thread() as server:
            server.respond(lambda got: respond(got) if got.messages else None)
            result = await lc.run(
                f"{FOLDER / 'agent.py'}:agent",
                tasks,
                reward=example.scoring.score,
                model=server.base_url,
                runs=tmp_path,
                max_attempts=1,
                **options,
            )
            return result, [got for got in server.requests if got.messages]

    return run


def rewards(trace):
    return {reward.name: reward.value for reward in trace.rewards}


@pytest.mark.slow
async def test_a_solution_that_reckons_with_the_tool_scores_one(example, made, run):
    tasks = lc.load_tasks(made / "val.jsonl", limit=8)
    steps = {t.input: re.findall(r"<<(.*?)=", t.expected) for t in tasks}

    def respond(got):
        told = [m for m in got.messages if m["role"] == "tool"]
        wanted = steps[got.messages[1]["content"]]
        if len(told) < len(wanted):
            return ToolCalls((ToolCall("calculate", {"expression": wanted[len(told)]}),))
        return Text(f"So it is:\n#### {told[-1]['content']}")

    result, requests = await run(tasks, respond)
    assert [rewards(trace) for trace in result.traces] == [
        {"reward": 1.0, "answer": 1.0, "tool": 1.0}
    ] * 8
    for trace in result.traces:
        assert [call.agent for call in trace.calls] == ["mathematician"] * 3
        assert [span.name for span in trace.spans if span.kind == "tool"] == ["calculate"] * 2
        assert trace.output.startswith("So it is:")
    assert requests[0].messages[0]["content"] == example.agent.INSTRUCTION
    assert [tool["function"]["name"] for tool in requests[0].json["tools"]] == ["calculate"]


CASES = {
    "other forms of the same values": (["4 + 4 + 4", "20 / 2"], "#### 10", (1.0, 1.0, 1.0)),
    "one value of two": (["3 * 4"], "10", (0.9, 1.0, 0.5)),
    "no tool": ([], "The answer is 10.", (0.8, 1.0, 0.0)),
    "numbers that are only handed over": (["12", "10"], "#### 10", (0.8, 1.0, 0.0)),
    "a wrong answer": (["3 * 4", "12 - 2"], "#### 11", (0.2, 0.0, 1.0)),
    "code": (["__import__('os')"], "#### 9", (0.0, 0.0, 0.0)),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
async def test_answer_and_tool_use_are_scored_by_value(tmp_path, run, case):
    """On a file with GSM8K's fields."""
    expressions, said, scored = CASES[case]
    file = tmp_path / "gsm8k.jsonl"
    file.write_text(GSM8K)

    def respond(got):
        told = len([m for m in got.messages if m["role"] == "tool"])
        if told < len(expressions):
            return ToolCalls((ToolCall("calculate", {"expression": expressions[told]}),))
        return Text(said)

    result, _ = await run(file, respond, fields={"input": "question", "expected": "answer"})
    (trace,) = result.traces
    assert tuple(rewards(trace)[name] for name in ("reward", "answer", "tool")) == pytest.approx(
        scored
    )
    feedback = next(r.feedback for r in trace.rewards if r.name == "reward")
    assert feedback == (None if scored[1] == 1 else "Expected 10.")


def test_the_tasks_are_solved_by_their_solutions_and_share_no_wording(example, made):
    tasks = {name: lc.load_tasks(made / f"{name}.jsonl") for name in ("train", "val")}
    assert {name: len(found) for name, found in tasks.items()} == {"train": 96, "val": 32}
    for task in [*tasks["train"], *tasks["val"]]:
        for expression, value in re.findall(r"<<(.*?)=(.*?)>>", task.expected):
            assert example.calculator.value(expression) == int(value)
        assert task.expected.endswith(f"#### {value}")
        assert int(value) > 0
    names = [{task.metadata["wording"] for task in found} for found in tasks.values()]
    assert not names[0] & names[1]


def test_the_agent_knows_nothing_of_us():
    for name in ("agent.py", "calculator.py", "tasks.py"):
        assert "lightning" not in (FOLDER / name).read_text()
