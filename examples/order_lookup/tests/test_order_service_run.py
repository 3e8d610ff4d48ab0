"""The conversation: it asks for the order, is told how it stands, and tells the customer."""

import lightning_core as lc
from lightning_core.testing.scripted import ScriptedServer


def test_a_run_scores_what_was_looked_up_and_what_the_customer_is_told(
    example, made, tmp_path, monkeypatch
):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    tasks = lc.load_tasks(made / "val.jsonl", limit=5)
    told, other, wrong, talks, twice = (task.input["message"] for task in tasks)
    number = {task.input["message"]: task.expected["number"] for task in tasks}

    def reply(request):
        if not request.messages:
            return None  # the list of models
        turns = [message["content"] for message in request.messages[9:]]
        message, results = turns[0], turns[2::2]
        if message == talks:
            return "I am sorry to hear that."
        if not results:
            return f"LOOK UP {'30854' if message == wrong else number[message]}"
        if message == twice and len(results) == 1:
            return f"LOOK UP {number[message]}"
        status = results[-1].removeprefix("RESULT ")
        return "Your order is lost." if message == other else f"Your order {status}."

    with ScriptedServer.in_thread() as server:
        server.respond(reply)
        result = lc.run_sync(
            example.service.graph, tasks, reward=example.service.score, model=server.base_url, runs=tmp_path
        )  # fmt: skip
    rewards = {trace.task.input["message"]: trace.reward for trace in result.traces}
    assert rewards == {told: 1.0, other: 0.3, wrong: 0.1, talks: 0.0, twice: 1.0}
    calls = {trace.task.input["message"]: len(trace.calls) for trace in result.traces}
    assert calls == {told: 2, other: 2, wrong: 2, talks: 1, twice: 3}
