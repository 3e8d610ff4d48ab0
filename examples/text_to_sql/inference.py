"""Answer a question about a database with a strategy file alone: no LangGraph, no `agent.py`.

`python inference.py optimized_strategy.json data/databases/library.sqlite "Which members are older than 30?"`, with
`OPENAI_API_KEY`, and optionally `OPENAI_BASE_URL` and `OPENAI_MODEL`. The same as `lightning-core infer --strategy FILE
--sql DATABASE --task QUESTION`.
"""

from __future__ import annotations

import argparse
import os
import sys

from lightning_core import Attempted, SqliteReader, TrainedAgent
from lightning_core.errors import LightningError
from lightning_core.trained import last_fenced


def answer(strategy: str, database: str, question: str) -> Attempted:
    """Write a query, execute it, check it, and rewrite it, by the strategy's prompts and rules."""
    reader = SqliteReader(database)
    agent = TrainedAgent(
        strategy_file=strategy,
        model=os.environ.get("OPENAI_MODEL", "gpt-4.1-mini"),
        executor=reader,
        extract=last_fenced,
        temperature=0,
    )
    return agent.attempt(task=question, context={"schema": reader.schema})


def main() -> None:
    """Answer what the command line asks."""
    parser = argparse.ArgumentParser(description="Answer a question about a SQLite database.")
    for name in ("strategy", "database", "question"):
        parser.add_argument(name)
    options = parser.parse_args()
    try:
        done = answer(options.strategy, options.database, options.question)
    except LightningError as error:
        sys.exit(f"error: {error}")
    print(done.solution, done.result, sep="\n\n")
    if not done.accepted:
        sys.exit(f"not approved after {len(done.attempts)} attempts")


if __name__ == "__main__":
    main()
