"""The whole path: what the model says goes to a tool, and is scored with a reason where it is wrong."""

import pytest

import lightning_core as lc
from lightning_core.testing.replies import Error
from lightning_core.testing.scripted import ScriptedServer


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A function that runs an agent on tasks with replies by request, and gives the result and the server's requests."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    def run(agent, tasks, score, replies):
        with ScriptedServer.in_thread() as server:
            server.respond(
                lambda got: replies[got.messages[-1]["content"]] if got.messages else None
            )
            result = lc.run_sync(
                agent, tasks, reward=score, model=server.base_url, runs=tmp_path, max_attempts=1
            )
            return result, [got for got in server.requests if got.messages]

    return run


def test_the_right_call_of_every_task_scores_one(example, made, run):
    tasks = [*lc.load_tasks(made / "train.jsonl", limit=20), *lc.load_tasks(made / "val.jsonl")]
    replies = {task.input["request"]: task.expected for task in tasks}
    result, requests = run(example.agent.graph, tasks, example.scoring.score, replies)
    assert len(result.traces) == len(tasks)
    for trace in result.traces:
        assert {reward.name: reward.value for reward in trace.rewards} == {
            "reward": 1.0, "tool": 1.0, "argument": 1.0,
        }  # fmt: skip
        assert not any(reward.feedback for reward in trace.rewards)
        tool, argument = example.agent.parse(trace.task.expected)
        assert trace.output["answer"] == f"{argument}: {trace.output['result']}."
        assert [span.name for span in trace.spans if span.kind == "tool"] == [tool]
        assert [call.node for call in trace.calls] == ["call"]
    for request in requests:
        assert [message["role"] for message in request.messages] == ["system", "user"]
        assert request.messages[0]["content"] == example.agent.INSTRUCTION
        assert request.messages[1]["content"] in replies
        assert request.json["stop"] == ["\n"]


def test_a_wrong_call_scores_less_and_says_what_was_expected(example, made, run):
    said_and_scored = {
        "{tool}({swapped})": (1.0, 1.0, 1.0),
        " {tool}('{argument}').": (1.0, 1.0, 1.0),
        "{tool}(Atlantis)": (0.3, 1.0, 0.0),
        "phone({argument})": (0.0, 0.0, 1.0),
        "phone(Atlantis)": (0.0, 0.0, 0.0),
        "I call {tool}({argument})": (0.0, 0.0, 0.0),
        "{tool}({argument}) {tool}({argument})": (0.0, 0.0, 0.0),
        "__import__('os').getcwd()": (0.0, 0.0, 0.0),
        "": (0.0, 0.0, 0.0),
    }
    tasks = [
        task
        for task in lc.load_tasks(made / "val.jsonl")
        if task.expected.startswith(("weather", "price"))
    ][: len(said_and_scored) + 1]
    *answered, failing = tasks
    replies = {failing.input["request"]: Error(400)}
    for task, text in zip(answered, said_and_scored, strict=True):
        tool, argument = example.agent.parse(task.expected)
        replies[task.input["request"]] = text.format(
            tool=tool, argument=argument, swapped=argument.swapcase()
        )
    result, _ = run(example.agent.graph, tasks, example.scoring.score, replies)
    traces = {trace.task.id: trace for trace in result.traces}
    for task, numbers in zip(answered, said_and_scored.values(), strict=True):
        trace, said = traces[task.id], replies[task.input["request"]]
        got = {reward.name: reward for reward in trace.rewards}
        assert tuple(got[name].value for name in ("reward", "tool", "argument")) == numbers, said
        if numbers[0] == 1.0:
            assert got["reward"].feedback is None
        else:
            assert got["reward"].feedback == f"Expected `{task.expected}` but got {said!r}."
            assert trace.output["answer"].startswith("I do not know")
    assert traces[failing.id].reward is None
    assert result.causes == {lc.Cause.SUCCESS: len(answered), lc.Cause.MODEL_ERROR: 1}


def test_refunds_score_the_decision(example, made, run):
    tasks = lc.load_tasks(made / "refunds_val.jsonl", limit=4)
    right, dotted, wrong, talks = tasks
    other = {"yes": "no", "no": "yes"}
    replies = {
        right.input["request"]: right.expected,
        dotted.input["request"]: f" {dotted.expected.title()}.",
        wrong.input["request"]: other[wrong.expected],
        talks.input["request"]: f"{talks.expected}, it",
    }
    result, requests = run(example.refunds.graph, tasks, example.refunds.score, replies)
    assert {trace.task.id: trace.reward for trace in result.traces} == {
        right.id: 1.0, dotted.id: 1.0, wrong.id: 0.0, talks.id: 0.0,
    }  # fmt: skip
    answers = {trace.task.id: trace.output["answer"] for trace in result.traces}
    assert answers[dotted.id] == example.refunds.ANSWERS[dotted.expected]
    assert answers[talks.id] == "A colleague will write to you."
    for request in requests:
        assert request.messages[0]["content"] == example.refunds.INSTRUCTION
        assert request.messages[1]["content"] in replies
