"""The prompt of an Anthropic Messages request as messages of chat completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_core.gateway.dialects.messages_blocks import Block, message_of
from lightning_core.gateway.dialects.translation import Message

Part = dict[str, Any]
"""A content part of a message of chat completions."""
OTHERWISE = "leave it out, or use an upstream that speaks Anthropic Messages itself"
_ROLES = ("user", "assistant", "system")
_ASSISTANTS = frozenset({"text", "thinking", "redacted_thinking", "tool_use"})


def prompt_of(body: Mapping[str, Any]) -> list[Message]:
    """The messages that say what the prompt says.

    The results of tools come before the rest of the user's turn that holds them, with `Error: ` before those that are errors;
    their images and files follow in the user's message, since a tool's can have none. Assistants' messages in a row are one.
    `cache_control`, citations and thinking that is encrypted are left out.

    Raises:
        ValueError: it is not of the format, or chat completions cannot say it; names the place.
    """
    made: list[Message] = []
    system = body.get("system")
    if system:
        made.append({"role": "system", "content": _content_of(_texts(system, "system"))})
    said: list[Block] = []
    messages = _items(body.get("messages"), "messages", "a list of messages")
    if not messages:
        raise ValueError("`messages`: expected at least one message but got none")
    for place, message in messages:
        role, content = message.get("role"), message.get("content")
        if role not in _ROLES:
            raise ValueError(f"`{place}.role`: expected `user` or `assistant` but got {role!r}")
        if role == "assistant":
            said += _assistants(content, f"{place}.content")
            continue
        if said:
            made.append(message_of(said))
            said = []
        if role == "user":
            made += _users(content, f"{place}.content")
        else:
            content = _content_of(_texts(content, f"{place}.content"))
            made.append({"role": "system", "content": content})
    if said:
        made.append(message_of(said))
    return made


def _assistants(content: Any, place: str) -> list[Block]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    blocks: list[Block] = []
    for at, block in _items(content, place, "text or a list of blocks"):
        if block.get("type") not in _ASSISTANTS:
            raise _unsayable(at, block)
        if block["type"] == "text":
            _text(block, at)
        elif block["type"] == "tool_use":
            for name, kind in (("id", str), ("name", str), ("input", dict)):
                if not isinstance(block.get(name), kind):
                    raise _not_a(f"{at}.{name}", kind.__name__, block.get(name))
        blocks.append(block)
    return blocks


def _users(content: Any, place: str) -> list[Message]:
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    results: list[Message] = []
    shown: list[Part] = []
    parts: list[Part] = []
    for at, block in _items(content, place, "text or a list of blocks"):
        if block.get("type") == "tool_result":
            result, beside = _result(block, at)
            results.append(result)
            shown += beside
        else:
            parts += _parts(block, at)
    parts = [*shown, *parts]
    if parts or not results:
        results.append({"role": "user", "content": _content_of(parts)})
    return results


def _result(block: Block, place: str) -> tuple[Message, list[Part]]:
    """A tool's message, and what of the result it cannot hold."""
    call = block.get("tool_use_id")
    if not isinstance(call, str):
        raise _not_a(f"{place}.tool_use_id", "str", call)
    content = block.get("content")
    parts: list[Part] = []
    if isinstance(content, str):
        parts = [_text_part(content)]
    elif content is not None:
        for at, item in _items(content, f"{place}.content", "text or a list of blocks"):
            parts += _parts(item, at)
    texts = [part for part in parts if part["type"] == "text"]
    if block.get("is_error"):
        first = texts[0]["text"] if texts else ""
        if not first.lower().startswith("error"):
            texts[:1] = [_text_part(f"Error: {first}")]
    message = {"role": "tool", "tool_call_id": call, "content": _content_of(texts)}
    return message, [part for part in parts if part["type"] != "text"]


def _parts(block: Block, place: str) -> list[Part]:
    kind, source = block.get("type"), block.get("source")
    if kind == "text":
        return [_text_part(_text(block, place))]
    if kind == "search_result":
        heading = f"{block.get('title')}\n{source}\n"
        return [_text_part(heading), *_texts(block.get("content"), f"{place}.content")]
    if kind == "image" and isinstance(source, dict):
        url = source.get("url") if source.get("type") == "url" else _data_url(source)
        if isinstance(url, str):
            return [{"type": "image_url", "image_url": {"url": url}}]
    if kind == "document" and isinstance(source, dict):
        return _document(block, source, place)
    raise _unsayable(place, block)


def _document(block: Block, source: dict[str, Any], place: str) -> list[Part]:
    kind = source.get("type")
    heading = [text for name in ("title", "context") if (text := block.get(name))]
    said = [_text_part("\n".join(map(str, heading)) + "\n")] if heading else []
    if kind == "text" and isinstance(source.get("data"), str):
        return [*said, _text_part(source["data"])]
    if kind == "content":
        content = source.get("content")
        if isinstance(content, str):
            return [*said, _text_part(content)]
        for at, item in _items(content, f"{place}.source.content", "text or a list of blocks"):
            said += _parts(item, at)
        return said
    url = _data_url(source)
    if url is None:
        raise _unsayable(place, block)
    file = {"filename": block.get("title") or "document.pdf", "file_data": url}
    context = block.get("context")
    before = [_text_part(str(context))] if context else []
    return [*before, {"type": "file", "file": file}]


def _data_url(source: dict[str, Any]) -> str | None:
    if source.get("type") != "base64" or not isinstance(source.get("data"), str):
        return None
    return f"data:{source.get('media_type')};base64,{source['data']}"


def _texts(content: Any, place: str) -> list[Part]:
    """The parts of what can only be text."""
    if isinstance(content, str):
        return [_text_part(content)]
    parts: list[Part] = []
    for at, block in _items(content, place, "text or a list of text blocks"):
        if block.get("type") != "text":
            raise _unsayable(at, block)
        parts.append(_text_part(_text(block, at)))
    return parts


def _content_of(parts: list[Part]) -> Any:
    """Parts as a message's content: one text as a string, which every server takes."""
    if not parts:
        return ""
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _text_part(text: str) -> Part:
    return {"type": "text", "text": text}


def _text(block: Block, place: str) -> str:
    text = block.get("text")
    if not isinstance(text, str):
        raise _not_a(f"{place}.text", "str", text)
    return text


def _items(value: Any, place: str, expected: str) -> list[tuple[str, dict[str, Any]]]:
    """The objects of a list, each with its place."""
    if not isinstance(value, list):
        raise ValueError(f"`{place}`: expected {expected} but got {type(value).__name__}")
    for number, item in enumerate(value):
        if not isinstance(item, dict):
            raise _not_a(f"{place}[{number}]", "object", item)
    return [(f"{place}[{number}]", item) for number, item in enumerate(value)]


def _not_a(place: str, expected: str, got: Any) -> ValueError:
    return ValueError(f"`{place}`: expected {expected} but got {type(got).__name__}")


def _unsayable(place: str, block: Block) -> ValueError:
    source = block.get("source")
    of = f" with a source of type {source.get('type')!r}" if isinstance(source, dict) else ""
    return ValueError(
        f"`{place}`: a block of type {block.get('type')!r}{of} cannot be put to an upstream that speaks only chat completions;"
        f" {OTHERWISE}"
    )
