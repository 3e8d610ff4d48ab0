"""Learning: how the rollouts of a step become what is learnt from. Both halves make their numbers by it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from lightning_core.learn import LearningRules, SampleRules, step
from lightning_core.learn.advantage import ALGORITHMS
from lightning_core.learn.aggregation import Aggregation
from lightning_core.learn.credit import CreditRuleFactory, parse_credit
from lightning_core.learn.scoring import GroupBy
from lightning_core.optimization import OptimizeConfig

_KNOWN: Final = ("grpo", "dr_grpo", "gspo", "cispo", "rloo", "reinforce_pp", "ppo")
WHITENED: Final = frozenset(name for name in _KNOWN if ALGORITHMS[name] in step.WHITENED)
"""Algorithms whose advantages are whitened over the whole step, which the trainer alone sees."""
ESTIMATORS: Final[Mapping[str, str]] = {
    name: "dr_grpo" if name in WHITENED else ALGORITHMS[name] for name in _KNOWN
}
"""What `--algorithm` may be, and the estimator by which a group's advantages are made: core's, before it whitens."""
LOSSES: Final[Mapping[str, str]] = {"gspo": "gspo", "cispo": "cispo"}
"""verl's policy loss of each algorithm; `vanilla`, PPO's clipped one, for the others."""
CLIPS: Final[Mapping[str, tuple[float, float]]] = {"gspo": (3e-4, 4e-4), "cispo": (1.0, 5.0)}
"""How far below and above 1 a ratio is clipped, as with the backend `local`."""
CLIP: Final = (0.2, 0.28)
"""The same for the others."""
CRITIC: Final = frozenset({"ppo"})
"""Algorithms with a value network."""


class Learning(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked of learning, as the trainer needs it."""

    algorithm: str
    """`--algorithm`."""
    credit: str
    """`--credit`."""
    group_by: GroupBy
    """`--group-by`."""
    aggregation: Aggregation
    """`--aggregation`."""
    train_agents: str | None
    """`--train-agents`."""
    allow_retokenized: bool
    """`--allow-retokenized`."""
    max_staleness: int
    """`--max-staleness`."""
    refill: int
    """`--refill`."""
    max_tokens: int
    """Tokens that the trainer can take in one sample."""

    @classmethod
    def of(cls, asked: OptimizeConfig, *, max_tokens: int) -> Learning:
        """What was asked of a run."""
        return cls(
            algorithm=asked.algorithm,
            credit=asked.credit,
            group_by=GroupBy(asked.group_by),
            aggregation=Aggregation(asked.aggregation),
            train_agents=asked.train_agents,
            allow_retokenized=asked.allow_retokenized,
            max_staleness=asked.max_staleness,
            refill=asked.refill,
            max_tokens=max_tokens,
        )

    def rules(self, version: int, registered: Mapping[str, CreditRuleFactory]) -> LearningRules:
        """The rules of a step that trains policy `version`.

        Args:
            version: the policy that the step starts from.
            registered: credit rules by name.

        Raises:
            UsageError: the credit rule cannot be read, or is not registered here.
        """
        return LearningRules(
            samples=SampleRules(
                train_agents=self.train_agents,
                allow_retokenized=self.allow_retokenized,
                oldest_version=version - self.max_staleness,
            ),
            credit=parse_credit(self.credit, registered),
            estimator=ESTIMATORS[self.algorithm],
            group_by=self.group_by,
            aggregation=self.aggregation,
            max_tokens=self.max_tokens,
            version=version,
        )
