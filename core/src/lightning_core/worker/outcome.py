"""Outcome: how one try of the agent ended, before it is reported."""

from __future__ import annotations

import traceback
from typing import Final

from lightning_core.records import Json, Record
from lightning_core.rollout import Cause

TEXT_LIMIT: Final = 16 * 1024
"""Bytes of an error or of logs that are kept."""


class Outcome(Record, frozen=True, kw_only=True):
    """How one try of the agent ended."""

    cause: Cause
    """The cause."""
    output: Json = None
    """What the agent returned, as JSON."""
    error: str | None = None
    """What went wrong, for a person; at most 16 KiB."""
    logs: str | None = None
    """The end of what a process printed; at most 16 KiB."""


def raised(error: BaseException, cause: Cause = Cause.AGENT_ERROR) -> Outcome:
    """The outcome of an agent that raised `error`: message first, then the traceback, bounded."""
    try:
        message = f"{type(error).__name__}: {error}"
    except (
        Exception
    ) as second:  # An exception of the agent's may raise where its text is asked for.
        message = f"{type(error).__name__}, whose text raised {type(second).__name__}"
    trace = "".join(traceback.format_exception(error))
    return Outcome(cause=cause, error=bounded(f"{message}\n\n{trace}"))


def bounded(text: str, limit: int = TEXT_LIMIT) -> str:
    """`text`, or its first quarter and its end with a note between, within `limit` bytes of UTF-8."""
    data = text.encode("utf-8", "replace")
    if len(data) <= limit:
        return data.decode()
    note = "\n… {} bytes left out …\n"
    room = limit - len(note) - 20
    head, tail = data[: room // 4], data[-(room - room // 4) :]
    left_out = len(data) - len(head) - len(tail)
    return head.decode(errors="ignore") + note.format(left_out) + tail.decode(errors="ignore")
