"""Text completions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lightning_core.gateway.dialects.sampled import SampledDialect


class CompletionsDialect(SampledDialect):
    """`POST …/completions`."""

    name = "completions"
    suffix = "/completions"
    object_name = "text_completion"
    max_token_fields = ("max_tokens",)
    ask_logprobs = 1

    def asked_logprobs(self, value: Any) -> bool:
        """See `SampledDialect.asked_logprobs`."""
        return isinstance(value, int) and not isinstance(value, bool)

    def logprobs_of(self, logprobs: Any) -> list[Any] | None:
        """See `SampledDialect.logprobs_of`."""
        values = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
        return values if isinstance(values, list) else None

    def message_of(self, choice: dict[str, Any]) -> dict[str, Any]:
        """See `SampledDialect.message_of`."""
        text = choice.get("text")
        if not isinstance(text, str):
            raise ValueError("a choice of the reply has no `text`")
        return {"text": text}

    def chunks_of(self, choice: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """See `SampledDialect.chunks_of`."""
        extras = {key: value for key, value in choice.items() if key != "finish_reason"}
        yield {**extras, "text": self.message_of(choice)["text"]}
        yield {"text": "", "logprobs": None, "finish_reason": choice.get("finish_reason")}
