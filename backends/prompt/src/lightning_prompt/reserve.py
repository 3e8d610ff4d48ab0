"""Reserve: what of the budget is kept for the comparison at the end, so that a search cannot use it up."""

from __future__ import annotations

from lightning_core.strategy import Strategy
from lightning_prompt.budget import Spent


class Reserve:
    """Some rollouts, half of them of the agent as it is, half of the best so far, and what they may be expected to take."""

    def __init__(self) -> None:
        self.rollouts = 0
        """How many are kept."""
        self.leading = Strategy().digest
        """The digest of the best strategy so far."""
        self._taken: dict[str, Spent] = {}

    def took(self, digest: str, spent: Spent) -> None:
        """Rollouts of a strategy have taken this."""
        self._taken[digest] = self._taken.get(digest, Spent()) + spent

    @property
    def held(self) -> Spent:
        """What is kept; of a strategy that has not been run, the rollouts alone."""
        half = self.rollouts // 2
        first = self.expected(half, Strategy().digest)
        return first + self.expected(self.rollouts - half, self.leading)

    def expected(self, rollouts: int, digest: str) -> Spent:
        """What rollouts of a strategy may be expected to take, by what its rollouts took so far."""
        taken = self._taken.get(digest, Spent())
        each = rollouts / max(taken.rollouts, 1)
        return Spent(
            rollouts=rollouts,
            calls=round(taken.calls * each),
            tokens=round(taken.tokens * each),
            usd=taken.usd * each,
            seconds=taken.seconds * each,
        )
