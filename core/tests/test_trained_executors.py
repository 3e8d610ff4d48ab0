"""What executes a model's solutions: right on what is meant well, and safe from what is not."""

import json
import sqlite3
import time
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.errors import UsageError
from lightning_core.trained import SqliteReader, evaluate_expression


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "用户.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE 用户 (name TEXT,\n age INTEGER)")
        connection.executemany(
            "INSERT INTO 用户 VALUES (?, ?)", [("王", 41), ("Ann", 30), (None, 7)]
        )
        connection.execute("CREATE VIEW old AS SELECT * FROM 用户 WHERE age > 30")
    return path  # fmt: skip


@pytest.fixture(scope="module")
def reader(database):
    return SqliteReader(database, seconds=0.5, rows=100)


def test_a_query_gives_columns_and_rows(reader):
    found = reader("-- 年龄\n/* x */ SELECT name, age FROM 用户 ORDER BY age;")
    assert found.columns == ("name", "age")
    assert found.rows == ((None, 7), ("Ann", 30), ("王", 41))
    assert str(found) == "name | age\nNULL | 7\nAnn | 30\n王 | 41"
    assert not found.more


@pytest.mark.parametrize(
    "query",
    [
        "WITH t AS (SELECT 1 AS x) SELECT x FROM t",
        "SELECT upper(trim(' a ')), printf('%.2f', 1.5), trim('xxaxx', 'x'), count(*) FROM old",
        "SELECT 1 UNION SELECT 2",
        "select name from 用户 where name like 'A%' and age in (select max(age) from old)",
    ],
)
def test_what_reads_is_run(reader, query):
    assert reader(query).columns


def test_the_tables_are_told_as_they_were_made(reader):
    assert reader.schema == (
        "CREATE TABLE 用户 (name TEXT, age INTEGER);\nCREATE VIEW old AS SELECT * FROM 用户 WHERE age > 30"
    )


def test_no_rows_and_too_many_are_said(database, reader):
    assert str(reader("SELECT 1 WHERE 0")) == "(no rows)"
    found = SqliteReader(database, rows=2)("SELECT age FROM 用户")
    assert (len(found.rows), found.more) == (2, True)
    assert str(found).endswith("\n… more rows")
    assert not SqliteReader(database, rows=3)("SELECT age FROM 用户").more


def test_cells_that_are_long_are_cut_short_in_the_text_alone(reader):
    found = reader("SELECT hex(zeroblob(100)) AS x")
    assert len(found.rows[0][0]) == 200
    assert str(found) == f"x\n{'0' * 80}…"


@pytest.mark.parametrize(
    "query",
    [
        "", ";", "DROP TABLE 用户", "PRAGMA user_version = 7", "VALUES (1)", "EXPLAIN SELECT 1", "ATTACH 'x.db' AS x",
        "VACUUM INTO '/tmp/x'", "/* SELECT */ DELETE FROM 用户", "-- SELECT\nDELETE FROM 用户", "/* SELECT 1", "(SELECT 1)",
        "SELECTED", "\x00SELECT 1",
    ],
)  # fmt: skip
def test_what_is_no_select_is_refused(reader, query):
    with pytest.raises(UsageError, match="expected one SELECT statement"):
        reader(query)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1; DROP TABLE 用户", "SELECT 1; SELECT 2", "WITH t AS (SELECT 1) DELETE FROM 用户",
        "WITH t AS (SELECT 1) INSERT INTO 用户 SELECT 'x', 1", "SELECT load_extension('x')", "SELECT readfile('/etc/passwd')",
        "SELECT writefile('/tmp/x', 'x')", "SELECT * FROM pragma_database_list", "SELECT zeroblob(1000000000)",
        "SELECT printf('%1000000000d', 1)", "SELECT printf('%*d', 100000000, 1)", "SELECT 1 \x00", "SELECT '\ud800'",
        "SELECT trim(hex(zeroblob(100000)), hex(randomblob(1000)))", "SELECT fts3_tokenizer('x')",
        "SELECT nothing FROM 用户", "SELECT", "SELECT " + "(" * 2_000 + "1" + ")" * 2_000, "SELECT '" + "x" * 200_000 + "'",
        "SELECT " + ", ".join(["1"] * 600), "SELECT replace(hex(zeroblob(90000)), '0', hex(zeroblob(90000)))",
    ],
    ids=lambda query: query[:40].encode("ascii", "replace").decode().replace("\x00", "0"),
)  # fmt: skip
def test_what_does_more_than_read_fails_and_changes_nothing(reader, database, query):
    before = database.read_bytes()
    began = time.monotonic()
    with pytest.raises(sqlite3.Error):
        reader(query)
    assert time.monotonic() - began < 5
    assert database.read_bytes() == before
    assert [path.name for path in database.parent.iterdir()] == [database.name]


@pytest.mark.parametrize(
    "query",
    [
        "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) SELECT max(x) FROM t",
        "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) SELECT x FROM t WHERE x < 0",
        "SELECT count(*) FROM " + ", ".join(f"用户 AS t{n}" for n in range(30)),
    ],
)
def test_what_does_not_end_is_ended(reader, query):
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"the query took more than 0\.5 s"):
        reader(query)
    assert time.monotonic() - began < 5


def test_rows_that_do_not_end_are_cut_off(reader):
    endless = "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) SELECT"
    assert reader(f"{endless} x FROM t").more
    wide = reader(f"{endless} hex(zeroblob(100000)) FROM t")
    assert wide.more
    assert len(wide.rows) == 5


def test_a_file_that_is_no_database_is_refused(tmp_path):
    with pytest.raises(UsageError, match="there is no such file"):
        SqliteReader(tmp_path / "none.sqlite")
    assert not list(tmp_path.iterdir())
    (tmp_path / "text.sqlite").write_text("x" * 1_000)
    with pytest.raises(UsageError, match="cannot be read: file is not a database"):
        SqliteReader(tmp_path / "text.sqlite")


@pytest.mark.parametrize("bounds", [{"seconds": 0}, {"rows": 0}])
def test_bounds_that_allow_nothing_are_refused(database, bounds):
    with pytest.raises(UsageError, match="`seconds` above 0 and `rows` of 1 or more"):
        SqliteReader(database, **bounds)


# Expressions


@pytest.mark.parametrize(
    "text",
    [
        "1 + 2 * 3 ** 2", "-7 // 2 % 5", "2 ** 0.5", "2 ** -3", "(1 << 10) | 3 & ~1 ^ 5", "10 >> 1", "1 / 3", "not 0 and 1 or 2",
        "0 or ''", "1 < 2 <= 2 != 3", "3 in [1, 2, 3]", "'年' + 'b'",
        "[1, 2] + [3]", "(1,) + (2,)", "{'a': 1}['a']", "{1, 2, 2}", "[1, 2, 3][1:]", "'abc'[::-1]", "[1, 2, 3][-1]",
        "1 if 2 > 3 else 'no'", "max(1, 2.5)", "min([3, 1])", "sum(range(1, 101))", "round(2.567, 2)", "abs(-3)",
        "sorted([3, 1, 2])", "len('查询')", "int('42') + float('0.5')", "str(12)", "list(range(3, 0, -1))", "pow(2, 10)",
        "divmod(7, 2)", "bool([])", "tuple([1])", "  1 +\t1 ", "(1 +\n 1)", "True", "None", "1_000", "0x10", "1e3", "+1",
        "(-1) ** 10 ** 9", "0 ** 10 ** 9", "1 not in (2, 3)", " + ".join(["1"] * 100),
    ],
)  # fmt: skip
def test_the_value_is_that_of_python(text):
    assert evaluate_expression(text) == eval(text.strip())
    assert type(evaluate_expression(text)) is type(eval(text.strip()))


def test_functions_and_constants_of_mathematics_are_there():
    assert (
        evaluate_expression("sqrt(16) + floor(2.7) + ceil(0.1) + factorial(5) + gcd(12, 18)")
        == 4 + 2 + 1 + 120 + 6
    )
    assert evaluate_expression("sin(pi / 2) + log(e) + log10(100) + log2(8) + exp(0) + cos(0) + tan(0)") == pytest.approx(9)  # fmt: skip


def test_names_may_be_given():
    assert evaluate_expression("数 * 2 + rows[0]['a']", {"数": 3, "rows": [{"a": 1}]}) == 7


@pytest.mark.parametrize(
    "text",
    [
        "", "1 +", "x = 1", "import os", "1; 2", "\x00", "(" * 1_000, "-" * 1_900 + "1", "[" * 90 + "]" * 90 + "[0]" * 200,
        "__import__('os').system('true')", "().__class__.__bases__", "'a'.upper()", "(lambda: 1)()", "[x for x in [1]]",
        "{**{}}", "[*[1]]", "f'{1}'", "open('x')", "eval('1')", "exec('1')", "getattr(1, 'real')", "max", "range", "nothing",
        "print(1)", "sum([1], start=2)", "max(1, key=abs)", "1 is 1", "[1] @ [2]", "1j", "(-1) ** 0.5", "b'x'", "...",
        "(y := 1)", "'%100000000d' % 1", "'a' * 10 ** 9", "[0] * 10 ** 9", "10 ** 9 * 'a'", "sum([[1], [2]])",
        "10 ** 10 ** 10", "pow(10, 10 ** 10)", "2 ** 5000", "(2 ** 4000) ** 2", "2 ** 4000 * 2 ** 4000", "1 << 10 ** 12",
        "1 << 5000", "factorial(10 ** 9)", "round(1, -10 ** 9)", "round(5.5, 10 ** 9)", "range(10 ** 12)",
        "list(range(0, -10 ** 30, -1))", "sum(range(10 ** 9))", "range(2 ** 70)", "str(list(range(9000)))", "'x' * 2",
        "+".join(["[0]"] * 400), "1" * 3_000, "9" * 1_900, "await x", "yield", "1 if", "sorted([3, 1], reverse=True)",
        "pow(2, 3, 5)", "pow(2)", "1 ** 'a'", "True.__class__", "[1][0](2)",
    ],
    ids=lambda text: text[:40],
)  # fmt: skip
def test_what_is_no_small_expression_is_refused_at_once(text):
    began = time.monotonic()
    with pytest.raises(UsageError, match="expression: "):
        evaluate_expression(text)
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("1 / 0", ZeroDivisionError), ("[1][5]", IndexError), ("{'a': 1}['b']", KeyError), ("1 + 'a'", UsageError),
        ("[1] + (2,)", TypeError), ("1 < 'a'", TypeError), ("int('x')", ValueError), ("2.0 ** 10000", OverflowError),
        ("sqrt(-1)", ValueError), ("{[]: 1}", TypeError), ("range(1, 2, 0)", ValueError), ("int(inf)", OverflowError),
        ("len(5)", TypeError), ("max()", TypeError), ("1 << -1", ValueError), ("2 ** -10 ** 400", OverflowError),
    ],
)  # fmt: skip
def test_what_python_refuses_is_refused_likewise(text, error):
    with pytest.raises(error):
        evaluate_expression(text)


ERRORS = (UsageError, ArithmeticError, LookupError, TypeError, ValueError)
PIECES = """0 1 7 99999 1.5 'a' [ ] ( ) { } : , + - * ** // % / << >> & | ^ ~ < == in not and or if else is lambda x pow range
round factorial str sum sorted list len max abs for . ** ** 10 10"""


@given(st.lists(st.sampled_from(PIECES.split()), max_size=25).map(" ".join) | st.text(max_size=60))
def test_no_text_is_too_odd_to_be_refused_or_evaluated_in_time(text):
    began = time.monotonic()
    try:
        value = evaluate_expression(text)
    except ERRORS:
        pass
    else:
        assert len(repr(value)) < 200_000
    assert time.monotonic() - began < 2


def test_a_result_can_be_shown():
    assert json.dumps(evaluate_expression("[2 ** 4000, 1.5]"))
