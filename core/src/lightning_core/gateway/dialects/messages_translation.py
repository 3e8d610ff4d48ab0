"""Anthropic Messages on its way through an upstream that speaks only chat completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from lightning_core.gateway import jsontext
from lightning_core.gateway.dialects.messages_blocks import blocks_of, message_of, stop_of
from lightning_core.gateway.dialects.messages_events import MessagesSieve, error_body, head
from lightning_core.gateway.dialects.messages_prompt import OTHERWISE, prompt_of
from lightning_core.gateway.dialects.messages_tools import tool_fields
from lightning_core.gateway.dialects.translation import Message, Translation, Translator

_AS_THEY_ARE = ("model", "max_tokens", "temperature", "top_p", "top_k")
_UNSAYABLE = ("container", "mcp_servers")
_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}


class MessagesTranslator(Translator):
    """See `Translator`.

    `thinking` is left out: chat completions has no budget for it, and what a model thinks is its server's own affair;
    `output_config.effort` becomes `reasoning_effort`. What only concerns billing, caches and the trimming of long prompts
    is left out too.
    """

    name = "messages"

    def prompt(self, body: dict[str, Any], earlier: Sequence[Message] = ()) -> list[Message]:
        """See `Translator.prompt`."""
        return [*earlier, *prompt_of(body)]

    def message(self, reply: dict[str, Any]) -> Message:
        """See `Translator.message`."""
        content = reply.get("content")
        if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
            raise ValueError("the reply has no `content`")
        return message_of(content)

    def begin(
        self, body: dict[str, Any], call_id: str, earlier: Sequence[Message] = ()
    ) -> MessagesTranslation:
        """See `Translator.begin`."""
        messages = self.prompt(body, earlier)
        if messages[-1]["role"] == "assistant":
            raise ValueError(
                "`messages`: the last one is the assistant's, and an upstream that speaks only chat completions cannot go on"
                f" with its text; {OTHERWISE}"
            )
        return MessagesTranslation(body, call_id, messages)

    def tokenize(self, body: dict[str, Any]) -> dict[str, Any]:
        """The request to vLLM's `/tokenize` that counts the tokens which `…/messages/count_tokens` asks for.

        Raises:
            ValueError: see `begin`.
        """
        messages = self.prompt(body)
        tools = tool_fields({**body, "tool_choice": None})
        return {"model": body.get("model"), "messages": messages, **tools}

    def count(self, body: bytes) -> bytes:
        """The reply to `…/messages/count_tokens` that says what `/tokenize` replied.

        Raises:
            ValueError: it has no `count`.
        """
        value = jsontext.decode(body)
        count = value.get("count") if isinstance(value, dict) else None
        if not isinstance(count, int):
            raise ValueError("the reply of `/tokenize` has no `count`")
        return msgspec.json.encode({"input_tokens": count})


class MessagesTranslation(Translation):
    """See `Translation`."""

    def __init__(self, body: Mapping[str, Any], call_id: str, messages: list[Message]) -> None:
        """
        Args:
            body: the request.
            call_id: the Call's id.
            messages: its prompt as messages of chat completions.

        Raises:
            ValueError: see `Translator.begin`.
        """
        self._call_id = call_id
        self._model = body.get("model")
        self._stops = _stops(body)
        self._stream = body.get("stream") is True
        self.request = {
            **{name: body[name] for name in _AS_THEY_ARE if body.get(name) is not None},
            "messages": messages,
            **tool_fields(body),
            **_fields(body),
        }
        if self._stops:
            self.request["stop"] = self._stops
        if self._stream:
            self.request |= {"stream": True, "stream_options": {"include_usage": True}}

    def reply(self, body: bytes) -> bytes:
        """See `Translation.reply`."""
        value = jsontext.decode(body)
        choices = value.get("choices") if isinstance(value, dict) else None
        choice = choices[0] if isinstance(choices, list) and choices else None
        message = choice.get("message") if isinstance(choice, dict) else None
        if not isinstance(choice, dict) or not isinstance(message, dict):
            raise ValueError("the reply has no `choices` with a `message`")
        blocks = blocks_of(message, self._call_id)
        called = any(block["type"] == "tool_use" for block in blocks)
        refused = bool(message.get("refusal"))
        stop = stop_of(choice, self._stops, called=called, refused=refused)
        model = value.get("model")
        model = model if isinstance(model, str) else self._model
        return msgspec.json.encode(head(self._call_id, model, blocks, stop, value.get("usage")))

    def sieve(self) -> MessagesSieve:
        """See `Translation.sieve`."""
        return MessagesSieve(self._call_id, self._model, self._stops)

    def failure(self, status: int, body: bytes) -> bytes:
        """See `Translation.failure`."""
        return failure(status, body, self._call_id)


def failure(status: int, body: bytes, call_id: str) -> bytes:
    """What an agent is told where a call failed, in the format's shape.

    Args:
        status: the HTTP status.
        body: what the upstream, or the gateway, said.
        call_id: the Call's id.
    """
    try:
        said = jsontext.decode(body)
    except ValueError:
        said = body.decode("utf-8", "replace")
    error = said.get("error", said) if isinstance(said, dict) else said
    return msgspec.json.encode({**error_body(status, error), "request_id": f"req_{call_id}"})


def _stops(body: Mapping[str, Any]) -> list[str]:
    stops = body.get("stop_sequences") or []
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise ValueError(f"`stop_sequences`: expected a list of texts but got {stops!r:.200}")
    return stops


def _fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """What says the same under another name.

    Raises:
        ValueError: something has no name in chat completions.
    """
    most = body.get("max_tokens")
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        raise ValueError(f"`max_tokens`: expected an integer of at least 1 but got {most!r:.200}")
    for name in _UNSAYABLE:
        if body.get(name):
            raise ValueError(
                f"`{name}` cannot be put to an upstream that speaks only chat completions; {OTHERWISE}"
            )
    fields: dict[str, Any] = {}
    user = _object(body, "metadata").get("user_id")
    if user is not None:
        fields["user"] = user
    output = _object(body, "output_config")
    effort = output.get("effort")
    if effort is not None:
        if effort not in _EFFORTS:
            known = ", ".join(f"`{name}`" for name in _EFFORTS)
            raise ValueError(f"`output_config.effort`: expected {known} but got {effort!r:.200}")
        fields["reasoning_effort"] = _EFFORTS[effort]
    wanted = output.get("format") or body.get("output_format")
    if wanted is not None:
        if not isinstance(wanted, dict) or wanted.get("type") != "json_schema":
            raise ValueError(
                f"`output_config.format`: expected an object of type `json_schema` but got {wanted!r:.200}"
            )
        schema = {"name": "output", "schema": wanted.get("schema"), "strict": True}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    return fields


def _object(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"`{name}`: expected an object but got {value!r:.200}")
    return value or {}
