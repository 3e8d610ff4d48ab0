"""Drawing the next token of each row, and its log-probability."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Protocol

import msgspec
import torch

MAX_TOP = 20
"""Most alternatives that a reply lists per token."""


class Logprobs(StrEnum):
    """Of which distribution the log-probabilities are; vLLM's `--logprobs-mode` has both, as `raw_logprobs` and so on."""

    RAW = "raw"
    """The model's own: log-softmax of the logits, before temperature, penalties and filters."""
    PROCESSED = "processed"
    """The one sampled from: after penalties and biases, divided by the temperature, renormalised over what the
    filters leave. At temperature 0 nothing is sampled, and the raw ones are given."""


class Params(msgspec.Struct, frozen=True, kw_only=True):
    """How one request is sampled."""

    temperature: float = 1.0
    """Softmax temperature; 0 is greedy."""
    top_p: float = 1.0
    """Nucleus mass."""
    top_k: int = 0
    """Number of candidates; 0 for all."""
    min_p: float = 0.0
    """Least probability, as a share of the likeliest token's."""
    presence_penalty: float = 0.0
    """Taken off the logit of each token already in the completion."""
    frequency_penalty: float = 0.0
    """Taken off the logit once for each time that the token is in the completion."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens already in the prompt or the completion."""
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
    """Added to the logits, by token id."""
    seed: int | None = None
    """Makes the draws repeatable."""
    max_tokens: int = 16
    """Most tokens to sample."""
    min_tokens: int = 0
    """Tokens before which no end-of-text token is sampled."""
    ignore_eos: bool = False
    """Whether to go on past the end-of-text token."""
    stop: tuple[str, ...] = ()
    """Texts that end the completion; not part of it."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the completion, besides the model's own."""
    logprobs: int | None = None
    """Alternatives to list per token; None where log-probabilities are not asked for."""

    @property
    def plain(self) -> bool:
        """Whether the logits are used as they are, but for the temperature."""
        return (
            not self.presence_penalty
            and not self.frequency_penalty
            and self.repetition_penalty == 1.0
            and not self.logit_bias
            and not self.min_tokens
        )


class Token(msgspec.Struct, frozen=True):
    """A sampled token."""

    id: int
    """Its id."""
    logprob: float
    """Its log-probability, of the kind that `draw` was asked for."""
    top: tuple[tuple[int, float], ...] = ()
    """The likeliest tokens with their log-probabilities, best first; as many as were asked for, but none that
    cannot be sampled."""


class Row(Protocol):
    """What sampling needs to know of a row."""

    params: Params
    """How it is sampled."""
    prompt: list[int]
    """The prompt's tokens."""
    tokens: list[int]
    """The completion's tokens so far."""
    rng: torch.Generator
    """Where its draws come from; on the CPU."""
    eos: frozenset[int]
    """The model's end tokens."""


def draw(logits: torch.Tensor, rows: Sequence[Row], kind: Logprobs = Logprobs.RAW) -> list[Token]:
    """One token for each row.

    Args:
        logits: float32 of shape (rows, vocabulary); not changed.
        rows: the rows, in the same order.
        kind: which log-probabilities the tokens get.
    """
    shaped = logits
    odd = [i for i, row in enumerate(rows) if not row.params.plain]
    if odd:
        shaped = logits.clone()
        for i in odd:
            _penalise(shaped[i], rows[i])
    ids = shaped.argmax(dim=-1)
    scored = logits
    warm = [i for i, row in enumerate(rows) if row.params.temperature > 0]
    if warm:
        drawn = [rows[i] for i in warm]
        scaled = _scale(shaped[warm], drawn)
        ids[warm] = _sample(scaled, drawn)
        if kind is Logprobs.PROCESSED:
            scored = (
                scaled
                if len(warm) == len(rows)
                else logits.index_copy(0, torch.tensor(warm, device=logits.device), scaled)
            )
    logprobs = torch.log_softmax(scored, dim=-1)
    chosen = logprobs.gather(1, ids[:, None])[:, 0].tolist()
    tops = _tops(logprobs, rows)
    return [
        Token(id_, logprob, top)
        for id_, logprob, top in zip(ids.tolist(), chosen, tops, strict=True)
    ]


def _scale(logits: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    """The logits whose softmax is sampled from."""
    # The type is given, as loading weights in another thread may change torch's default for a while.
    heat = torch.tensor(
        [row.params.temperature for row in rows], dtype=torch.float32, device=logits.device
    )
    scaled = logits / heat[:, None]
    for i, row in enumerate(rows):
        _filter(scaled[i], row.params)
    return scaled


def _sample(scaled: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    # A race of exponential clocks: the first to ring is a draw from the softmax. Each row has a clock of its own,
    # so that its draws do not depend on its neighbours; and rounding, which differs with the size of the batch,
    # changes a draw only where two tokens ring at practically the same moment.
    noise = torch.empty(scaled.shape, dtype=torch.float32)
    for i, row in enumerate(rows):
        noise[i].uniform_(generator=row.rng)
    # A number in [0, 1) becomes a waiting time; a 0 waits for ever, so that no rounding makes a clock ring at once.
    ringing = noise.log_().neg_().log_()
    return (scaled - ringing.to(scaled.device)).argmax(dim=-1)


def _filter(logits: torch.Tensor, params: Params) -> None:
    """Put out of reach what top-k, top-p and min-p leave out; in place, one row."""
    if 0 < params.top_k < logits.shape[-1]:
        least = logits.topk(params.top_k).values[-1]
        logits.masked_fill_(logits < least, -torch.inf)
    if params.top_p < 1.0:
        values, order = logits.sort(descending=True)
        probs = values.softmax(dim=-1)
        # A token stays when the mass before it is still short of top_p; so the likeliest always stays.
        out = order[probs.cumsum(dim=-1) - probs >= params.top_p]
        logits[out[out != order[0]]] = -torch.inf
    if params.min_p > 0.0:
        probs = logits.softmax(dim=-1)
        logits.masked_fill_(probs < params.min_p * probs.max(), -torch.inf)


def _penalise(logits: torch.Tensor, row: Row) -> None:
    """Apply penalties, biases and the ban on an early end; in place, one row."""
    params = row.params
    device = logits.device
    if params.repetition_penalty != 1.0:
        seen = torch.tensor(sorted({*row.prompt, *row.tokens}), device=device)
        values = logits[seen]
        logits[seen] = torch.where(
            values > 0, values / params.repetition_penalty, values * params.repetition_penalty
        )
    if row.tokens and (params.presence_penalty or params.frequency_penalty):
        counts = torch.zeros_like(logits)
        tokens = torch.tensor(row.tokens, device=device)
        counts.index_add_(0, tokens, torch.ones_like(tokens, dtype=counts.dtype))
        logits -= params.frequency_penalty * counts + params.presence_penalty * (counts > 0)
    for token, bias in params.logit_bias.items():
        logits[token] += bias
    if len(row.tokens) < params.min_tokens:
        logits[sorted(row.eos | set(params.stop_token_ids))] = -torch.inf


def _tops(logprobs: torch.Tensor, rows: Sequence[Row]) -> list[Any]:
    """The likeliest tokens of the rows that asked for them."""
    most = max((row.params.logprobs or 0) for row in rows)
    if not most:
        return [()] * len(rows)
    best = logprobs.topk(most, dim=-1)
    values, indices = best.values.tolist(), best.indices.tolist()
    return [
        tuple(
            (id_, logprob)
            for id_, logprob in zip(ids[: row.params.logprobs or 0], lps, strict=False)
            if logprob > -math.inf
        )
        for row, ids, lps in zip(rows, indices, values, strict=True)
    ]
