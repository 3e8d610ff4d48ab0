"""What a search shows as it goes: candidates with their scores, the budget, what changed in the best prompts."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from lightning_core.shown import shown
from lightning_prompt.budget import Budget, Spent
from lightning_prompt.scored import Scored, best_of

_ROWS: Final = 8
_NAME: Final = 40
_SAID: Final = 4
_DIFF_LINES: Final = 8
_LINE: Final = 96
_STYLES: Final = {"-": "red", "+": "green"}


class LiveSearch:
    """A table, which the run shows on a terminal. Elsewhere: a line for each phase, candidate and note."""

    def __init__(self, budget: Budget, console: Console | None = None) -> None:
        """Args:
        budget: the bounds.
        console: where to show it; by default standard error.
        """
        self._console = console or Console(stderr=True, highlight=False)
        self._budget = budget
        self._spent = Spent()
        self._phase = ""
        self._note: str | None = None
        self._said: list[str] = []
        self._candidates: list[Scored] = []
        self._changes: list[Text] = []

    def begin(self, phase: str) -> None:
        """A phase begins."""
        self._phase = phase
        self._tell(Text.assemble((_one_line(phase, _LINE), "bold"), "  ", self._used()))

    def spend(self, spent: Spent) -> None:
        """What has been spent by now."""
        self._spent = spent

    def say(self, text: str) -> None:
        """Something that the user should know; the latest stay on the terminal."""
        self._said.append(text)
        self._tell(Text(shown(text)))

    def note(self, text: str | None) -> None:
        """What is waited for, such as the reflection model; None once it goes on."""
        if text is not None and text != self._note:
            self._tell(Text(shown(text)))
        self._note = text

    def add(self, candidate: Scored) -> None:
        """A candidate has been scored; the first is the agent as it was."""
        self._candidates.append(candidate)
        best = best_of(self._candidates) is candidate
        self._tell(
            Text.assemble(
                f"{_one_line(candidate.phase, _NAME)}  {_one_line(candidate.name, _NAME)}  reward {_score(candidate)}"
                f"  {_runs(candidate, ' tasks')}  ",
                self._used(),
                "  best so far" if best and len(self._candidates) > 1 else "",
            )
        )

    def compare(self, original: Mapping[str, str], best: Mapping[str, str]) -> None:
        """The prompts as they were, and those of the best candidate, by slot."""
        self._changes = list(_changed(original, best))

    def render(self) -> RenderableType:
        """The table as it stands."""
        table = Table(box=None, pad_edge=False, header_style="dim")
        # On a narrow terminal the names give way, and the numbers stay whole.
        for column in ("phase", "candidate"):
            table.add_column(column)
        for column in ("reward", "tasks", "rollouts", ""):
            table.add_column(
                column, no_wrap=True, justify="right" if column == "rollouts" else "left"
            )
        best = best_of(self._candidates)
        for candidate in self._rows(best):
            table.add_row(
                _cell(candidate.phase),
                _cell(candidate.name),
                _score(candidate),
                _runs(candidate),
                f"{candidate.rollouts:,}",
                "best" if candidate is best else "",
                style="bold" if candidate is best else "",
            )
        parts: list[RenderableType] = [table] if self._candidates else []
        parts += [Text(_one_line(text, _LINE), style="dim") for text in self._said[-_SAID:]]
        parts.append(Text.assemble((_one_line(self._phase, _LINE), "bold"), "  ", self._used()))
        if self._note is not None:
            parts.append(Text(shown(self._note), style="yellow"))
        return Group(*parts, *self._changes)

    def _rows(self, best: Scored | None) -> list[Scored]:
        """The first, the best and the latest."""
        first, latest = self._candidates[:1], self._candidates[1:][-_ROWS:]
        if best is None or any(best is candidate for candidate in (*first, *latest)):
            return first + latest
        return [*first, best, *latest[1:]]

    def _used(self) -> Text:
        return Text(self._budget.used(self._spent) or str(self._spent), style="dim")

    def _tell(self, line: Text) -> None:
        if not self._console.is_terminal:
            self._console.print(line, soft_wrap=True)


def _score(candidate: Scored) -> str:
    if candidate.mean is None:
        return "not scored"
    if candidate.low is None or candidate.high is None:
        return f"{candidate.mean:.3f}"
    return f"{candidate.mean:.3f} ({candidate.low:.2f} to {candidate.high:.2f})"


def _runs(candidate: Scored, unit: str = "") -> str:
    repeated = f" x {candidate.repeats}" if candidate.repeats > 1 else ""
    return f"{candidate.tasks}{unit}{repeated}"


def _cell(text: str) -> Text:
    return Text(_one_line(text, _NAME), no_wrap=True, overflow="ellipsis")


def _changed(original: Mapping[str, str], best: Mapping[str, str]) -> Iterator[Text]:
    """The lines of prompts that are others in the best, each cut to the terminal; bounded in number."""
    lines = []
    for slot in sorted(original.keys() | best.keys()):
        before, after = original.get(slot, ""), best.get(slot, "")
        if before != after:
            lines.append(Text(f"{_one_line(slot, _NAME)}: best against original", style="dim"))
            diff = difflib.unified_diff(before.split("\n"), after.split("\n"), lineterm="", n=0)
            for line in list(diff)[2:]:
                if line[0] in _STYLES:
                    text = f"{line[0]} {_one_line(line[1:], _LINE)}"
                    lines.append(
                        Text(f"  {text}", _STYLES[line[0]], no_wrap=True, overflow="ellipsis")
                    )
    yield from lines[:_DIFF_LINES]
    if len(lines) > _DIFF_LINES:
        yield Text(f"  … {len(lines) - _DIFF_LINES} lines more", style="dim")


def _one_line(text: str, width: int) -> str:
    """Text of a model or a user on one line: a terminal would obey its control characters."""
    line = shown(" ".join(text.split()))
    return line if len(line) <= width else line[: width - 1] + "…"
