"""Drift reports: counting how calls went together, adding the counts of many rollouts, and saying them in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeVar

from lightning_core.learn.sample import Drift, Joined, Sample, Skipped

_K = TypeVar("_K")
EXAMPLES: Final = 3
"""How many calls are kept as examples of each reason."""
_JOINED: Final = {
    Joined.NEW: "began a conversation",
    Joined.EXTENDED: "went on at the tip of a chain",
    Joined.FORKED: "parted from a chain: parallel calls, choices, retries",
    Joined.TEMPLATE_CHANGED: "did not merge: the template renders the earlier prompt otherwise",
    Joined.THINKING_DROPPED: "did not merge: the reply's reasoning was dropped from the prompt",
    Joined.RETOKENIZED: "did not merge: the reply's text became other tokens",
    Joined.EDITED: "did not merge: the agent cut, compacted or re-ordered the conversation",
}
_SKIPPED: Final = {
    Skipped.OBSERVED: "not learnt from: the call did not go to the policy",
    Skipped.FAILED: "not learnt from: failed or incomplete",
    Skipped.NO_TOKEN_IDS: "not learnt from: no token ids",
    Skipped.RETOKENIZED: "not learnt from: token ids re-made from text",
    Skipped.LENGTHS_DIFFER: "not learnt from: no log-probability for each token",
    Skipped.NOT_SELECTED: "not learnt from: another agent's",
    Skipped.STALE: "not learnt from: sampled by too old a policy",
}
APART: Final = (
    Joined.TEMPLATE_CHANGED,
    Joined.THINKING_DROPPED,
    Joined.RETOKENIZED,
    Joined.EDITED,
)
"""The ways in which a call that goes on from another one does not merge with it."""


class Counter:
    """Counts while samples are built."""

    def __init__(self) -> None:
        self._calls = 0
        self._joined: dict[Joined, int] = {}
        self._skipped: dict[Skipped, int] = {}
        self._tokens = 0
        self._trainable = 0
        self._retokenized = 0
        self._examples: dict[str, list[str]] = {}

    def call(self) -> None:
        """A call was read."""
        self._calls += 1

    def joined(self, call_id: str, way: Joined) -> None:
        """A reply that is learnt from came into the forest."""
        self._joined[way] = self._joined.get(way, 0) + 1
        if way in APART:
            self._example(f"joined.{way}", call_id)

    def skipped(self, call_id: str, reason: Skipped) -> None:
        """A reply is not learnt from."""
        self._skipped[reason] = self._skipped.get(reason, 0) + 1
        if reason is not Skipped.NOT_SELECTED:
            self._example(f"skipped.{reason}", call_id)

    def retokenized(self) -> None:
        """A call with re-made token ids was let in."""
        self._retokenized += 1

    def sample(self, sample: Sample) -> None:
        """A sample was made."""
        self._tokens += len(sample.token_ids)
        self._trainable += sample.trainable_tokens

    def drift(self) -> Drift:
        """The counts; ways and reasons in the order of their definition."""
        return Drift(
            calls=self._calls,
            joined={way: self._joined[way] for way in Joined if way in self._joined},
            skipped={
                reason: self._skipped[reason] for reason in Skipped if reason in self._skipped
            },
            tokens=self._tokens,
            trainable_tokens=self._trainable,
            retokenized=self._retokenized,
            examples={key: tuple(ids) for key, ids in sorted(self._examples.items())},
        )

    def _example(self, key: str, call_id: str) -> None:
        ids = self._examples.setdefault(key, [])
        if len(ids) < EXAMPLES and call_id not in ids:
            ids.append(call_id)


def merge_drift(drifts: Iterable[Drift]) -> Drift:
    """The drift of many rollouts together; examples of the first ones."""
    every = list(drifts)
    examples: dict[str, dict[str, None]] = {}
    for drift in every:
        for key, ids in drift.examples.items():
            examples.setdefault(key, {}).update(dict.fromkeys(ids))
    return Drift(
        calls=sum(drift.calls for drift in every),
        joined=_summed(Joined, [drift.joined for drift in every]),
        skipped=_summed(Skipped, [drift.skipped for drift in every]),
        tokens=sum(drift.tokens for drift in every),
        trainable_tokens=sum(drift.trainable_tokens for drift in every),
        retokenized=sum(drift.retokenized for drift in every),
        examples={key: tuple(ids)[:EXAMPLES] for key, ids in sorted(examples.items())},
    )


def apart(drift: Drift) -> int:
    """Replies that go on from an earlier conversation but did not merge with it."""
    return sum(drift.joined.get(way, 0) for way in APART)


def lines(drift: Drift, name: Callable[[str], str] = str) -> Iterator[str]:
    """The report in words, a line for each way and reason that occurred.

    Args:
        drift: what to report.
        name: how an example is named, by its call's id.
    """

    def said(count: int, words: str, key: str) -> str:
        ids = drift.examples.get(key, ())
        such_as = f" (such as {', '.join(map(name, ids))})" if ids else ""
        return f"{count:>8,}  {words}{such_as}"

    yield (
        f"calls {drift.calls:,}, replies to learn from {sum(drift.joined.values()):,}, of which not merged"
        f" {apart(drift):,}; tokens {drift.tokens:,}, of which learnt from {drift.trainable_tokens:,}"
    )
    for way, count in drift.joined.items():
        yield said(count, _JOINED[way], f"joined.{way}")
    for reason, count in drift.skipped.items():
        yield said(count, _SKIPPED[reason], f"skipped.{reason}")
    if drift.retokenized:
        yield said(drift.retokenized, "learnt from, with token ids re-made from text", "")


def _summed(order: Iterable[_K], counts: Iterable[Mapping[_K, int]]) -> dict[_K, int]:
    found: dict[_K, int] = {}
    for each in counts:
        for key, count in each.items():
            found[key] = found.get(key, 0) + count
    return {key: found[key] for key in order if key in found}
