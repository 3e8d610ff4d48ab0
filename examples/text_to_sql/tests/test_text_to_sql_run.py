"""The whole path: the agent's calls through the gateway, its answers scored, a failed call counted as such."""

import lightning_core as lc
from lightning_core.testing.replies import Error


def test_a_run_scores_right_and_wrong_answers_and_keeps_failures_apart(
    example, made, run_scripted, monkeypatch
):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    tasks = lc.load_tasks(made / "val.jsonl", limit=4)
    right, wrong, failing = tasks[0], tasks[1:3], tasks[3]

    def reply(request):
        prompt = request.messages[-1]["content"]
        if failing.input["question"] in prompt:
            return Error(400)
        if request.messages[0]["content"].startswith("You check"):
            return "VERDICT: CORRECT"
        known = right.input["question"] in prompt
        return f"```sql\n{right.expected['query'] if known else 'SELECT 1 WHERE 0'}\n```"

    result = run_scripted(tasks, reply, max_attempts=1)
    rewards = {trace.task.id: trace.reward for trace in result.traces}
    assert rewards == {right.id: 1.0, **{task.id: 0.0 for task in wrong}, failing.id: None}
    assert result.causes == {lc.Cause.SUCCESS: 3, lc.Cause.MODEL_ERROR: 1}
    told = example.evaluate.report(tasks, result)
    assert "execution match  0.333 (constant answer: 0.000)" in told
    assert "scored           3 of 4 rollouts on 4 questions" in told
    assert "model_error: 1" in told
    nodes = {call.node for trace in result.traces for call in trace.calls}
    assert nodes == {"write_query", "check_query"}
