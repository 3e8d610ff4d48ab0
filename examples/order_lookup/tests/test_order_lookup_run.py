"""The whole path: the model's answers go to the tool, and what the tool was given is scored."""

import pytest

import lightning_core as lc
from lightning_core.testing.replies import Error
from lightning_core.testing.scripted import ScriptedServer


def test_a_run_scores_what_the_tool_was_given(example, made, tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    tasks = lc.load_tasks(made / "val.jsonl", limit=6)
    right, spaced, among, longer, wrong, failing = tasks

    def reply(request):
        if not request.messages:
            return None  # the list of models
        said = {
            right.input["message"]: right.expected["number"],
            spaced.input["message"]: f" {spaced.expected['number']}\n",
            among.input["message"]: f"Order {among.expected['number']}.",
            longer.input["message"]: f"{longer.expected['number']}7",
            wrong.input["message"]: "30854",
            failing.input["message"]: Error(400),
        }
        return said[request.messages[-1]["content"]]

    with ScriptedServer.in_thread() as server:
        server.respond(reply)
        result = lc.run_sync(
            example.agent.graph,
            tasks,
            reward=example.agent.score,
            model=server.base_url,
            runs=tmp_path,
            max_attempts=1,
        )
    traces = {trace.task.id: trace for trace in result.traces}
    assert {id_: trace.reward for id_, trace in traces.items()} == {
        right.id: 1.0,
        spaced.id: 1.0,
        among.id: 0.2,
        longer.id: 0.0,
        wrong.id: 0.0,
        failing.id: None,
    }
    assert result.causes == {lc.Cause.SUCCESS: 5, lc.Cause.MODEL_ERROR: 1}
    told = traces[right.id].output
    assert told["answer"] == f"Your order {right.expected['number']} {told['status']}."
    assert told["status"] in example.agent.STATES
    assert "could not find" in traces[among.id].output["answer"]
    (call,) = traces[right.id].calls
    assert call.node == "extract"
    assert (
        call.request["max_tokens" if "max_tokens" in call.request else "max_completion_tokens"] == 8
    )


@pytest.mark.parametrize("message", ["", "hello"])
def test_a_model_that_says_nothing_of_use_gets_no_such_order(example, message, monkeypatch):
    with ScriptedServer.in_thread() as server:
        server.respond(lambda request: "I do not know" if request.messages else None)
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        state = example.agent.graph.invoke({"message": message})
    assert state["status"] == "no such order"
