"""SampleRules: which calls of a trace are learnt from."""

from __future__ import annotations

import functools
import re

from lightning_core.errors import UsageError
from lightning_core.records import Record
from lightning_core.trace import Call


class SampleRules(Record, frozen=True, kw_only=True):
    """Which calls of a trace are learnt from; the others are context where a prompt holds them.

    Raises:
        UsageError: `train_agents` is no regular expression.
    """

    train_agents: str | None = None
    """A regular expression that a call's agent or node label matches from end to end; None trains all."""
    allow_retokenized: bool = False
    """Whether calls whose token ids are re-made from text are let in; `Drift.retokenized` counts them."""
    oldest_version: int | None = None
    """The oldest policy version whose calls are learnt from; None has no bound. A call without a version is let in."""

    def __post_init__(self) -> None:
        if self.train_agents is not None:
            _compiled(self.train_agents)

    def selects(self, call: Call) -> bool:
        """Whether the call is of an agent that is trained. A call without labels is, unless a pattern is given."""
        if self.train_agents is None:
            return True
        matches = _compiled(self.train_agents).fullmatch
        return any(matches(label) is not None for label in (call.agent, call.node) if label)

    def stale(self, call: Call) -> bool:
        """Whether an older policy than the bound answered the call."""
        version = call.policy_version
        return (
            self.oldest_version is not None
            and version is not None
            and version < self.oldest_version
        )


@functools.lru_cache(maxsize=64)
def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UsageError(
            f"`train_agents` {pattern!r}: not a regular expression: {error};"
            " give one that matches whole labels, such as 'write|rewrite'"
        ) from error
