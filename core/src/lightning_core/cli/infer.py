"""`lightning-core infer`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click
import msgspec

from lightning_core.errors import UsageError
from lightning_core.shown import shown
from lightning_core.strategy import Strategy
from lightning_core.template import Template
from lightning_core.trained.agent import TrainedAgent
from lightning_core.trained.asking import text_of
from lightning_core.trained.expression import evaluate_expression
from lightning_core.trained.fences import last_fenced, unfenced
from lightning_core.trained.flow import Executor
from lightning_core.trained.record import Attempted
from lightning_core.trained.sqlite import SqliteReader

_ESCAPED: Final = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}
"""What JSON leaves as it is, and a terminal may obey."""


@click.command("infer")
@click.option("--strategy", required=True, type=click.Path(path_type=Path), metavar="FILE",
              help="The strategy file.")  # fmt: skip
@click.option("--task", required=True, help="The task, as text.")
@click.option("--model", help="The model, where the strategy names none.")
@click.option("--endpoint", metavar="URL",
              help="Where the model is served; OPENAI_BASE_URL by default, else OpenAI's.")  # fmt: skip
@click.option("--context", "contexts", multiple=True, metavar="KEY=VALUE|@FILE.json",
              help="What fills holes of the prompts, by name; a file has a JSON object.")  # fmt: skip
@click.option("--sql", type=click.Path(path_type=Path), metavar="DATABASE",
              help="Solutions are queries: run them on this SQLite file. It can only be read.")  # fmt: skip
@click.option("--python", is_flag=True,
              help="Solutions are expressions in Python's notation: evaluate them, within bounds.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True,
              help="Solution, result, error, score and attempts as JSON.")  # fmt: skip
@click.option("--api-key-env", metavar="VARIABLE",
              help="The variable that holds the key, for an endpoint that is not OPENAI_BASE_URL or OpenAI's.")  # fmt: skip
@click.option("--timeout", type=click.FloatRange(0, min_open=True), default=120.0, show_default=True,
              help="Seconds that a reply may take.")  # fmt: skip
def command(
    strategy: Path,
    task: str,
    model: str | None,
    endpoint: str | None,
    contexts: tuple[str, ...],
    sql: Path | None,
    python: bool,
    as_json: bool,
    api_key_env: str | None,
    timeout: float,
) -> None:
    """Run the flow of a strategy on a task: print the solution and, below an empty line, its result.

    With --sql, the database's tables fill the hole `schema`. The status is 1 where the execution failed or the last check was
    not content.
    """
    if sql is not None and python:
        raise click.UsageError("give either `--sql` or `--python`")
    context = _context(contexts)
    executor: Executor | None = evaluate_expression if python else None
    loaded = Strategy.load(strategy)
    if sql is not None:
        executor = reader = SqliteReader(sql)
        if any("schema" in Template(p.template).holes for p in loaded.prompt_templates.values()):
            context = {"schema": reader.schema, **context}
    agent = TrainedAgent(
        strategy_file=loaded,
        model_endpoint=endpoint,
        model=model,
        executor=executor,
        extract=unfenced if executor is None else last_fenced,
        api_key_env=api_key_env,
        timeout=timeout,
        log=lambda text: click.echo(shown(text), err=True),
    )
    done = agent.attempt(task, context)
    _print(done, as_json, executed=executor is not None)
    if not done.accepted:
        raise click.exceptions.Exit(1)


def _print(done: Attempted, as_json: bool, *, executed: bool) -> None:
    best = done.attempts[done.best]
    error = None if best.error is None else f"{type(best.error).__name__}: {best.error}"
    if as_json:
        value = {
            "solution": best.solution,
            "result": _plain(best.result),
            "error": error,
            "score": best.score,
            "accepted": done.accepted,
            "attempts": len(done.attempts),
        }
        click.echo(msgspec.json.encode(value).decode().translate(_ESCAPED))
        return
    click.echo(shown(text_of(best.solution)))
    if error is not None:
        click.echo(f"error: {shown(text_of(error))}", err=True)
    elif executed:
        click.echo(f"\n{shown(text_of(best.result))}")
    if not done.accepted and error is None:
        click.echo(shown(text_of(f"not accepted: {best.feedback}")), err=True)


def _plain(value: Any) -> Any:
    """A value as JSON has it; what JSON cannot hold, as its text."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return text_of(value)


def _context(given: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in given:
        name, equals, text = each.partition("=")
        if each.startswith("@"):
            found.update(_from_file(Path(each[1:])))
        elif equals and name:
            found[name] = text
        else:
            raise click.BadParameter(
                f"expected KEY=VALUE or @FILE.json but got {each!r}", param_hint="--context"
            )
    return found


def _from_file(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes().decode("utf-8-sig"), type=dict[str, Any])
    except OSError as error:
        raise UsageError(
            f"context file `{path}`: cannot be read: {error.strerror}; check the path"
        ) from error
    except (UnicodeDecodeError, msgspec.DecodeError) as error:
        raise UsageError(f"context file `{path}`: expected a JSON object: {error}") from error
