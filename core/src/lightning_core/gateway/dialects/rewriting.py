"""Rewriting: which texts of a request's prompt are replaced, and the prompt that this makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from lightning_core.gateway.dialects.base import LEADING, Edits, Fields, Rewriter, Rewritten

_TEXT = ("text",)
_items = msgspec.json.Decoder(list[msgspec.Raw])
_fields = msgspec.json.Decoder(Fields)


class Examples(msgspec.Struct, frozen=True):
    """Messages to put into a prompt: those of demonstrations."""

    sent: list[msgspec.Raw]
    """As they go upstream."""
    read: list[dict[str, Any]]
    """The same, decoded."""


def rewritten(
    fields: Fields, request: Mapping[str, Any], edits: Edits, examples: Examples
) -> Rewritten:
    """A request's prompt with its edits and examples.

    Args:
        fields: the request.
        request: the same, decoded, at least as far as the edits go in.
        edits: what is replaced.
        examples: messages to put in.
    """
    sent: dict[str, Any] = {}
    read: dict[str, Any] = {}
    _edit(edits.fields, fields, request, sent, read)
    if edits.place is not None and examples.sent:
        name, at = edits.place
        if name not in sent:
            _edit({name: {}}, fields, request, sent, read)
        sent[name] = [*sent[name][:at], *examples.sent, *sent[name][at:]]
        read[name] = [*read[name][:at], *examples.read, *read[name][at:]]
    return Rewritten(sent, read)


def _edit(edits: Mapping[Any, Any], raws: Any, values: Any, sent: Any, read: Any) -> None:
    """Put edited values of an object or a list into `sent` as they go upstream, and into `read` decoded."""
    for at, edit in edits.items():
        if isinstance(edit, dict):
            value = values[at]
            sent[at] = inner = _opened(raws, at, value)
            read[at] = value.copy()
            _edit(edit, inner, value, inner, read[at])
        else:
            sent[at] = read[at] = edit


def _opened(raws: Any, at: Any, value: Any) -> Any:
    """The items of what is edited, as they go upstream: `value` is the same, decoded."""
    if isinstance(value, list):
        return _items.decode(raws[at])
    # A text is the same however it is spelled, and to read a long one again costs as much as to match it. A number is not.
    if {str}.issuperset(map(type, value.values())):
        return value.copy()
    return _fields.decode(raws[at])


def content_edits(
    content: Any, role: Any, rewriter: Rewriter, kinds: tuple[str, ...] = _TEXT
) -> Any:
    """What replaces a text, or by place each text among parts; None where all stay.

    Args:
        content: the text or the parts.
        role: whose it is.
        rewriter: what replaces it.
        kinds: the types of parts that have a text.
    """
    if not isinstance(role, str) or role not in rewriter.roles:
        return None
    if isinstance(content, str):
        return rewriter.text(role, content)
    edits: dict[int, Any] = {}
    for at, part in enumerate(content if isinstance(content, list) else ()):
        text = part.get("text") if isinstance(part, dict) and part.get("type") in kinds else None
        if isinstance(text, str) and (new := rewriter.text(role, text)) is not None:
            edits[at] = {"text": new}
    return edits or None


def message_edits(
    field: str,
    messages: Any,
    rewriter: Rewriter,
    kinds: tuple[str, ...] = _TEXT,
    said: Callable[[dict[str, Any]], tuple[str, Any]] | None = None,
) -> Edits:
    """The edits of a list of messages; none where it is something else, of which the upstream says what is wrong with it.

    Args:
        field: the request's field that holds it.
        messages: the list.
        rewriter: what replaces texts.
        kinds: the types of parts that have a text.
        said: the field of a message that holds its text or parts, and whose it is.
    """
    if not isinstance(messages, list) or not {dict}.issuperset(map(type, messages)):
        return Edits()
    edits: dict[int, Any] = {}
    first = None
    for at, message in enumerate(messages):
        name, role = "content", message.get("role")
        if first is None and role not in LEADING:
            first = at
        if said is not None:
            name, role = said(message)
        content = content_edits(message.get(name), role, rewriter, kinds)
        if content is not None:
            edits[at] = {name: content}
    place = (field, len(messages) if first is None else first)
    return Edits({field: edits} if edits else {}, place)
