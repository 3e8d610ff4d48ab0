"""Conversations: which earlier call a request goes on from, told by its messages alone.

Messages are compared as a person would: None, empty and missing fields are equal, so are a text and its parts, JSON
arguments however they are spaced, and call ids whatever they are. Reasoning and white space at the ends are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from lightning_core.learn.prefixes import PrefixTree
from lightning_core.trace import Call, Choice

_T = TypeVar("_T")
_REASONING: Final = ("reasoning", "reasoning_content")
_THINK: Final = ("<think>", "</think>")


class _Key(NamedTuple):
    """What two messages are compared by."""

    role: str
    text: str
    tool_calls: tuple[tuple[str, str], ...]


class Related(NamedTuple, Generic[_T]):
    """How a request relates to the calls before it. Nothing of it where it shares no more than what conversations begin
    with alike, such as the system message."""

    continues: _T | None = None
    """The call whose request and reply it begins with; of several the one with the longest request."""
    repeats: bool = False
    """Whether it is an earlier request word for word."""
    edits: bool = False
    """Whether it shares its beginning with an earlier conversation and more, but neither in its order nor whole."""


class Conversations(Generic[_T]):
    """The requests and replies so far, each with a value of the caller's."""

    def __init__(self) -> None:
        # Each sequence of messages has a number: that of the sequence without its last message, and that message.
        self._numbers: dict[tuple[int, _Key], int] = {}
        self._asked: set[int] = set()
        self._answered: dict[int, _T] = {}
        self._messages: set[_Key] = set()
        self._replies: set[_Key] = set()
        self._asked_texts: PrefixTree[int] = PrefixTree()
        self._answered_texts: PrefixTree[_T] = PrefixTree()

    def add(self, call: Call, choice: Choice, value: _T) -> None:
        """Take note of a call's reply. Of equal conversations the last is found."""
        if call.dialect == "completions":
            if prompt := _prompt(call):
                reply = str(choice.message.get("text") or "")
                self._asked_texts.put(_packed(prompt), len(_packed(prompt)))
                self._answered_texts.put(_packed(prompt + reply), value)
            return
        number = 0
        for message in call.messages:
            key = _key(message)
            self._messages.add(key)
            number = self._number(number, key)
        self._asked.add(number)
        said = _key({**choice.message, "role": "assistant"})
        self._replies.add(said)
        self._answered[self._number(number, said)] = value

    def relate(self, call: Call) -> Related[_T]:
        """How a request relates to those before it."""
        if call.dialect == "completions":
            return self._relate_text(_prompt(call))
        keys = [_key(message) for message in call.messages]
        path = list(self._path(keys))
        continued = next((self._answered[n] for n in reversed(path) if n in self._answered), None)
        repeats = bool(keys) and len(path) == len(keys) and path[-1] in self._asked
        if continued is not None or repeats:
            return Related(continued, repeats=repeats)
        said = any(key in self._replies for key in keys if key.role == "assistant")
        cut = any(number in self._asked for number in path)
        return Related(edits=cut or (said and keys[0] in self._messages))

    def _path(self, keys: Iterable[_Key]) -> Iterator[int]:
        """The numbers of the sequences that `keys` begins with, as far as they are known."""
        number = 0
        for key in keys:
            if (number, key) not in self._numbers:
                return
            number = self._numbers[number, key]
            yield number

    def _number(self, number: int, key: _Key) -> int:
        return self._numbers.setdefault((number, key), len(self._numbers) + 1)

    def _relate_text(self, prompt: str) -> Related[_T]:
        text = _packed(prompt)
        answered = self._answered_texts.longest(text)
        return Related(
            answered[-1] if answered else None, repeats=len(text) in self._asked_texts.longest(text)
        )


def _packed(text: str) -> bytes:
    """A text with as many bytes for each character as a packed token id has."""
    return text.encode("utf-32-le", "surrogatepass")


def held_reasoning(message: dict[str, Any]) -> bool:
    """Whether a message has its reasoning with it, in a field or in its text."""
    if any(message.get(name) for name in _REASONING):
        return True
    return _THINK[1] in _text(message.get("content", message.get("text")))


def _prompt(call: Call) -> str:
    prompt = call.request.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    return prompt if isinstance(prompt, str) else ""


def _key(message: Any) -> _Key:
    if not isinstance(message, dict):
        return _Key("", str(message), ())
    role = str(message.get("role") or "")
    text = _text(message.get("content"))
    calls: list[tuple[str, str]] = []
    if role == "assistant":
        text = _without_reasoning(text)
        made = message.get("tool_calls")
        functions = [item.get("function") for item in made or () if isinstance(item, dict)]
        functions.append(message.get("function_call"))
        calls = [
            (str(function.get("name")), _arguments(function.get("arguments")))
            for function in functions
            if isinstance(function, dict)
        ]
    return _Key(role, text.strip(), tuple(calls))


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return "" if content is None else str(content)
    parts = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) else part
        parts.append(text if isinstance(text, str) else str(part))
    return "".join(parts)


def _without_reasoning(text: str) -> str:
    """The text behind its reasoning, whose opening tag may stand in the prompt; other blocks of it are taken out."""
    start, end = _THINK
    while end in text:
        before, _, after = text.partition(end)
        text = before.partition(start)[0].rstrip() + after if start in before else after
    return text


def _arguments(value: Any) -> str:
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError:
            return str(value).strip()
    try:
        return msgspec.json.encode(value, order="sorted").decode()
    except (TypeError, ValueError, OverflowError):
        return str(value)
