"""A rollout's samples for a terminal: which tokens are learnt from, whose they are, and how much each reply counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rich.console import Console
from rich.text import Text

from lightning_core.cli.decoding import Decode
from lightning_core.cli.render import clip, content_text, counted
from lightning_core.learn.drift import APART
from lightning_core.learn.forest import Built
from lightning_core.learn.sample import Sample, Segment
from lightning_core.shown import shown
from lightning_core.trace import Call, Trace

_COLOURS: Final = ("green", "cyan", "magenta", "yellow", "blue", "red")
_CLIPPED: Final = 480
"""Characters of context that are shown unless all of it is wanted."""
_CLIPPED_IDS: Final = 16
"""Token ids of context at either end that are shown unless all of them are wanted."""
_BAR: Final = "▌ "


class Audit:
    """Writes a rollout's samples to a console."""

    def __init__(
        self, out: Console, trace: Trace, *, decode: Decode | None, ids: bool, full: bool
    ) -> None:
        """Describe how to write.

        Args:
            out: where to.
            trace: the rollout's trace.
            decode: gives the text of token ids; without it the texts are those of the messages.
            ids: whether to show token ids too.
            full: every text whole.
        """
        self._out = out
        self._calls = {call.id: call for call in trace.calls}
        self._decode = decode
        self._ids = ids
        self._full = full
        agents = dict.fromkeys(who(call) for call in trace.calls)
        self._colours = {
            agent: _COLOURS[number % len(_COLOURS)] for number, agent in enumerate(agents)
        }

    def write(self, built: Built) -> None:
        """Write every sample, then the calls that gave nothing."""
        for number, sample in enumerate(built.samples, 1):
            first = built.joined.get(sample.segments[0].call_id)
            head = Text(f"sample {number} of {len(built.samples)}", style="bold")
            head.append(
                f"  {counted(len(sample.segments), 'reply' if len(sample.segments) == 1 else 'replie')},"
                f" {counted(len(sample.token_ids), 'token')}, {sample.trainable_tokens:,} learnt from  ",
                style="dim",
            )
            if first is not None:
                head.append(str(first), style="yellow" if first in APART else "dim")
            self._out.print(head)
            self._sample(sample)
            self._out.print()
        for call_id, reason in built.skipped.items():
            call = self._calls[call_id]
            self._out.print(
                Text.assemble(
                    f"call {call.index} ",
                    (f"{who(call)} ", "dim"),
                    (f"not learnt from: {reason}", "yellow"),
                )
            )

    def _sample(self, sample: Sample) -> None:
        at = 0
        before: Call | None = None
        for segment in sample.segments:
            call = self._calls[segment.call_id]
            if segment.start > at:
                self._context(sample.token_ids[at : segment.start], at, call, before)
            self._reply(sample, segment, call)
            at, before = segment.stop, call

    def _context(self, ids: Sequence[int], at: int, call: Call, before: Call | None) -> None:
        self._out.print(Text(f"  context {at}-{at + len(ids)}", style="dim"))
        text = self._decode(ids) if self._decode else "\n".join(_said(call, before))
        if not self._full and len(text) > _CLIPPED:
            half = _CLIPPED // 2
            text = f"{text[:half]} … {text[-half:]}"
        self._lines("  ", text, "dim")
        self._token_ids("  ", ids, "dim", clipped=not self._full)

    def _reply(self, sample: Sample, segment: Segment, call: Call) -> None:
        choice = call.choices[segment.choice]
        ids = sample.token_ids[segment.start : segment.stop]
        colour = self._colours[who(call)]
        bar = _BAR if segment.trainable else "  "
        head = Text(bar, style=colour)
        head.append(f"call {call.index}", style=f"bold {colour}" if segment.trainable else "dim")
        if len(call.choices) > 1:
            head.append(f" choice {segment.choice}")
        head.append(f"  {who(call)}" if who(call) else "", style=colour)
        head.append("  " + ", ".join(_facts(sample, segment, choice.finish_reason)), style="dim")
        self._out.print(head)
        text = self._decode(ids) if self._decode else content_text(choice.message)
        style = colour if segment.trainable else "dim"
        self._lines(bar, text, style)
        self._token_ids(bar, ids, style)

    def _lines(self, bar: str, text: str, style: str) -> None:
        """Print a text with its bar before every line, those too that the terminal's width makes."""
        for line in Text(shown(text), style=style).wrap(
            self._out, max(20, self._out.width - len(bar))
        ):
            line.rstrip()
            self._out.print(Text.assemble((bar, style), line))

    def _token_ids(
        self, bar: str, ids: Sequence[int], style: str, *, clipped: bool = False
    ) -> None:
        if not self._ids:
            return
        words = list(map(str, ids))
        if clipped and len(words) > 2 * _CLIPPED_IDS:
            words[_CLIPPED_IDS:-_CLIPPED_IDS] = ["…"]
        self._lines(bar, " ".join(words), style)


def who(call: Call) -> str:
    """The labels of a call, `agent/node`; empty where it has none."""
    return clip("/".join(label for label in (call.agent, call.node) if label), False)


def _facts(sample: Sample, segment: Segment, finish_reason: str | None) -> Iterator[str]:
    yield f"{segment.start}-{segment.stop}"
    if not segment.trainable:
        yield "context"
        return
    yield f"version {segment.version}" if segment.version >= 0 else "no version"
    logprobs = sample.logprobs[segment.start : segment.stop]
    yield f"mean log-probability {sum(logprobs) / len(logprobs):.2f}"
    if finish_reason not in (None, "stop", "tool_calls"):
        yield f"ended by {finish_reason}"
    if segment.credit is not None:
        yield f"credit {segment.credit:.3g}"
    if segment.advantage is not None:
        yield f"advantage {segment.advantage:+.3g}"


def _said(call: Call, before: Call | None) -> Iterator[str]:
    """What the call's request adds to that of the call before it in the chain, in words."""
    messages: Sequence[Mapping[str, object] | object] = call.messages
    if before is not None and call.dialect != "completions":
        messages = messages[len(before.messages) + 1 :]
    for message in messages:
        if isinstance(message, dict):
            yield f"{message.get('role', '?')}: {content_text(message)}"
