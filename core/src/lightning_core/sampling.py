"""SamplingPolicy: how a policy is sampled, whatever the agent asked for."""

from __future__ import annotations

from lightning_core.errors import UsageError
from lightning_core.records import Record

SAMPLING_FIELDS = frozenset(
    {
        "temperature", "top_p", "top_k", "min_p", "typical_p", "top_a", "n", "best_of", "seed",
        "frequency_penalty", "presence_penalty", "repetition_penalty", "length_penalty", "logit_bias",
        "use_beam_search", "min_tokens", "ignore_eos", "allowed_token_ids", "bad_words",
    }
)  # fmt: skip
"""Request fields that change the distribution sampled from, or how often. In train and val mode those that the
agent sent are taken out: what was sampled must be what is trained."""


DEFAULT_MAX_TOKENS = 1024
"""Bound of a reply where the user gives none: a small model that does not stop would fill its context."""


class SamplingPolicy(Record, frozen=True, kw_only=True):
    """The sampling parameters of one mode. None leaves a field to the engine's default."""

    temperature: float = 1.0
    """Softmax temperature; 0 is greedy."""
    top_p: float | None = None
    """Nucleus mass."""
    top_k: int | None = None
    """Number of candidates."""
    seed: int | None = None
    """Engine seed; the gateway adds the call's index and a number made of the rollout's id, so that equal prompts differ
    and a rollout that is run again under the same id is sampled the same."""
    max_tokens: int | None = None
    """Upper bound on completion tokens; an agent may ask for fewer."""
    allow_n: bool = True
    """Whether an agent may ask for several choices; they are siblings. Else `n` is taken out."""
    as_asked: bool = False
    """Whether the agent's own parameters stand, within `max_tokens`: for a policy that is used, not learnt from or
    measured. The other fields then say nothing."""


def check_whole_distribution(policy: SamplingPolicy) -> None:
    """Refuse a policy whose rollouts a trainer cannot learn from.

    Raises:
        UsageError: it samples from a part of the distribution.
    """
    limits = {name: getattr(policy, name) for name in ("top_p", "top_k")}
    given = [f"{name}={value!r}" for name, value in limits.items() if value is not None]
    if given:
        raise UsageError(
            f"sampling: {', '.join(given)} leaves tokens out that the trainer counts in; rollouts to learn from are"
            " sampled from the whole distribution"
        )
