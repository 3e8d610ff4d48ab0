"""Share: what one part of a search may take of the budget."""

from __future__ import annotations

from lightning_prompt.budget import Spent
from lightning_prompt.evaluation import Evaluator


class Share:
    """A share of what is left, from now on."""

    def __init__(self, evaluator: Evaluator, parts: int) -> None:
        """
        Args:
            evaluator: knows the budget, and what is spent.
            parts: how many parts of the search are left; each gets the same.
        """
        self._evaluator = evaluator
        self._begun = evaluator.spent
        self._budget = evaluator.budget.left(self._begun + evaluator.reserve.held).share(1 / parts)

    def __call__(self) -> bool:
        """Whether it is used up."""
        return self._budget.reached(self._spent, reflecting=True) is not None

    @property
    def rollouts(self) -> int | None:
        """How many rollouts are left of it; None where they are not bounded."""
        return self._budget.left(self._spent).rollouts

    @property
    def _spent(self) -> Spent:
        now, then = self._evaluator.spent, self._begun
        return Spent(
            **{name: getattr(now, name) - getattr(then, name) for name in now.__struct_fields__}
        )
