"""Items of OpenAI Responses, and the messages of chat completions that say the same.

An assistant's turn is one message there and several items here: reasoning, a message, function calls. What is made of a
message and comes back as input makes the very message again, so that a later prompt begins with the tokens of the
earlier one. Only an empty text beside a refusal or tool calls comes back as None.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from lightning_core.gateway.dialects.translation import Message

Item = dict[str, Any]
"""An item of a request's `input` or a reply's `output`."""

REASONING_FIELDS: Final = {"reasoning_content": "rs", "reasoning": "rt"}
"""The fields of a message in which servers put reasoning, and what the ids of their items begin with: an upstream gets the
reasoning back in the field that it used."""
TEXT_PARTS: Final = frozenset({"input_text", "output_text", "text"})
"""The types of parts that are text."""
ADVICE: Final = "leave it out, or use an upstream that speaks Responses"
"""The next step where chat completions cannot say something."""
_OF_REPLY = re.compile(r"(?:rs|rt|msg|fc)_(.+?)(?:_(\d+))?")


# From messages to items --------------------------------------------------------------------------------------------


def items_of(message: Message, call_id: str, logprobs: Sequence[Any] = ()) -> list[Item]:
    """The items that say what an assistant message says.

    Args:
        message: the message.
        call_id: of which the items' ids are made.
        logprobs: log-probabilities of the text, as chat completions have them.

    Raises:
        ValueError: it is no message of chat completions.
    """
    items: list[Item] = []
    name, reasoning = reasoning_of(message)
    if reasoning:
        item_id = f"{REASONING_FIELDS[name]}_{call_id}"
        items.append(
            text_item("reasoning", item_id, [{"type": "reasoning_text", "text": reasoning}])
        )
    text, refusal = text_of(message.get("content")), message.get("refusal")
    calls = as_list(message.get("tool_calls") or [], "tool_calls")
    parts: list[dict[str, Any]] = []
    if text or (text == "" and not refusal and not calls):
        parts.append(text_part(text, logprobs))
    if refusal:
        parts.append({"type": "refusal", "refusal": refusal})
    if parts or not (items or calls):
        items.append(text_item("message", f"msg_{call_id}", parts))
    for number, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise ValueError("a tool call of the reply has no `function`")
        items.append(
            call_item(call_id, number, call.get("id"), function.get("name"), function.get("arguments"))
        )  # fmt: skip
    return items


def reasoning_of(message: Message) -> tuple[str, str]:
    """The field of a message, or of a piece of it, that holds reasoning, and the reasoning; two empty strings where none
    does."""
    for name in REASONING_FIELDS:
        text = message.get(name)
        if text and isinstance(text, str):
            return name, text
    return "", ""


def text_item(kind: str, item_id: str, parts: list[dict[str, Any]]) -> Item:
    """An item of text: a `message` or `reasoning`."""
    own: Item = {"summary": []} if kind == "reasoning" else {"role": "assistant"}
    return {"id": item_id, "type": kind, **own, "content": parts, "status": "completed"}


def call_item(call_id: str, number: int, tool_call_id: Any, name: Any, arguments: Any) -> Item:
    """An item of one function call.

    Args:
        call_id: of which its id is made.
        number: its place among the reply's calls.
        tool_call_id: the upstream's own id of it, if it gave one.
        name: the function.
        arguments: its arguments as JSON, if there are any.
    """
    return {
        "id": f"fc_{call_id}_{number}",
        "type": "function_call",
        "call_id": str(tool_call_id or f"call_{call_id}_{number}"),
        "name": name if isinstance(name, str) else "",
        "arguments": arguments_of(arguments),
        "status": "completed",
    }


def text_part(text: str, logprobs: Iterable[Any] = ()) -> dict[str, Any]:
    """A part of text."""
    return {
        "type": "output_text",
        "text": text,
        "annotations": [],
        "logprobs": [_logprob(item) for item in logprobs if isinstance(item, dict)],
    }


def text_of(content: Any) -> str | None:
    """The text of a message's content, or of a piece of it; None where it has none."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else None
    texts = [part.get("text") for part in content if isinstance(part, dict)]
    return "".join(text for text in texts if isinstance(text, str))


def arguments_of(value: Any) -> str:
    """The arguments of a call as JSON; some servers give them as an object."""
    if value is None or isinstance(value, str):
        return value or ""
    return msgspec.json.encode(value).decode()


def _logprob(item: dict[str, Any]) -> dict[str, Any]:
    found = item.get("top_logprobs")
    best = [top for top in found if isinstance(top, dict)] if isinstance(found, list) else []
    return {**item, "bytes": item.get("bytes") or [],
            "top_logprobs": [{**top, "bytes": top.get("bytes") or []} for top in best]}  # fmt: skip


# From items to messages --------------------------------------------------------------------------------------------


def message_of(output: Sequence[Any]) -> tuple[Message, list[Item]]:
    """The assistant message that says what the items of a reply say, and the items that no message can say.

    Raises:
        ValueError: one is no object.
    """
    message: Message = {"role": "assistant", "content": None}
    others: list[Item] = []
    for number, item in enumerate(output):
        where = f"output[{number}]"
        as_object(item, where)
        try:
            said = _add(message, item.get("type"), item, where)
        except ValueError:
            said = False  # what a newer server knows more of is kept as it is
        if not said:
            others.append(item)
    return message, others


def messages_of(items: Any, earlier: Sequence[Message] = ()) -> list[Message]:
    """The messages that say what a request's `input` says, after those of `earlier`.

    Raises:
        ValueError: it is not of the format, or has an item that chat completions cannot say.
    """
    conversation = _Conversation(earlier)
    if isinstance(items, str):
        return [*earlier, {"role": "user", "content": items}]
    for number, item in enumerate(as_list(items, "input")):
        conversation.add(as_object(item, f"input[{number}]"), f"input[{number}]")
    return conversation.messages


class _Conversation:
    """Messages on their way through a request's items."""

    def __init__(self, earlier: Sequence[Message]) -> None:
        self.messages = list(earlier)
        self._turn: Message | None = None
        """The assistant message that further items may belong to."""
        self._kinds: set[str] = set()
        self._reply: str | None = None
        self._answered = False
        """Whether the turn's tools have begun to answer."""

    def add(self, item: Item, where: str) -> None:
        kind = item.get("type") or ("message" if "role" in item else "item_reference")
        kind = as_string(kind, f"{where}.type")
        role = item.get("role")
        if kind == "function_call_output":
            content = _content(item.get("output"), f"{where}.output")
            tool_call_id = as_string(item.get("call_id"), f"{where}.call_id")
            self.messages.append({"role": "tool", "tool_call_id": tool_call_id, "content": content})
            self._answered = True
        elif kind == "message" and role in ("user", "system", "developer"):
            content = _content(item.get("content"), f"{where}.content")
            # Chat templates of open models know no `developer`, or leave its messages out.
            role = "system" if role == "developer" else role
            self.messages.append({"role": role, "content": content})
            self._turn = None
        elif kind == "message" and role != "assistant":
            expected = "`user`, `assistant`, `system` or `developer`"
            raise ValueError(f"`{where}.role`: expected {expected} but got {role!r}")
        elif kind != "reasoning" or _reasoning_text(item, where):
            if not self._joins(kind, item.get("id")):
                self._turn = {"role": "assistant", "content": None}
                self.messages.append(self._turn)
                self._kinds, self._answered = set(), False
            assert self._turn is not None  # `_joins` says so
            self._kinds.add(kind)
            if not _add(self._turn, kind, item, where):
                raise ValueError(_unsaid(kind, where))

    def _joins(self, kind: str, item_id: Any) -> bool:
        """Whether an item of the assistant's belongs to the turn before it."""
        found = _OF_REPLY.fullmatch(item_id) if isinstance(item_id, str) else None
        before, self._reply = self._reply, found[1] if found else None
        if self._turn is None:
            return False
        same = found is not None and found[1] == before
        if self._answered:
            # A reply's calls, each followed by its output.
            number = str(len(self._turn.get("tool_calls", ())))
            return same and kind == "function_call" and found is not None and found[2] == number
        if same or kind == "function_call":
            return True
        return kind not in self._kinds if kind == "message" else self._kinds <= {"reasoning"}


def _add(message: Message, kind: Any, item: Item, where: str) -> bool:
    """Put into `message` what an item of the assistant's says; whether a message can say it."""
    if kind == "reasoning":
        text = _reasoning_text(item, where)
        if text:
            prefix = str(item.get("id")).partition("_")[0]
            name = "reasoning" if prefix == "rt" else "reasoning_content"
            message[name] = message.get(name, "") + text
        return bool(text)
    if kind == "message":
        content = item.get("content")
        if isinstance(content, str):
            content = [{"type": "output_text", "text": content}]
        parts = [
            _said_of(part, f"{where}.content[{number}]")
            for number, part in enumerate(as_list(content, f"{where}.content"))
        ]
        for field, text in parts:
            message[field] = (message.get(field) or "") + text
        return True
    if kind != "function_call":
        return False
    names = ("call_id", "name", "arguments")
    tool_call_id, name, arguments = (as_string(item.get(n), f"{where}.{n}") for n in names)
    call = {"id": tool_call_id, "type": "function"}
    message.setdefault("tool_calls", []).append(
        {**call, "function": {"name": name, "arguments": arguments}}
    )
    return True


def _said_of(part: Any, where: str) -> tuple[str, str]:
    """The field of a message that a part of the assistant's belongs to, and what it says."""
    kind = as_string(as_object(part, where).get("type"), f"{where}.type")
    if kind in TEXT_PARTS:
        return "content", as_string(part.get("text"), f"{where}.text")
    if kind == "refusal":
        return "refusal", as_string(part.get("refusal"), f"{where}.refusal")
    raise ValueError(
        f"`{where}`: expected a part of type `output_text` or `refusal` in a message of the assistant's but got"
        f" {kind!r}"
    )


def _reasoning_text(item: Item, where: str) -> str:
    """What an item of reasoning says; nothing where that is encrypted."""
    for name, between in (("content", ""), ("summary", "\n\n")):
        parts = as_list(item.get(name) or [], f"{where}.{name}")
        texts = [
            as_string(as_object(part, f"{where}.{name}").get("text"), f"{where}.{name}.text")
            for part in parts
        ]
        if any(texts):
            return between.join(texts)
    return ""


def _content(content: Any, where: str) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    found = [
        _part(as_object(part, f"{where}[{number}]"), f"{where}[{number}]")
        for number, part in enumerate(as_list(content, where))
    ]
    if not found:
        return ""
    # One text is the same as a string, which more servers take.
    only = found[0].get("text") if len(found) == 1 else None
    return found if only is None else str(only)


def _part(part: dict[str, Any], where: str) -> dict[str, Any]:
    kind = as_string(part.get("type"), f"{where}.type")
    if kind in TEXT_PARTS:
        return {"type": "text", "text": as_string(part.get("text"), f"{where}.text")}
    if kind == "input_image":
        url = part.get("image_url")
        if url is None:
            raise ValueError(
                f"`{where}`: expected an image by `image_url` but got {_given(part)}; {ADVICE}"
            )
        detail = {"detail": part["detail"]} if part.get("detail") else {}
        return {
            "type": "image_url",
            "image_url": {"url": as_string(url, f"{where}.image_url"), **detail},
        }
    if kind == "input_file":
        if part.get("file_url") is not None:
            raise ValueError(
                f"`{where}`: expected a file by `file_data` but got {_given(part)}; {ADVICE}"
            )
        names = ("file_data", "file_id", "filename")
        return {"type": "file", "file": {n: part[n] for n in names if part.get(n) is not None}}
    if kind == "input_audio":
        return {"type": "input_audio", "input_audio": as_object(part.get("input_audio"), where)}
    expected = "`input_text`, `input_image`, `input_file` or `input_audio`"
    raise ValueError(f"`{where}`: expected a part of type {expected} but got {kind!r}")


def _unsaid(kind: str, where: str) -> str:
    if kind == "item_reference":
        return (
            f"`{where}`: expected the item itself but got a reference to it, and nothing here keeps single items;"
            " send the item, or `previous_response_id`"
        )
    expected = "a message, reasoning, a function call or its output"
    return f"`{where}`: expected {expected} but got {kind!r}, which chat completions cannot say; {ADVICE}"


def _given(part: dict[str, Any]) -> str:
    names = [f"`{name}`" for name in part if name.startswith("file_")]
    return ", ".join(names) or "none"


# Checks ------------------------------------------------------------------------------------------------------------


def as_object(value: Any, where: str) -> dict[str, Any]:
    """`value`, an object. ValueError where it is none, as of the others."""
    if not isinstance(value, dict):
        raise ValueError(f"`{where}`: expected an object but got {value!r}")
    return value


def as_list(value: Any, where: str) -> list[Any]:
    """`value`, a list."""
    if not isinstance(value, list):
        raise ValueError(f"`{where}`: expected a list but got {value!r}")
    return value


def as_string(value: Any, where: str) -> str:
    """`value`, a string."""
    if not isinstance(value, str):
        raise ValueError(f"`{where}`: expected a string but got {value!r}")
    return value
