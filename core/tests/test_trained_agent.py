"""`TrainedAgent`: a flow from a strategy alone, with a scripted model."""

import asyncio

import pytest

from lightning_core.errors import EngineError, FormatError, UsageError
from lightning_core.strategy import (
    InteractionPattern,
    Message,
    ModelChoice,
    PromptTemplate,
    Provenance,
    Step,
    Strategy,
)
from lightning_core.trained import TrainedAgent

WRITE = PromptTemplate(template="Write: {question}", role="user")
CHECK = PromptTemplate(template="Is {answer} right for {question}? It gave {result}.", role="user")
REWRITE = PromptTemplate(template="{question}: {answer} gave {result}. {review}", role="user")
ALL = {"write": WRITE, "check": CHECK, "rewrite": REWRITE}
QUICK, CHECKED = (Step.WRITE, Step.EXECUTE), (Step.WRITE, Step.EXECUTE, Step.CHECK)


def flow(*steps):
    return {"flow": InteractionPattern(chosen="own", options={"own": steps})}


def sent(request):
    """A request's messages as lines."""
    return [f"{message['role']}: {message['content']}" for message in request.messages]


def number(solution):
    """An executor that fails on what is no number."""
    return int(solution)


@pytest.fixture
def agent(scripted_server):
    """Makes an agent of prompts, or of a strategy's fields, that asks the scripted server; it says 1 if nothing else."""
    scripted_server.respond(lambda request: "1")

    def make(prompts=ALL, *, fields=None, rules=None, **options):
        strategy = Strategy(
            prompt_templates=prompts, decision_rules=rules or {}, **(fields or {})
        )  # fmt: skip
        given = {"model": "m", "executor": number, "log": pytest.fail, **options}
        return TrainedAgent(
            strategy_file=strategy, model_endpoint=scripted_server.base_url, **given
        )

    return make


def test_it_writes_executes_checks_and_rewrites_until_the_check_is_content(agent, scripted_server):
    scripted_server.enqueue("1", "It is odd.\nno", "2", "yes")
    done = agent().attempt("An even number?")
    assert (done.solution, done.result, done.accepted) == ("2", 2, True)
    assert [sent(request) for request in scripted_server.requests] == [
        ["user: Write: An even number?"],
        ["user: Is 1 right for An even number?? It gave 1."],
        ["user: An even number?: 1 gave 1. It is odd.\nno"],
        ["user: Is 2 right for An even number?? It gave 2."],
    ]
    assert done.scores == (0.0, 1.0)
    assert [(call.step, call.attempt) for call in done.calls] == [
        ("write", 1), ("check", 1), ("rewrite", 2), ("check", 2),
    ]  # fmt: skip
    assert done.calls[0].completion_tokens


def test_a_solution_that_is_right_at_once_is_executed_and_checked_once(agent, scripted_server):
    ran = []
    scripted_server.enqueue("2", "correct")
    assert agent(executor=ran.append).execute(task="x") == ("2", None)
    assert ran == ["2"]
    assert scripted_server.pending == 0


def test_what_fails_is_not_checked_and_is_rewritten_with_its_error(agent, scripted_server):
    scripted_server.enqueue("两", "2", "ok")
    done = agent().attempt("x")
    assert done.solution == "2"
    assert sent(scripted_server.requests[1]) == [
        "user: x: 两 gave Error: invalid literal for int() with base 10: '两'. "
        "ValueError: invalid literal for int() with base 10: '两'"
    ]
    assert isinstance(done.errors[0], ValueError)
    assert (done.scores, done.errors[1]) == ((0.0, 1.0), None)


def test_attempts_end_at_three_where_the_strategy_says_nothing(agent, scripted_server):
    scripted_server.respond(lambda request: "no" if "right for" in sent(request)[0] else "1")
    done = agent().attempt("x")
    assert (len(done.attempts), done.accepted) == (3, False)


@pytest.mark.parametrize("attempts", [1, 2, 5])
def test_no_more_solutions_are_written_than_the_strategy_allows(agent, scripted_server, attempts):
    scripted_server.respond(lambda request: "no" if "right for" in sent(request)[0] else "1")
    done = agent(rules={"max_attempts": attempts}).attempt("x")
    assert len(done.attempts) == attempts
    assert len(done.calls) == 2 * attempts


@pytest.mark.parametrize(("threshold", "attempts"), [(0.3, 1), (0.4, 1), (0.41, 2), (0.0, 1)])
def test_a_score_below_the_threshold_asks_for_a_rewrite(agent, threshold, attempts):
    rules = {"rewrite_threshold": threshold, "max_attempts": 2}
    done = agent(checker=lambda task, solution, result: 0.4, rules=rules).attempt("x")
    assert len(done.attempts) == attempts
    assert done.accepted == (threshold <= 0.4)


def test_the_best_solution_is_returned_not_the_last(agent, scripted_server):
    scores = {"1": 0.2, "2": 0.4, "3": 0.1}
    scripted_server.enqueue("1", "2", "3")
    made = agent(checker=lambda task, solution, result: scores[solution])
    done = made.attempt("x")
    assert (done.solution, done.result, done.best, done.scores) == ("2", 2, 1, (0.2, 0.4, 0.1))
    assert not done.accepted


def test_of_equal_scores_one_that_ran_is_better_and_then_the_latest(agent, scripted_server):
    scripted_server.enqueue("1", "2", "x")
    assert agent(checker=lambda *_: False).attempt("x").solution == "2"


@pytest.mark.parametrize(("handling", "written"), [("rewrite", ["a", "b", "c"]), ("return", ["a"])])
def test_a_failing_solution_is_rewritten_or_returned_as_the_strategy_says(
    agent, scripted_server, handling, written
):
    scripted_server.enqueue("a", "b", "c")
    done = agent(rules={"error_handling": handling}).attempt("x")
    assert [attempt.solution for attempt in done.attempts] == written
    assert isinstance(done.result, ValueError)
    assert f"'{written[-1]}'" in str(done.result)
    assert not done.accepted


def test_a_failing_solution_raises_its_own_error_where_the_strategy_says_so(agent, scripted_server):
    scripted_server.enqueue("a")
    with pytest.raises(ValueError, match="invalid literal"):
        agent(rules={"error_handling": "raise"}).execute("x")
    assert len(scripted_server.requests) == 1


def test_a_quick_flow_checks_nothing_and_rewrites_what_fails(agent, scripted_server):
    made = agent(fields={"interaction_patterns": flow(*QUICK)})
    scripted_server.enqueue("a", "2")
    done = made.attempt("x")
    assert (done.solution, done.scores) == ("2", (0.0, None))
    assert [call.step for call in done.calls] == ["write", "rewrite"]
    assert done.accepted


def test_the_chosen_option_is_the_flow(agent, scripted_server):
    pattern = InteractionPattern(chosen="quick", options={"checked": CHECKED, "quick": QUICK})
    scripted_server.enqueue("1")
    done = agent(fields={"interaction_patterns": {"flow": pattern}}).attempt("x")
    assert [call.step for call in done.calls] == ["write"]


def test_a_rewrite_without_anything_known_before_is_asked_for(agent, scripted_server):
    scripted_server.enqueue("1", "2")
    steps = flow(Step.WRITE, Step.REWRITE)
    prompts = {"write": WRITE}
    done = agent(prompts, fields={"interaction_patterns": steps}).attempt("x")
    assert done.solution == "2"
    assert "look at it again" in sent(scripted_server.requests[1])[-1]


def test_an_error_after_a_good_check_counts(agent, scripted_server):
    steps = flow(Step.WRITE, Step.CHECK, Step.EXECUTE)
    scripted_server.enqueue("a", "yes", "2", "yes")
    prompts = {**ALL, "check": PromptTemplate(template="Right? {answer}", role="user")}
    done = agent(prompts, fields={"interaction_patterns": steps}).attempt("x")
    assert (done.solution, done.scores) == ("2", (0.0, 1.0))


def test_without_a_prompt_or_a_checker_a_check_says_whether_it_ran(agent, scripted_server):
    scripted_server.enqueue("a", "2")
    done = agent({"write": WRITE}).attempt("x")
    assert (done.scores, done.accepted) == ((0.0, 1.0), True)


def test_without_an_executor_and_a_check_the_first_solution_is_taken(agent, scripted_server):
    scripted_server.enqueue("a")
    done = agent({"write": WRITE}, executor=None).attempt("x")
    assert (done.solution, done.result, done.scores) == ("a", None, (None,))
    assert done.accepted


def test_without_a_prompt_for_it_a_rewrite_asks_again_with_what_was_wrong(agent, scripted_server):
    scripted_server.enqueue("```\n1\n```", "2")
    checks = {"1": (0.2, "It is {odd}."), "2": (1, "")}
    agent({"write": WRITE}, checker=lambda task, solution, result: checks[solution]).execute("x")
    assert sent(scripted_server.requests[1]) == [
        "user: Write: x",
        "assistant: ```\n1\n```",
        "user: What is wrong with it:\nIt is {odd}.\n\nWrite a better one, in the same form.",
    ]


def test_a_low_score_without_words_is_told_as_such(agent, scripted_server):
    scripted_server.enqueue("1", "2")
    checks = {"1": 0.25, "2": True}
    agent(checker=lambda task, solution, result: checks[solution]).execute("x")
    assert "The check scores it 0.25; 0.5 is needed." in sent(scripted_server.requests[1])[0]


@pytest.mark.parametrize("value", [2, -0.1, None, "yes", (1, 2), (0.5, "a", "b"), float("nan")])
def test_what_is_no_score_of_a_checker_is_one_error(agent, value):
    with pytest.raises(UsageError, match=r"`checker`: expected True, False, a score from 0 to 1"):
        agent(checker=lambda *_: value).execute("x")


def test_what_a_checker_raises_is_raised(agent):
    def broken(task, solution, result):
        raise LookupError("the checker broke")

    with pytest.raises(LookupError, match="the checker broke"):
        agent(checker=broken).execute("x")


def test_a_check_that_cannot_be_read_is_unsure_and_told(agent, scripted_server):
    told = []
    scripted_server.enqueue("1", "Hard to say.")
    done = agent(log=told.append).attempt("x")
    assert (done.scores, done.accepted) == ((0.5,), True)
    assert "no verdict in 'Hard to say.'" in told[0]


# Temperature and models


def temperatures(server, step):
    word = {"write": "Write", "check": "right for"}[step]
    asked = [request for request in server.requests if word in sent(request)[0]]
    return [request.json.get("temperature") for request in asked]


@pytest.mark.parametrize(
    ("options", "fields", "written", "checked"),
    [
        ({}, {}, [1.0, 0.5, 0.0], [0.0] * 3),
        ({"temperature": 0.4}, {}, [0.4, 0.2, 0.0], [0.0] * 3),
        ({"temperature": None}, {}, [None] * 3, [None] * 3),
        ({}, {"models": {"*": ModelChoice(temperature=0.8)}}, [0.8, 0.4, 0.0], [0.8] * 3),
        ({}, {"models": {"write": ModelChoice(temperature=0.6)}}, [0.6, 0.3, 0.0], [0.0] * 3),
    ],
)
def test_the_temperature_of_writing_falls_to_zero_at_the_last_attempt(
    agent, scripted_server, options, fields, written, checked
):
    scripted_server.respond(lambda request: "no" if "right for" in sent(request)[0] else "1")
    prompts = {"write": WRITE, "check": CHECK}
    agent(prompts, fields=fields, **options).execute("x")
    assert temperatures(scripted_server, "write") == pytest.approx(written)
    assert temperatures(scripted_server, "check") == checked


def test_a_single_attempt_keeps_its_temperature(agent, scripted_server):
    agent(temperature=0.7, rules={"max_attempts": 1}, checker=lambda *_: 1).execute("x")
    assert scripted_server.requests[0].json["temperature"] == 0.7


def test_each_step_asks_the_model_of_its_label(agent, scripted_server):
    prompts = {
        "write_query.user": PromptTemplate(template="Write: {task}", role="user", label="write_query"),
        "look": PromptTemplate(template="Check: {solution}", role="user", label="CheckQuery"),
        "rewrite": PromptTemplate(template="Rewrite: {solution}", role="user"),
    }  # fmt: skip
    models = {
        "write_query": ModelChoice(model="w", top_p=0.9, max_tokens=7),
        "CheckQuery": ModelChoice(temperature=0.3),
        "*": ModelChoice(model="star"),
    }
    scripted_server.enqueue("1", "no", "2", "yes")
    agent(prompts, fields={"models": models}).execute("x")
    asked = [request.json for request in scripted_server.requests]
    assert [request["model"] for request in asked] == ["w", "m", "star", "m"]
    assert (asked[0]["top_p"], asked[0]["max_tokens"]) == (0.9, 7)
    assert "top_p" not in asked[2]


def test_a_step_without_any_model_is_refused(agent):
    with pytest.raises(UsageError, match=r"step `write`: no model for it; .* for `write` or `\*`"):
        agent(model=None)


def test_a_model_that_the_strategy_overrules_is_told(agent):
    told = []
    agent(fields={"models": {"*": ModelChoice(model="star")}}, log=told.append)
    assert told == ["model `m`: not used, as the strategy chooses `star`"]


# Prompts and holes


def test_messages_stand_in_order_with_demonstrations_before_the_first_users(agent, scripted_server):
    pair = (Message(role="user", content="{q}"), Message(role="assistant", content="{a}"))
    prompts = {
        "write.user": PromptTemplate(template="{q_1} {schema}", role="user", demonstrations=(pair,)),
        "write.system": PromptTemplate(template="Keep {{braces}}.", demonstrations=(pair,)),
        "write.developer": PromptTemplate(template="Dev", role="developer"),
        "other": PromptTemplate(template="never sent"),
    }  # fmt: skip
    context = {"q_1": "{task} {{", "schema": {"t": ["列"]}}
    agent(prompts, checker=lambda *_: 1, log=lambda text: None).execute("x", context)
    assert sent(scripted_server.requests[0]) == [
        "system: Keep {braces}.",
        "developer: Dev",
        "user: {q}",
        "assistant: {a}",
        'user: {task} {{ {"t":["列"]}',
    ]


def test_a_step_without_a_users_prompt_is_told_all_that_is_known(agent, scripted_server):
    prompts = {step: PromptTemplate(template=f"You {step}.") for step in ALL}
    scripted_server.enqueue("1", "Odd.\nno", "2", "yes")
    agent(prompts).execute("An even number?")
    known = "user: Task:\nAn even number?\n\nSolution:\n{0}\n\nResult:\n{0}"
    assert [sent(request) for request in scripted_server.requests] == [
        ["system: You write.", "user: An even number?"],
        ["system: You check.", known.format(1)],
        ["system: You rewrite.", known.format(1) + "\n\nWhat is wrong:\nOdd.\nno"],
        ["system: You check.", known.format(2)],
    ]


def test_holes_are_filled_by_their_usual_names(agent, scripted_server):
    names = "task question input request solution query sql code answer result rows output error feedback problem review attempt"  # fmt: skip
    every = PromptTemplate(template=" | ".join(f"{{{n}}}" for n in names.split()), role="user")
    scripted_server.enqueue("1", "2")
    agent({"write": WRITE, "rewrite": every},
          checker=lambda task, solution, result: (result == 2, "odd")).execute("问")  # fmt: skip
    told = ["问"] * 4 + ["1"] * 8 + ["odd"] * 4 + ["2"]
    assert sent(scripted_server.requests[1]) == ["user: " + " | ".join(told)]


def test_context_goes_before_what_the_flow_knows(agent, scripted_server):
    agent(checker=lambda *_: 1).execute("x", {"question": "y"})
    assert sent(scripted_server.requests[0]) == ["user: Write: y"]


def test_a_text_as_context_fills_the_hole_context(agent, scripted_server):
    prompts = {"write": PromptTemplate(template="{context}: {task}", role="user")}
    agent(prompts).execute("x", "users(id, age)")
    assert sent(scripted_server.requests[0]) == ["user: users(id, age): x"]


def test_context_that_no_prompt_asks_for_is_told(agent):
    told = []
    agent({"write": WRITE}, log=told.append).execute("x", "users(id, age)")
    assert told == ["context `context`: no prompt has such a hole; it is not used"]


def test_holes_that_nothing_fills_are_one_error_before_anything_is_asked(agent, scripted_server):
    prompts = {**ALL, "check": PromptTemplate(template="{schema}, {result}, {dialect}")}
    with pytest.raises(UsageError) as caught:
        agent(prompts, executor=None).execute("x", {"dialect": "SQLite"})
    assert str(caught.value) == (
        "strategy: nothing fills `{result}` of `rewrite`, `{schema}` of `check`, `{result}` of `check`; give it in"
        " `context`, by name. Given: `dialect`. The flow fills `task`, `question`, `input`, `request`, `solution`, `query`,"
        " `sql`, `code`, `answer`, `error`, `feedback`, `problem`, `review`, `attempt`; in the step `write` only `task`,"
        " `question`, `input`, `request`, `attempt`"
    )
    assert not scripted_server.requests


def test_a_prompt_that_is_never_sent_needs_nothing(agent):
    prompts = {"write": WRITE, "rewrite": PromptTemplate(template="{schema}")}
    rules = {"max_attempts": 1}
    assert agent(prompts, rules=rules).execute("x") == ("1", 1)


def test_the_first_writing_knows_of_no_solution(agent):
    with pytest.raises(UsageError, match=r"nothing fills `{feedback}` of `write`; give"):
        agent({"write": PromptTemplate(template="{task} {feedback}")}).execute("x")


def test_a_long_result_is_cut_short_for_the_model(agent, scripted_server):
    scripted_server.enqueue("1", "yes")
    agent(executor=lambda solution: "x" * 5_000).execute("x")
    assert sent(scripted_server.requests[1])[0].endswith("x" * 4_000 + "….")


def test_half_a_surrogate_pair_is_sent_as_a_question_mark(agent, scripted_server):
    agent({"write": WRITE}).execute("\ud800 问 😀")
    assert sent(scripted_server.requests[0]) == ["user: Write: ? 问 😀"]


def test_code_fences_around_a_solution_are_taken_off_and_nothing_else(agent, scripted_server):
    scripted_server.enqueue("```sql\nSELECT '年'\n```\n", "See:\n```sql\nSELECT 1\n```")
    made = agent({"write": WRITE}, executor=None)
    assert made.execute("x")[0] == "SELECT '年'"
    assert made.execute("x")[0] == "See:\n```sql\nSELECT 1\n```"


def test_how_a_solution_is_found_in_a_reply_may_be_said(agent, scripted_server):
    scripted_server.enqueue("one two")
    assert agent({"write": WRITE}, executor=None, extract=str.upper).execute("x")[0] == "ONE TWO"


# What cannot be run


@pytest.mark.parametrize(
    ("prompts", "fields", "says"),
    [
        ({"ask": WRITE}, {}, "no prompt for the step `write`: .* it has `ask`"),
        ({}, {}, "it has none"),
        (ALL, {"interaction_patterns": flow(Step.EXECUTE, Step.WRITE)}, "`write` as its first step but got `execute`"),
        ({"a": PromptTemplate(template="x", label="writer"), "b": PromptTemplate(template="x", label="write_query")}, {},
         "step `write`: .*several nodes for it, `writer`, `write_query`"),
    ],
)  # fmt: skip
def test_a_strategy_that_cannot_be_run_is_refused(agent, prompts, fields, says):
    with pytest.raises(UsageError, match=says):
        agent(prompts, fields=fields)


def test_an_option_without_steps_is_told_and_taken_for_the_whole_flow(agent, scripted_server):
    told = []
    scripted_server.enqueue("1", "yes")
    agent(fields={"interaction_patterns": flow()}, log=told.append).execute("x")
    assert "no steps for it" in told[0]
    assert scripted_server.pending == 0


@pytest.mark.parametrize("name", ["executor", "checker", "extract"])
def test_functions_that_cannot_be_called_so_are_refused(agent, name):
    async def later(*_):
        return 1

    for function in (later, 7):
        with pytest.raises(UsageError, match=f"`{name}`: expected a function that is not async"):
            agent(**{name: function})


def test_a_task_that_is_no_text_is_refused(agent):
    with pytest.raises(UsageError, match="`task`: expected a text but got 7"):
        agent().execute(7)


def test_a_strategy_is_read_from_its_file(tmp_path, scripted_server):
    path = tmp_path / "策略.json"
    Strategy(prompt_templates={"write": WRITE}).dump(path)
    scripted_server.enqueue("好")
    made = TrainedAgent(model_endpoint=scripted_server.base_url, strategy_file=path, model="m")
    assert made.execute(task="查询", context=None) == ("好", None)
    path.write_text('{"prompt_templates": 7}')
    with pytest.raises(FormatError, match=r"策略\.json"):
        TrainedAgent(strategy_file=path, model="m")


# Async


async def test_it_runs_within_an_event_loop_and_without_blocking_it(agent, scripted_server):
    scripted_server.enqueue("1")
    assert agent({"write": WRITE}).execute("x") == ("1", 1)
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def answer(request):
        loop.call_soon_threadsafe(gate.set)
        return "2"

    scripted_server.respond(answer)
    task = asyncio.create_task(agent({"write": WRITE}).aexecute("x"))
    await gate.wait()  # the loop goes on while the model is asked
    assert await task == ("2", 2)


async def test_what_is_cancelled_asks_no_more(agent, scripted_server):
    ran = asyncio.Event()
    loop = asyncio.get_running_loop()
    release = asyncio.Event()

    def executor(solution):
        loop.call_soon_threadsafe(ran.set)
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result()
        raise ValueError("so that it would be rewritten")

    scripted_server.enqueue("1", "2", "3")
    task = asyncio.create_task(agent(executor=executor).aexecute("x"))
    await ran.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()
    await loop.shutdown_default_executor()
    assert len(scripted_server.requests) == 1


def test_an_endpoint_that_fails_is_one_error(agent, scripted_server):
    from lightning_core.testing.replies import Error

    scripted_server.enqueue("1", Error(400, {"error": {"message": "no such model"}}))
    with pytest.raises(EngineError, match="answered 400: no such model"):
        agent().execute("x")


def test_what_is_for_another_agent_alone_is_listed_and_the_rest_is_run(agent):
    logged = []
    other = PromptTemplate(template="Which kind?", label="classify")
    fields = {
        "models": {"classify": ModelChoice(model="x"), "write": ModelChoice(model="m")},
        "interaction_patterns": {"way": InteractionPattern(chosen="a", options={"a": ()})},
        "provenance": Provenance(agent="other.py:graph"),
    }
    rules = {"tries": 3, "max_attempts": 1}
    made = agent({"write": WRITE, "kind": other}, fields=fields, rules=rules, log=logged.append)
    assert made.execute("How many?") == ("1", 1)
    assert logged == [
        "strategy: no flow uses prompt `kind`, rule `tries`, pattern `way`, model of `classify`; that is for"
        " `other.py:graph` alone"
    ]
