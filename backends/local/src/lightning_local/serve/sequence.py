"""A request under way: its choices, and what reaches the client of each."""

from __future__ import annotations

import asyncio
import random
from typing import Any, Literal

import msgspec
import torch

from lightning_local.serve.sampling import Params, Token
from lightning_local.serve.text import Detokenizer

FinishReason = Literal["stop", "length"]


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """What one step added to one choice."""

    index: int
    """The choice."""
    tokens: tuple[Token, ...] = ()
    """Sampled tokens; the one that ended the completion is among them."""
    text: str = ""
    """Text that became final; without the stop text."""
    finish_reason: FinishReason | None = None
    """Set on a choice's last delta."""
    stop_reason: str | int | None = None
    """The stop text, or the token of `stop_token_ids`, that ended the choice; None where neither did."""


class Failure(msgspec.Struct, frozen=True):
    """The request cannot be completed."""

    message: str
    """Why, for a person."""


class Job:
    """One request: one prompt or several, each with `n` choices.

    Made and read in the server's event loop, worked on in the scheduler's thread.
    """

    def __init__(self, prompts: list[tuple[list[int], Params]], *, n: int = 1) -> None:
        self.prompts = prompts
        self.n = n
        self.cancelled = False
        """Set when the client has gone; the scheduler drops the rows at its next step."""
        self.begun = False
        """Whether a part of it has been computed; then all of it is, before new weights come."""
        self.events: asyncio.Queue[Delta | Failure] = asyncio.Queue()
        """What happens, in order; a Failure is the last thing."""
        self.weights_version = 0
        """The weights that answer it; known once the first delta is there."""

    @property
    def choices(self) -> int:
        """How many choices it has in all."""
        return self.n * len(self.prompts)

    def sequences(self, tokenizer: Any, eos: frozenset[int]) -> list[Sequence]:
        """A row for each choice, numbered prompt by prompt."""
        return [
            Sequence(self, i * self.n + j, prompt, params, tokenizer, eos)
            for i, (prompt, params) in enumerate(self.prompts)
            for j in range(self.n)
        ]


class Sequence:
    """One choice of a job: a row of the batch once its prompt has been computed."""

    def __init__(
        self,
        job: Job,
        index: int,
        prompt: list[int],
        params: Params,
        tokenizer: Any,
        eos: frozenset[int],
    ) -> None:
        self.job = job
        self.index = index
        self.params = params
        self.prompt = prompt
        self.tokens: list[int] = []
        self.eos = eos
        self.finished = False
        seed = params.seed
        source = random.Random() if seed is None else random.Random(f"{seed}:{index}")
        self.rng = torch.Generator().manual_seed(source.getrandbits(63))
        self._text = Detokenizer(tokenizer, params.stop)

    @property
    def ids(self) -> list[int]:
        """Prompt and completion so far."""
        return self.prompt + self.tokens

    def push(self, token: Token) -> Delta:
        """Take the sampled token; says what the client gets, and whether the choice has ended."""
        params = self.params
        self.tokens.append(token.id)
        at_end = token.id in self.eos and not params.ignore_eos
        at_stop = token.id in params.stop_token_ids
        # The text of an end token is never part of the completion.
        piece = "" if at_end or at_stop else self._text.push(token.id)
        reason: FinishReason | None = None
        if at_end or at_stop or self._text.stopped is not None:
            reason = "stop"
        elif len(self.tokens) >= params.max_tokens:
            reason = "length"
        if reason is not None:
            piece += self._text.finish()
            if self._text.stopped is not None:
                reason = "stop"
        self.finished = reason is not None
        stop: str | int | None = self._text.stopped
        if stop is None and at_stop and not at_end:
            stop = token.id
        return Delta(
            index=self.index, tokens=(token,), text=piece, finish_reason=reason, stop_reason=stop
        )
