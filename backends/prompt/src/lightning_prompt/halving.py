"""Successive halving: the best of many strategies for few rollouts (Jamieson and Talwalkar 2016, arXiv:1502.07943)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from lightning_core.strategy import Strategy
from lightning_core.task import Task
from lightning_prompt.evaluation import Evaluator, RefusedError, Scores

_FIRST: Final = 8
"""Tasks of the first round, at least."""
_KEPT: Final = 1 / 3
"""Share of the strategies that go on from a round to the next, which has that many times more tasks."""


async def halve(
    evaluator: Evaluator,
    strategies: Sequence[Strategy],
    choose: Sequence[Task],
    *,
    rollouts: int | None,
    worth: Callable[[Scores], tuple[float, ...] | None],
    on_scores: Callable[[Scores], Coroutine[Any, Any, None]],
    on_round: Callable[[list[Scores]], None],
    on_refused: Callable[[Strategy, RefusedError], None],
    on_ahead: Callable[[Scores], None] = lambda scores: None,
    stop: Callable[[], bool] = lambda: False,
) -> list[Strategy]:
    """Try all strategies on as many tasks as the rollouts allow, the better third on three times as many, and so on to all.

    Args:
        evaluator: runs the rollouts.
        strategies: what is tried, in an order that plays no part but for ties.
        choose: the tasks, in a random order.
        rollouts: how many there may be; None for as many as it takes to try all strategies on all tasks.
        worth: what a strategy is worth, higher is better; None where nothing of it is scored.
        on_scores: told of each strategy that was tried on all tasks.
        on_round: told of all strategies of a round, once it is over.
        on_refused: told of each strategy under which the provider refuses the calls; it is left out.
        on_ahead: told, where the budget does not last to the end, of the best of the last round that was over.
        stop: whether the share of the budget is used up.

    Returns:
        Those that were refused.

    Raises:
        BudgetReached: the whole budget is.
        LightningError: rollouts could not be run.
    """
    left = list(strategies)
    refused: list[Strategy] = []
    ahead: Scores | None = None
    try:
        for kept, count in rounds(len(left), len(choose), rollouts):
            found: list[Scores] = []
            for strategy in left:
                if stop():
                    return refused
                try:
                    found.append(await evaluator.evaluate(strategy, choose[:count]))
                except RefusedError as error:
                    on_refused(strategy, error)
                    refused.append(strategy)
                    continue
                if count == len(choose):
                    await on_scores(found[-1])
            on_round(found)
            valued = [(value, each) for each in found if (value := worth(each)) is not None]
            valued.sort(key=lambda pair: pair[0], reverse=True)  # Equals stay in order.
            left = [each.strategy for _, each in valued[:kept]]
            ahead = valued[0][1] if valued and count < len(choose) else None
        return refused
    finally:
        if ahead is not None:
            on_ahead(ahead)


def rounds(strategies: int, tasks: int, rollouts: int | None) -> list[tuple[int, int]]:
    """How many strategies are kept after each round, and how many tasks it has; the last one has all tasks, and keeps one.

    Args:
        strategies: how many there are at first.
        tasks: how many tasks there are.
        rollouts: how many rollouts there may be. The first round has as many tasks as they allow, but at least eight.
    """
    for first in range(tasks, min(_FIRST, tasks) - 1, -1):
        made, cost, left, count = [], 0, strategies, first
        while True:
            cost += left * count
            kept = 1 if count == tasks else max(1, round(left * _KEPT))
            made.append((kept, count))
            if count == tasks:
                break
            left, count = kept, min(tasks, round(count / _KEPT))
        if rollouts is None or cost <= rollouts:
            break
    return made
