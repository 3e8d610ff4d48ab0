"""The agent's prompts, found in nothing but its traffic, are those of `agent.py`."""

import pytest

import lightning_core as lc
from lightning_core.prompts import find_prompts
from lightning_core.template import Template

REVIEWS = (
    "The join is missing, so rows come twice.\nVERDICT: INCORRECT",
    "```sql\nSELECT 1\n```\nwould be as good: nothing was asked of that column.\nVERDICT: INCORRECT",
    "条件不对。",  # no verdict approves nothing
    "VERDICT: CORRECT",
)
WRONG = ("SELECT name FROM nothing", "WITH t AS (SELECT 1) SELECT * FROM t", "VALUES (1, 'a\nb')")


def in_words_that_differ(number, gold, reviewing, prompt):
    """A model that is often wrong."""
    if reviewing:
        return REVIEWS[number % 4] if "SELECT" in prompt else REVIEWS[(number + 1) % 4]
    return f"```sql\n{WRONG[number // 3 % 3] if number % 3 else gold}\n```"


def alike(number, gold, reviewing, prompt):
    """A model whose replies all begin and end alike, queries and reviews, and whose queries all fail."""
    if reviewing:
        return f"The column {number}_{len(prompt)} is wrong.\nVERDICT: INCORRECT"
    return (
        f"```sql\nSELECT nothing_{number % 7} FROM ({gold.rstrip(';')}) LIMIT {len(prompt)};\n```"
    )


@pytest.fixture(scope="module", params=[in_words_that_differ, alike])
def traces(request, made, run_scripted):
    """The traces of a run on all questions with a scripted model."""
    tasks = [*lc.load_tasks(made / "train.jsonl"), *lc.load_tasks(made / "val.jsonl")]
    known = {task.input["question"]: (number, task) for number, task in enumerate(tasks)}

    def reply(asked):
        system, prompt = (message["content"] for message in asked.messages)
        question = prompt.removeprefix("Question: ").partition("\nQuery:\n")[0]
        number, task = known[question]
        reviewing = system.startswith("You check")
        return request.param(number, task.expected["query"], reviewing, prompt)

    result = run_scripted(tasks, reply)
    assert result.causes == {lc.Cause.SUCCESS: len(tasks)}
    return result.traces


@pytest.fixture(scope="module")
def found(traces):
    return {prompt.name: prompt for prompt in find_prompts(traces).prompts}


def test_each_prompt_is_found_once_and_nothing_else(found, example):
    agent = example.agent
    expected = {
        "write_query.system": (agent.WRITE, ["schema"]),
        "write_query.user": ("Question: {question}", ["question"]),
        "check_query.system": (agent.CHECK, ["schema"]),
        "check_query.user": (agent.ATTEMPT, ["question", "query", "result"]),
        "rewrite_query.system": (agent.REWRITE, ["schema"]),
        "rewrite_query.user": (
            agent.ATTEMPT + "\nReview:\n{feedback}",
            ["question", "query", "result", "review"],
        ),
    }
    assert set(found) == set(expected)
    for name, (source, holes) in expected.items():
        template = found[name].parsed
        assert list(template.places) == holes, name
        assert template.pieces == Template(source).pieces, name
        assert (found[name].label, found[name].role) == tuple(name.split("."))
        assert not found[name].is_input


def test_what_filled_each_hole_is_what_the_agent_filled_in(found, traces):
    schema = {trace.task.id: trace.output["schema"] for trace in traces}
    for trace in traces:
        for call in trace.calls:
            system, user = (message["content"] for message in call.messages)
            assert found[f"{call.node}.system"].parsed.match(system) == {
                "schema": schema[trace.task.id]
            }
            values = found[f"{call.node}.user"].parsed.match(user)
            assert values["question"] == trace.task.input["question"]
            if "query" in values:
                assert f"```sql\n{values['query']}\n```\nResult:\n{values['result']}" in user


def test_where_each_prompt_is_used_and_how_sure_that_is(found, traces):
    calls = [call for trace in traces for call in trace.calls]
    for name, prompt in found.items():
        used = [call for call in calls if call.node == prompt.label]
        assert prompt.calls == len(used), name
        assert prompt.speakers == tuple(sorted({f"{call.agent}/{call.node}" for call in used}))
        assert prompt.tasks == len({call.rollout_id for call in used})
    assert found["write_query.user"].values == {"question": 60}
    assert found["write_query.user"].confidence > 0.95
    assert found["check_query.user"].confidence > 0.9
    assert found["write_query.system"].values == {"schema": 3}
    # There are but three schemas, but each came twenty times.
    assert found["write_query.system"].confidence > 0.95
    assert found["write_query.system"].texts == 3


def test_other_halves_of_the_traffic_give_the_same_fingerprint(traces):
    halves = [find_prompts(traces[start::2]) for start in (0, 1)]
    assert halves[0].fingerprint == halves[1].fingerprint == find_prompts(traces).fingerprint
