"""`lightning-core diff`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

import click
import msgspec
from rich.text import Text

from lightning_core.cli.changed import changed
from lightning_core.cli.render import clip, plain
from lightning_core.cli.terminal import console
from lightning_core.records import Json
from lightning_core.shown import shown
from lightning_core.strategy import Provenance, Strategy
from lightning_core.strategy_changes import Change, changes

_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
_CONTEXT: Final = 2
"""Lines that are shown around a change."""
_TITLES: Final = {
    "prompt_templates": "prompt",
    "decision_rules": "rule",
    "interaction_patterns": "pattern",
    "models": "model",
}
_ESCAPED: Final = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}
"""What JSON leaves as it is, and a terminal may obey."""


@click.command("diff")
@click.argument("before", metavar="A.json", type=_FILE)
@click.argument("after", metavar="B.json", type=_FILE)
@click.option("--json", "as_json", is_flag=True, help="The changes as JSON.")
def command(before: Path, after: Path, as_json: bool) -> None:
    """Show what changed from one strategy file to another, in words and scores."""
    old, new = Strategy.load(before), Strategy.load(after)
    found = changes(old, new)
    if as_json:
        value = {
            "changes": found,
            "provenance": {"before": old.provenance, "after": new.provenance},
        }
        click.echo(msgspec.json.encode(value).decode().translate(_ESCAPED))
        return
    out = console()
    for line in _lines(found):
        out.print(line)
    if not found:
        out.print("Nothing differs.")
    if old.provenance != new.provenance:
        for path, strategy in ((before, old), (after, new)):
            out.print(_origin(str(path), strategy.provenance))


def _lines(found: Iterable[Change]) -> Iterator[Text]:
    for (section, slot), of_slot in groupby(found, key=lambda each: (each.section, each.slot)):
        title = Text.assemble((f"{_TITLES[section]} ", "dim"), (clip(slot, False), "bold"))
        if section == "decision_rules":
            (change,) = of_slot
            yield title + _change("", _value(change.before), _value(change.after))
            continue
        yield title
        for change in of_slot:
            if change.field in ("template", "original"):
                yield Text(f"  {change.field}", style="dim")
                yield from changed(change.before or "", change.after or "", context=_CONTEXT)
            elif change.field == "demonstrations":
                yield from _demonstrations(change.before or [], change.after or [])
            elif change.field == "options":
                old, new = change.before or {}, change.after or {}
                for name in {**old, **new}:
                    if old.get(name) != new.get(name):
                        yield _change(
                            f"option {name}", _steps(old.get(name)), _steps(new.get(name))
                        )
            else:
                yield _change(change.field, _value(change.before), _value(change.after))


def _change(what: str, old: str, new: str) -> Text:
    title = f"  {clip(what, False)}" if what else ""
    return Text.assemble(
        (title, "dim"), "  ", (clip(old, False), "red"), " → ", (clip(new, False), "green")
    )


def _value(value: Json) -> str:
    return "none" if value is None else repr(value) if isinstance(value, str) else plain(value)


def _steps(steps: Sequence[str] | None) -> str:
    return "none" if steps is None else ", ".join(steps) or "no steps"


def _demonstrations(old: list[Json], new: list[Json]) -> Iterator[Text]:
    removed = [each for each in old if each not in new]
    added = [each for each in new if each not in old]
    for sign, style, examples in (("-", "red", removed), ("+", "green", added)):
        for example in examples:
            for message in example:
                yield Text(f"  {sign} {message['role']}: {clip(message['content'], False)}", style)
    if not removed and not added:
        yield Text("  the demonstrations are in another order, or one is repeated", style="dim")


def _origin(path: str, provenance: Provenance) -> Text:
    """Where a strategy comes from, and what it scored there."""
    scores, cost = provenance.scores, provenance.cost
    text = Text.assemble((clip(path, False), "bold"))
    if provenance.run or provenance.agent:
        text.append(
            f"  run {clip(provenance.run or '?', False)}, agent {clip(provenance.agent or '?', False)}"
        )
    if "before" in scores or "after" in scores:
        text.append("\n  mean reward on held-out tasks ", style="dim")
        text.append(f"{_number(scores.get('before'))} → {_number(scores.get('after'))}")
        if "difference" in scores:
            text.append(f", difference {_number(scores['difference'], '+.3f')}")
        if isinstance(interval := scores.get("interval"), list):
            text.append(f", 95 % {' to '.join(_number(edge, '+.3f') for edge in interval)}")
        counts = [
            f"{name} {plain(scores[name])}" for name in ("tasks", "repeats") if name in scores
        ]
        text.append(f"; {', '.join(counts)}" if counts else "")
    if cost:
        spent = ", ".join(f"{name} {_number(value, ',.6g')}" for name, value in cost.items())
        text.append(f"\n  cost: {shown(spent)}", style="dim")
    return text


def _number(value: Json, form: str = ".3f") -> str:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return format(value, form) if number else clip(plain(value), False)
