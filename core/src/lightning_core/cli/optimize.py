"""`lightning-core optimize`."""

from __future__ import annotations

import sys
from typing import Any

import click
import msgspec
from rich.text import Text

from lightning_core.children import take_token
from lightning_core.cli import pairs
from lightning_core.cli.options import running_options
from lightning_core.cli.run import reward_of
from lightning_core.cli.runfile import RunFileCommand
from lightning_core.cli.terminal import complete, console
from lightning_core.learn.compare import Gain
from lightning_core.optimization import OptimizeConfig
from lightning_core.rollout import Budget
from lightning_core.running.curve import draw_curve
from lightning_core.running.optimize import optimize
from lightning_core.runs import OptimizeResult
from lightning_core.sampling import DEFAULT_MAX_TOKENS


@click.command("optimize", cls=RunFileCommand)
@click.argument("agent", required=False)
@click.option(
    "--tasks", required=True, help="Tasks to learn from: a .jsonl, .csv or .parquet file."
)
@click.option("--val", help="Tasks to validate on, before and after; never learnt from.")
@click.option(
    "--reward",
    required=True,
    help="Reward: path.py:function, module:function, or a registered name.",
)
@click.option("--backend", default="local", show_default=True, help="What learns.")
@click.option("--model", help="The policy: smollm2, a folder, ORGANISATION/NAME.")
@click.option(
    "--budget",
    help="Bounds of a search for prompts and rules: '300 rollouts, 2 USD, 30 min'. Backend prompt.",
)
@click.option(
    "--reflection-model",
    metavar="MODEL",
    help="What reflects on the agent's work and proposes prompts: openai/NAME, NAME@http://HOST/v1. Backend prompt.",
)
@click.option(
    "--models",
    callback=lambda _context, _option, text: tuple(filter(None, (text or "").split(","))),
    metavar="A,B",
    help="The models to choose from for each agent or node. Backend prompt.",
)
@click.option(
    "--algorithm",
    default="grpo",
    show_default=True,
    help="By the backend's name for it: grpo, ppo, rloo, sft, …",
)
@click.option("--steps", type=click.IntRange(1), default=20, show_default=True)
@click.option(
    "--batch-size", type=click.IntRange(1), default=6, show_default=True, help="Tasks in each step."
)
@click.option(
    "--group-size",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    help="Rollouts of each task in a step.",
)
@click.option(
    "--train-agents",
    metavar="PATTERN",
    help="Whose calls are learnt from: a regular expression over whole labels, such as 'write|rewrite'.",
)
@click.option(
    "--credit",
    default="final",
    show_default=True,
    help="Which reward is put down to which call: final, discounted:0.95, agent, call, 0.7*final+0.3*call.",
)
@click.option(
    "--group-by",
    type=click.Choice(["task", "task_agent"]),
    default="task",
    show_default=True,
    help="What a baseline is taken over.",
)
@click.option(
    "--aggregation",
    type=click.Choice(["token", "sequence", "rollout"]),
    default="rollout",
    show_default=True,
    help="What counts the same in the loss.",
)
@click.option(
    "--sampler",
    default="shuffled",
    show_default=True,
    help="What draws tasks: shuffled, difficulty:COLUMN, success.",
)
@click.option(
    "--quorum",
    type=float,
    default=1.0,
    show_default=True,
    help="Share of a step's rollouts that must have ended for it to go on.",
)
@click.option(
    "--refill",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="How often groups of equal rewards are replaced within a step.",
)
@click.option(
    "--async",
    "asynchronous",
    is_flag=True,
    help="Run the next step's rollouts while the trainer works.",
)
@click.option(
    "--max-staleness",
    type=click.IntRange(0),
    help="Versions that a call may be older than the policy; 1 by default with --async, else 0.",
)
@click.option(
    "--allow-retokenized",
    is_flag=True,
    help="Let in token ids that were re-made from text; they are counted.",
)
@click.option(
    "--temperature", type=float, default=1.0, show_default=True, help="Of rollouts to learn from."
)
@click.option("--val-temperature", type=float, default=0.0, show_default=True)
@click.option(
    "--max-tokens",
    type=click.IntRange(1),
    default=DEFAULT_MAX_TOKENS,
    show_default=True,
    help="Bound of each reply.",
)
@click.option(
    "--val-every",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Steps between validations; 0 is before and after only.",
)
@click.option("--val-repeats", type=click.IntRange(1), default=1, show_default=True)
@click.option(
    "--val-by",
    metavar="FIELD",
    help="The metadata field that names a validation task's kind, to show each.",
)
@click.option(
    "--save-every",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Steps between checkpoints.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--set",
    "settings",
    multiple=True,
    callback=pairs,
    metavar="KEY=VALUE",
    help="The backend's own options, such as learning_rate=1e-4; a wrong one lists them.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1),
    help="Rollouts at once; by default a whole step's, at most 64.",
)
@running_options
def command(
    agent: str | None,
    tasks: str,
    val: str | None,
    reward: str,
    settings: dict[str, str],
    concurrency: int | None,
    max_staleness: int | None,
    max_calls: int | None,
    max_total_tokens: int | None,
    command_line: tuple[str, ...],
    **given: Any,
) -> None:
    """Make an agent better: run it on tasks, score it, learn from what it did; end in a file that can be applied.

    AGENT is `path.py:attr` or `module:attr`; or give a command line in any language after `--`. It may also be a file
    of these options, such as `run.toml`; options beside it go before what it says.
    """
    if (agent is None) == (not command_line):
        raise click.UsageError("give either AGENT or a command line after `--`")
    if max_staleness is None:
        max_staleness = int(given["asynchronous"])
    learning = {field.name for field in msgspec.structs.fields(OptimizeConfig)}
    config = OptimizeConfig(
        options=settings,
        max_staleness=max_staleness,
        **{name: value for name, value in given.items() if name in learning},
    )
    result = complete(
        optimize(
            agent if agent is not None else command_line,
            tasks,
            config,
            val=val,
            reward=reward_of(reward),
            concurrency=concurrency or min(config.batch_size * config.group_size, 64),
            budget=Budget(calls=max_calls, tokens=max_total_tokens),
            token=take_token(),  # Gone from the environment, where the agent's processes could read it.
            command_line=tuple(sys.argv),
            **{name: value for name, value in given.items() if name not in learning},
        )
    )
    _report(result)


def _report(result: OptimizeResult) -> None:
    out = console()
    artifact = result.artifact
    val = artifact.metrics.get("val")
    if val is not None:
        out.print(Text(f"validation: {msgspec.convert(val, Gain)}"))
    for kind, (before, after, count) in sorted(artifact.metrics.get("kinds", {}).items()):
        out.print(Text(f"  {before:.2f} → {after:.2f}  ({count})  {kind}"))
    if artifact.kind == "strategy":
        _report_search(result)
    else:
        curve = draw_curve(result.folder)
        out.print(
            f"{artifact.metrics.get('steps', len(result.steps))} steps, {result.seconds:.1f} s"
        )
        if curve is not None:
            out.print(f"curve      {curve}")
    out.print(f"artifact   {result.folder}/{artifact.path}")
    out.print(f"serve it   {artifact.apply}", markup=False)


def _report_search(result: OptimizeResult) -> None:
    """What a search for a strategy took, why it ended, and what it found."""
    out = console()
    metrics = result.artifact.metrics
    if "val" not in metrics or metrics["val"] is None:
        out.print(Text(f"validation: {metrics.get('verdict', 'nothing was compared')}"))
    cost = metrics.get("cost", {})
    parts = [f"{metrics.get('strategies', 0)} strategies", f"{cost.get('rollouts', 0):,} rollouts"]
    parts += [f"{cost.get('calls', 0):,} calls", f"{cost.get('tokens', 0):,} tokens"]
    if cost.get("usd"):
        of_it = cost.get("reflection_usd")
        parts.append(f"{cost['usd']:.4f} USD" + (f" ({of_it:.4f} for reflection)" if of_it else ""))
    parts.append(f"{result.seconds:.1f} s")
    stopped = metrics.get("stopped")
    out.print(Text(", ".join(parts) + (f"; ended at {stopped}" if stopped else "")))
    if metrics.get("used"):
        out.print(Text(f"budget     {metrics['used']}"))
    if not metrics.get("improved") and metrics.get("best"):
        out.print(
            Text(
                f"the best that was tried, which is not shown to be better: {result.folder}/{metrics['best']}"
            )
        )
    if metrics.get("picture"):
        out.print(f"scores     {result.folder}/{metrics['picture']}")
