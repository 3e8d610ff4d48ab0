"""The agent against a scripted model, and its reward."""

import subprocess
import sys
from types import SimpleNamespace

import openai
import pytest

from lightning_core.testing.replies import Error, Text
from lightning_core.testing.scripted import ScriptedServer

WRONG = "```sql\nSELECT name FROM author\n```"
RIGHT = "```sql\nSELECT count(*) FROM book\n```"
BROKEN = "```sql\nSELECT count(*) FROM books\n```"
YES, NO = "Looks right.\nVERDICT: CORRECT", "It lists authors.\nVERDICT: INCORRECT"


@pytest.fixture
def ask(example, library, monkeypatch):
    """A function that lets the agent answer one question with a model that replies as given."""

    def run(*replies, **state):
        with ScriptedServer.in_thread() as server:
            monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
            monkeypatch.setenv("OPENAI_API_KEY", "none")
            for reply in replies:
                server.enqueue(reply)
            given = {"question": "How many books are there?", "database": str(library), **state}
            run.prompts = []
            try:
                return example.agent.graph.invoke(given)
            finally:
                run.prompts = [
                    "\n".join(message["content"] for message in request.messages)
                    for request in server.requests
                ]

    return run


def test_a_right_query_takes_two_calls(ask):
    state = ask(RIGHT, YES)
    assert state["query"] == "SELECT count(*) FROM book"
    assert (state["result"], state["turns"], len(ask.prompts)) == ("count(*)\n30", 1, 2)
    assert "CREATE TABLE book" in ask.prompts[0]
    assert "How many books are there?" in ask.prompts[0]


def test_a_wrong_query_is_rewritten_with_what_was_wrong(ask):
    state = ask(WRONG, NO, RIGHT, YES)
    assert state["query"] == "SELECT count(*) FROM book"
    assert state["turns"] == 2
    assert "Ada Holm" in ask.prompts[1]
    assert "It lists authors." in ask.prompts[2]
    assert "SELECT name FROM author" in ask.prompts[2]


def test_the_checker_sees_the_error_of_a_broken_query(ask):
    ask(BROKEN, NO, RIGHT, YES)
    assert "Error: no such table: books" in ask.prompts[1]


def test_turns_are_bounded(ask, example):
    turns = example.agent.MAX_TURNS
    state = ask(*[WRONG, NO] * turns)
    assert (state["turns"], state["approved"], len(ask.prompts)) == (turns, False, 2 * turns)
    assert state["query"] == "SELECT name FROM author"


def test_a_schema_that_is_given_is_used(ask):
    ask(RIGHT, YES, schema="CREATE TABLE mine (a)")
    assert "CREATE TABLE mine (a)" in ask.prompts[0]
    assert "CREATE TABLE book" not in ask.prompts[0]


@pytest.mark.parametrize("before", [[], [WRONG], [WRONG, NO]])
def test_a_model_call_that_fails_raises(ask, before):
    with pytest.raises(openai.BadRequestError):
        ask(*before, Error(400))


def test_a_reply_without_text_is_no_query(ask):
    assert ask(Text(""), NO, RIGHT, YES)["query"] == "SELECT count(*) FROM book"
    assert "this is no SELECT statement" in ask.prompts[1]


async def test_the_graph_runs_asynchronously_too(example, library, monkeypatch):
    async with ScriptedServer() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        for reply in (RIGHT, YES):
            server.enqueue(reply)
        state = await example.agent.graph.ainvoke({"question": "?", "database": str(library)})
    assert state["query"] == "SELECT count(*) FROM book"


@pytest.mark.parametrize(
    ("reply", "query"),
    [
        ("```sql\nSELECT 1\n```\nor rather\n```sql\nSELECT 2\n```", "SELECT 2"),
        ("```\nSELECT 1\n```", "SELECT 1"),
        ("```SQLite\nSELECT 1;\n```", "SELECT 1;"),
        ("```sql SELECT 1```", "SELECT 1"),
        ("Here:\n```sql\nSELECT 1", "SELECT 1"),
        ("```sql\nSELECT 1\n```\n```sql\n```", "SELECT 1"),
        ("```text\nSELECT 1\n```", "SELECT 1"),
        (" SELECT 1 ", "SELECT 1"),
        ("", ""),
    ],
)
def test_the_last_fenced_block_is_the_query(example, reply, query):
    assert example.agent.last_query(reply) == query


@pytest.mark.parametrize(
    ("reply", "approved"),
    [
        ("VERDICT: CORRECT", True),
        ("VERDICT: INCORRECT", False),
        ("VERDICT: INCORRECT. On second thoughts:\n**Verdict:** correct", True),
        ("VERDICT: CORRECT\nNo, VERDICT: INCORRECT", False),
        ("The query is correct.", False),
        ("", False),
    ],
)
def test_the_last_verdict_wins(example, reply, approved):
    assert example.agent.last_verdict(reply) is approved


def test_results_are_cut_short(example, library):
    shown = example.agent.execute("SELECT title FROM book ORDER BY 1", str(library))
    assert shown.count("\n") == example.agent.SHOWN_ROWS + 1
    assert shown.endswith("… more rows")
    wide = example.agent.execute("SELECT replace(hex(zeroblob(9999)), '0', 'x')", str(library))
    assert len(wide) < 2 * example.agent.CELL_CHARACTERS + 20
    assert example.agent.execute("SELECT 1 WHERE 0", str(library)) == "(no rows)"


@pytest.mark.parametrize(
    "query",
    ["DROP TABLE book", "ATTACH 'x' AS x", "PRAGMA writable_schema = 1", "DELETE FROM book",
     "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"],
)  # fmt: skip
def test_the_agent_can_only_read_and_not_for_ever(example, library, query):
    before = library.read_bytes()
    assert example.agent.execute(query, str(library)).startswith("Error: ")
    assert library.read_bytes() == before


def test_importing_the_agent_needs_no_key_and_nothing_of_ours(example):
    code = "import sys, agent; print([m for m in sys.modules if m.startswith('lightning')])"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=example.agent.__file__.rpartition("/")[0],
        env={"PATH": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


def test_the_graph_has_the_nodes_by_name(example):
    assert {"write_query", "execute_query", "check_query", "rewrite_query"} <= set(
        example.agent.graph.get_graph().nodes
    )


def scored(example, library, query, gold="SELECT count(DISTINCT genre) FROM book"):
    task = SimpleNamespace(input={"database": str(library)}, expected={"query": gold})
    return example.agent.score(task, SimpleNamespace(output={"query": query}))


def test_the_reward(example, library):
    gold = "SELECT count(DISTINCT genre) FROM book"
    assert scored(example, library, gold) == {"reward": 1.0, "official": 1.0, "runs": 1.0}
    free = scored(example, library, "SELECT count(genre) FROM book")
    assert free == {"reward": 0.0, "official": 1.0, "runs": 1.0}
    nothing = {"reward": 0.0, "official": 0.0, "runs": 0.0}
    assert scored(example, library, "SELECT count(genre) FROM books") == nothing
    assert scored(example, library, "") == nothing
    before = library.read_bytes()
    assert scored(example, library, "DROP TABLE book") == nothing
    assert library.read_bytes() == before
