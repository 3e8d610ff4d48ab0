"""`lightning-core samples`."""

from __future__ import annotations

from collections.abc import Sequence

import click
import msgspec
from rich.table import Table
from rich.text import Text

from lightning_core.cli.audit import Audit
from lightning_core.cli.decoding import decoder_of, load_decoder
from lightning_core.cli.reading import read_traces
from lightning_core.cli.render import reward_text, short_id
from lightning_core.cli.terminal import console
from lightning_core.folder import RunFolder
from lightning_core.learn.advantage import ALGORITHMS
from lightning_core.learn.credit import parse_credit
from lightning_core.learn.drift import apart, lines, merge_drift
from lightning_core.learn.forest import Built, build_samples
from lightning_core.learn.rules import SampleRules
from lightning_core.learn.sample import Joined, Segment
from lightning_core.learn.scoring import GroupBy
from lightning_core.learn.step import LearningRules, make_step
from lightning_core.plugins import installed
from lightning_core.trace import Trace


@click.command("samples")
@click.argument("run")
@click.argument("rollout", required=False)
@click.option("--train-agents", metavar="PATTERN", help="Learn from agents or nodes so labelled.")
@click.option("--allow-retokenized", is_flag=True, help="Let in token ids re-made from text.")
@click.option("--tokenizer", help="Its folder or name: shows the text of the tokens themselves.")
@click.option("--ids", is_flag=True, help="Show the token ids.")
@click.option("--full", is_flag=True, help="Every context whole.")
@click.option("--json", "as_json", is_flag=True, help="Samples and report as JSON, a line each.")
@click.option("--server", help="Read from this server; its admin token in LIGHTNING_CORE_TOKEN.")
def command(
    run: str,
    rollout: str | None,
    train_agents: str | None,
    allow_retokenized: bool,
    tokenizer: str | None,
    ids: bool,
    full: bool,
    as_json: bool,
    server: str | None,
) -> None:
    """Show what is learnt from RUN: a table of its rollouts, and how their calls went together.

    With ROLLOUT its samples are shown token by token: what the policy said is bright, what it saw is dim. Credit and
    advantage are by the rules of the optimisation; for another run, or one on a server, by the final reward within the
    rollout's group. The advantage is shown where the group has another rollout. RUN and ROLLOUT are named as with `show`.
    """
    decode = None if tokenizer is None else load_decoder(tokenizer)
    found = read_traces(run, rollout, server=server, groups=rollout is not None)
    learning = _rules(found.folder, train_agents, allow_retokenized)
    rules = learning.samples
    built = [build_samples(trace, rules) for trace in found.traces]
    if rollout is not None:
        credited = _credited(found.groups, learning)
        built = [_with_credit(one, credited) for one in built]
    if as_json:
        for trace, one in zip(found.traces, built, strict=True):
            value = {"rollout_id": trace.rollout.id, **msgspec.to_builtins(one)}
            click.echo(msgspec.json.encode({"format_version": Built.VERSION, **value}))
        return
    out = console()
    if rollout is None:
        out.print(_table(found.traces, built))
        out.print()
    else:
        decode = decode or decoder_of(found.folder)
        for trace, one in zip(found.traces, built, strict=True):
            Audit(out, trace, decode=decode, ids=ids, full=full).write(one)
        if decode is None:
            out.print("texts are those of the messages; --tokenizer shows the tokens' own", style="dim")  # fmt: skip
    names = {
        call.id: f"{short_id(trace.rollout.id)} call {call.index}"
        for trace in found.traces
        for call in trace.calls
    }
    for line in lines(merge_drift(one.drift for one in built), names.__getitem__):
        out.print(Text(line))


def _table(traces: Sequence[Trace], built: Sequence[Built]) -> Table:
    """A row for each rollout; `apart` are replies that go on from a conversation but did not merge with it."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("rollout", no_wrap=True)
    names = ("reward", "calls", "samples", "tokens", "learnt", "new", "joined", "forked", "apart", "skipped")  # fmt: skip
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("why", style="yellow", overflow="fold")
    for trace, one in zip(traces, built, strict=True):
        drift = one.drift
        why = dict.fromkeys(
            [*(way for way in drift.joined if way not in _MERGED), *map(str, drift.skipped)]
        )
        table.add_row(
            Text(short_id(trace.rollout.id)),
            reward_text(trace),
            str(drift.calls),
            str(len(one.samples)),
            f"{drift.tokens:,}",
            f"{drift.trainable_tokens:,}",
            *(str(drift.joined.get(way, 0)) for way in _MERGED),
            str(apart(drift)),
            str(sum(drift.skipped.values())),
            ", ".join(why),
        )
    return table


_MERGED = (Joined.NEW, Joined.EXTENDED, Joined.FORKED)


def _rules(
    folder: RunFolder | None, train_agents: str | None, allow_retokenized: bool
) -> LearningRules:
    """The rules by which the run learnt, but for what the user says."""
    wanted = None if folder is None else folder.asked()
    if wanted is None:
        samples = SampleRules(train_agents=train_agents, allow_retokenized=allow_retokenized)
        return LearningRules(samples=samples)
    return LearningRules(
        samples=SampleRules(
            train_agents=train_agents if train_agents is not None else wanted.train_agents,
            allow_retokenized=allow_retokenized or wanted.allow_retokenized,
        ),
        credit=parse_credit(wanted.credit, installed().credit()),
        # Of an algorithm that only its backend knows, the plain one is shown.
        estimator=ALGORITHMS.get(wanted.algorithm, "grpo"),
        group_by=GroupBy(wanted.group_by),
    )


def _credited(
    groups: Sequence[Sequence[Trace]], rules: LearningRules
) -> dict[tuple[str, int], Segment]:
    """The segments with credit and, where its group has another one, advantage, by call and choice."""
    found: dict[tuple[str, int], Segment] = {}
    for group in groups:
        scored = sum(trace.reward is not None for trace in group)
        for sample in make_step([group], rules).samples:
            for segment in sample.segments:
                if scored < 2:
                    segment = msgspec.structs.replace(segment, advantage=None)
                found[segment.call_id, segment.choice] = segment
    return found


def _with_credit(built: Built, credited: dict[tuple[str, int], Segment]) -> Built:
    return msgspec.structs.replace(
        built,
        samples=tuple(
            msgspec.structs.replace(
                sample,
                segments=tuple(
                    credited.get((segment.call_id, segment.choice), segment)
                    for segment in sample.segments
                ),
            )
            for sample in built.samples
        ),
    )
