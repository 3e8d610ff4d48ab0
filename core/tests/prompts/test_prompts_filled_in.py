"""What fills holes, known from earlier replies, tools, the task, the agent's output and the clock."""

from datetime import UTC, datetime, timedelta

import pytest

from lightning_core.prompts import find_prompts
from lightning_core.trace import Choice, Span, SpanKind

QUERIES = tuple(
    f"SELECT {column} FROM {table}" + (f" WHERE {column} > {len(table)}" if column == "fee" else "")
    for column in ("name", "age", "fee")
    for table in ("town", "book", "ship", "vérité")
)
CHECK = "Look at this query.\n```sql\n{}\n```\nIs it right? Say why."
NOON = datetime(2026, 11, 5, 12, 0, tzinfo=UTC)


def sources(traces):
    return {prompt.name: prompt.template for prompt in find_prompts(traces).prompts}


def checking(trace, reply, filled="{}", *, prompt=CHECK, nodes=("write_query", "check_query"), **fields):  # fmt: skip
    """What the second node of an agent sends: `filled` of what the first was told as `reply`."""
    traces = [
        trace(
            str(number),
            [
                (nodes[0], ["system: Write."], {"reply": reply.format(query), **fields}),
                (nodes[1], [f"user: {prompt.format(filled.format(query))}"]),
            ],
        )
        for number, query in enumerate(QUERIES)
    ]
    return sources(traces)[f"{nodes[1]}.user"]


@pytest.mark.parametrize(
    ("reply", "filled", "name"),
    [
        ("{}", "{}", "solution"),
        ("  {}\n\n", "{}", "solution"),
        ("```sql\n{}\n```", "{}", "solution"),
        ("``` {}```", "{}", "solution"),
        ("```sql {} ```", "{}", "solution"),
        ("```\n{}", "{}", "solution"),
        ("{}```", "{}", "solution"),
        ("So:\n```sql\nSELECT 1\n```\nor\n```sqlite\n{}\n```\nas you like", "{}", "solution"),
        ("{}\nIt lists them all.", "{}", "solution"),
        ("I think so.\n{}", "{}", "solution"),
        ("SQL: {}", "{}", "solution"),
        ("SQL: {}", "SQL: {}", "solution"),
        ('{{"why": "so", "query": "{}"}}', "{}", "query"),
        ('```json\n{{"steps": [{{"query": "{}"}}]}}\n```', "{}", "query"),
    ],
)
def test_what_an_earlier_reply_fills_in_is_a_hole_from_end_to_end(trace, reply, filled, name):
    assert checking(trace, reply, filled) == CHECK.format(f"{{{name}}}")


def test_replies_that_have_nothing_to_do_with_a_prompt_change_nothing(trace):
    # All begin with `SELECT`, and nothing says that this is not the prompt's.
    cut = CHECK.format("SELECT {text} FROM {text_2}")
    for reply in ("", "ok", "Is it right? Say why.", "{{{{", '{{"a": [', "Look at this query."):
        assert checking(trace, reply) == cut
    assert checking(trace, "{}", started_at=5.0, ended_at=9.0) == cut  # still going on


def test_a_reply_fills_nothing_that_was_sent_before_it(trace):
    traces = [
        trace(str(n), [("say", [f"user: Say {n} well."], {"reply": f"Say {n}"})] * 2)
        for n in range(12)
    ]
    assert sources(traces) == {"say.user": "Say {text} well."}


def test_half_of_the_replies_cleaned_in_a_way_of_the_agents_own_do_not_hide_the_hole(trace):
    traces = []
    for number, query in enumerate(QUERIES):
        shown = query if number % 2 else query.replace("SELECT", "SELECT DISTINCT")
        calls = [
            ("write_query", ["system: Write."], {"reply": query}),
            ("check_query", [f"user: {CHECK.format(shown)}"]),
        ]
        traces.append(trace(str(number), calls))
    assert sources(traces)["check_query.user"] == CHECK.format("{solution}")


def test_holes_are_named_by_the_text_before_them_else_by_who_spoke(trace):
    named = {
        ("write_query", "check"): "{solution}",
        ("Rewriter", "check"): "{solution}",
        ("checker", "other"): "{feedback}",
        ("planner", "other"): "{planner}",
        (None, "other"): "{reply}",
    }
    for nodes, hole in named.items():
        assert checking(trace, "{}", nodes=nodes) == CHECK.format(hole)
        prompt = CHECK.replace("query.\n", "query:\n")
        assert checking(trace, "{}", nodes=nodes, prompt=prompt) == prompt.format("{query}")


def test_a_hole_that_several_nodes_fill_is_named_after_the_first_to_speak(trace):
    traces = []
    for number, query in enumerate(QUERIES):
        calls = [("plan", ["system: Plan."], {"reply": query})]
        for turn in range(3):
            calls.append(
                ("judge", [f"user: {CHECK.format(calls[-1][2]['reply'])}"], {"reply": "no"})
            )
            calls.append(("again", ["system: Plan again."], {"reply": f"{query} LIMIT {turn}"}))
        traces.append(trace(str(number), calls))
    for some in (traces, traces[::-1], traces[:6]):
        assert sources(some)["judge.user"] == CHECK.format("{plan}")


def test_a_review_that_a_prompt_speaks_of_is_no_hole_there(trace):
    rule = "Judge {}. End with one line: VERDICT: RIGHT or VERDICT: WRONG."
    traces = []
    for number in range(12):
        review = "VERDICT: WRONG" if number % 3 else "VERDICT: RIGHT"
        calls = [
            ("check", [f"system: {rule.format(number)}"], {"reply": review}),
            (
                "rewrite",
                [f"system: {rule.format(number)}", f"user: Query {number}\nReview:\n{review}"],
            ),
        ]
        traces.append(trace(str(number), calls))
    found = sources(traces)
    assert found["rewrite.system"] == found["check.system"] == rule.format("{text}")
    assert found["rewrite.user"] == "Query {text}\nReview:\n{review}"


def test_arguments_of_tool_calls_and_results_of_tools_fill_holes(trace):
    traces = []
    for number, query in enumerate(QUERIES):
        call = {"function": {"name": "run", "arguments": f'{{"sql": "{query}"}}'}}
        message = {"content": None, "tool_calls": [call]}
        span = Span(
            id="s", attempt_id="a", kind=SpanKind.TOOL, name="look_up", started_at=2.0, ended_at=3.0,
            attributes={"gen_ai.tool.call.result": {"rows": [f"row {number} of it", "no more"]}},
        )  # fmt: skip
        calls = [
            ("act", ["system: Act."], {"choices": (Choice(message=message),)}),
            ("say", [f"user: I ran (({query})) and got [[row {number} of it]]."], {"started_at": 3.0}),
        ]  # fmt: skip
        traces.append(trace(str(number), calls, spans=(span,)))
    assert sources(traces)["say.user"] == "I ran (({sql})) and got [[{rows}]]."


def test_what_the_agent_returns_shows_what_its_nodes_shared(trace):
    traces = [
        trace(
            str(number),
            [("say", [f"user: It gave ((Error: no such column {query.split()[1]})) again."])],
            output={"state": {"problem": f"Error: no such column {query.split()[1]}"}},
        )
        for number, query in enumerate(QUERIES)
    ]
    assert sources(traces) == {"say.user": "It gave (({problem})) again."}


@pytest.mark.parametrize(
    ("form", "hole"),
    [
        ("Today is {:%Y-%m-%d}. Be brief.", "Today is {now}. Be brief."),
        ("[{:%Y-%m-%dT%H:%M:%S+00:00}] Be brief.", "[{now}] Be brief."),
        ("Now: {:%Y-%m-%d %H:%M:%S.%f}\nBe brief.", "Now: {now}\nBe brief."),
        ("It is {:%A, %B %d, %Y at %I:%M %p}. Be brief.", "It is {now}. Be brief."),
        ("Heute ist der {0.day}.{0.month}.{0.year}; kurz.", "Heute ist der {now}; kurz."),
        ("今天是{:%Y年%m月%d日}。请简短。", "今天是{now}。请简短。"),
        ("Written on 2024-06-01. Be brief.", "Written on 2024-06-01. Be brief."),
    ],
)
def test_the_date_of_the_calls_is_a_hole_though_all_have_the_same(trace, form, hole):
    moments = [NOON + timedelta(seconds=37 * number) for number in range(12)]
    found = find_prompts(
        trace(str(at), [("ask", [f"system: {form.format(at)}"], {"started_at": at.timestamp()})])
        for at in moments
    )
    assert [prompt.template for prompt in found.prompts] == [hole]
    tomorrow = found.prompts[0].parsed.match(form.format(NOON + timedelta(days=1, hours=5)))
    assert isinstance(tomorrow, dict)
