"""OpenAI Responses by way of chat completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from lightning_core.gateway.dialects.responses_events import ResponsesSieve
from lightning_core.gateway.dialects.responses_items import as_list, message_of
from lightning_core.gateway.dialects.responses_reply import Head, error_body, whole
from lightning_core.gateway.dialects.responses_request import chat_request, prompt_of
from lightning_core.gateway.dialects.translation import Message, Translation, Translator


class ResponsesTranslator(Translator):
    """Translates OpenAI Responses with function tools. What OpenAI's servers do beside the model, such as tools of their
    own, stored prompts and single items kept, is refused by name."""

    name = "responses"

    def prompt(self, body: dict[str, Any], earlier: Sequence[Message] = ()) -> list[Message]:
        """See `Translator.prompt`."""
        return prompt_of(body, earlier)

    def message(self, reply: dict[str, Any]) -> Message:
        """See `Translator.message`. Items of tools that the server ran itself are left out."""
        message, _ = message_of(as_list(reply.get("output"), "output"))
        return message

    def begin(
        self, body: dict[str, Any], call_id: str, earlier: Sequence[Message] = ()
    ) -> ResponsesTranslation:
        """See `Translator.begin`."""
        return ResponsesTranslation(body, call_id, earlier)


class ResponsesTranslation(Translation):
    """See `Translation`."""

    def __init__(self, body: dict[str, Any], call_id: str, earlier: Sequence[Message] = ()) -> None:
        """See `Translator.begin`."""
        self.request = chat_request(body, earlier)
        self._head = Head(body, call_id)

    def reply(self, body: bytes) -> bytes:
        """See `Translation.reply`."""
        return msgspec.json.encode(whole(self._head, body))

    def sieve(self) -> ResponsesSieve:
        """See `Translation.sieve`."""
        return ResponsesSieve(self._head)

    def failure(self, status: int, body: bytes) -> bytes:
        """See `Translation.failure`."""
        return error_body(status, body)
