"""What chat and text completions share: sampling fields, choices, token ids, events."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

import msgspec

from lightning_core.capability import Capability
from lightning_core.gateway import jsontext
from lightning_core.gateway.dialects.assembly import MISALIGNED, Assembly, EventChoice, make_choice
from lightning_core.gateway.dialects.base import Dialect, Fields, Prepared, Reply, Terms
from lightning_core.gateway.dialects.request import changed, term_changes
from lightning_core.gateway.sse import StreamFilter, data_of, payloads
from lightning_core.trace import Choice

NOTE = "lightning_note"
"""The key in `Call.reply` of what the gateway had to leave out, and why."""
_DONE = b"[DONE]"
_EMPTY_LIST = rb"\[\s*\]"  # what every event without choices holds, and few others do
_TOKENS = rb'"(?:prompt_)?token_ids"|"logprobs"'
_NULL = msgspec.Raw(b"null")
_fields = msgspec.json.Decoder(Fields)
_choice_fields = msgspec.json.Decoder(list[Fields])


class Event(msgspec.Struct, gc=False):
    """One event."""

    choices: list[EventChoice] | None = None
    usage: Any = None
    prompt_token_ids: Any = None
    error: Any = None


_event = msgspec.json.Decoder(Event)


def _decoded(data: list[bytes]) -> list[Event]:
    """The events that `data` spells; without the last one where that was cut.

    Raises:
        ValueError: one that is not the last is no event.
    """
    try:
        # One call for all is twice as fast as one for each.
        return _event.decode_lines(b"\n".join(data))
    except msgspec.DecodeError:
        pass
    events: list[Event] = []
    for number, item in enumerate(data):
        try:
            events.append(msgspec.convert(jsontext.decode(item), Event))
        except (ValueError, msgspec.ValidationError):
            if number + 1 < len(data):
                raise
    return events


class SampledDialect(Dialect):
    """A format whose reply has `choices` sampled from a model."""

    max_token_fields: ClassVar[tuple[str, ...]]
    """The fields that bound the completion; the last is the one to add."""
    ask_logprobs: ClassVar[Any]
    """What `logprobs` must be in a request."""

    @abstractmethod
    def asked_logprobs(self, value: Any) -> bool:
        """Whether `logprobs: value` asks for them."""

    @abstractmethod
    def logprobs_of(self, logprobs: Any) -> list[Any] | None:
        """The sampled tokens' values in a choice's `logprobs`; None where there are none."""

    @abstractmethod
    def message_of(self, choice: dict[str, Any]) -> dict[str, Any]:
        """The message of a choice of a whole reply.

        Raises:
            ValueError: it has none.
        """

    @abstractmethod
    def chunks_of(self, choice: dict[str, Any]) -> Iterable[dict[str, Any]]:
        """The event choices that say what a choice of a whole reply says."""

    object_name: ClassVar[str]
    """`object` of an event."""

    def prepare(self, body: bytes, fields: Fields, terms: Terms) -> Prepared:
        """See `Dialect.prepare`."""
        stream = bytes(fields.get("stream", b"")) == b"true"
        changes = term_changes(fields, terms, self.max_token_fields)
        options = (
            msgspec.json.decode(fields["stream_options"]) if "stream_options" in fields else {}
        )
        options = options if isinstance(options, dict) else {}
        asked_usage = bool(options.get("include_usage"))
        remake = hide_usage = hide_ids = hide_logprobs = False
        if Capability.TOKEN_IDS in terms.capabilities:
            hide_ids = bytes(fields.get("return_token_ids", b"")) != b"true"
            if hide_ids:
                changes["return_token_ids"] = True
            remake = stream and Capability.STREAM_TOKEN_IDS not in terms.capabilities
        if Capability.LOGPROBS in terms.capabilities:
            asked = "logprobs" in fields and msgspec.json.decode(fields["logprobs"])
            hide_logprobs = not self.asked_logprobs(asked)
            if hide_logprobs:
                changes["logprobs"] = self.ask_logprobs
        if remake:
            changes["stream"] = False
            if "stream_options" in fields:
                changes["stream_options"] = None
            hide_usage = not asked_usage
        elif stream and not asked_usage and terms.stream_usage:
            hide_usage = True
            changes["stream_options"] = {**options, "include_usage": True}
        return Prepared(
            body=changed(body, fields, changes, terms),
            overrides=changes,
            stream=stream,
            remake=remake,
            hide_usage=hide_usage,
            hide_ids=hide_ids,
            hide_logprobs=hide_logprobs,
        )

    def read(self, body: bytes) -> Reply:
        """See `Dialect.read`."""
        value = jsontext.decode(body)
        choices = value.pop("choices", None) if isinstance(value, dict) else None
        if not isinstance(choices, list) or not all(isinstance(c, dict) for c in choices):
            raise ValueError("the reply has no `choices`")
        usage = value.pop("usage", None)
        prompt = value.pop("prompt_token_ids", None)
        made: list[Choice] = []
        matches = True
        for choice in choices:
            prompt = prompt if prompt is not None else choice.get("prompt_token_ids")
            made_choice, fits = make_choice(
                choice.get("index"),
                self.message_of(choice),
                choice.get("finish_reason"),
                choice.get("token_ids"),
                self.logprobs_of(choice.get("logprobs")),
            )
            made.append(made_choice)
            matches = matches and fits
        return _reply(made, prompt, usage, value, matches)

    def read_stream(self, stream: bytes) -> Reply:
        """See `Dialect.read_stream`."""
        data = payloads(stream)
        complete = bool(data) and data[-1] == _DONE
        if complete:
            data.pop()
        assemblies: dict[int, Assembly] = {}
        usage: Any = None
        prompt: Any = None
        failure: str | None = None
        events = _decoded(data)
        for event in events:
            for choice in event.choices or ():
                index = choice.index if isinstance(choice.index, int) else 0
                assembly = assemblies.get(index)
                if assembly is None:
                    assembly = assemblies[index] = Assembly(index, self.logprobs_of)
                assembly.pieces.append(choice)
                if prompt is None:
                    prompt = choice.prompt_token_ids
            if event.usage is not None:
                usage = event.usage
            if event.prompt_token_ids is not None:
                prompt = event.prompt_token_ids
            if event.error is not None:
                failure = message_of_error(event.error)
        rest = _rest_of(data[0]) if events else {}
        for number in range(1, len(events)):
            if not events[number].choices:
                rest |= _rest_of(data[number])
        made = [assemblies[index].choice() for index in sorted(assemblies)]
        reply = _reply([c for c, _ in made], prompt, usage, rest, all(fits for _, fits in made))
        reply.failure = failure
        reply.complete = complete and failure is None
        return reply

    def conceal(self, body: bytes, prepared: Prepared) -> bytes:
        """See `Dialect.conceal`."""
        try:
            fields = _fields.decode(body)
            return _concealed(fields, prepared) if "choices" in fields else body
        except msgspec.DecodeError:
            return body

    def stream_filter(self, prepared: Prepared) -> StreamFilter | None:
        """See `Dialect.stream_filter`."""
        suspects = [_EMPTY_LIST] if prepared.hide_usage else []
        if prepared.hides:
            suspects.append(_TOKENS)
        if not suspects:
            return None

        def edit(event: bytes) -> bytes:
            data = data_of(event)
            if data is None or data == _DONE:
                return event
            try:
                fields = _fields.decode(data)
                if prepared.hide_usage and _only_usage(fields):
                    return b""
                if not prepared.hides or "choices" not in fields:
                    return event
                return b"data: " + _concealed(fields, prepared) + b"\n\n"
            except msgspec.DecodeError:
                return event

        return StreamFilter(re.compile(b"|".join(suspects)), edit)

    def remake(self, body: bytes, prepared: Prepared) -> bytes:
        """See `Dialect.remake`."""
        value = jsontext.decode(self.conceal(body, prepared))
        choices = value.pop("choices", None) if isinstance(value, dict) else None
        if not isinstance(choices, list) or not all(isinstance(c, dict) for c in choices):
            raise ValueError("the reply has no `choices`")
        usage = value.pop("usage", None)
        prompt = value.pop("prompt_token_ids", None)
        head = {**value, "object": self.object_name}
        if not prepared.hide_usage:
            head["usage"] = None
        events: list[dict[str, Any]] = []
        for choice in choices:
            for chunk in self.chunks_of(choice):
                chunk = {"index": choice.get("index", 0), "finish_reason": None, **chunk}
                events.append({**head, "choices": [chunk]})
        if prompt is not None and events:
            events[0]["prompt_token_ids"] = prompt
        if not prepared.hide_usage:
            events.append({**head, "choices": [], "usage": usage})
        lines = [b"data: " + msgspec.json.encode(event) + b"\n\n" for event in events]
        return b"".join([*lines, b"data: [DONE]\n\n"])


def message_of_error(error: Any) -> str:
    """The text of an `error` of an upstream's, in any of the forms in use."""
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return str(error["message"])
    return error if isinstance(error, str) else msgspec.json.encode(error).decode()


def _reply(
    choices: list[Choice], prompt: Any, usage: Any, rest: dict[str, Any], matches: bool
) -> Reply:
    if not matches:
        rest = {**rest, NOTE: MISALIGNED}
    model = rest.get("model")
    return Reply(
        choices=tuple(choices),
        prompt_token_ids=tuple(prompt) if isinstance(prompt, list) else None,
        reply=rest,
        usage=usage if isinstance(usage, dict) else None,
        model=model if isinstance(model, str) else None,
    )


def _rest_of(data: bytes) -> dict[str, Any]:
    value = jsontext.decode(data)
    dropped = ("choices", "usage", "prompt_token_ids")
    return {key: item for key, item in value.items() if key not in dropped}


def _only_usage(fields: Fields) -> bool:
    choices, usage = fields.get("choices"), fields.get("usage")
    if choices is None or usage is None or bytes(usage) == b"null":
        return False
    return bool(msgspec.json.decode(choices) == [])


def _concealed(fields: Fields, prepared: Prepared) -> bytes:
    choices = _choice_fields.decode(fields["choices"])
    if prepared.hide_ids:
        fields.pop("prompt_token_ids", None)
    for choice in choices:
        if prepared.hide_ids:
            choice.pop("token_ids", None)
            choice.pop("prompt_token_ids", None)
        if prepared.hide_logprobs and "logprobs" in choice:
            choice["logprobs"] = _NULL
    return msgspec.json.encode({**fields, "choices": choices})
