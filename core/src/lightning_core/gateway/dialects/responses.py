"""OpenAI Responses, for upstreams that speak it themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from lightning_core.capability import Capability
from lightning_core.gateway import jsontext
from lightning_core.gateway.dialects.assembly import make_choice
from lightning_core.gateway.dialects.base import (
    LEADING,
    Fields,
    Reply,
    Rewriter,
)
from lightning_core.gateway.dialects.native import NativeDialect, events
from lightning_core.gateway.dialects.responses_items import Item, as_list, message_of
from lightning_core.gateway.dialects.responses_reply import INCOMPLETE
from lightning_core.gateway.dialects.sampled import message_of_error
from lightning_core.sampling import SamplingPolicy

_NO_FIELD = ("top_k", "seed")
_ECHOED = frozenset({"instructions", "tools"})
_DONE = b"[DONE]"
_NULL = msgspec.Raw(b"null")
_DELTAS: Final = {
    "response.output_text.delta": ("content", "output_text", "text"),
    "response.refusal.delta": ("content", "refusal", "refusal"),
    "response.reasoning_text.delta": ("content", "reasoning_text", "text"),
    "response.reasoning_summary_text.delta": ("summary", "summary_text", "text"),
}
"""For each kind of delta the list that its part is in, the part's type, and the field that grows."""
_FINISH: Final = {reason: word for word, reason in INCOMPLETE.items()}


class ResponsesDialect(NativeDialect):
    """`POST …/responses`. A choice's message is recorded in the form of chat completions, items that it cannot say in the
    reply's `output`. What a reply repeats of the request at length, `instructions` and `tools`, is not recorded again.

    The format has no `top_k` and no `seed`: they are None in the overrides where the policy has them. It gives no token ids,
    and log-probabilities are left to the agent to ask for."""

    name = "responses"
    suffix = "/responses"
    terminator = b""  # there are several, each in an event as long as the reply
    native = Capability.RESPONSES
    max_token_fields = ("max_output_tokens",)

    def fit(self, changes: dict[str, Any], fields: Fields, sampling: SamplingPolicy) -> None:
        """See `NativeDialect.fit`."""
        changes |= dict.fromkeys(name for name in _NO_FIELD if name in changes)

    def rewrite(self, fields: Fields, rewriter: Rewriter) -> Mapping[str, msgspec.Raw]:
        """See `Dialect.rewrite`. `instructions` are a system text, a bare `input` is a user's, and a function's output is one of
        a tool's. A request that goes on from a stored response has no examples: the first one had them."""
        changed: dict[str, msgspec.Raw] = {}
        instructions = _rewritten(_decoded(fields, "instructions"), "system", rewriter)
        if instructions is not None:
            changed["instructions"] = _encoded(instructions)
        given = _decoded(fields, "input")
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            return changed
        made = [_rewritten_item(item, rewriter) for item in items]
        sent = [old if new is None else new for old, new in zip(items, made, strict=True)]
        goes_on = any(_decoded(fields, name) for name in ("previous_response_id", "conversation"))
        examples = [] if goes_on else rewriter.examples()
        if examples:
            roles = [item.get("role") for item in items]
            first = next((n for n, role in enumerate(roles) if role not in LEADING), len(items))
            changed["input"] = _encoded([*sent[:first], *examples, *sent[first:]])
        elif made.count(None) < len(made):
            changed["input"] = _encoded(sent[0]["content"] if isinstance(given, str) else sent)
        return changed

    def read(self, body: bytes) -> Reply:
        """See `Dialect.read`."""
        value = jsontext.decode(body)
        if not isinstance(value, dict):
            raise ValueError("the reply is no object")
        return _reply(value)

    def read_stream(self, stream: bytes) -> Reply:
        """See `Dialect.read_stream`."""
        assembly = _Assembly()
        for event in events(stream, besides=_DONE):  # of servers that end all streams with it
            assembly.add(event)
        return assembly.reply()


class _Assembly:
    """A streamed reply, made of its events. Its last one says all; the others are for a stream that was cut."""

    def __init__(self) -> None:
        self._response: dict[str, Any] = {}
        self._items: dict[Any, Item] = {}
        self._deltas: dict[Any, dict[tuple[str, Any, str, str], list[str]]] = {}
        self._failure: str | None = None

    def add(self, event: dict[str, Any]) -> None:
        """Take one event; those of unknown types say nothing."""
        kind, index = event.get("type"), event.get("output_index")
        if isinstance(event.get("response"), dict):
            self._response = event["response"]
        elif kind in ("response.output_item.added", "response.output_item.done"):
            if isinstance(event.get("item"), dict):
                self._items[index] = event["item"]
                self._deltas[index] = {}
        elif kind == "error":
            self._failure = message_of_error(event.get("error") or event.get("message"))
        elif isinstance(event.get("delta"), str) and index in self._items:
            part = event.get("content_index", event.get("summary_index"))
            if kind == "response.function_call_arguments.delta":
                place: tuple[str, Any, str, str] = ("", 0, "", "arguments")
            elif kind in _DELTAS:
                holder, part_type, field = _DELTAS[kind]
                place = (holder, part, part_type, field)
            else:
                return
            self._deltas[index].setdefault(place, []).append(event["delta"])

    def reply(self) -> Reply:
        for index, deltas in self._deltas.items():
            item = self._items[index]
            for (holder, _, part_type, field), pieces in deltas.items():
                text = "".join(pieces)
                if holder:
                    before = item.get(holder) or []
                    item[holder] = [*before, {"type": part_type, field: text}]
                else:
                    item[field] = text
        if not self._response.get("output"):
            items = [self._items[index] for index in sorted(self._items)]
            self._response = {**self._response, "output": items}
        reply = _reply(self._response)
        reply.failure = reply.failure or self._failure
        reply.complete = reply.complete and self._failure is None
        return reply


def _reply(value: dict[str, Any]) -> Reply:
    output = as_list(value.get("output"), "output")
    message, others = message_of(output)
    status, usage, model = value.get("status"), value.get("usage"), value.get("model")
    choice, _ = make_choice(0, message, _finish_of(value, message), None, _logprobs(output))
    rest = {name: item for name, item in value.items() if name not in _ECHOED}
    rest.pop("usage", None)
    rest["output"] = others
    if not others:
        del rest["output"]
    failure = None
    if status == "failed":
        failure = message_of_error(value.get("error") or "the upstream says that it failed")
    return Reply(
        choices=(choice,) if output or status == "completed" else (),
        reply=rest,
        usage=_counted(usage) if isinstance(usage, dict) else None,
        model=model if isinstance(model, str) else None,
        complete=status in ("completed", "incomplete"),
        failure=failure,
    )


def _finish_of(value: dict[str, Any], message: dict[str, Any]) -> str | None:
    if value.get("status") == "completed":
        return "tool_calls" if message.get("tool_calls") else "stop"
    details = value.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    return _FINISH.get(reason, reason) if isinstance(reason, str) else None


def _counted(usage: dict[str, Any]) -> dict[str, Any]:
    """Token counts under the names of chat completions as well."""
    names = {"input_tokens": "prompt_tokens", "output_tokens": "completion_tokens"}
    return {**usage, **{new: usage[name] for name, new in names.items() if name in usage}}


def _logprobs(output: Sequence[Any]) -> list[Any] | None:
    """The log-probabilities of a reply's text, if it has them."""
    parts = [
        part
        for item in output
        if item.get("type") == "message" and isinstance(item.get("content"), list)
        for part in item["content"]
    ]
    found = [one for part in parts if isinstance(part, dict) for one in part.get("logprobs") or ()]
    values = [one.get("logprob") if isinstance(one, dict) else None for one in found]
    return values or None


def _rewritten_item(item: Item, rewriter: Rewriter) -> Item | None:
    """An item as it is rewritten; None where it stays."""
    kind, name, role = item.get("type", "message"), "content", item.get("role")
    if kind == "function_call_output":
        name, role = "output", "tool"
    elif kind != "message" or not isinstance(role, str):
        return None
    new = _rewritten(item.get(name), role, rewriter)
    return None if new is None else {**item, name: new}


def _rewritten(content: Any, role: str, rewriter: Rewriter) -> Any:
    """A text, or the texts of parts, as they are rewritten; None where they stay."""
    if not rewriter.looks_at(role):
        return None
    if isinstance(content, str):
        return rewriter.text(role, content)
    changed = False
    parts = list(content) if isinstance(content, list) else []
    for at, part in enumerate(parts):
        if not isinstance(part, dict) or part.get("type") not in ("input_text", "output_text"):
            continue
        text = part.get("text")
        if isinstance(text, str) and (new := rewriter.text(role, text)) is not None:
            parts[at], changed = {**part, "text": new}, True
    return parts if changed else None


def _decoded(fields: Fields, name: str) -> Any:
    """A field; None where it cannot be read, of which the upstream says what is wrong with it."""
    try:
        return msgspec.json.decode(fields.get(name, _NULL))
    except (msgspec.DecodeError, RecursionError):
        return None


def _encoded(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
