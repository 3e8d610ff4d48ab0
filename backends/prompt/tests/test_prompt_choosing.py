"""Whole searches for models, for sampling, for rules, and under bounds of money and time, with scripted models."""

import json
from pathlib import Path

import pytest

import lightning_core as lc
from lightning_core.errors import LightningError, UsageError
from lightning_core.optimization import OptimizeConfig
from lightning_core.strategy import ModelChoice, Strategy
from lightning_core.testing import Error, Hang, ScriptedServer, Text

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

AGENT = '''
from openai import OpenAI

from lightning_core import strategy
from lightning_core.instrument import label


def ask(system, asked, **sampling):
    messages = [{"role": "system", "content": system}, {"role": "user", "content": asked}]
    return OpenAI(max_retries=0).chat.completions.create(model="own", messages=messages, **sampling).choices[0].message.content


def two(word):
    """Two nodes: one writes the word in capitals, the other says whether it is."""
    with label(node="write"):
        said = ask("Write the word in capitals.", word)
    with label(node="check"):
        return [said, ask("Say yes if the word is in capitals, else no.", said)]


def one(word):
    """One call."""
    return [ask("Write the word in capitals.", word)]


def ruled(word):
    """As many calls as its rules say; what comes of it depends on three of them."""
    calls = strategy.rule("calls", default=3, low=1, high=3)
    case = strategy.choose("case", ["lower", "title", "upper"])
    polite = strategy.rule("polite", default=True)
    for _ in range(calls):
        ask("Say anything.", word)
    return [calls, case, polite]


def sampled(word):
    """Asks for what is wild and short."""
    return [ask("Write the word in capitals.", word, temperature=1, top_p=1, max_tokens=2)]


def broken(word):
    """Fails."""
    raise KeyError("schema")


def score(task, trace):
    """Half for the word, and half for the check where there is one."""
    said, *verdict = trace.output
    right = [said == task.expected] + [each == ("yes" if said.isupper() else "no") for each in verdict]
    return sum(right) / len(right)


def of_rules(task, trace):
    """Best with one call, in capitals, not polite."""
    calls, case, polite = trace.output
    return (3 - calls) / 4 + (case == "upper") / 4 - polite / 4
'''
WORDS = [f"word{chr(97 + n % 26)}{n}" for n in range(60)]
TOKENS = 100
USAGE = {"prompt_tokens": TOKENS, "completion_tokens": 0, "total_tokens": TOKENS}
PRICES = "own=50,50 strong=100,100 cheap=10,10"


def said(text):
    return Text(text, usage=USAGE)


def half(request):
    """Right for half of the words, whatever it is told."""
    asked = request.json["messages"][-1]["content"]
    return said(asked.upper() if sum(map(ord, asked)) % 2 else asked)


def model(request):
    """`strong` writes and checks well, `cheap` checks as well but writes half of the words, and `own` does neither."""
    name, messages = request.json["model"], request.json["messages"]
    asked = messages[-1]["content"]
    if "Say yes" in messages[0]["content"]:
        return said("maybe" if name == "own" else "yes" if asked.isupper() else "no")
    half = sum(map(ord, asked)) % 2
    return said(
        asked.upper() if name == "strong" or (name == "cheap" and half) else f"Sure: {asked}"
    )


@pytest.fixture
def server(tmp_path, monkeypatch):
    (tmp_path / "agent.py").write_text(AGENT)
    for name, words in (("train", WORDS[:30]), ("val", WORDS[30:])):
        rows = [{"id": word, "input": word, "expected": word.upper()} for word in words]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    with ScriptedServer.in_thread() as scripted:
        scripted.respond(model)
        monkeypatch.setenv("OPENAI_BASE_URL", scripted.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        yield scripted


async def search(agent, reward="score", *, budget, options=(), **more):
    config = OptimizeConfig(
        backend="prompt",
        budget=budget,
        options={"demonstrations": "none", **dict(options)},
        models=more.pop("models", ()),
    )
    scope = {}
    exec(compile(Path("agent.py").read_text(), "agent.py", "exec"), scope)
    return await lc.optimize(
        f"agent.py:{agent}", "train.jsonl", config, val="val.jsonl", reward=scope[reward], name="run",
        concurrency=8, **more,
    )  # fmt: skip


def found():
    return Strategy.load("runs/run/strategy.json")


async def test_each_node_gets_the_model_that_is_worth_most_there_and_of_equals_the_cheapest(
    server, capsys
):
    def answer(request):
        if request.json["model"] == "nowhere":
            return Error(404, "The model `nowhere` does not exist")
        return model(request)

    server.respond(answer)
    result = await search(
        "two", budget="330 rollouts, 10 USD", options={"prices": f"{PRICES} nowhere=1,1"},
        models=("nowhere", "strong", "cheap"),
    )  # fmt: skip
    metrics = result.artifact.metrics
    assert (metrics["val"]["before"], metrics["val"]["after"]) == (0.0, 1.0)
    assert found().models == {
        "write": ModelChoice(model="strong"),
        "check": ModelChoice(model="cheap"),
    }
    # The comparison at the end ran last: 30 times as it is, 30 times with each node's own model.
    last = [
        (each.json["messages"][0]["content"][:3], each.json["model"])
        for each in server.requests[-60:]
    ]
    assert set(last) == {("Wri", "strong"), ("Say", "cheap")}
    told = capsys.readouterr().err
    assert told.count("is left out: model_error: ") == 1
    assert "nowhere for check (" in told
    assert "The model `nowhere` does not exist" in told
    assert f"{metrics['cost']['rollouts']} of 330 rollouts" in metrics["used"]
    assert " of 10 USD" in metrics["used"]


async def test_a_model_whose_price_is_not_known_is_refused_where_money_counts(server):
    for budget, options in (("400 rollouts, 1 USD", {}), ("400 rollouts", {"cost_weight": "1"})):
        with pytest.raises(UsageError, match=r"what `strong` costs is not known; give the price"):
            await search(
                "one", budget=budget, options=options | {"prices": "own=1,1"}, models=("strong",)
            )
    assert server.requests == []
    # What the agent asks for itself is known once it has asked.
    with pytest.raises(UsageError, match=r"what `own` costs is not known; give the price"):
        await search(
            "one",
            budget="400 rollouts, 1 USD",
            options={"prices": "strong=1,1"},
            models=("strong",),
        )
    assert len(server.requests) == 1


async def test_a_search_ends_at_its_bound_of_money_and_is_compared_by_what_was_kept_for_that(
    server,
):
    # A rollout costs 0.01 USD: 30 as it is, 60 to compare, and what is left is enough for 30 more.
    options = {"prices": "own=100,100", "temperature": "0,1"}
    result = await search("one", budget="400 rollouts, 1.2 USD", options=options)
    metrics = result.artifact.metrics
    assert metrics["stopped"] == "1.2 of 1.2 USD, with the comparison at the end"
    assert metrics["verdict"].startswith("0.000 before, 0.000 after")
    assert metrics["cost"]["usd"] == pytest.approx(len(server.requests) * 0.01)
    assert 0.9 <= metrics["cost"]["usd"] <= 1.2
    assert f"{metrics['cost']['usd']:.2g} of 1.2 USD" in metrics["used"]


async def test_what_leads_when_the_budget_ends_is_compared_though_it_was_not_tried_on_all_tasks(
    server, capsys
):
    # 30 as it is, 60 to compare, 8 for each of six models; for the second round one is left.
    weak = tuple(f"weak{n}" for n in range(5))
    result = await search("one", budget="139 rollouts", models=(*weak, "strong"))
    metrics = result.artifact.metrics
    assert metrics["strategies"] == 1
    assert (metrics["val"]["before"], metrics["val"]["after"]) == (0.0, 1.0)
    assert found().models == {"*": ModelChoice(model="strong")}
    assert "strong (" in (told := capsys.readouterr().err)
    assert "leads on 8 tasks" in told
    assert Path("runs/run", metrics["best"]).is_file()


@pytest.mark.parametrize("budget", ["0.5 USD", "5k tokens", "50 calls"])
async def test_a_bound_that_the_agent_as_it_is_would_use_up_is_said_after_the_first_rollout(
    server, budget
):
    with pytest.raises(UsageError, match=r"going by the first rollout, .* so that nothing is left"):
        await search(
            "one",
            budget=f"400 rollouts, {budget}",
            options={"prices": "own=100,100", "temperature": "0,1"},
        )
    assert len(server.requests) == 1


async def test_how_a_model_is_sampled_is_searched_within_the_bounds_that_are_given(server):
    def answer(request):
        """The colder, the more words; a reply that may have few tokens is cut."""
        asked, sampling = request.json["messages"][-1]["content"], request.json
        right = sum(map(ord, asked)) % 10 >= 10 * sampling["temperature"]
        return said((asked.upper() if right else "?")[: 4 * sampling["max_tokens"]])

    server.respond(answer)
    options = {"temperature": "0,1", "top_p": "0.2,0.9", "max_tokens": "1,64", "trials": "30"}
    result = await search("sampled", budget="600 rollouts", options=options)
    metrics = result.artifact.metrics
    (choice,) = found().models.values()
    assert (metrics["val"]["before"], choice.model) == (0.0, None)
    assert metrics["val"]["after"] >= 0.8
    assert choice.temperature <= 0.3
    assert 0.2 <= choice.top_p <= 0.9
    assert 2 <= choice.max_tokens <= 64
    sent = server.requests[-1].json
    assert {name: sent[name] for name in ("temperature", "top_p", "max_tokens")} == {
        "temperature": choice.temperature, "top_p": choice.top_p, "max_tokens": choice.max_tokens,
    }  # fmt: skip


async def test_rules_are_tuned_hopeless_ones_given_up_early_and_those_of_the_code_not_paid_for_again(
    server,
):
    result = await search("ruled", "of_rules", budget="600 rollouts", options={"trials": "24"})
    metrics = result.artifact.metrics
    kept = found()
    assert kept.interaction_patterns["case"].chosen == "upper"
    assert kept.decision_rules["polite"] is False
    assert metrics["val"]["after"] >= metrics["val"]["before"] + 0.5
    # 30 as it is, 60 to compare; the others on all of 12 tasks, but those that were given up.
    whole = 12 * (metrics["strategies"] - 1)
    assert whole < metrics["cost"]["rollouts"] - 90 < 12 * 23


async def test_sampling_that_the_provider_refuses_is_said_and_the_search_goes_on(server, capsys):
    def answer(request):
        if request.json["temperature"] != 1:
            return Error(400, "Unsupported value: 'temperature' does not support 0.5")
        return said(request.json["messages"][-1]["content"].upper())

    server.respond(answer)
    result = await search("sampled", budget="600 rollouts", options={"temperature": "0,1"})
    assert result.artifact.metrics["verdict"].startswith("1.000 before, 1.000 after")
    assert "rules are left as they are by now: model_error: " in capsys.readouterr().err
    assert found().models == {}


async def test_an_agent_that_always_fails_is_said(server):
    with pytest.raises(
        LightningError, match=r"fails on each of 30 tasks, .* agent_error: .*KeyError.*schema"
    ):
        await search("broken", budget="400 rollouts", options={"temperature": "0,1"})


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (Error(503, "busy"), "model_error: busy"),
        (Hang(), "timeout: the attempt's deadline has passed"),
    ],
)
async def test_a_provider_that_stays_away_ends_the_search_which_goes_on_once_it_is_back(
    server, reply, told
):
    server.respond(lambda request: reply)
    asked = {
        "budget": "400 rollouts",
        "options": {"temperature": "0,1", "patience": "3", "trials": "2"},
        "timeout": 6.0,
    }
    says = rf"does not answer: {told}.*given up after .*what was paid for is kept"
    with pytest.raises(LightningError, match=says):
        await search("one", **asked)
    server.respond(half)
    result = await search("one", **asked, resume=True)
    assert result.artifact.metrics["stopped"] == ""


async def test_a_search_that_its_bound_of_time_has_ended_comes_to_the_same_when_it_is_compared_anew(
    server, tmp_path
):
    """As where it was killed in the comparison."""
    server.respond(half)
    options = {"temperature": "0,1", "trials": "4000"}
    first = await search("one", budget="60k rollouts, 12 s", options=options)
    assert first.artifact.metrics["strategies"] < 4000
    asked = len(server.requests)
    again = await search("one", budget="60k rollouts, 12 s", options=options, resume=True)
    assert again.artifact.metrics["strategies"] == first.artifact.metrics["strategies"]
    assert len(server.requests) <= asked + 12
