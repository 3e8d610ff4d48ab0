"""The whole path: the model searches from passage to passage, answers, and is scored."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import lightning_core as lc
from lightning_core.testing import Error, ScriptedServer, Text, ToolCall, ToolCalls

FOLDER = Path(__file__).parents[1]


@pytest.fixture
async def run(example, made, tmp_path, monkeypatch):
    monkeypatch.setenv("WIKI_RAG_CORPUS", str(made / "corpus.jsonl"))

    async def run(tasks, respond):
        with ScriptedServer.in_thread() as server:
            server.respond(lambda got: respond(got) if got.messages else None)
            result = await lc.run(
                f"{FOLDER / 'agent.py'}:agent",
                tasks,
                reward=example.scoring.score,
                model=server.base_url,
                runs=tmp_path / "runs",
                max_attempts=1,
            )
            return result, [got for got in server.requests if got.messages]

    return run


def rewards(trace):
    return {reward.name: reward.value for reward in trace.rewards}


def told(got):
    return [m["content"] for m in got.messages if m["role"] == "tool"]


def find(query):
    return ToolCalls((ToolCall("search", {"query": query}),))


def best(text, pattern):
    """What the passage at the top of a search's result says."""
    return re.search(pattern, text.splitlines()[0])[1]


@pytest.mark.slow
async def test_a_question_that_is_answered_in_several_hops_scores_one(example, made, run):
    tasks = [t for t in lc.load_tasks(made / "train.jsonl") if t.metadata["chain"] == "river"][:6]
    books = {t.input: re.search(r"author of (.*) was", t.input)[1] for t in tasks}

    def respond(got):
        results = told(got)
        if not results:
            return find(books[got.messages[1]["content"]])
        if len(results) == 1:
            return find(best(results[0], r"novel by (.*)\."))
        town = best(results[1], r"was born in (\w+)\.")
        return find(f"the town {town}") if len(results) == 2 else Text(f"The {best(results[2], r'river (.*)[.]')}.")  # fmt: skip

    result, requests = await run(tasks, respond)
    assert [rewards(t) for t in result.traces] == [
        {"reward": 1.0, "exact_match": 1.0, "recall": 1.0}
    ] * 6
    for trace in result.traces:
        assert trace.attempt.error is None
        assert [(call.agent, call.dialect) for call in trace.calls] == [
            ("researcher", "responses")
        ] * 4
        assert [span.name for span in trace.spans if span.kind == "tool"] == ["search"] * 3
    assert requests[0].messages[0]["content"] == example.agent.INSTRUCTION


CASES = {
    "right at once": ([], "{answer}", (1.0, 1.0, 0.0)),
    "in other words": (["{book}"], "It is the {answer}!", (0.5, 0.0, 0.5)),
    "one passage of two": (["{book}"], "{answer}.", (1.0, 1.0, 0.5)),
    "a wrong answer": (["{book}", "{author}"], "Nowhere", (0.0, 0.0, 1.0)),
    "nothing was found": (["zzzz"], "", (0.0, 0.0, 0.0)),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
async def test_answer_and_what_was_found_are_scored(example, made, run, case):
    queries, said, scored = CASES[case]
    task = next(t for t in lc.load_tasks(made / "val.jsonl") if t.metadata["chain"] == "born")
    lines = example.passages.load(made / "corpus.jsonl").passages
    book, author = (next(p.title for p in lines if p.id == i) for i in task.metadata["supporting"])
    words = {"answer": task.expected, "book": book, "author": author}

    def respond(got):
        count = len(told(got))
        if count < len(queries):
            return find(queries[count].format(**words))
        return Text(said.format(**words))

    result, _ = await run([task], respond)
    (trace,) = result.traces
    found = rewards(trace)
    assert tuple(found[name] for name in ("reward", "exact_match", "recall")) == pytest.approx(scored)  # fmt: skip
    feedback = next(r.feedback for r in trace.rewards if r.name == "reward")
    assert (feedback is None) == (scored[0] == 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "count"),
    [
        (find("a town"), 8),
        (Text("it is the", finish_reason="length"), 1),
        (ToolCalls((ToolCall("look", {}),)), 1),
    ],
    ids=["searches on and on", "is cut off", "calls another tool"],
)
async def test_a_model_that_does_not_come_to_an_end_has_no_answer(made, run, said, count):
    tasks = lc.load_tasks(made / "val.jsonl", limit=1)
    result, requests = await run(tasks, lambda got: said)
    (trace,) = result.traces
    assert (trace.attempt.error, trace.output) == (None, "")
    assert rewards(trace)["reward"] == 0.0
    assert len(requests) == count


@pytest.mark.slow
async def test_a_model_that_fails_is_not_scored(made, run):
    tasks = lc.load_tasks(made / "val.jsonl", limit=1)
    result, _ = await run(tasks, lambda got: Error(400))
    (trace,) = result.traces
    assert result.causes == {lc.Cause.MODEL_ERROR: 1}
    assert trace.reward is None


def test_the_agent_knows_nothing_of_us():
    for name in ("agent.py", "passages.py", "tasks.py", "convert_dataset.py"):
        assert "lightning" not in (FOLDER / name).read_text()
