"""Finding tool calls of the form `<tool_call>{json}</tool_call>` in what a model wrote."""

from __future__ import annotations

import json
import secrets
from typing import Any

OPEN = "<tool_call>"
CLOSE = "</tool_call>"


def parse(text: str) -> tuple[str, list[dict[str, Any]]] | None:
    """The text before the first call, and the calls in OpenAI's form.

    None where there is no call, or where any of them is malformed: then the whole remains text, so that
    nothing that the model wrote is lost.
    """
    before, mark, rest = text.partition(OPEN)
    if not mark:
        return None
    calls = []
    for piece in rest.split(OPEN):
        body, _, after = piece.partition(CLOSE)
        if after.strip():
            return None
        try:
            call = json.loads(body)
        except ValueError:
            return None
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            return None
        arguments = call.get("arguments", call.get("parameters", {}))
        if not isinstance(arguments, dict):
            return None
        calls.append(
            {
                "id": f"call_{secrets.token_hex(12)}",
                "type": "function",
                "function": {
                    "name": call["name"],
                    "arguments": json.dumps(arguments, ensure_ascii=False),
                },
            }
        )
    return before.rstrip(), calls


class Splitter:
    """While streaming: lets text through until a call may have begun, and keeps the rest for the end."""

    def __init__(self) -> None:
        self._kept = ""

    def push(self, piece: str) -> str:
        """Take text; return what certainly is no part of a call."""
        self._kept += piece
        at = self._kept.find(OPEN)
        if at < 0:
            at = len(self._kept) - _overlap(self._kept)
        at = len(self._kept[:at].rstrip())  # space before a call belongs to it
        free, self._kept = self._kept[:at], self._kept[at:]
        return free

    def finish(self) -> tuple[str, list[dict[str, Any]]]:
        """The rest: text, or the calls in it."""
        parsed = parse(self._kept.lstrip()) if OPEN in self._kept else None
        return (self._kept, []) if parsed is None else ("", parsed[1])


def _overlap(text: str) -> int:
    """How many characters at the end may be the start of a call."""
    return next(
        (
            size
            for size in range(min(len(OPEN) - 1, len(text)), 0, -1)
            if OPEN.startswith(text[-size:])
        ),
        0,
    )
