"""`lightning-core prompts`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.text import Text

from lightning_core.cli.reading import read_traces
from lightning_core.cli.render import clip, counted
from lightning_core.cli.terminal import console
from lightning_core.gateway.tally import tally
from lightning_core.prompts import Prompt, Prompts, find_prompts
from lightning_core.shown import shown
from lightning_core.strategy import Strategy
from lightning_core.template import Template
from lightning_core.trace import Trace


@click.command("prompts")
@click.argument("run")
@click.option("--full", is_flag=True, help="Every example whole.")
@click.option("--json", "as_json", is_flag=True, help="The slots as JSON.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write a strategy that changes nothing, for you to edit.",
)
@click.option(
    "--strategy",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Instead of the list: what of this strategy fits the agent.",
)
@click.option("--server", help="Read from this server; its admin token in LIGHTNING_CORE_TOKEN.")
def command(
    run: str,
    full: bool,
    as_json: bool,
    output: Path | None,
    strategy: Path | None,
    server: str | None,
) -> None:
    """List the prompts of RUN's agent, found in its traffic: with their holes, where each is used, how sure that is.

    RUN is named as with `show`.
    """
    if strategy is not None and (as_json or output is not None or full):
        raise click.UsageError("`--strategy` goes with `--server` alone")
    loaded = None if strategy is None else Strategy.load(strategy)
    traces = read_traces(run, server=server).traces
    found = find_prompts(traces)
    if loaded is not None:
        for fit in _fit(loaded, found, traces):
            console().print(fit)
        return
    if output is not None:
        name = next((trace.rollout.run for trace in traces), run)
        found.strategy(run=name).dump(output)
    if as_json:
        value = {**msgspec.to_builtins(found), "fingerprint": found.fingerprint}
        click.echo(msgspec.json.encode({"format_version": Prompts.VERSION, **value}))
        return
    out = console()
    for prompt in found.prompts:
        _print(out, prompt, full)
    for line in _remarks(found):
        out.print(Text(clip(line, True), style="yellow"))
    tunable = sum(not prompt.is_input for prompt in found.prompts)
    out.print(
        f"{counted(tunable, 'prompt')} to tune in {counted(found.calls, 'call')};"
        f" fingerprint {found.fingerprint[:16]}"
    )
    if output is not None:
        out.print(
            Text(
                f"wrote {output}: edit `template`, then `lightning-core serve --strategy {output}`"
            )
        )


def _fit(strategy: Strategy, found: Prompts, traces: Sequence[Trace]) -> Iterator[Text]:
    """What of a strategy fits an agent, by its traffic."""
    made = strategy.provenance
    counts = tally(strategy, [call for trace in traces for call in trace.calls])
    if made.fingerprint == found.fingerprint:
        yield Text(f"fingerprint {made.fingerprint[:16]}: that of this agent's prompts")
    else:
        of = f", made for `{clip(made.agent, False)}`" if made.agent else ""
        yield Text(
            f"fingerprint {made.fingerprint[:16] or 'none'}{of}; this agent's prompts have {found.fingerprint[:16]}."
            " What fits is applied, what does not passes unchanged",
            style="yellow",
        )
    for name, count in counts.slots.items():
        missed = f", {counted(count.missed, 'other')} of its label not" if count.missed else ""
        yield Text(
            f"`{clip(name, False)}`: fits {counted(count.matched, 'call')}{missed}",
            style="" if count.matched else "yellow",
        )
    read = [name for name, each in strategy.prompt_templates.items() if not each.original]
    read += [*strategy.decision_rules, *strategy.interaction_patterns]
    if read:
        names = ", ".join(f"`{clip(name, False)}`" for name in read)
        yield Text(f"not found in traffic, as the agent's code reads it by name: {names}")


def _print(out: Console, prompt: Prompt, full: bool) -> None:
    head = Text(clip(prompt.name, False), style="bold")
    if prompt.is_input:
        head.append("  input, nothing to tune", style="yellow")
    else:
        head.append(f"  confidence {prompt.confidence:.2f}", style=_style(prompt.confidence))
    used = f"  {counted(prompt.calls, 'call')} of {counted(prompt.tasks, 'task')}"
    by = [clip(speaker, False) for speaker in prompt.speakers if speaker != prompt.label]
    head.append(used + (f", by {', '.join(by)}" if by else ""), style="dim")
    out.print(head)
    out.print(Text("  " + "; ".join(prompt.reasons), style="dim"))
    if not prompt.is_input:
        for line in _coloured(prompt.parsed).split("\n"):
            out.print(Text.assemble("  │ ", line))
    for name, count in prompt.values.items():
        values = list(dict.fromkeys(example[name] for example in prompt.examples))
        example = clip(values[0], full) if values else ""
        out.print(
            Text.assemble(
                ("  {", "dim"), (clip(name, False), "cyan"), ("} ", "dim"),
                (f"{counted(count, 'value')}, such as ", "dim"), example or "nothing",
            )
        )  # fmt: skip
    out.print()


def _coloured(template: Template) -> Text:
    """A template as its file has it, with its holes in colour."""
    text = Text()
    for name, piece in zip(("", *template.places), template.pieces, strict=True):
        text.append(f"{{{name}}}" if name else "", style="cyan")
        text.append(shown(piece).replace("{", "{{").replace("}", "}}"))
    return text


def _style(confidence: float) -> str:
    return "green" if confidence >= 0.9 else "yellow" if confidence >= 0.5 else "red"


def _remarks(found: Prompts) -> Iterator[str]:
    yield from found.notes
    for why, count in found.unread.items():
        yield f"{counted(count, 'call')} left out: {why}"
    if not found.calls:
        yield "no call with a prompt; look at the run with `lightning-core show`"
