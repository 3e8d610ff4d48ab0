"""Putting the pieces of a streamed choice together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from lightning_core.trace import Choice

MISALIGNED = (
    "the upstream's log-probabilities do not match its token ids in number; they are left out"
)
"""The note in `Call.reply` where that was so."""
_WHOLE = frozenset({"id", "type", "role", "name"})


class EventChoice(msgspec.Struct, gc=False):
    """One choice in one event; what strangers send is `Any` and is looked at before it is used."""

    index: Any = 0
    delta: Any = None
    text: Any = None
    finish_reason: Any = None
    token_ids: Any = None
    prompt_token_ids: Any = None
    logprobs: Any = None


class Assembly:
    """One choice of a stream, made of its pieces in all events."""

    def __init__(self, index: int, logprobs_of: Callable[[Any], list[Any] | None]) -> None:
        self.index = index
        self.pieces: list[EventChoice] = []
        """The choice as each event had it, in order."""
        self._logprobs_of = logprobs_of
        self._message: dict[str, Any] = {}
        self._parts: dict[str, list[str]] = {}
        self._tools: list[tuple[int | None, dict[str, Any]]] = []

    def choice(self) -> tuple[Choice, bool]:
        """The choice, and whether ids and log-probabilities match in number."""
        finish_reason: Any = None
        ids: list[Any] | None = None
        logprobs: list[Any] | None = None
        content: list[str] | None = None
        for piece in self.pieces:
            delta = piece.delta
            if isinstance(delta, dict):
                text = delta.get("content")
                if content is not None and len(delta) == 1 and isinstance(text, str):
                    content.append(text)  # nearly all events
                else:
                    self._add(delta)
                    content = self._parts.get("content")
            elif isinstance(piece.text, str):
                self._parts.setdefault("text", []).append(piece.text)
            if piece.finish_reason is not None:
                finish_reason = piece.finish_reason
            if isinstance(piece.token_ids, list):
                ids = ids or []
                ids += piece.token_ids
            if piece.logprobs is not None:
                values = self._logprobs_of(piece.logprobs)
                if values is not None:
                    logprobs = logprobs or []
                    logprobs += values
        for key, parts in self._parts.items():
            self._message[key] = "".join(parts)
        if self._tools:
            self._message["tool_calls"] = [tool for _, tool in self._tools]
        return make_choice(self.index, self._message, finish_reason, ids, logprobs)

    def _add(self, delta: dict[str, Any]) -> None:
        for key, value in delta.items():
            if isinstance(value, str) and key not in _WHOLE:
                parts = self._parts.get(key)
                if parts is not None:
                    parts.append(value)
                    continue
                self._message[key] = ""
                self._parts[key] = [value]
            elif key == "tool_calls" and isinstance(value, list):
                self._message.setdefault(key, [])
                for piece in value:
                    if isinstance(piece, dict):
                        self._add_tool(piece)
            elif value is None:
                self._message.setdefault(key, None)
            elif self._message.get(key) is None:
                self._message[key] = value
            else:
                self._message[key] = _merge(key, self._message[key], value)

    def _add_tool(self, piece: dict[str, Any]) -> None:
        number = piece.get("index")
        rest = {key: value for key, value in piece.items() if key != "index"}
        for known, tool in reversed(self._tools):
            # Some servers send whole calls, each under index 0 or under none.
            if known == number and piece.get("id") in (None, "", tool.get("id")):
                for key, value in rest.items():
                    tool[key] = value if tool.get(key) is None else _merge(key, tool[key], value)
                return
        self._tools.append((number, rest))


def make_choice(
    index: Any, message: dict[str, Any], finish_reason: Any, ids: Any, logprobs: Any
) -> tuple[Choice, bool]:
    """A choice, and whether its ids and log-probabilities match in number; those that do not are left out."""
    token_ids = tuple(ids) if _all(ids, int) else None
    values = tuple(map(float, logprobs)) if _all(logprobs, (int, float)) else None
    lost = logprobs is not None and values is None
    matches = not lost and (values is None or token_ids is None or len(values) == len(token_ids))
    choice = Choice(
        index=index if isinstance(index, int) else 0,
        message=message,
        finish_reason=finish_reason if isinstance(finish_reason, str) else None,
        token_ids=token_ids,
        logprobs=values if matches else None,
    )
    return choice, matches


def _all(values: Any, kind: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, kind) for value in values)


def _merge(key: str, old: Any, new: Any) -> Any:
    if new is None:
        return old
    if key in _WHOLE:
        return new if new != "" else old
    if isinstance(old, str) and isinstance(new, str):
        return old + new
    if isinstance(old, list) and isinstance(new, list):
        return old + new
    if isinstance(old, dict) and isinstance(new, dict):
        merged = dict(old)
        for name, value in new.items():
            merged[name] = value if old.get(name) is None else _merge(name, old[name], value)
        return merged
    return new
