"""The judge: Spider's verdict, reached safely."""

import hashlib
import itertools
import json
import random
import sqlite3
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SPIDER = Path(__file__).parents[4] / "shared" / "data" / "spider"


@pytest.mark.parametrize(
    ("keep_distinct", "label"), [(True, "match_keep_distinct"), (False, "match")]
)
def test_every_label_of_the_official_evaluation(example, keep_distinct, label):
    vectors = SPIDER / "eval_vectors.jsonl"
    if not vectors.exists():
        pytest.skip(f"no labelled vectors: {vectors} is absent")
    wrong = []
    for line in vectors.read_text(encoding="utf-8").splitlines():
        item = json.loads(line)
        path = SPIDER / "database" / item["db_id"] / f"{item['db_id']}.sqlite"
        verdict = example.execution_match.execution_match(
            item["pred"], item["gold"], path, keep_distinct=keep_distinct, timeout=60
        )
        if verdict != item[label]:
            wrong.append(item)
    assert not wrong


@pytest.fixture
def judge(example, database):
    """A function that judges two queries on a table of people and towns."""
    path = database(
        [("Ann", 1, 1.5, "x"), ("Bob", 2, 2.0, None), ("Bob", 2, 3.5, ""), ("Cy", 3, 4.5, "1")]
    )

    def verdict(prediction, gold, **options):
        return example.execution_match.execution_match(prediction, gold, path, **options)

    return verdict


@pytest.mark.parametrize(
    ("prediction", "gold", "official", "kept"),
    [
        ("SELECT c1, c0 FROM t", "SELECT c0, c1 FROM t", True, True),
        ("SELECT c0 FROM t ORDER BY c2 DESC", "SELECT c0 FROM t", True, True),
        ("SELECT c0 FROM t ORDER BY c2 DESC", "SELECT c0 FROM t ORDER BY c2", False, False),
        ("SELECT c0 FROM t", "SELECT c0 FROM t WHERE c2 IN (SELECT c2 FROM t ORDER BY c2)", True, True),
        ("SELECT c0 FROM t ORDER BY c2 DESC", "SELECT c0 FROM t WHERE c2 IN (SELECT c2 FROM t ORDER BY c2)", False, False),
        ("SELECT c0 FROM t ORDER BY c2 DESC", "SELECT c0 FROM t WHERE c0 != 'order by'", False, False),
        ("VALUES (1), (1), (2)", "VALUES (1), (2), (2)", False, False),
        ("VALUES (1, 2), (2, 1)", "VALUES (1, 2), (1, 2)", False, False),
        ("SELECT NULL", "SELECT NULL", True, True),
        ("SELECT ''", "SELECT NULL", False, False),
        ("SELECT 1", "SELECT '1'", False, False),
        ("SELECT x'31'", "SELECT '1'", False, False),
        ("SELECT c0, c1 FROM t", "SELECT c0 FROM t", False, False),
        ("SELECT 1.0", "SELECT 1", True, True),
        ("SELECT 1.0, 1.5", "SELECT 1, 1.5", False, False),
        ("SELECT 0.1 + 0.2", "SELECT 0.3", False, False),
        ("SELECT c0 FROM t", "SELECT DISTINCT c0 FROM t", True, False),
        ("SELECT count(c0) FROM t", "SELECT count(DISTINCT c0) FROM t", True, False),
        ("SELECT c0 FROM t GROUP BY c0", "SELECT DISTINCT c0 FROM t", False, True),
        ("SELECT count(*) FROM t;", "SELECT count(*) FROM t", True, True),
        ("SELECT count(*) FROM t -- all of them", "SELECT count(*) FROM t", True, True),
        ("/* ; */ SELECT count(*) FROM t", "SELECT count(*) FROM t", True, True),
        ("SELECT 4; SELECT 2", "SELECT count(*) FROM t", True, False),
        ("SELECT ';', 4; SELECT 2", "SELECT ';', count(*) FROM t", True, False),
        ("```sql\nSELECT 4\n```", "SELECT 4", False, False),
        ("The answer is 4", "SELECT 4", False, False),
        ("SELECT c0 FROM t WHERE c1 > = 2", "SELECT c0 FROM t WHERE c1 >= 2", True, True),
        ("SELECT YEAR ( curdate() ) - 2019", "SELECT 1", True, True),
        ("SELECT c3 FROM t WHERE 0", "SELECT c0, c1 FROM t WHERE 0", True, True),
        ("SELECT c0 FROM t WHERE c1 = 1", "SELECT c0 FROM t WHERE 0", False, False),
        ("WITH a AS (SELECT c0 FROM t) SELECT * FROM a", "SELECT c0 FROM t", True, True),
        ("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3) SELECT i FROM n", "SELECT DISTINCT c1 FROM t", False, True),
        ("SELECT 'a distinct b'", "SELECT 'a distinct b'", True, True),
        ("SELECT 'a  b'", "SELECT 'a distinct b'", False, False),
    ],
)  # fmt: skip
def test_the_verdict(judge, prediction, gold, official, kept):
    assert judge(prediction, gold, keep_distinct=False) is official
    assert judge(prediction, gold, keep_distinct=True) is kept


@pytest.mark.parametrize("keep_distinct", [True, False])
@pytest.mark.parametrize(
    "prediction",
    ["", "  ", ";", "-- nothing", "/*", "'", "SELEC 1", "SELECT ?", "SELECT nothing FROM t", "\x00", "SELECT '\x00'",
     "SELECT '\ud800'", None, 3, "SELECT " + "(" * 5000, "SELECT 1" + " + 1" * 100_000, "BEGIN", "SELECT abs(-9223372036854775808)"],
)  # fmt: skip
def test_a_broken_prediction_is_false_even_where_gold_is_empty(judge, prediction, keep_distinct):
    assert judge(prediction, "SELECT c0 FROM t WHERE 0", keep_distinct=keep_distinct) is False


@pytest.mark.parametrize("gold", ["", "-- nothing", "SELECT nothing FROM t", "DROP TABLE t", None])
def test_a_gold_query_that_fails_is_an_error(judge, example, database, gold):
    with pytest.raises(ValueError, match="gold query"):
        judge("SELECT 1", gold)
    with pytest.raises(ValueError, match=r"database `.*` cannot be opened"):
        example.execution_match.execution_match("SELECT 1", "SELECT 1", "none.sqlite")


def test_gold_is_read_anew_when_the_database_has_changed(example, database):
    count = "SELECT count(*) FROM t"
    path = database([(1,)])
    assert example.execution_match.check_gold("SELECT c0 FROM t", path) == 1
    assert example.execution_match.execution_match("SELECT 1", count, path)
    path = database([(1,)] * 5000)
    assert example.execution_match.check_gold("SELECT c0 FROM t", path) == 5000
    assert example.execution_match.execution_match("SELECT 5000", count, path)


HOSTILE = [
    "DROP TABLE t",
    "DELETE FROM t",
    "UPDATE t SET c0 = 1",
    "INSERT INTO t SELECT * FROM t",
    "CREATE TABLE u (a)",
    "CREATE TEMP TABLE u (a)",
    "CREATE VIEW v AS SELECT 1",
    "ATTACH 'other.sqlite' AS other",
    "ATTACH ':memory:' AS other",
    "DETACH main",
    "VACUUM INTO 'copy.sqlite'",
    "PRAGMA writable_schema = ON",
    "PRAGMA journal_mode = WAL",
    "PRAGMA table_info(t)",
    "SELECT * FROM pragma_table_info('t')",
    "SELECT load_extension('x')",
    "SELECT writefile('out.txt', 'x')",
    "SELECT readfile('/etc/hostname')",
    "REINDEX",
    "ANALYZE",
    "SELECT 1; DROP TABLE t",
    "DROP TABLE t; SELECT 1",
    "WITH a AS (SELECT 1) DELETE FROM t",
    "REPLACE INTO t VALUES (1)",
]


@pytest.mark.parametrize("prediction", HOSTILE)
def test_a_hostile_prediction_changes_nothing(example, database, tmp_path, monkeypatch, prediction):
    path = database([(1,), (2,)])
    monkeypatch.chdir(tmp_path)
    before = hashlib.sha256(path.read_bytes()).digest()
    for keep_distinct in (True, False):
        for gold in ("SELECT c0 FROM t WHERE 0", "SELECT c0 FROM t"):
            verdict = example.execution_match.execution_match(
                prediction, gold, path, keep_distinct=keep_distinct
            )
            assert verdict is False
    if not prediction.startswith("SELECT 1;"):
        assert not example.execution_match.runs(prediction, path)
    assert hashlib.sha256(path.read_bytes()).digest() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "prediction",
    [
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT i FROM n WHERE i > 1",
        "SELECT count(*) FROM t a, t b, t c, t d, t e, t f, t g, t h",
        "SELECT max(a.c0 || b.c0) FROM t a, t b, t c, t d ORDER BY 1",
        "SELECT max(a.c0 + (replace(hex(zeroblob(120000)), '0', 'a') LIKE '%' || replace(hex(zeroblob(400)), '0', 'a') || 'b')) FROM t a, t b",
        "SELECT max(a.c0 + instr(replace(hex(zeroblob(120000)), '0', 'a'), replace(hex(zeroblob(60000)), '0', 'a') || b.c0)) FROM t a, t b",
        "SELECT max(length(trim(replace(hex(zeroblob(120000)), '0', 'a'), replace(hex(zeroblob(120000)), '0', 'b') || 'a' || a.c0))) FROM t a",
        "SELECT max(length(printf('%.*c', 2000000000 + c0, 'x'))) FROM t",
        "SELECT max(length(format('%2000000000d', c0))) FROM t",
        "SELECT printf(replace(hex(zeroblob(20000)), '00', '%000d') || '%*c', 2000000000, 'x')",
    ],
)  # fmt: skip
def test_an_endless_prediction_ends_at_the_deadline(example, database, prediction):
    path = database([(i,) for i in range(1000)])
    begun = time.monotonic()
    assert not example.execution_match.execution_match(prediction, "SELECT -1", path, timeout=0.2)
    assert time.monotonic() - begun < 30  # each would take far longer


@pytest.mark.parametrize(
    "prediction",
    [
        "SELECT randomblob(1000000000)",
        "SELECT hex(zeroblob(2000000000))",
        "SELECT printf('%.*c', 2000000000, 'x')",
        "WITH RECURSIVE n(s) AS (SELECT 'aaaaaaaaaaaaaaaa' UNION ALL SELECT s || s FROM n) SELECT s FROM n",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i, randomblob(200000) FROM n",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT group_concat(i) FROM n",
    ],
)  # fmt: skip
def test_a_prediction_cannot_fill_the_memory(example, database, prediction):
    resource = pytest.importorskip("resource")
    path = database([(i, "x") for i in range(1000)])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for gold in ("SELECT c0, c1 FROM t", "SELECT c0 FROM t"):
        assert not example.execution_match.execution_match(prediction, gold, path, timeout=1)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 200_000  # KiB


@pytest.mark.parametrize("same", [True, False])
def test_wide_results_are_matched_without_trying_all_orders(example, database, same):
    """Thirty columns of the same values in other orders: 30! orders of columns."""
    rng = random.Random(1)
    columns = [rng.sample([0, 1] * 20, 40) for _ in range(30)]
    shuffled = rng.sample(columns, 30)
    if not same:
        column = shuffled[0]
        one, other = column.index(0), column.index(1)
        shuffled[0] = [
            1 if i == one else 0 if i == other else cell for i, cell in enumerate(column)
        ]
    rows = [(0, *row) for row in zip(*columns, strict=True)]
    others = [(1, *row) for row in zip(*shuffled, strict=True)]
    path = database(rows + rng.sample(others, 40))
    names = ", ".join(f"c{i}" for i in range(1, 31))
    verdict = example.execution_match.execution_match(
        f"SELECT {names} FROM t WHERE c0 = 1", f"SELECT {names} FROM t WHERE c0 = 0", path, timeout=60
    )  # fmt: skip
    assert verdict is same


def test_the_deadline_holds_for_matching_columns_too(example, database):
    """A row for each edge and a column for each corner of two graphs, one of K3,3s and one of K4s: the same counts
    everywhere, and a search for the right order of columns that finds out late."""

    def edges(size, joined):
        for start in range(0, 72, size):
            for one, other in itertools.combinations(range(size), 2):
                if joined(one, other):
                    yield [int(i in (start + one, start + other)) for i in range(72)]

    k33 = edges(6, lambda one, other: (one < 3) != (other < 3))
    # The corners that are not joined come first.
    order = sorted(range(72), key=lambda i: i % 6 >= 3)
    rows = [(0, *(row[i] for i in order)) for row in k33]
    rows += [(1, *row) for row in edges(4, lambda one, other: True)]
    path = database(rows)
    names = ", ".join(f"c{i}" for i in range(1, 73))
    begun = time.monotonic()
    assert not example.execution_match.execution_match(
        f"SELECT {names} FROM t WHERE c0 = 1", f"SELECT {names} FROM t WHERE c0 = 0", path, timeout=1
    )  # fmt: skip
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize(
    "query",
    [
        "SELECT printf('%.2f|%05d|%s|%+,d|%%|%x', 2.675, 7, c0, 1234567, 255) FROM t",
        "SELECT format('%s', NULL), printf(), printf(NULL), printf('%-8s|', 'a')",
        "SELECT trim('xxaxx', 'x'), ltrim(c0, 'A'), rtrim(NULL, 'x'), trim('  b ') FROM t",
    ],
)
def test_guarded_functions_answer_as_sqlite_does(judge, query):
    assert judge(query, query)
    assert not judge(query, query.replace("2.675", "2.685").replace("'a'", "'b'").replace("xxaxx", "xxbxx"))  # fmt: skip


def naive(gold, prediction, ordered):
    """The verdict in the words of the official evaluation, by trying every order of columns."""
    if len(gold) != len(prediction):
        return False
    if not gold:
        return True
    if len(gold[0]) != len(prediction[0]):
        return False

    def look(rows):
        cells = [tuple(sorted(row, key=lambda x: str(x) + str(type(x)))) for row in rows]
        return cells if ordered else set(cells)

    if look(gold) != look(prediction):
        return False
    for order in itertools.permutations(range(len(gold[0]))):
        moved = [tuple(row[i] for i in order) for row in prediction]
        if moved == gold if ordered else all(moved.count(r) == gold.count(r) for r in gold):
            return True
    return False


cell = st.sampled_from([0, 1, 1.0, 1.5, None, "1", "a", b"1"])


@st.composite
def pairs(draw):
    width = draw(st.integers(1, 4))
    rows = draw(st.lists(st.tuples(*[cell] * width), min_size=1, max_size=5))
    others = [list(row) for row in draw(st.permutations(rows))]
    order = draw(st.permutations(range(width)))
    others = [[row[i] for i in order] for row in others]
    for _ in range(draw(st.integers(0, 2))):
        row = draw(st.sampled_from(others))
        row[draw(st.integers(0, width - 1))] = draw(cell)
    return rows, [tuple(row) for row in others]


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300, deadline=None
)
@given(pairs(), st.booleans())
def test_the_verdict_is_that_of_trying_every_order(example, database, pair, ordered):
    gold, prediction = pair
    path = database([(0, *row) for row in gold] + [(1, *row) for row in prediction])
    names = ", ".join(f"c{i}" for i in range(1, len(gold[0]) + 1))
    tail = " ORDER BY rowid" if ordered else ""
    verdict = example.execution_match.execution_match(
        f"SELECT {names} FROM t WHERE c0 = 1 ORDER BY rowid",
        f"SELECT {names} FROM t WHERE c0 = 0{tail}",
        path,
        timeout=60,
    )
    assert verdict is naive(gold, prediction, ordered)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT count(DISTINCT a), 'it''s; distinct' FROM t; SELECT 2",
        'SELECT "distinct" FROM t -- distinct; \n WHERE distinct_a = 1',
        "SELECT/* distinct ; */DISTINCT(a) FROM t",
    ],
)
def test_distinct_is_taken_out_as_sqlparse_sees_it(example, query):
    sqlparse = pytest.importorskip("sqlparse")
    tokens = [token.value for token in sqlparse.parse(query)[0].flatten()]
    wanted = "".join(token for token in tokens if token.lower() != "distinct")
    got = example.execution_match._prepared(query, keep_distinct=False)
    assert got.split() == wanted.split()


def test_values_too_long_for_a_prediction_are_no_bar_to_gold(example, database):
    path = database([("x" * 300_000,)])
    assert example.execution_match.check_gold("SELECT c0 FROM t", path) == 1
    assert example.execution_match.execution_match("SELECT 1", "SELECT count(*) FROM t", path)


def test_text_that_is_not_utf8_is_read_without_its_bad_bytes(example, tmp_path):
    path = tmp_path / "latin.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t (a TEXT)")
    connection.execute("INSERT INTO t VALUES (CAST(x'61e962' AS TEXT))")
    connection.commit()
    connection.close()
    assert example.execution_match.execution_match("SELECT 'ab'", "SELECT a FROM t", path)


def test_a_path_may_hold_any_character(example, database):
    path = database([(1,)], name="a ?#%41&mode=rw.sqlite")
    assert example.execution_match.execution_match("SELECT 1", "SELECT c0 FROM t", path)
