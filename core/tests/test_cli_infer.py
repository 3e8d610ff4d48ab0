"""`lightning-core infer`: a task run by a strategy file, from the command line."""

import json
import sqlite3
from contextlib import closing

import pytest

from lightning_core.cli import main
from lightning_core.strategy import PromptTemplate, Strategy
from lightning_core.testing.replies import Error

TASK = "查询用户表中年龄大于30的记录"
RIGHT = "SELECT name FROM 用户 WHERE age > 30"


@pytest.fixture
def infer(tmp_path, monkeypatch, capsys, scripted_server):
    """Runs the command in a folder with a strategy and a database, and gives status, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_BASE_URL", scripted_server.base_url)
    with closing(sqlite3.connect("用户.sqlite")) as connection, connection:
        connection.execute("CREATE TABLE 用户 (name TEXT, age INTEGER)")
        connection.executemany("INSERT INTO 用户 VALUES (?, ?)", [("王", 41), ("Ann", 30)])
    prompts = {
        "write_query.system": PromptTemplate(template="Write SQL.\n{schema}", label="write_query"),
        "write_query.user": PromptTemplate(template="{question}", role="user", label="write_query"),
        "check_query.user": PromptTemplate(
            template="Right? {query}: {result}", role="user", label="check_query"
        ),
    }
    Strategy(prompt_templates=prompts).dump("策略.json")
    Strategy(prompt_templates={"write": PromptTemplate(template="x", role="user")}).dump("bare.json")  # fmt: skip

    def run(*arguments, strategy="策略.json", model="m"):
        given = ["--strategy", strategy, "--task", TASK, *arguments]
        status = main(["infer", *given, *(["--model", model] if model else [])])
        return status, *capsys.readouterr()

    return run


def test_solution_and_result_are_printed(infer, scripted_server):
    scripted_server.enqueue(f"So:\n```sql\n{RIGHT}\n```", "yes")
    assert infer("--sql", "用户.sqlite") == (0, f"{RIGHT}\n\nname\n王\n", "")
    write, check = scripted_server.requests
    assert [message["content"] for message in write.messages] == [
        "Write SQL.\nCREATE TABLE 用户 (name TEXT, age INTEGER)", TASK,
    ]  # fmt: skip
    assert check.messages[0]["content"] == f"Right? {RIGHT}: name\n王"


def test_as_json_it_is_for_programs(infer, scripted_server):
    scripted_server.enqueue("DROP TABLE 用户", RIGHT, "yes")
    status, out, _ = infer("--sql", "用户.sqlite", "--json")
    assert status == 0
    assert "王" in out
    assert json.loads(out) == {
        "solution": RIGHT,
        "result": {"columns": ["name"], "rows": [["王"]], "more": False},
        "error": None,
        "score": 1.0,
        "accepted": True,
        "attempts": 2,
    }


def test_the_status_is_1_where_the_last_check_is_not_content(infer, scripted_server):
    scripted_server.respond(lambda request: "错" if "Right?" in str(request.messages) else RIGHT)
    status, out, err = infer("--sql", "用户.sqlite")
    assert (status, out, err) == (1, f"{RIGHT}\n\nname\n王\n", "not accepted: 错\n")


def test_the_status_is_1_where_it_cannot_be_executed(infer, scripted_server):
    scripted_server.respond(lambda request: "SELECT \x1b[31m")
    status, out, err = infer("--sql", "用户.sqlite")
    assert (status, out) == (1, "SELECT ␛[31m\n")
    assert err.startswith("error: OperationalError: ")
    assert "\x1b" not in err


def test_expressions_are_evaluated(infer, scripted_server):
    scripted_server.enqueue("6 * 7")
    assert infer("--python", strategy="bare.json") == (0, "6 * 7\n\n42\n", "")


def test_without_a_way_to_execute_the_solution_is_printed_alone(infer, scripted_server):
    scripted_server.enqueue("答")
    assert infer(strategy="bare.json") == (0, "答\n", "")


def test_context_comes_from_words_and_from_files(infer, scripted_server, tmp_path):
    (tmp_path / "own.json").write_text('{"schema": {"用户": ["name"]}, "result": 1}', "utf-8")
    scripted_server.enqueue("1", "yes", "1", "yes")
    assert infer("--context", "schema=a=b", "--context", "@own.json")[0] == 0
    assert infer("--context", "@own.json", "--context", "schema=a=b")[0] == 0
    asked = [request.messages[0]["content"] for request in scripted_server.requests[::2]]
    assert asked == ['Write SQL.\n{"用户":["name"]}', "Write SQL.\na=b"]


def test_context_goes_before_the_databases_own_tables(infer, scripted_server):
    scripted_server.enqueue(RIGHT, "yes")
    infer("--sql", "用户.sqlite", "--context", "schema=own")
    assert scripted_server.requests[0].messages[0]["content"] == "Write SQL.\nown"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--context", "x"], "expected KEY=VALUE or @FILE.json but got 'x'"),
        (["--context", "@none.json"], "context file `none.json`: cannot be read: No such file"),
        (["--context", "@list.json"], "context file `list.json`: expected a JSON object"),
        (["--sql", "none.sqlite"], "database `none.sqlite`: there is no such file"),
        (["--sql", "x", "--python"], "give either `--sql` or `--python`"),
        ([], "nothing fills `{schema}` of `write_query.system`, `{result}` of `check_query.user`"),
        (["--endpoint", "nowhere"], "expected `http://HOST/v1`"),
    ],
)
def test_what_cannot_be_is_one_message(infer, tmp_path, scripted_server, arguments, says):
    (tmp_path / "list.json").write_text("[]")
    status, out, err = infer(*arguments)
    assert status in (1, 2)
    assert out == ""
    assert says in err
    assert not scripted_server.requests


def test_a_strategy_without_a_model_needs_one(infer):
    status, _, err = infer(strategy="bare.json", model=None)
    assert (status, "step `write`: no model for it" in err) == (1, True)


def test_an_endpoint_that_refuses_is_one_message(infer, scripted_server):
    scripted_server.enqueue(Error(400, {"error": {"message": "坏\x1b"}}))
    status, _, err = infer(strategy="bare.json")
    assert (status, err) == (1, "error: model endpoint 127.0.0.1: answered 400: 坏\N{REPLACEMENT CHARACTER}\n")  # fmt: skip
