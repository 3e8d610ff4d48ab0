"""The agent's prompts are rewritten by reflection, those alone that are asked for."""

import re

import pytest

import lightning_core as lc
from lightning_core.optimization import OptimizeConfig
from lightning_core.strategy import Strategy
from lightning_core.template import Template
from lightning_core.testing.scripted import ScriptedServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MARK = "Name the columns one by one."


@pytest.fixture(scope="module")
def tuned(example, made, tmp_path_factory):
    """What a search comes to with a model that writes right queries under a prompt with `MARK` alone."""
    runs = tmp_path_factory.mktemp("runs")
    tasks = lc.load_tasks(made / "train.jsonl")
    val = lc.load_tasks(made / "val.jsonl")
    known = {task.input["question"]: task.expected["query"] for task in [*tasks, *val]}
    reflected = []

    def reply(request):
        if not request.messages:
            return None  # the list of models
        if request.model == "reflector":
            asked = request.messages[0]["content"]
            reflected.append(asked)
            holes = "".join(
                f"\n<<{name}>>" for name in dict.fromkeys(re.findall(r"<<(\w+)>>", asked))
            )
            return f"```\n{MARK}{holes}\n```"
        system, prompt = (message["content"] for message in request.messages)
        question = re.search(r"Question: (.*)", prompt)[1]
        if system.startswith("You check"):
            return "Well done.\nVERDICT: CORRECT"
        return f"```sql\n{known[question] if MARK in system else 'SELECT 1'}\n```"

    with ScriptedServer.in_thread() as server:
        server.respond(reply)
        result = lc.optimize_sync(
            example.agent.graph,
            tasks,
            OptimizeConfig(
                backend="prompt", budget="300 rollouts, 20 proposals", train_agents="write_query|rewrite_query",
                reflection_model=f"reflector@{server.base_url}", options={"demonstrations": "none"},
            ),
            val=val,
            reward=example.agent.score,
            model=server.base_url,
            runs=runs,
        )  # fmt: skip
    return result, Strategy.load(f"{result.folder}/strategy.json"), reflected


def test_the_prompt_that_matters_is_found_and_the_gain_is_shown_on_held_out_questions(tuned):
    result, strategy, _ = tuned
    assert result.artifact.metrics["val"]["before"] == 0.0
    assert result.artifact.metrics["val"]["after"] == 1.0
    assert MARK in strategy.prompt_templates["write_query.system"].template


def test_prompts_of_other_nodes_stay_and_holes_are_kept(tuned):
    _, strategy, _ = tuned
    prompts = strategy.prompt_templates.values()
    changed = {prompt.label for prompt in prompts if prompt.template != prompt.original}
    assert "write_query" in changed
    assert changed <= {"write_query", "rewrite_query"}
    assert {prompt.label for prompt in prompts} > changed
    for prompt in prompts:
        assert set(Template(prompt.template).holes) == set(Template(prompt.original).holes)


def test_what_is_reflected_on_is_what_went_in_what_came_out_and_how_it_was_scored(tuned):
    _, _, reflected = tuned
    assert reflected
    assert all("SELECT 1" in asked for asked in reflected[:1])
    assert all("Score: 0" in asked for asked in reflected[:1])
    assert all("<<schema>>" in asked or "<<question>>" in asked for asked in reflected)
