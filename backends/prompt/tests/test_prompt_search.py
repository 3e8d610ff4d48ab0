"""Whole searches: an agent that knows nothing of it, a scripted model whose answers depend on what it is asked."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import lightning_core as lc
from lightning_core.errors import LightningError, UsageError
from lightning_core.folder import RunFolder
from lightning_core.optimization import OptimizeConfig
from lightning_core.strategy import Strategy
from lightning_core.testing import Error, ScriptedServer, Text

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

AGENT = '''
import os

from openai import OpenAI

from lightning_core import strategy


def agent(word):
    """One call."""
    reply = OpenAI().chat.completions.create(
        model="any",
        messages=[{"role": "system", "content": "You are a helpful assistant."}, {"role": "user", "content": word}],
    )
    return reply.choices[0].message.content


def reading(word):
    """Reads its prompt by name."""
    reply = OpenAI().chat.completions.create(
        model="any",
        messages=[
            {"role": "system", "content": strategy.prompt("manner", default="You are a helpful assistant.").format()},
            {"role": "user", "content": word},
        ],
    )
    return reply.choices[0].message.content


def ruled(word):
    """Asks as often as the rule says, and says how."""
    tries = strategy.rule("tries", default=1, low=1, high=4)
    case = strategy.choose("case", ["lower", "upper"], default="lower")
    for _ in range(tries):
        said = agent(word)
    return f"{tries} {case}"


def score(task, trace):
    """Whether the word came back in capitals."""
    return float(trace.output == task.expected)


def flat(task, trace):
    """Tells nothing."""
    return 0.5


def of_rules(task, trace):
    """Best with three tries in capitals."""
    tries, case = trace.output.split()
    return 1.0 - abs(int(tries) - 3) / 4 - (case != "upper") / 4
'''
ORIGINAL = "You are a helpful assistant."
WORDS = [f"word{chr(97 + n % 26)}{n}" for n in range(60)]


def model(request):
    """Says a word in capitals where it is told to, or shown; else it chats. Reflects where it is asked to."""
    messages = request.json["messages"]
    asked = messages[-1]["content"]
    if request.json["model"] == "reflector":
        assert "Score: 0" in asked
        assert ORIGINAL in asked or "CAPITALS" in asked
        return Text(
            text='Here it is:\n```\nAnswer with the word in CAPITALS, as {"json": false}.\n```'
        )
    shown = sum(message["role"] == "assistant" for message in messages)
    if shown >= 4 or "CAPITALS" in messages[0]["content"]:
        return Text(asked.upper())
    if shown >= 2:
        # A few examples are understood for some words alone.
        return Text(
            text=asked.upper() if int(re.sub(r"\D", "", asked)) % 3 == 0 else f"Sure: {asked}"
        )
    return Text(f"Sure! {asked} is a nice word.")


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "agent.py").write_text(AGENT)
    for name, words in (("train", WORDS[:30]), ("val", WORDS[30:])):
        rows = [{"id": word, "input": word, "expected": word.upper()} for word in words]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    with ScriptedServer.in_thread() as server:
        server.respond(model)
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        yield tmp_path, server


async def search(name, agent="agent.py:agent", reward="score", *, options=(), **changes):
    config = OptimizeConfig(
        backend="prompt", options={"demonstrations": "expected", **dict(options)}, **changes
    )
    scope = {}
    exec(compile(Path("agent.py").read_text(), "agent.py", "exec"), scope)
    return await lc.optimize(
        agent,
        "train.jsonl",
        config,
        val="val.jsonl",
        reward=scope[reward],
        name=name,
        concurrency=8,
    )


async def test_demonstrations_that_help_are_found_and_the_gain_is_shown_on_tasks_that_were_held_out(
    project,
):
    path, _ = project
    result = await search("shown", budget="400 rollouts")
    metrics = result.artifact.metrics
    assert metrics["val"]["before"] == 0.0
    assert metrics["val"]["after"] == 1.0
    assert metrics["improved"] is True
    assert metrics["cost"]["rollouts"] <= 400
    strategy = Strategy.load(path / "runs/shown/strategy.json")
    (prompt,) = strategy.prompt_templates.values()
    assert prompt.original == prompt.template == ORIGINAL
    assert len(prompt.demonstrations) >= 4
    train = {word.upper() for word in WORDS[:30]}
    assert {pair[1].content for pair in prompt.demonstrations} <= train
    assert strategy.provenance.scores["after"] == 1.0


async def test_prompts_are_rewritten_by_reflection(project):
    path, server = project
    result = await search(
        "reflected", budget="400 rollouts, 20 proposals", options={"demonstrations": "none"},
        reflection_model=f"reflector@{server.base_url}",
    )  # fmt: skip
    assert result.artifact.metrics["val"]["after"] == 1.0
    strategy = Strategy.load(path / "runs/reflected/strategy.json")
    (prompt,) = strategy.prompt_templates.values()
    assert prompt.template == 'Answer with the word in CAPITALS, as {{"json": false}}.'


async def test_a_prompt_that_the_code_reads_by_name_is_rewritten_there(project):
    path, server = project
    result = await search(
        "read", "agent.py:reading", budget="400 rollouts, 20 proposals", options={"demonstrations": "none"},
        reflection_model=f"reflector@{server.base_url}",
    )  # fmt: skip
    assert result.artifact.metrics["val"]["after"] == 1.0
    prompt = Strategy.load(path / "runs/read/strategy.json").prompt_templates["manner"]
    assert prompt.original == ""
    assert "CAPITALS" in prompt.template


async def test_rules_and_choices_that_the_code_reads_are_searched(project):
    path, _ = project
    result = await search(
        "ruled",
        "agent.py:ruled",
        "of_rules",
        budget="600 rollouts",
        options={"demonstrations": "none", "trials": "20"},
    )
    strategy = Strategy.load(path / "runs/ruled/strategy.json")
    assert strategy.decision_rules == {"tries": 3}
    assert strategy.interaction_patterns["case"].chosen == "upper"
    assert result.artifact.metrics["val"]["after"] == 1.0


async def test_a_reward_that_tells_nothing_is_named(project):
    with pytest.raises(UsageError, match=r"reward `flat`: gave 0\.5 to every rollout"):
        await search("flat", reward="flat", budget="400 rollouts")


async def test_a_budget_that_leaves_nothing_to_search_with_is_refused(project):
    with pytest.raises(UsageError, match="the comparison at the end takes 60 of them"):
        await search("small", budget="80 rollouts")


async def test_a_model_that_is_away_for_a_while_is_waited_for_and_costs_no_rollout(project):
    _, server = project
    for _ in range(60):
        server.enqueue(Error(503, "busy"))
    result = await search("away", budget="400 rollouts")
    assert result.artifact.metrics["val"]["after"] == 1.0
    whole = await search("there", budget="400 rollouts")
    assert result.artifact.metrics["cost"]["rollouts"] == whole.artifact.metrics["cost"]["rollouts"]


async def test_a_model_that_refuses_is_said_at_once(project):
    _, server = project
    server.respond(lambda request: Error(401, "Incorrect API key provided"))
    with pytest.raises(LightningError, match=r"cannot be run: model_error: .*API key.*--resume"):
        await search("refused", budget="400 rollouts")


def start(name, server, *options):
    return subprocess.Popen(
        [sys.executable, "-m", "lightning_core.cli", "optimize", "agent.py:agent", "--tasks", "train.jsonl", "--val", "val.jsonl",
         "--reward", "agent.py:score", "--backend", "prompt", "--budget", "400 rollouts", "--set", "demonstrations=expected",
         "--reflection-model", f"reflector@{server.base_url}", "--concurrency", "4", "--name", name, *options],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


def test_a_search_that_is_killed_again_and_again_comes_to_the_same_and_pays_for_nothing_twice(
    project,
):
    path, server = project
    whole = start("whole", server)
    out, _ = whole.communicate(timeout=300)
    assert whole.returncode == 0, out
    asked = len(server.requests)
    wait = random.Random(7)
    kills = 0
    for number in range(5):
        process = start("broken", server, *(["--resume"] if number else []))
        before, more = len(server.requests), wait.randrange(10, 60)
        while process.poll() is None and len(server.requests) < before + more:
            time.sleep(0.01)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            kills += 1
        process.communicate()
    last = start("broken", server, "--resume")
    out, _ = last.communicate(timeout=300)
    assert last.returncode == 0, out
    assert kills >= 3
    # What was under way when it was killed is lost: at most as many as run at once, and one question of the other model.
    assert len(server.requests) - asked <= asked + kills * 5
    first, second = (
        Strategy.load(path / f"runs/{name}/strategy.json") for name in ("whole", "broken")
    )
    assert first.digest == second.digest
    assert first.provenance.cost["rollouts"] == second.provenance.cost["rollouts"]
    lines = RunFolder(path / "runs/broken").lines()
    steps = [line["step"] for line in lines if "strategy" in line]
    assert steps == sorted(set(steps))


async def test_a_model_is_chosen_by_its_quality_and_by_its_price_where_that_is_weighed(project):
    path, server = project

    def answer(request):
        asked = request.json["messages"][-1]["content"]
        right = {"good": True, "cheap": int(re.sub(r"\D", "", asked)) % 8 != 0}
        return Text(asked.upper() if right.get(request.json["model"], False) else asked)

    server.respond(answer)
    options = {"demonstrations": "none", "prices": "good=9000,9000 cheap=1,1 any=1,1"}
    for name, weight, chosen in (("best", "0", "good"), ("worth", "1", "cheap")):
        await search(
            name,
            budget="400 rollouts",
            models=("cheap", "good"),
            options=options | {"cost_weight": weight},
        )
        strategy = Strategy.load(path / f"runs/{name}/strategy.json")
        assert {label: each.model for label, each in strategy.models.items()} == {"*": chosen}


async def test_an_unchanged_program_is_as_good_with_the_server_s_address_alone(project):
    path, server = project
    await search("shown", budget="400 rollouts")
    # As where an adapter has labelled the calls of the search.
    strategy = json.loads((path / "runs/shown/strategy.json").read_text())
    for prompt in strategy["prompt_templates"].values():
        prompt["label"] = "node"
    (path / "labelled.json").write_text(json.dumps(strategy))
    program = "from agent import agent; print(agent('wordx61'))"

    def said(base_url):
        done = subprocess.run(
            [sys.executable, "-c", program], env=os.environ | {"OPENAI_BASE_URL": base_url}, text=True,
            capture_output=True, check=True, cwd=path,
        )  # fmt: skip
        return done.stdout.strip()

    assert said(server.base_url) == "Sure! wordx61 is a nice word."
    serving = subprocess.Popen(
        [sys.executable, "-m", "lightning_core.cli", "serve", "--port", "0", "--strategy", "labelled.json", "--upstream",
         server.base_url],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        for line in serving.stdout:
            if (found := re.search(r"OPENAI_BASE_URL=(\S+)", line)) is not None:
                assert said(found[1]) == "WORDX61"
                break
        else:
            pytest.fail("it told no address")
    finally:
        serving.send_signal(signal.SIGINT)
        serving.communicate(timeout=60)


async def test_a_prompt_that_the_model_refuses_is_said_and_the_search_goes_on(project, capsys):
    _, server = project
    texts = iter(("Be long. " * 9, "Answer with the word in CAPITALS."))

    def answer(request):
        if request.json["model"] == "reflector":
            return Text(f"```\n{next(texts, 'Be kind.')}\n```")
        if "Be long." in request.json["messages"][0]["content"]:
            return Error(400, "maximum context length exceeded")
        return model(request)

    server.respond(answer)
    result = await search(
        "long", budget="400 rollouts, 8 proposals", options={"demonstrations": "none"},
        reflection_model=f"reflector@{server.base_url}",
    )  # fmt: skip
    assert result.artifact.metrics["val"]["after"] == 1.0
    assert "is left out: model_error: maximum context length exceeded" in capsys.readouterr().err


async def test_prompts_that_the_model_refuses_one_after_the_other_end_their_search_and_no_more(
    project, capsys
):
    _, server = project
    numbers = iter(range(99))

    def answer(request):
        if request.json["model"] == "reflector":
            return Text(f"```\nBe long {next(numbers)}.\n```")
        if "Be long" in request.json["messages"][0]["content"]:
            return Error(400, "maximum context length exceeded")
        asked = request.json["messages"][-1]["content"]
        return Text(asked.upper() if sum(map(ord, asked)) % 2 else asked)

    server.respond(answer)
    result = await search(
        "longer", budget="400 rollouts", options={"demonstrations": "none"},
        reflection_model=f"reflector@{server.base_url}",
    )  # fmt: skip
    assert result.artifact.metrics["val"]["gain"] == 0.0
    told = capsys.readouterr().err
    assert "prompts are left as they are by now: model_error: maximum context length" in told
    assert sum(each.json["model"] == "reflector" for each in server.requests if each.json) == 3


async def test_what_an_attempt_cost_that_was_made_anew_is_counted(project):
    _, server = project
    fails = dict.fromkeys(WORDS, True)

    def answer(request):
        word = request.json["messages"][-1]["content"]
        return Error(400, "unlucky") if fails.pop(word, None) else model(request)

    server.respond(answer)
    result = await search("unlucky", budget="400 rollouts")
    assert result.artifact.metrics["cost"]["calls"] == len(server.requests)
    assert result.artifact.metrics["cost"]["rollouts"] == len(server.requests) - len(WORDS)


async def test_no_more_prompts_are_proposed_than_the_budget_has(project):
    _, server = project

    def answer(request):
        if request.json["model"] == "reflector":
            number = sum(each.json["model"] == "reflector" for each in server.requests if each.json)
            return Text(f"```\nBe kind, for the {number}. time.\n```")
        return Text("I do not know.")

    server.respond(answer)
    with pytest.raises(UsageError, match=r"gave 0 to every rollout"):
        await search(
            "few", budget="400 rollouts, 3 proposals", options={"demonstrations": "none"},
            reflection_model=f"reflector@{server.base_url}",
        )  # fmt: skip
    assert sum(each.json["model"] == "reflector" for each in server.requests if each.json) == 3
