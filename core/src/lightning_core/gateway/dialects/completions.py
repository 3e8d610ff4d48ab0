"""Text completions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lightning_core.gateway.dialects.base import Edits, Rewriter
from lightning_core.gateway.dialects.sampled import SampledDialect


class CompletionsDialect(SampledDialect):
    """`POST …/completions`."""

    name = "completions"
    suffix = "/completions"
    object_name = "text_completion"
    max_token_fields = ("max_tokens",)
    ask_logprobs = 1
    takes_examples = False

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

    def rewrite(self, request: Mapping[str, Any], rewriter: Rewriter) -> Edits:
        """See `Dialect.rewrite`. The prompt, or each of several, is a user's text."""
        prompt = request.get("prompt")
        if "user" not in rewriter.roles or not isinstance(prompt, (str, list)):
            return Edits()
        if isinstance(prompt, str):
            made: Any = rewriter.text("user", prompt)
            return Edits() if made is None else Edits({"prompt": made})
        texts = [rewriter.text("user", one) if isinstance(one, str) else None for one in prompt]
        edits = {at: text for at, text in enumerate(texts) if text is not None}
        return Edits({"prompt": edits} if edits else {})
