"""Text completions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from lightning_core.gateway.dialects.base import Fields, Rewriter
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

    def rewrite(self, fields: Fields, rewriter: Rewriter) -> Mapping[str, msgspec.Raw]:
        """See `Dialect.rewrite`. The prompt, or each of several, is a user's text."""
        if not rewriter.looks_at("user"):
            return {}
        try:
            prompt = msgspec.json.decode(fields.get("prompt", b"null"))
        except msgspec.DecodeError:
            return {}
        prompts = prompt if isinstance(prompt, list) else [prompt]
        made = [rewriter.text("user", each) if isinstance(each, str) else None for each in prompts]
        if made.count(None) == len(made):
            return {}
        texts = [old if new is None else new for old, new in zip(prompts, made, strict=True)]
        sent = texts if isinstance(prompt, list) else texts[0]
        return {"prompt": msgspec.Raw(msgspec.json.encode(sent))}
