"""Sample: what a trainer eats - token ids, which of them to learn from, and how much each counts."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from lightning_core.records import Record

NO_VERSION = -1
"""Version of a token that no policy of ours sampled: of an observation, or of a call that has no version."""


class Segment(Record, frozen=True, kw_only=True):
    """One reply within a sample: a stretch of sampled tokens that is learnt from there, and only there."""

    call_id: str
    """The call."""
    choice: int = 0
    """Position of the reply among the call's choices."""
    start: int
    """Where it begins in the sample, in tokens."""
    stop: int
    """Where it ends, exclusive."""
    agent: str | None = None
    """The agent that spoke."""
    node: str | None = None
    """The graph node that spoke."""
    version: int = NO_VERSION
    """The policy version that sampled it."""
    trainable: bool = True
    """Whether its tokens are learnt from; else they are context, with mask 0."""
    credit: float | None = None
    """The reward that the credit rule puts down to the call, from here to the rollout's end (no unit); None where
    nothing has been credited, or the rollout is not scored."""
    advantage: float | None = None
    """How much better than expected the call was, the same for each of its tokens; None before it is computed, and
    for methods that compute one for each token in the trainer (GAE)."""


class Sample(Record, frozen=True, kw_only=True):
    """One chain of a rollout's prefix forest, from its first prompt token to the last that is learnt from.

    `token_ids`, `mask`, `logprobs` and `versions` have the length L. A sampled token that several chains share is
    trainable in the first of them; in the others it is context.
    """

    rollout_id: str
    """The rollout."""
    task_id: str
    """Its task."""
    group: str | None = None
    """Its group."""
    token_ids: tuple[int, ...]
    """What the policy saw and said, shape [L]."""
    mask: tuple[int, ...]
    """1 for a token that is learnt from, else 0; shape [L]."""
    logprobs: tuple[float, ...]
    """Natural log-probability under the policy that sampled the token, as the engine reported it; 0.0 where `mask` is 0;
    shape [L]."""
    versions: tuple[int, ...]
    """The policy version that sampled the token, `NO_VERSION` where `mask` is 0; shape [L]."""
    segments: tuple[Segment, ...] = ()
    """The replies whose first appearance is here, in order; they do not overlap."""
    weight: float = 0.0
    """What each trainable token's loss is multiplied with: the sum over all tokens of all samples of a step, so
    weighted, is the step's loss, however it is split into micro-batches."""

    @property
    def trainable_tokens(self) -> int:
        """How many tokens are learnt from."""
        return sum(self.mask)

    def advantages(self) -> list[float]:
        """The advantage of each token, 0.0 where `mask` is 0; shape [L].

        Raises:
            ValueError: a trainable segment has none yet.
        """
        values = [0.0] * len(self.token_ids)
        for segment in self.segments:
            if segment.trainable:
                if segment.advantage is None:
                    raise ValueError(f"call `{segment.call_id}`: its advantage is not computed")
                values[segment.start : segment.stop] = [segment.advantage] * (
                    segment.stop - segment.start
                )
        return values

    def token_rewards(self) -> list[float]:
        """The reward at each token, so that the sum from a call's last token to the end is the call's credit; shape [L].

        Each trainable call's credit less the next one's, at the call's last token: for a final reward that is credited
        to all, 0.0 but at the last.
        """
        values = [0.0] * len(self.token_ids)
        after = 0.0
        for segment in reversed(self.segments):
            if segment.trainable and segment.stop > segment.start and segment.credit is not None:
                values[segment.stop - 1] = segment.credit - after
                after = segment.credit
        return values


class Joined(StrEnum):
    """How a call came into the forest."""

    NEW = "new"
    """It begins a chain: the first call, or a context that shares nothing with an earlier one."""
    EXTENDED = "extended"
    """Its prompt begins with a whole chain, which goes on with it."""
    FORKED = "forked"
    """Its prompt begins with an inner part of a chain that went on otherwise: a parallel call, a retry, another choice."""
    TEMPLATE_CHANGED = "template_changed"
    """It continues an earlier conversation, but the template renders that conversation's prompt otherwise now."""
    THINKING_DROPPED = "thinking_dropped"
    """It continues an earlier conversation, without the reasoning that the reply held."""
    RETOKENIZED = "retokenized"
    """It continues an earlier conversation word for word, but the reply's text became other tokens."""
    EDITED = "edited"
    """The agent compacted, cut or re-ordered what was said before."""


class Skipped(StrEnum):
    """Why a reply gives nothing to learn from."""

    OBSERVED = "observed"
    """It did not go to the policy: the session's mode is neither `train` nor `val`."""
    FAILED = "failed"
    """It failed, or its reply is not complete."""
    NO_TOKEN_IDS = "no_token_ids"
    """The engine gave no token ids, or the dialect samples nothing."""
    RETOKENIZED = "retokenized"
    """Its token ids are re-made from text, which was not allowed."""
    LENGTHS_DIFFER = "lengths_differ"
    """It has not one log-probability for each sampled token, or one that is no number."""
    NOT_SELECTED = "not_selected"
    """Another agent's; its tokens are context where a trained agent's prompt holds them."""
    STALE = "stale"
    """Sampled by a policy that is older than the bound."""


class Drift(Record, frozen=True, kw_only=True):
    """How the calls of one or many rollouts went together."""

    calls: int = 0
    """Calls in all."""
    joined: dict[Joined, int] = msgspec.field(default_factory=dict)
    """Replies that are learnt from, by how they came into the forest; a call with `n` choices counts `n` times."""
    skipped: dict[Skipped, int] = msgspec.field(default_factory=dict)
    """Replies that give nothing to learn from, by reason; a call without any counts once."""
    tokens: int = 0
    """Tokens of all samples: what a trainer computes."""
    trainable_tokens: int = 0
    """Tokens that are learnt from."""
    retokenized: int = 0
    """Calls with re-made token ids that were let in."""
    examples: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """Ids of the first few calls by reason (`joined.edited`, `skipped.failed`), to look at with `lightning-core samples`;
    none of what is as it should be."""
