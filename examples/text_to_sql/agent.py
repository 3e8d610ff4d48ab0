"""A LangGraph agent that answers questions with SQL: write a query, execute it, check it, rewrite it.

It is an ordinary agent of LangGraph and LangChain, with no trace of whatever may watch or train it. The graph takes
`{"question": …, "database": PATH}`, optionally with `schema`, and returns a state whose `query` is its answer.
Environment: `OPENAI_API_KEY`, and optionally `OPENAI_BASE_URL` and `OPENAI_MODEL`.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from contextlib import closing
from typing import Any, TypedDict

from execution_match import execution_match, read_only, runs
from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph

MAX_TURNS = 3
"""How many queries may be written for one question, the first included."""
QUERY_SECONDS = 2.0
"""How long a query may run."""
SHOWN_ROWS = 10
"""How many rows of a result the model sees."""
SHOWN_CHARACTERS = 1_200
"""How much of a result the model sees."""
SCHEMA_CHARACTERS = 4_000
"""How much of a schema the model sees."""
CELL_CHARACTERS = 80
"""How much of one cell the model sees."""


class Input(TypedDict, total=False):
    """What the graph takes."""

    question: str
    """The question, in plain language."""
    database: str
    """Path of the SQLite file."""
    schema: str
    """The tables as `CREATE TABLE` statements; read from the database where it is not given."""


class State(Input, total=False):
    """What the nodes share, and what the graph returns."""

    query: str
    """The latest query."""
    result: str
    """What executing it gave: rows as text, cut short, or the error."""
    feedback: str
    """What the checker said about it."""
    approved: bool
    """The checker's last verdict."""
    turns: int
    """How many queries have been written."""


WRITE = """You write SQLite queries. Answer with one SELECT statement in a ```sql block.
Use only the tables and columns of this schema:
{schema}"""
CHECK = """You check whether a SQLite query answers a question. Look for errors, for wrong or missing joins, \
conditions, grouping and order, and for columns that were not asked for.
Schema:
{schema}
Say briefly what is wrong, if anything. End with one line: VERDICT: CORRECT or VERDICT: INCORRECT."""
REWRITE = """You correct SQLite queries. Answer with one SELECT statement in a ```sql block.
Use only the tables and columns of this schema:
{schema}"""
ATTEMPT = """Question: {question}
Query:
```sql
{query}
```
Result:
{result}"""


def write_query(state: State) -> State:
    """Write the first query."""
    schema = state.get("schema") or read_schema(state["database"])
    messages = [
        SystemMessage(WRITE.format(schema=schema)),
        HumanMessage(f"Question: {state['question']}"),
    ]
    return {"schema": schema, "query": last_query(ask(messages)), "turns": 1}


def execute_query(state: State) -> State:
    """Run the latest query."""
    return {"result": execute(state["query"], state["database"])}


def check_query(state: State) -> State:
    """Judge the latest query by its result."""
    feedback = ask(
        [SystemMessage(CHECK.format(schema=state["schema"])), HumanMessage(shown(state))]
    )
    return {"feedback": feedback, "approved": last_verdict(feedback)}


def rewrite_query(state: State) -> State:
    """Write a better query, knowing what was wrong with the last."""
    messages = [
        SystemMessage(REWRITE.format(schema=state["schema"])),
        HumanMessage(f"{shown(state)}\nReview:\n{state['feedback']}"),
    ]
    return {"query": last_query(ask(messages)), "turns": state["turns"] + 1}


def after_check(state: State) -> str:
    """Rewrite until the query is approved or the turns are used up."""
    return END if state["approved"] or state["turns"] >= MAX_TURNS else "rewrite_query"


def ask(messages: list[BaseMessage]) -> str:
    """Ask the model. A call that fails raises: no query is ever made up in its place."""
    model = ChatOpenAI(model=os.environ.get("OPENAI_MODEL", "gpt-4.1-mini"), temperature=0)
    return model.invoke(messages).text


def shown(state: State) -> str:
    """Question, query and result as the model sees them."""
    return ATTEMPT.format(question=state["question"], query=state["query"], result=state["result"])


def last_query(reply: str) -> str:
    """The last fenced block of a reply; one that is not closed ends with the reply. Without any, all of it."""
    blocks = re.findall(
        r"```[ \t]*(?:sql(?:ite)?\b|\w+(?=[ \t]*\n))?(.*?)(?:```|\Z)",
        reply,
        re.DOTALL | re.IGNORECASE,
    )
    filled = [block.strip() for block in blocks if block.strip()]
    return filled[-1] if filled else reply.replace("```", "").strip()


def last_verdict(reply: str) -> bool:
    """Whether the last verdict of a reply is CORRECT; a reply without one approves nothing."""
    verdicts = re.findall(r"VERDICT\W*(CORRECT|INCORRECT)\b", reply, re.IGNORECASE)
    return bool(verdicts) and verdicts[-1].upper() == "CORRECT"


def read_schema(database: str) -> str:
    """The statements that made the database's tables, cut short."""
    with closing(read_only(database, time.monotonic() + QUERY_SECONDS)) as connection:
        rows = connection.execute(
            "SELECT sql FROM sqlite_master WHERE type IN ('table', 'view') AND sql IS NOT NULL"
            " AND name NOT LIKE 'sqlite%' ORDER BY rowid"
        )
        return cut(";\n".join(" ".join(sql.split()) for (sql,) in rows), SCHEMA_CHARACTERS)


def execute(query: str, database: str) -> str:
    """Run a query, which can only read, and give its first rows or its error as text."""
    try:
        with closing(read_only(database, time.monotonic() + QUERY_SECONDS)) as connection:
            cursor = connection.execute(query)
            rows = cursor.fetchmany(SHOWN_ROWS + 1)
            columns = [column[0] for column in cursor.description or ()]
    except (sqlite3.Error, sqlite3.Warning, ValueError, MemoryError) as error:
        return cut(f"Error: {error}", SHOWN_CHARACTERS)
    if not columns:
        return "Error: this is no SELECT statement"
    if not rows:
        return "(no rows)"
    lines = [" | ".join(columns)]
    lines += [
        " | ".join(cut(str(cell), CELL_CHARACTERS) for cell in row) for row in rows[:SHOWN_ROWS]
    ]
    if len(rows) > SHOWN_ROWS:
        lines.append("… more rows")
    return cut("\n".join(lines), SHOWN_CHARACTERS)


def cut(text: str, limit: int) -> str:
    """The text, cut short where it is longer than `limit` characters."""
    return text if len(text) <= limit else text[:limit] + "…"


def build() -> StateGraph[State, None, Input, State]:
    """The graph before it is compiled."""
    builder = StateGraph(State, input_schema=Input)
    for node in (write_query, execute_query, check_query, rewrite_query):
        builder.add_node(node.__name__, node)
    builder.add_edge(START, "write_query")
    builder.add_edge("write_query", "execute_query")
    builder.add_edge("execute_query", "check_query")
    builder.add_conditional_edges("check_query", after_check, ["rewrite_query", END])
    builder.add_edge("rewrite_query", "execute_query")
    return builder


graph = build().compile(name="text_to_sql")


def score(task: Any, trace: Any) -> dict[str, float]:
    """The reward: 1 where the query returns what the gold query returns, else 0.

    `reward` keeps DISTINCT, which would otherwise be free to leave out or add; `official` is Spider's own number,
    which does not; `runs` says whether the query runs at all.
    """
    query = trace.output["query"]
    gold, database = task.expected["query"], task.input["database"]
    return {
        "reward": float(execution_match(query, gold, database)),
        "official": float(execution_match(query, gold, database, keep_distinct=False)),
        "runs": float(runs(query, database)),
    }
