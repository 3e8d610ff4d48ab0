"""`lightning-core run`."""

from __future__ import annotations

import sys

import click
from click.core import ParameterSource
from rich.text import Text

from lightning_core.agents import load_object
from lightning_core.children import take_token
from lightning_core.cli import AgentCommand
from lightning_core.cli.options import running_options
from lightning_core.cli.render import clip, counted, runs_table, summary
from lightning_core.cli.terminal import complete, console
from lightning_core.errors import RewardError, UsageError
from lightning_core.grading import RewardFunction
from lightning_core.rollout import Budget, Cause
from lightning_core.running.evaluate import run
from lightning_core.running.prepare import who_samples
from lightning_core.runs import RunResult
from lightning_core.sampling import DEFAULT_MAX_TOKENS, SamplingPolicy
from lightning_core.settings import Settings

_SHOWN = 20


@click.command("run", cls=AgentCommand)
@click.argument("agent", required=False)
@click.option("--tasks", required=True, help="Tasks: a .jsonl, .csv or .parquet file.")
@click.option("--reward", help="Reward: path.py:function, module:function, or a registered name.")
@click.option(
    "--model",
    help="What answers this run's model calls: smollm2, a folder, an address, NAME@address.",
)
@click.option("--temperature", type=float, default=0.0, show_default=True, help="With --model.")
@click.option("--max-tokens", type=click.IntRange(1), default=DEFAULT_MAX_TOKENS, show_default=True,
              help="With --model: bound of each reply.")  # fmt: skip
@click.option("--concurrency", type=click.IntRange(1), default=8, show_default=True)
@click.option(
    "--repeats",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Rollouts for each task.",
)
@running_options
def command(
    agent: str | None,
    tasks: str,
    reward: str | None,
    temperature: float,
    max_tokens: int | None,
    max_calls: int | None,
    max_total_tokens: int | None,
    command_line: tuple[str, ...],
    **options: object,
) -> int:
    """Run an agent on tasks; record every model call, score every rollout.

    AGENT is `path.py:attr` or `module:attr`; or give a command line in any language after `--`.

    The exit status is 0 where at least one rollout succeeded, and with --reward was scored; else 1.
    """
    if (agent is None) == (not command_line):
        raise click.UsageError("give either AGENT or a command line after `--`")
    server = options["server"] or Settings.from_environ().server
    model = options["model"]
    for name in ("temperature", "max_tokens"):
        given = (
            click.get_current_context().get_parameter_source(name) is not ParameterSource.DEFAULT
        )
        if given and model is None:
            option = name.replace("_", "-")
            raise click.UsageError(
                f"`--{option}` needs `--model`; {who_samples(str(server) if server else None)}"
            )
    sampling = SamplingPolicy(temperature=temperature, max_tokens=max_tokens)
    result = complete(
        run(
            agent if agent is not None else command_line,
            tasks,
            reward=reward_of(reward),
            sampling=None if model is None else sampling,
            budget=Budget(calls=max_calls, tokens=max_total_tokens),
            token=take_token(),  # Gone from the environment, where the agent's processes could read it.
            command_line=tuple(sys.argv),
            **options,  # type: ignore[arg-type]  # click has checked them against the options above
        )
    )
    _report(result, server=str(server) if server else None)
    wanted = result.causes.get(Cause.SUCCESS) and (reward is None or result.scored)
    return 0 if wanted else 1


def reward_of(spec: str | None) -> RewardFunction | str | None:
    """A reward function that is named by its place; a registered name as it is."""
    if spec is None or ":" not in spec:
        return spec
    function = load_object(spec, what="reward", error=RewardError)
    if not callable(function):
        raise UsageError(f"reward {spec!r}: expected a function but got {type(function).__name__}")
    return function


def _report(result: RunResult, *, server: str | None) -> None:
    out = console()
    out.print(runs_table(result.traces[:_SHOWN]))
    if len(result.traces) > _SHOWN:
        out.print(f"… and {len(result.traces) - _SHOWN} more", style="dim")
    out.print(f"\n{summary(result.traces)}; {result.seconds:.1f} s")
    failed = [
        t
        for t in result.traces
        if t.attempt.cause is Cause.SUCCESS and t.rewards and t.reward is None
    ]
    if failed:
        why = failed[0].rewards[0].details.get("error", "no reason given")
        count = counted(len(failed), "rollout")
        out.print(
            Text(f"the reward function failed on {count}; first: {clip(str(why), False)}"),
            style="red",
        )
    elsewhere = f" --server {server}" if server else ""
    out.print(
        f"run folder {result.folder}; look closer: lightning-core show {result.name} ROLLOUT{elsewhere}",
        style="dim",
    )
