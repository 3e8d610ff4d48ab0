"""Chat completions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lightning_core.gateway.dialects.base import Edits, Rewriter
from lightning_core.gateway.dialects.rewriting import message_edits
from lightning_core.gateway.dialects.sampled import SampledDialect

_STOPS = ("stop_reason", "matched_stop")
"""Where vLLM and SGLang say which text ended a choice."""


class ChatDialect(SampledDialect):
    """`POST …/chat/completions`."""

    name = "chat"
    suffix = "/chat/completions"
    object_name = "chat.completion.chunk"
    max_token_fields = ("max_completion_tokens", "max_tokens")
    ask_logprobs = True

    def asked_logprobs(self, value: Any) -> bool:
        """See `SampledDialect.asked_logprobs`."""
        return value is True

    def logprobs_of(self, logprobs: Any) -> list[Any] | None:
        """See `SampledDialect.logprobs_of`."""
        content = logprobs.get("content") if isinstance(logprobs, dict) else None
        if not isinstance(content, list):
            return None
        return [item.get("logprob") if isinstance(item, dict) else None for item in content]

    def message_of(self, choice: dict[str, Any]) -> dict[str, Any]:
        """See `SampledDialect.message_of`."""
        message = choice.get("message")
        if not isinstance(message, dict):
            raise ValueError("a choice of the reply has no `message`")
        return message

    def chunks_of(self, choice: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """See `SampledDialect.chunks_of`."""
        message = dict(self.message_of(choice))
        tools = message.pop("tool_calls", None) or []
        content = message.pop("content", None)
        tokens: dict[str, Any] = {
            key: choice[key] for key in ("logprobs", "token_ids") if key in choice
        }
        first = {"role": message.pop("role", "assistant"), "content": "" if content else content}
        yield {"delta": first}
        # Reasoning comes before the text that it led to, and other extras do no harm there.
        extras = {key: value for key, value in message.items() if value is not None}
        if extras:
            yield {"delta": extras}
        if content:
            yield {"delta": {"content": content}, **tokens}
            tokens = {}
        for number, tool in enumerate(tools):
            yield {"delta": {"tool_calls": [{"index": number, **tool}]}, **tokens}
            tokens = {}
        stops = {key: choice[key] for key in _STOPS if key in choice}
        yield {"delta": {}, **tokens, "finish_reason": choice.get("finish_reason"), **stops}

    def rewrite(self, request: Mapping[str, Any], rewriter: Rewriter) -> Edits:
        """See `Dialect.rewrite`. A message's text is its content, or each text among its parts."""
        return message_edits("messages", request.get("messages"), rewriter)
