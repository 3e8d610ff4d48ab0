"""OpenAI Responses, for upstreams that speak it themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from lightning_core.capability import Capability
from lightning_core.gateway import jsontext
from lightning_core.gateway.dialects.assembly import make_choice
from lightning_core.gateway.dialects.base import Edits, Fields, Reply, Rewriter
from lightning_core.gateway.dialects.native import NativeDialect, events
from lightning_core.gateway.dialects.responses_items import Item, as_list, message_of
from lightning_core.gateway.dialects.responses_reply import INCOMPLETE
from lightning_core.gateway.dialects.rewriting import content_edits, message_edits
from lightning_core.gateway.dialects.sampled import message_of_error
from lightning_core.sampling import SamplingPolicy

_NO_FIELD = ("top_k", "seed")
_ECHOED = frozenset({"instructions", "tools"})
_DONE = b"[DONE]"
_TEXTS = ("input_text", "output_text")
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

    def rewrite(self, request: Mapping[str, Any], rewriter: Rewriter) -> Edits:
        """See `Dialect.rewrite`. `instructions` are a system text, a bare `input` is a user's, and a function's output is one of
        a tool's. A request that goes on from a stored response has no examples: the first one had them."""
        instructions = content_edits(request.get("instructions"), "system", rewriter, _TEXTS)
        given = request.get("input")
        edits = message_edits("input", given, rewriter, _TEXTS, _said)
        fields, place = dict(edits.fields), edits.place
        if instructions is not None:
            fields["instructions"] = instructions
        goes_on = any(map(request.get, ("previous_response_id", "conversation")))
        if isinstance(given, str):
            text, place = content_edits(given, "user", rewriter), ("input", 0)
            if rewriter.has_examples() and not goes_on:
                fields["input"] = [{"role": "user", "content": given if text is None else text}]
            elif text is not None:
                fields["input"] = text
        return Edits(fields, None if goes_on else place)

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


def _said(item: Item) -> tuple[str, Any]:
    """The field of an item that holds its text or parts, and whose it is; nobody's where it is no message."""
    kind = item.get("type", "message")
    if kind == "function_call_output":
        return "output", "tool"
    return "content", item.get("role") if kind == "message" else None
