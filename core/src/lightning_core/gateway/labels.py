"""The headers that instrumentation adds to a model call."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl

import msgspec

SESSION = "x-lightning-session"
TARGET = "x-lightning-target"
CALL = "x-lightning-call"
RETRY = "x-lightning-retry"
LABELS = "x-lightning-labels"
SDK_RETRY = "x-stainless-retry-count"


class Labels(msgspec.Struct, frozen=True, kw_only=True):
    """Who spoke, as the adapter said."""

    span: str | None = None
    """The span in which the call was made."""
    agent: str | None = None
    """The agent."""
    node: str | None = None
    """The graph node."""
    others: dict[str, str] = {}
    """Any other labels."""

    @property
    def name(self) -> str:
        """The node, else the agent, else an empty string: what a strategy goes by."""
        return self.node or self.agent or ""


_NONE = Labels()


def read_labels(headers: Mapping[str, str]) -> Labels:
    """The labels of a call; all None where the header is missing."""
    text = headers.get(LABELS)
    if not text:
        return _NONE
    values = dict(parse_qsl(text, keep_blank_values=False, max_num_fields=None))
    return Labels(
        span=values.pop("span", None),
        agent=values.pop("agent", None),
        node=values.pop("node", None),
        others=values,
    )


def read_retry(headers: Mapping[str, str]) -> int | None:
    """The number of this try from 0; None where nobody said."""
    text = headers.get(RETRY) or headers.get(SDK_RETRY)
    return int(text) if text and text.isascii() and text.isdigit() else None
