"""Traces and runs as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest

import msgspec
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from lightning_core.cli.changed import changed
from lightning_core.records import Json
from lightning_core.reward import Reward, RewardStatus
from lightning_core.rollout import Cause
from lightning_core.shown import shown
from lightning_core.trace import Call, Choice, Span, SpanKind, StrategyUse, Trace, TraceNode

_COLOURS = {
    SpanKind.AGENT: "bold magenta",
    SpanKind.NODE: "bold blue",
    SpanKind.TOOL: "bold yellow",
    SpanKind.HANDOFF: "bold green",
    SpanKind.SLOT: "bold cyan",
}
_WIDTH = 96
_ID_WIDTH = 40


def trace_tree(trace: Trace, *, full: bool = False) -> Tree:
    """A trace as a tree: spans, calls with what was asked and answered, rewards.

    Args:
        trace: what to show.
        full: every message whole, with what a strategy made of it; else one line of the last.
    """
    root = Tree(_headline(trace), guide_style="dim")
    for node in trace.tree():
        _add(root, node, full)
    if trace.attempt.output is not None:
        root.add(Text.assemble(("output ", "dim"), clip(plain(trace.output), full)))
    if trace.attempt.error:
        lines = trace.attempt.error.strip().splitlines()
        root.add(Text("\n".join(lines if full else lines[:1]), style="red"))
    for reward in trace.rewards:
        root.add(_reward(reward, full))
    return root


def runs_table(traces: Iterable[Trace]) -> Table:
    """A table of rollouts: how each ended, its reward, its calls."""
    table = Table(box=None, pad_edge=False, header_style="dim", expand=True)
    for column in ("rollout", "ended", "reward", "calls", "tokens", "seconds"):
        number = column in ("reward", "calls", "tokens", "seconds")
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    # Only the output gives way where the terminal is narrow.
    table.add_column("output", no_wrap=True, overflow="ellipsis", ratio=1)
    for trace in traces:
        attempt = trace.attempt
        seconds = (attempt.ended_at or attempt.started_at) - attempt.started_at
        table.add_row(
            Text(short_id(trace.rollout.id)),
            Text(str(attempt.cause or "running"), style=_cause_style(attempt.cause)),
            reward_text(trace),
            str(len(trace.calls)),
            str(sum(call.total_tokens for call in trace.calls)),
            f"{seconds:.1f}",
            Text(
                clip(
                    plain(trace.output) if attempt.output is not None else _first(attempt.error),
                    False,
                )
            ),
        )
    return table


def short_id(rollout_id: str) -> str:
    """A rollout's id without the run's name, cut where it would fill the line."""
    text = shown(rollout_id.partition(":")[2] or rollout_id)
    return text if len(text) <= _ID_WIDTH else text[: _ID_WIDTH - 1] + "…"


def reward_text(trace: Trace) -> Text:
    """The reward, or why there is none."""
    if trace.reward is not None:
        return Text(f"{trace.reward:.3g}", style="green" if trace.reward > 0 else "")
    status = next((r.status for r in trace.rewards if r.name == "reward"), None)
    return Text(str(status or "none"), style="red" if status else "dim")


def summary(traces: Sequence[Trace]) -> str:
    """How many rollouts there are, how they ended, and their mean reward."""
    causes: dict[str, int] = {}
    for trace in traces:
        cause = str(trace.attempt.cause or "running")
        causes[cause] = causes.get(cause, 0) + 1
    values = [trace.reward for trace in traces if trace.reward is not None]
    mean = f"mean reward {sum(values) / len(values):.3f}" if values else "no reward"
    ended = ", ".join(f"{count} {cause}" for cause, count in causes.items()) or "none"
    return f"{counted(len(traces), 'rollout')}: {ended}; {len(values)} scored, {mean}"


def _headline(trace: Trace) -> Text:
    attempt = trace.attempt
    seconds = (attempt.ended_at or attempt.started_at) - attempt.started_at
    tokens = sum(call.total_tokens for call in trace.calls)
    return Text.assemble(
        (shown(trace.rollout.id), "bold"),
        f"  attempt {attempt.number}  ",
        (str(attempt.cause or "running"), _cause_style(attempt.cause)),
        (
            f"  {counted(len(trace.calls), 'call')}  {counted(tokens, 'token')}  {seconds:.2f} s",
            "dim",
        ),
    )


def _add(tree: Tree, node: TraceNode, full: bool) -> None:
    if isinstance(node.item, Call):
        _add_call(tree, node.item, full)
        return
    branch = tree.add(_span(node.item, full))
    for child in node.children:
        _add(branch, child, full)


def _span(span: Span, full: bool) -> Text:
    took = f"  {span.ended_at - span.started_at:.2f} s" if span.ended_at else "  not ended"
    text = Text.assemble(
        (f"{span.kind} ", "dim"), (clip(span.name, False), _COLOURS[span.kind]), (took, "dim")
    )
    arguments = span.attributes.get("gen_ai.tool.call.arguments")
    if arguments is not None:
        text.append(f"  {clip(plain(arguments), full)}")
    if span.error:
        text.append(f"  {clip(span.error, full)}", style="red")
    return text


def _add_call(tree: Tree, call: Call, full: bool) -> None:
    # Without spans the labels are all that says who spoke.
    said = " ".join(label for label in (call.agent, call.node) if label) if not call.span_id else ""
    facts = [f"{call.ended_at - call.started_at:.2f} s"]
    if call.usage:
        prompt, completion = call.token_counts
        facts.append(f"{'?' if prompt is None else prompt} + {completion or 0} tokens")
    if call.choices and call.choices[0].token_ids is not None:
        facts.append("token ids")
    if call.stream:
        facts.append("stream")
    if call.tries:
        facts.append(f"{len(call.tries) + 1} tries")
    if call.policy_version is not None:
        facts.append(f"policy {call.policy_version}")
    head = Text.assemble(
        (f"{call.dialect} ", "dim"),
        (clip(call.model or "?", False), "bold cyan"),
        f"  {clip(said, False)}",
        ("  " + ", ".join(facts), "dim"),
    )
    branch = tree.add(head)
    if call.strategy is not None:
        branch.add(_strategy(call.strategy))
    messages = call.messages
    if full:
        for line in _messages(messages, call.sent_messages):
            branch.add(line)
    elif messages:
        earlier = f" (after {len(messages) - 1} more)" if len(messages) > 1 else ""
        branch.add(_message(messages[-1], full, earlier))
    for choice in call.choices:
        branch.add(_choice(choice, full))
    if call.error is not None:
        status = f" {call.error.status}" if call.error.status else ""
        branch.add(
            Text(f"{call.error.kind}{status}: {clip(call.error.message, full)}", style="red")
        )
    elif not call.complete:
        branch.add(Text("incomplete", style="red"))


def _strategy(use: StrategyUse) -> Text:
    """Which strategy there was, and what it did and did not do."""
    text = Text.assemble(("strategy ", "dim"), (shown(use.digest[:12]), "bold cyan"))
    done = [*use.applied, *(["model"] if use.model is not None else [])]
    text.append(f"  {shown(', '.join(done)) or 'nothing of it fits'}")
    undone = []
    if use.unmatched:
        undone.append(f"{counted(use.unmatched, 'text')} that no slot fits")
    if use.ambiguous:
        undone.append(f"ambiguous: {', '.join(use.ambiguous)}")
    if use.left_out:
        undone.append(f"left out: {', '.join(use.left_out)}")
    if undone:
        text.append(f"  [{shown('; '.join(undone))}]", style="yellow")
    return text


def _messages(asked: list[dict[str, Json]], sent: list[dict[str, Json]]) -> Iterator[Text]:
    """Every message whole, and of those that a strategy changed, took out or put in, how they went upstream."""
    old, new = [plain(message) for message in asked], [plain(message) for message in sent]
    for tag, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            yield from (_message(message, True) for message in asked[a:b])
            continue
        for was, went in zip_longest(asked[a:b], sent[c:d]):
            if was is not None and went is not None and was.get("role") == went.get("role"):
                head = Text(f"{shown(str(went.get('role')))} as it went upstream", style="dim")
                lines = changed(content_text(was), content_text(went))
                yield Text("\n").join([head, *lines])
                continue
            if was is not None:
                yield _message(was, True, " taken out")
            if went is not None:
                yield _message(went, True, " put in")


def _message(message: dict[str, Json], full: bool, about: str = "") -> Text:
    said = clip(content_text(message), full)
    return Text.assemble((f"{shown(str(message.get('role', '?')))}{about} ", "dim"), said)


def _choice(choice: Choice, full: bool) -> Text:
    text = Text.assemble(("assistant ", "dim"), (clip(content_text(choice.message), full), "green"))
    if choice.finish_reason not in (None, "stop", "tool_calls"):
        text.append(f"  [{choice.finish_reason}]", style="yellow")
    return text


def content_text(message: dict[str, Json]) -> str:
    """What a message says: its text, and its tool calls behind it."""
    parts = []
    content = message.get("content", message.get("text"))
    if isinstance(content, list):
        content = " ".join(
            part.get("text", f"[{part.get('type')}]") if isinstance(part, dict) else str(part)
            for part in content
        )
    if content:
        parts.append(str(content))
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        parts.append(f"→ {function.get('name')}({function.get('arguments', '')})")
    return "  ".join(parts)


def _reward(reward: Reward, full: bool) -> Text:
    about = f" ({reward.scope} {reward.target})" if reward.target else ""
    if reward.status is RewardStatus.SCORED:
        text = Text.assemble((f"{reward.name}{about} ", "dim"), (f"{reward.value:g}", "bold green"))
    else:
        text = Text.assemble((f"{reward.name}{about} ", "dim"), (str(reward.status), "bold red"))
        if why := reward.details.get("error") or reward.details.get("cause"):
            text.append(f"  {clip(str(why), full)}", style="red")
    if reward.feedback:
        text.append(f"  {clip(reward.feedback, full)}")
    return text


def counted(number: int, noun: str) -> str:
    """`1 call`, `2 calls`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def plain(value: Json) -> str:
    """A JSON value as a person reads it."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def clip(text: str, full: bool) -> str:
    """One line of bounded length, unless all of it is wanted."""
    if full:
        return shown(text)
    line = shown(" ".join(text.split()))
    return line if len(line) <= _WIDTH else line[: _WIDTH - 1] + "…"


def _first(text: str | None) -> str:
    return text.strip().splitlines()[0] if text and text.strip() else ""


def _cause_style(cause: Cause | None) -> str:
    return "green" if cause is Cause.SUCCESS else "dim" if cause is None else "red"
