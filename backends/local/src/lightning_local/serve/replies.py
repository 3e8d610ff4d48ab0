"""Replies and stream chunks, in OpenAI's form with vLLM's fields for token ids."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from lightning_local.serve import tool_calls
from lightning_local.serve.sampling import Token
from lightning_local.serve.sequence import Delta
from lightning_local.serve.text import Vocabulary

LEAST_LOGPROB = -9999.0
"""JSON has no infinity."""


class Reply:
    """Builds the reply of one HTTP request, at once or chunk by chunk."""

    def __init__(
        self,
        *,
        chat: bool,
        model: str,
        prompts: Sequence[list[int]],
        n: int,
        vocabulary: Vocabulary,
        logprobs: int | None,
        token_ids: bool,
        tools: bool,
    ) -> None:
        self._chat = chat
        self._prompts = prompts
        self._n = n
        self._vocabulary = vocabulary
        self._logprobs = logprobs
        self._token_ids = token_ids
        self._splitters = {
            index: tool_calls.Splitter() for index in range(n * len(prompts) if tools else 0)
        }
        self._tools = tools
        self._head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
        }
        self._completion_tokens = 0
        self._begun: set[int] = set()
        self._called: set[int] = set()
        self._offsets: dict[int, int] = {}

    def whole(self, deltas: Sequence[Delta], weights_version: int) -> dict[str, Any]:
        """The reply that is not a stream."""
        choices = []
        for index in range(self._n * len(self._prompts)):
            own = [delta for delta in deltas if delta.index == index]
            text = "".join(delta.text for delta in own)
            tokens = [token for delta in own for token in delta.tokens]
            reason: str | None = own[-1].finish_reason
            self._completion_tokens += len(tokens)
            choice: dict[str, Any] = {"index": index}
            if self._chat:
                message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
                parsed = tool_calls.parse(text) if self._tools else None
                if parsed is not None:
                    message["content"] = parsed[0] or None
                    message["tool_calls"] = parsed[1]
                    reason = "tool_calls" if reason == "stop" else reason
                choice["message"] = message
            else:
                choice["text"] = text
            choice["logprobs"] = self._show(index, tokens)
            choice["finish_reason"] = reason
            choice["stop_reason"] = own[-1].stop_reason
            if self._token_ids:
                choice["token_ids"] = [token.id for token in tokens]
                if not self._chat:
                    choice["prompt_token_ids"] = self._prompts[index // self._n]
            choices.append(choice)
        body: dict[str, Any] = {
            **self._head,
            "object": "chat.completion" if self._chat else "text_completion",
            "system_fingerprint": fingerprint(weights_version),
            "choices": choices,
            "usage": self.usage(),
        }
        if self._token_ids and len(self._prompts) == 1:
            body["prompt_token_ids"] = self._prompts[0]
        return body

    def chunks(self, delta: Delta, weights_version: int) -> list[dict[str, Any]]:
        """The chunks that one step of one choice makes; none where there is nothing to show yet."""
        index, made = delta.index, []
        if index not in self._begun:
            self._begun.add(index)
            if self._chat:
                made.append(
                    self._chunk(
                        index, {"delta": {"role": "assistant", "content": ""}}, weights_version
                    )
                )
        self._completion_tokens += len(delta.tokens)
        text, reason = delta.text, delta.finish_reason
        calls: list[dict[str, Any]] = []
        ends: str | None = reason
        splitter = self._splitters.get(index)
        if splitter is not None:
            text = splitter.push(text)
            if reason is not None:
                rest, calls = splitter.finish()
                text += rest
                if calls and reason == "stop":
                    ends = "tool_calls"
        shown = bool(text or calls or ends or self._token_ids or self._logprobs is not None)
        if shown:
            choice: dict[str, Any] = {"text": text}
            if self._chat:
                choice = {"delta": {"content": text} if text else {}}
                if calls:
                    choice["delta"]["tool_calls"] = [
                        {"index": i, **call} for i, call in enumerate(calls)
                    ]
            choice["logprobs"] = self._show(index, delta.tokens)
            choice["finish_reason"] = ends
            if ends is not None:
                choice["stop_reason"] = delta.stop_reason
            if self._token_ids:
                choice["token_ids"] = [token.id for token in delta.tokens]
            made.append(self._chunk(index, choice, weights_version))
        if made and self._token_ids and index not in self._called:
            # With the first chunk of each choice; a client with one choice finds it in the first of all.
            self._called.add(index)
            made[0]["prompt_token_ids"] = self._prompts[index // self._n]
        return made

    def last(self, weights_version: int) -> dict[str, Any]:
        """The chunk with the usage, for a client that asked for it."""
        return {
            **self._head,
            "object": self._kind(),
            "system_fingerprint": fingerprint(weights_version),
            "choices": [],
            "usage": self.usage(),
        }

    def usage(self) -> dict[str, int]:
        """Tokens in and out; a prompt counts once, however many choices it has."""
        prompt = sum(map(len, self._prompts))
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self._completion_tokens,
            "total_tokens": prompt + self._completion_tokens,
        }

    def _chunk(self, index: int, choice: dict[str, Any], version: int) -> dict[str, Any]:
        return {
            **self._head,
            "object": self._kind(),
            "system_fingerprint": fingerprint(version),
            "choices": [{"index": index, "finish_reason": None, "logprobs": None, **choice}],
        }

    def _kind(self) -> str:
        return "chat.completion.chunk" if self._chat else "text_completion"

    def _show(self, index: int, tokens: Sequence[Token]) -> dict[str, Any] | None:
        if self._logprobs is None:
            return None
        if self._chat:
            return {"content": [self._entry(token) for token in tokens], "refusal": None}
        texts = [self._vocabulary.show(token.id)[0] for token in tokens]
        offsets = []
        for text in texts:
            offsets.append(self._offsets.get(index, 0))
            self._offsets[index] = offsets[-1] + len(text)
        return {
            "tokens": texts,
            "token_logprobs": [_finite(token.logprob) for token in tokens],
            "top_logprobs": [
                {self._vocabulary.show(id_)[0]: _finite(logprob) for id_, logprob in token.top}
                for token in tokens
            ],
            "text_offset": offsets,
        }

    def _entry(self, token: Token) -> dict[str, Any]:
        tops = [self._one(id_, logprob) for id_, logprob in token.top]
        return {**self._one(token.id, token.logprob), "top_logprobs": tops}

    def _one(self, id_: int, logprob: float) -> dict[str, Any]:
        text, bytes_ = self._vocabulary.show(id_)
        return {"token": text, "logprob": _finite(logprob), "bytes": bytes_}


def fingerprint(weights_version: int) -> str:
    """Names the weights that answered, as OpenAI's `system_fingerprint`."""
    return f"weights-{weights_version}"


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)
